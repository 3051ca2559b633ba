"""The report of `skillery test`: one result for each problem, example and test of a folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from skillery.formats.problems import AGAIN, Problem

Subject = Literal["check", "example", "test"]
Status = Literal["passed", "failed", "skipped", "updated"]


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """One result. `message` has several lines if the run failed or its output differs."""

    subject: Subject
    name: str
    status: Status
    message: str = ""
    file: str | None = None
    line: int | None = None
    duration_ms: float = 0.0


class Report(msgspec.Struct, frozen=True):
    """The results of a folder. `name` and `version` are empty if its manifest cannot be read."""

    folder: str
    name: str
    version: str
    results: tuple[Result, ...]
    warnings: tuple[str, ...] = ()
    search: str = ""
    """How many words of the examples a search finds in the texts of the skill."""

    @property
    def ok(self) -> bool:
        return all(result.status != "failed" for result in self.results)


def failed_checks(problems: Sequence[Problem], hint: str | None = None) -> tuple[Result, ...]:
    """Return a failed result for each problem of a bundle."""
    remedy = f"\n{hint}" if hint and not hint.endswith(AGAIN) and len(problems) == 1 else ""
    return tuple(
        Result(
            "check",
            problem.path or problem.file or "bundle",
            "failed",
            problem.message + remedy,
            problem.file,
            problem.line,
        )
        for problem in problems
    )
