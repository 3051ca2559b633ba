"""Verifiers: the signed tokens of CI jobs, for trusted publishing, and the Sigstore bundles of authors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol, runtime_checkable

import msgspec

from skillery.backends.values import Kind, UsesService


@runtime_checkable
class Verifier(Protocol):
    """Verifies signed tokens of issuers that trust rules name, for trusted publishing.

    A verifier reads the documents of an issuer only with `Place.fetch`, which bounds them and checks addresses.
    """

    async def check_issuer(self, issuer: str) -> None:
        """Read the metadata and the keys of an issuer. Raise InvalidParams with the reason if they are not usable."""
        ...

    async def verify(self, token: str, issuers: Collection[str], audience: str) -> Mapping[str, Any]:
        """Return the claims of a token that one of the issuers has signed for exactly this audience.

        The signature and the times of the token are valid, and the token is not an access token. The caller checks all
        other claims. Raise NotAuthenticated with a message without secrets if the token is not valid. Raise Unavailable
        if the keys of the issuer cannot be read.
        """
        ...


KIND = Kind("verifier", Verifier, (UsesService,), reads=("check_issuer", "verify"))


class SigstoreIdentity(msgspec.Struct, frozen=True):
    """The identity in the certificate of a Sigstore bundle."""

    issuer: str
    """The address of the identity provider: `https://token.actions.githubusercontent.com`."""
    subject: str
    """An e-mail address, or the address of a workflow with its ref."""


@runtime_checkable
class SigstoreVerifier(Protocol):
    """Verifies Sigstore bundles without a network. Blocking: several worker threads call it at the same time."""

    def verify(self, bundle: str, sha256: str) -> SigstoreIdentity:
        """Return the identity that has signed the file with this SHA-256 (hex). `bundle` is JSON from a stranger.

        The certificate, its log entry, their times and the signature are valid for the trusted root. The caller judges
        the identity. Raise InvalidParams with the reason if the bundle is not valid, or is about another file.
        """
        ...


SIGSTORE = Kind("sigstore", SigstoreVerifier, reads=("verify",))
