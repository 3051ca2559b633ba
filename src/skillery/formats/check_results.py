"""The results of checks of a bundle: findings, and examples that ran."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["error", "warning", "info"]


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
