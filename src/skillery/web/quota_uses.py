"""Uses of quotas in words, for the account of a user and for admins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import astuple

from skillery.identity.usage import GetUsage, IdentityUse, NamespaceUse, get_usage
from skillery.web.frame import PageRequest

WORDS = {
    "blobs": "blobs",
    "blob_bytes": "bytes of blobs",
    "runs_per_minute": "runs of the last minute",
    "concurrent_runs": "runs at the same time",
    "session_tools": "tools of sessions",
    "workspaces": "workspaces",
    "workspace_bytes": "bytes of workspaces",
    "bundle_bytes": "bytes of versions",
}


class Use(NamedTuple):
    """The use of one quota."""

    of: str
    """The identity or the namespace."""
    quota: str
    used: int | None
    """None if the caller may not know the amount."""
    limit: int | None
    """None if there is no limit."""

    @property
    def words(self) -> str:
        return WORDS[self.quota]

    @property
    def is_size(self) -> bool:
        return self.quota.endswith("_bytes")

    @property
    def part(self) -> float:
        """The used part of the limit, 0.0 without a limit."""
        return (self.used or 0) / self.limit if self.limit else 0.0


async def uses_of_caller(request: PageRequest, identity: str = "") -> list[Use]:
    """Return the uses of the caller, or of another identity. Raise the errors of `get_usage`."""
    return list(uses_of_identity(await request.do(get_usage, GetUsage(identity=identity))))


def uses_of_identity(usage: IdentityUse) -> Iterator[Use]:
    """Yield the uses in a result of `get_usage`."""
    for name in WORDS:
        if name != "bundle_bytes":
            yield Use(usage.identity, name, *astuple(getattr(usage, name)))
    yield from map(use_of_namespace, usage.namespaces)


def use_of_namespace(usage: NamespaceUse) -> Use:
    return Use(usage.namespace, "bundle_bytes", *astuple(usage.bundle_bytes))
