"""The events of versions: each is recorded in the transaction that changes the version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection

from skillery import events
from skillery.backends import EventType, Identity
from skillery.formats.check_results import CheckFinding
from skillery.formats.names import namespace_of

_OF_STEP: Mapping[str, tuple[EventType, ...]] = {
    "submit": ("submitted",),
    "approve": ("approved", "published"),
    "reject": ("rejected",),
    "yank": ("yanked",),
}
_OF_STATUS: Mapping[str, EventType] = {"in_review": "submitted", "published": "published"}


def record_step(connection: Connection, identity: Identity, step: str, name: str, *, note: str, **version: str) -> None:
    """Record the events of a step of one version. `version` has its number, digest, status and publisher."""
    for kind in _OF_STEP.get(step, ()):
        events.record(connection, kind, skill=name, **_about(identity, name), **version, note=note)


def record_deprecation(
    connection: Connection, identity: Identity, name: str, versions: Sequence[str], deprecated: Mapping[str, Any]
) -> None:
    """Record that all published versions of a skill are deprecated."""
    events.record(connection, "deprecated", skill=name, **_about(identity, name), versions=versions, **deprecated)


def record_new_version(
    connection: Connection,
    identity: Identity,
    name: str,
    findings: Sequence[CheckFinding],
    **version: str,
) -> None:
    """Record the events of a new version: its submission or publication, and its findings."""
    about = _about(identity, name) | version
    if version["status"] in _OF_STATUS:
        events.record(connection, _OF_STATUS[version["status"]], skill=name, **about, note="")
    if findings:
        record_findings(connection, name, findings, **about)


def record_findings(connection: Connection, name: str, findings: Sequence[CheckFinding], /, **about: str) -> None:
    """Record findings about a stored version. `about` has at least its `version`."""
    found = msgspec.to_builtins(list(findings))
    values = {"name": name, "namespace": namespace_of(name), **about}
    events.record(connection, "finding", skill=name, **values, findings=found)


def _about(identity: Identity, name: str) -> dict[str, str]:
    return {"name": name, "namespace": namespace_of(name), "by": identity.name, "by_kind": identity.kind}
