"""Events of the registry, for the hooks of plugins."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, Protocol

import msgspec

from skillery.backends.values import Identity


class Finding(msgspec.Struct, frozen=True):
    """One result of a check of a version. A finding of severity `error` refuses the version, unless a reviewer has
    waived its rule.
    """

    rule: str
    message: str
    severity: Literal["error", "warning", "info"] = "error"
    file: str | None = None
    line: int | None = None


class PublishedFile(msgspec.Struct, frozen=True):
    path: str
    content: bytes
    executable: bool = False


class Publication(msgspec.Struct, frozen=True):
    """A version that will be published (in `before_publish`) or has been published (in `after_publish`)."""

    name: str
    version: str
    digest: str
    manifest: Mapping[str, Any]
    files: tuple[PublishedFile, ...]
    identity: Identity


class FinishedRun(msgspec.Struct, frozen=True):
    """A run that has ended. The hook `run_finished` gets this value."""

    run_id: str
    method: Literal["execute_skill", "run_code", "call_tool"]
    status: Literal["completed", "failed"]
    skill: str | None
    version: str | None
    duration_ms: float
    error_type: str | None
    identity: Identity
    parent_run_id: str | None = None
    """The run that called this run as a mounted skill, or None if a caller of the server started this run."""
    tool: str | None = None
    """The name of the called tool. None if `method` is not `call_tool`."""


EventType = Literal[
    "submitted",
    "approved",
    "rejected",
    "published",
    "yanked",
    "revoked",
    "deprecated",
    "finding",
    "quota_near",
    "run_failed",
    "seal",
    "audit",
]


class Event(msgspec.Struct, frozen=True):
    """A fact that webhooks and the hook `events` get. docs/operate/webhooks.md lists the members of `data`."""

    id: str
    """The id is the same in every delivery of this event."""
    type: EventType
    at: datetime
    data: Mapping[str, Any]


class Events(Protocol):
    """The hooks of plugins, as the core calls them. The core knows this Protocol, but no plugins."""

    async def before_publish(self, publication: Publication) -> list[Finding]: ...

    async def after_publish(self, publication: Publication) -> None: ...

    async def run_finished(self, run: FinishedRun) -> None: ...

    @property
    def has_scanner(self) -> bool:
        """Whether a plugin implements the hook `before_publish`."""
        ...

    @property
    def has_event_hooks(self) -> bool:
        """Whether a plugin implements the hook `events`."""
        ...

    async def events(self, event: Event) -> None: ...
