"""What a version that nobody has approved does not get, whatever its manifest lists."""

from __future__ import annotations

from skillery.backends import Failure, FailureType, Identity
from skillery.formats.manifest import Manifest, Permissions
from skillery.identity import access
from skillery.registry import VersionRow
from skillery.registry.visibility import WAS_PUBLISHED


def permitted(identity: Identity, version: VersionRow, manifest: Manifest) -> Permissions:
    """What a run gets. Network and secrets of a version that was never published are for those who could approve it:
    else its author would have them without anybody having looked."""
    could_approve = access.is_admin(identity) or (
        access.reviews(identity, version.name) and identity.name != version.publisher
    )
    return manifest.permissions if version.status in WAS_PUBLISHED or could_approve else Permissions()


def withheld(permissions: Permissions, version: VersionRow, manifest: Manifest) -> str:
    """Why a run lacks what its manifest lists; "" where it lacks nothing."""
    if permissions == manifest.permissions:
        return ""
    what = " and ".join(
        word
        for word, listed in (("network", manifest.permissions.network), ("secrets", manifest.permissions.secrets))
        if listed
    )
    return (
        f"'{version.name}' {version.version} is {version.status}: it gets its {what} once a reviewer has approved it, "
        "or in a run of a reviewer's own"
    )


def no_secrets(why: str, manifest: Manifest) -> Failure | None:
    """Code that relies on its secrets is not started without them."""
    return Failure(FailureType.SECRET_NOT_GRANTED, why) if why and manifest.permissions.secrets else None
