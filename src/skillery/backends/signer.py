"""Signers: the key with which a registry signs its statements about versions."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from skillery.backends.values import Kind, WithDefaults, default


@runtime_checkable
class Signer(Protocol, metaclass=WithDefaults):
    """Signs with a private key that the core never sees. Blocking: several worker threads call the methods at the same
    time.

    The key is Ed25519, or ECDSA on P-256 with SHA-256. A keyid is `sha256:` and the SHA-256 of the public key in DER,
    in hex. All servers of one database use one key. A backend whose service cannot be reached raises Unavailable.
    """

    def public_keys(self) -> list[bytes]:
        """Return the public keys in DER (SubjectPublicKeyInfo). The list may be empty before the first signature, if
        the backend then makes a new key.
        """
        ...

    def sign(self, data: bytes) -> tuple[str, bytes]:
        """Return the keyid and the signature for `data`: 64 bytes for Ed25519, DER for ECDSA. Of several keys, use the
        newest one.
        """
        ...

    @default()
    def sign_with(self, keyid: str, data: bytes) -> tuple[str, bytes]:
        """Sign with this key of `public_keys`, the one of the registry. A service may have a newer key already, with
        which the registry signs after `skillery key rotate`. Default: `sign`.
        """
        return self.sign(data)

    @default("start", "close")
    async def start(self) -> None:
        """See `UsesService`."""
        return

    @default("start", "close")
    async def close(self) -> None:
        return


KIND = Kind("signer", Signer, setting="signing.key", absent="off", reads=("public_keys", "sign", "sign_with"))
