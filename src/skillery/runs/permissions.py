"""The permissions of a run. A version without a reviewer's approval gets no permissions of its manifest."""

from __future__ import annotations

from typing import NamedTuple

from skillery.backends import Failure, FailureType, Identity
from skillery.formats.manifest import Manifest, Permissions
from skillery.identity import access
from skillery.registry import VersionRow
from skillery.registry.visibility import WAS_PUBLISHED


class Granted(NamedTuple):
    """The permissions that a run gets, and why they are fewer than its manifest lists."""

    permissions: Permissions = Permissions()
    why_less: str = ""
    failure: Failure | None = None
    """Set if the skill declares secrets and gets none: its code is not started without them."""

    @property
    def network(self) -> tuple[str, ...]:
        """The addresses that the run may reach, as a job has them."""
        return network_of(self.permissions)


def network_of(permissions: Permissions) -> tuple[str, ...]:
    return tuple(pattern.text for pattern in permissions.network)


def has_permissions(manifest: Manifest) -> bool:
    """Return whether runs of the skill may have more permissions than code of run_code."""
    return bool(manifest.permissions.network or manifest.permissions.secrets)


def granted(identity: Identity, version: VersionRow, manifest: Manifest) -> Granted:
    """Return what a run of the version gets if `identity` starts it.

    Versions that were never published have network and secrets only in runs of callers who could approve them.
    Otherwise, their authors would have both without a review.
    """
    could_approve = access.is_admin(identity) or (
        access.reviews(identity, version.name) and identity.name != version.publisher
    )
    permissions = manifest.permissions if version.status in WAS_PUBLISHED or could_approve else Permissions()
    if permissions == manifest.permissions:
        return Granted(permissions)
    why_less = _why_less(version, manifest.permissions)
    failure = Failure(FailureType.SECRET_NOT_GRANTED, why_less) if manifest.permissions.secrets else None
    return Granted(permissions, why_less, failure)


def _why_less(version: VersionRow, listed: Permissions) -> str:
    what = " and ".join(word for word, some in (("network", listed.network), ("secrets", listed.secrets)) if some)
    return (
        f"'{version.name}' {version.version} is {version.status}: it gets its {what} once a reviewer has approved it, "
        "or in a run of a reviewer's own"
    )
