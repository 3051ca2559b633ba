"""Verifiers: the signed tokens of CI jobs, for trusted publishing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol, runtime_checkable

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
