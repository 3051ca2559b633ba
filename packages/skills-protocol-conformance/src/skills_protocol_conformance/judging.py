"""Run statements against a server, and collect their outcomes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum

from skills_protocol_conformance.checks.envelope import knows
from skills_protocol_conformance.connection import Unreachable
from skills_protocol_conformance.documents import SKILL_TOOLS, STATEMENTS
from skills_protocol_conformance.open_points import POINTS, OpenPoint
from skills_protocol_conformance.session import Session
from skills_protocol_conformance.statement import Failed, Level, Skipped, Statement

WORKERS = 8
MOST_UNREACHABLE = 3
"""Calls without an answer after which the suite stops calling. It bounds the time with a server that hangs."""
PROFILES = {
    "core": "the eight methods, the sandbox and the guide; needs the samples of --write-skills",
    "create-skill": "core and create_skill, which publishes the samples under new names",
    "skill-tools": "create-skill and tools.json, with the methods list_tools and call_tool",
}


class Result(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    OUTSIDE = "not testable from outside"


@dataclass(frozen=True)
class Outcome:
    statement: Statement
    result: Result
    verdict: str = ""
    answer: str = ""
    seconds: float = 0.0

    @property
    def breaks(self) -> bool:
        """Return whether the server does not conform because of this outcome."""
        return self.result is Result.FAILED and self.statement.level is Level.MUST


class Run:
    """Runs checks in several threads. A check that several statements share runs once."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.unreachable = 0
        self.last_problem = ""

    @property
    def has_stopped(self) -> bool:
        return self.unreachable >= MOST_UNREACHABLE

    def outcomes(self, statements: Sequence[Statement]) -> list[Outcome]:
        """Return the outcome of each statement, in their order."""
        with ThreadPoolExecutor(WORKERS) as pool:
            return list(pool.map(self.outcome, statements))

    def outcome(self, statement: Statement) -> Outcome:
        check, began = statement.check, time.monotonic()
        if check is None:
            return Outcome(statement, Result.OUTSIDE)
        result, verdict, answer = self.session.once(("check", check), lambda: self._judge(lambda: check(self.session)))
        return Outcome(statement, result, verdict, answer, round(time.monotonic() - began, 3))

    def _judge(self, check: Callable[[], None]) -> tuple[Result, str, str]:
        if self.has_stopped:
            return Result.SKIPPED, f"the server does not answer any more: {self.last_problem}", ""
        try:
            check()
        except Skipped as skipped:
            return Result.SKIPPED, str(skipped), ""
        except Failed as failed:
            return Result.FAILED, failed.words, failed.answer
        except Unreachable as problem:
            self.unreachable += 1
            self.last_problem = str(problem)
            return Result.FAILED, str(problem), ""
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            # The check reads an answer of an unknown server, which may have any form.
            return Result.FAILED, f"the answer has an unexpected form ({type(error).__name__}: {error})", ""
        self.unreachable = 0
        return Result.PASSED, "", ""

    def open_points(self) -> list[tuple[OpenPoint, str]]:
        """Return what the server does where the documents leave a choice."""
        if self.has_stopped:
            return []
        with ThreadPoolExecutor(WORKERS) as pool:
            return list(zip(POINTS, pool.map(self._point, POINTS), strict=True))

    def _point(self, point: OpenPoint) -> str:
        try:
            return point.look(self.session)
        except Skipped as skipped:
            return f"not seen: {skipped}"
        except Failed as failed:
            return f"not seen: {failed.words}"
        except (AttributeError, KeyError, IndexError, TypeError, ValueError, Unreachable) as error:
            return f"not seen: {type(error).__name__}: {error}"

    def clean_up(self) -> None:
        """Delete the blobs of this run, if the server has a method `delete_blob`."""
        blobs = sorted(self.session.made_blobs)
        if self.has_stopped or not blobs or not knows(self.session, "delete_blob"):
            return
        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(lambda blob: self.session.try_to_send("delete_blob", {"blob_id": blob}), blobs))


def widest_profile(session: Session) -> str:
    """Return the widest profile that the server can show."""
    if not knows(session, "create_skill"):
        return "core"
    return "skill-tools" if knows(session, "list_tools") and knows(session, "call_tool") else "create-skill"


def statements_of(profile: str) -> list[Statement]:
    """Return the statements of a profile, including those that no call can test."""
    return [statement for statement in STATEMENTS if profile in _profiles(statement)]


def _profiles(statement: Statement) -> Iterable[str]:
    if statement.document == SKILL_TOOLS:
        return ("skill-tools",)
    return ("create-skill", "skill-tools") if statement.section == "create_skill" else PROFILES
