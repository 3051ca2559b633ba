"""Proof of a version without a server: signed statements about the digest of a bundle, and their verification.

The package needs msgspec and `cryptography`, and no other module of Skillery: the client has the same files.
"""
