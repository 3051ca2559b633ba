"""The permissions of a run. A version that was never published gets the permissions of its manifest only in some
runs: the caller could approve the version.
"""

from __future__ import annotations

from typing import NamedTuple

from skillery.backends import Failure, FailureType, Identity
from skillery.formats.manifest import Manifest, Permissions
from skillery.identity import access
from skillery.registry import VersionRow
from skillery.registry.visibility import WAS_PUBLISHED


class Granted(NamedTuple):
    """The permissions of a run. `why_less` is the reason if they are fewer than in the manifest, else ""."""

    permissions: Permissions = Permissions()
    why_less: str = ""
    failure: Failure | None = None
    """Set if the skill declares secrets and gets none: the run then fails before its code starts."""

    @property
    def network(self) -> tuple[str, ...]:
        """The network addresses that the run may reach, in the form of `Job.network`."""
        return network_of(self.permissions)


def network_of(permissions: Permissions) -> tuple[str, ...]:
    return tuple(pattern.text for pattern in permissions.network)


def has_permissions(manifest: Manifest) -> bool:
    """Return whether the skill declares permissions. Its runs may then have more permissions than code of run_code."""
    return bool(manifest.permissions.network or manifest.permissions.secrets)


def granted(identity: Identity, version: VersionRow, manifest: Manifest, rules: access.ApprovalRules) -> Granted:
    """Return the permissions of a run of the version that `identity` starts.

    A version that was never published gets network and secrets only if the caller could approve the version. Else
    authors could use both without a review.
    """
    could_approve = access.approves(identity, version.name, version.publisher, rules)
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
