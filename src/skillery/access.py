"""Who may do what: an identity's scopes decide which methods it may call."""

from __future__ import annotations

from skillery.backends import Identity, Scope
from skillery.errors import NotAllowed


def require(identity: Identity, scope: Scope) -> None:
    """Raises NotAllowed unless the identity has the scope (`admin` has them all)."""
    if scope in identity.scopes or "admin" in identity.scopes:
        return
    raise NotAllowed(
        f"'{identity.name}' lacks the scope '{scope}'",
        hint=f"Ask an admin for a token with the scope '{scope}'.",
        scope=scope,
    )
