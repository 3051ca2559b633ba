"""Proof of a version without a server: signed statements about the digest of a bundle, and their verification.

The package needs msgspec and `cryptography`, and no other module of Skillery: the client has the same files.
"""

from __future__ import annotations

from collections.abc import Mapping

KEYS_ADDRESS = "/.well-known/skillery/keys"
"""The address of the statements about the keys of a registry."""
ADVISORIES_ADDRESS = "/advisories.json"
"""The address of the feed of advisories."""
SEALS_ADDRESS = "/.well-known/skillery/seals"
"""The address of the seals, oldest first."""
SIGNERS: Mapping[str, str] = {"author": "author", "review": "reviewer", "evaluation": "by"}
"""The words of statements that identities sign with their own keys, and the field that names the identity."""
STATED_BY: Mapping[str, str] = {"publication": "publisher", "revocation": "by", **SIGNERS}
"""The field with the identity that has signed a statement or caused it, by word."""
