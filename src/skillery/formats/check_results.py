"""The results of checks of a bundle: findings, examples that ran, and changes of permissions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from skillery.formats.manifest import Permissions
from skillery.formats.network import covers

Severity = Literal["error", "warning", "info"]
VULNERABILITY = "osv."
"""The rule of a finding about a known vulnerability begins with this text. Its id in OSV follows."""


class WaiverNote(msgspec.Struct, frozen=True):
    """The part of a waiver that answers show with the waived finding."""

    id: str
    by: str
    kind: str
    at: str
    reason: str
    until: str | None


class CheckFinding(msgspec.Struct, frozen=True):
    """A finding about a version, with the waiver that applies to the finding, if there is one."""

    rule: str
    message: str
    severity: Severity
    file: str | None = None
    line: int | None = None
    waiver: WaiverNote | None = None

    @property
    def refuses(self) -> bool:
        return self.severity == "error" and self.waiver is None


class CheckedExample(msgspec.Struct, frozen=True, omit_defaults=True):
    """An example and the run that tested it. `waiting`: the example needs permissions, and runs at the approval."""

    name: str
    status: Literal["passed", "failed", "waiting", "not_run"]
    run_id: str | None = None
    duration_ms: float | None = None


# -- Permissions, compared with those of other versions of the skill ---------------------------------------------------


class PermissionNames(msgspec.Struct, frozen=True):
    """Permissions as a manifest writes them."""

    network: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    workspace: bool | msgspec.UnsetType = msgspec.UNSET
    """Set if the permissions also apply in workspaces: `runtime.workspace`."""
    calls: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Required skills whose functions the skill may call, with their own permissions, if there are any."""
    calls_hidden: int | msgspec.UnsetType = msgspec.UNSET
    """The number of further such skills, which the caller may not see."""

    def __bool__(self) -> bool:
        return bool(self.network or self.secrets or self.workspace is True or self.calls or self.calls_hidden)


class PermissionsDiff(msgspec.Struct, frozen=True):
    """The permissions that a version adds and removes. `against` is the other version, or None for a first version."""

    against: str | None
    added: PermissionNames
    removed: PermissionNames

    @property
    def is_increase(self) -> bool:
        return bool(self.added)

    @property
    def is_change(self) -> bool:
        return bool(self.added or self.removed)


def beyond(new: Permissions, old: Permissions) -> PermissionNames:
    """Return the permissions of `new` that `old` does not include.

    These are network patterns that no pattern of `old` covers, secrets that `old` does not name, the use of the
    permissions in workspaces, and calls of other skills with permissions.
    """
    network = tuple(pattern.text for pattern in new.network if not any(covers(other, pattern) for other in old.network))
    workspace = True if new.workspace and not old.workspace else msgspec.UNSET
    calls = tuple(name for name in new.calls if name not in old.calls) or msgspec.UNSET
    return PermissionNames(network, tuple(name for name in new.secrets if name not in old.secrets), workspace, calls)


def permissions_diff(
    new: Permissions, previous: Permissions, others: Sequence[Permissions], against: str | None
) -> PermissionsDiff:
    """Return the permissions that `new` adds and removes.

    Added: permissions of `new` that `previous`, or at least one of `others`, does not have. Removed: permissions of
    `previous` that `new` does not have. `against` is the number of the version with `previous`, or None for a first
    version.
    """
    lacking = [beyond(new, permissions) for permissions in (previous, *others)]
    added = PermissionNames(
        tuple(dict.fromkeys(text for names in lacking for text in names.network)),
        tuple(dict.fromkeys(name for names in lacking for name in names.secrets)),
        True if any(names.workspace is True for names in lacking) else msgspec.UNSET,
        tuple(dict.fromkeys(name for names in lacking for name in names.calls or ())) or msgspec.UNSET,
    )
    return PermissionsDiff(against, added, beyond(previous, new))
