"""Rendering: the answer to the caller of a run, from its outcome. Any value from a sandbox may be hostile."""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from skillery.backends import Failure, FailureType, Outcome, ScriptCall
from skillery.contents.blob_rows import output_files
from skillery.context.threads import BIG_TEXT
from skillery.errors import QuotaExceeded, SkilleryError
from skillery.runs.active_run import CLIENT_GONE, ActiveRun
from skillery.runs.live_output import displayable, logs_preview
from skillery.runs.results import ExactSkill, Run, RunError, ToolResult, if_set, waiting_for
from skillery.runs.run_host import CalledHost, Host
from skillery.runs.scripts import script_answer
from skillery.tools.tool_lookup import FoundTool

OUTPUT_BYTES = 4096
PREVIEW_BYTES = 512
SUMMARY_CHARACTERS = 500
MESSAGE_CHARACTERS = 1000
TRACEBACK_CHARACTERS = 4000
INLINE_CHARACTERS = 1000
"""If a script writes more than fits into an answer, the output is stored as a blob, and the answer contains this many
of its first characters.
"""
WAITED_MS = 5.0
"""A shorter wait for packages, in milliseconds, is not mentioned in the answer."""


class Rendered(NamedTuple):
    """The outcome of a run, and the answer for the caller."""

    outcome: Outcome
    answer: Run


async def render(run: ActiveRun, outcome: Outcome) -> Rendered:
    """Return the outcome and the answer of a run.

    If the output cannot be stored as a blob, both have a failure in place of the output.
    """
    try:
        return Rendered(outcome, await _answer(run, outcome))
    except SkilleryError as error:  # a full disk or a quota, when the output became a blob
        kind = FailureType.QUOTA_EXCEEDED if isinstance(error, QuotaExceeded) else FailureType.SANDBOX_ERROR
        failure = Failure(kind, f"the output could not be stored: {error.message}")
        outcome = msgspec.structs.replace(outcome, result=None, failure=failure)
        return Rendered(outcome, await _answer(run, outcome))


async def _answer(run: ActiveRun, outcome: Outcome) -> Run:
    """Return the answer. Store a large output as a blob. Raise SkilleryError if the output cannot be stored."""
    prepared, host, call = run.prepared, run.host, run.job.call
    output: Any = None
    summary = ""
    if outcome.result is not None and isinstance(call, ScriptCall):
        summary = script_summary(call.path, outcome.result)
        outcome = msgspec.structs.replace(outcome, result=await fitting(outcome.result, host))
    if outcome.result is not None:
        output = small_output(outcome.result)
        if output is None:
            output = large_output(outcome.result, await host.keep(outcome.result, "application/json"))
    version = prepared.version
    return Run(
        status="failed" if outcome.failure else "completed",
        run_id=run.run_id,
        summary=summary or summary_of(outcome),
        output=output,
        output_blobs=[blob.id for blob in host.written],
        logs_preview=logs_preview(outcome.log),
        duration_ms=round(outcome.duration_ms, 3),
        error=error_of(outcome.failure) if outcome.failure else UNSET,
        skill=ExactSkill(version.name, version.version, version.digest) if version else UNSET,
        environment=prepared.environment or UNSET,
        waited_for_packages_ms=round(prepared.waited_ms, 3) if prepared.waited_ms >= WAITED_MS else UNSET,
        degraded=list(outcome.degraded) or UNSET,
        network=list(outcome.network) or UNSET,
        files=output_files(host.written),
        warnings=list(prepared.warnings) or UNSET,
        workspace=(run.workspace.use if run.workspace is not None else None) or UNSET,
    )


def begun_answer(run: ActiveRun) -> Run:
    """Return the answer of a run in the background that has not ended: its id, its status and no output."""
    version = run.prepared.version
    return Run(
        status="queued" if run.is_waiting else "started",
        run_id=run.run_id,
        summary="",
        output=None,
        output_blobs=[],
        logs_preview="",
        duration_ms=0.0,
        skill=ExactSkill(version.name, version.version, version.digest) if version else UNSET,
        warnings=list(run.prepared.warnings) or UNSET,
        **waiting_for(run.live.packages),
    )


def tool_answer(run: Run) -> ToolResult:
    """Return the answer of call_tool for a run. A failed run is also a result, so that agents continue with it."""
    error = if_set(run.error)
    return ToolResult(
        result={"error": error.message or error.type} if error else run.output,
        is_error=error is not None,
        skill=if_set(run.skill),
        run_id=run.run_id,
        status=UNSET if run.status in {"completed", "failed"} else run.status,
        logs_preview=run.logs_preview,
        output_blobs=run.output_blobs,
        files=run.files,
        workspace=run.workspace,
        environment=run.environment,
        warnings=run.warnings,
        state=run.state,
        packages=run.packages,
    )


def stub_answer(tool: FoundTool) -> ToolResult:
    """Return the answer of call_tool for a tool without a handler: a text that tells the agent to load the
    instructions.
    """
    version = tool.version
    assert version is not None, "a tool that is defined for a session has code"
    return ToolResult(
        result=(
            f"'{tool.name}' has nothing to run: it is described in the instructions of the skill '{version.name}'. "
            f"Load them with read_skill_file (name '{version.name}', version '{version.version}', path 'SKILL.md') "
            "and follow them."
        ),
        is_error=False,
        skill=ExactSkill(version.name, version.version, version.digest),
        run_id=None,
        logs_preview="",
        output_blobs=[],
    )


# -- the parts of an answer ------------------------------------------------------------------------------------------


def error_of(failure: Failure) -> RunError:
    """Return the `error` of an answer for a failure, with printable texts of limited length."""
    frames = displayable(failure.traceback[-TRACEBACK_CHARACTERS:])[-TRACEBACK_CHARACTERS:]
    return RunError(
        type=displayable(failure.type[:100])[:100],
        message=displayable(failure.message[:MESSAGE_CHARACTERS])[:MESSAGE_CHARACTERS],
        traceback=frames or UNSET,
    )


def small_output(result: bytes) -> msgspec.Raw | None:
    """Return the result as the `output` of an answer, or None if it has more than OUTPUT_BYTES."""
    return msgspec.Raw(result) if len(result) <= OUTPUT_BYTES else None


def large_output(result: bytes, blob_id: str | None) -> dict[str, Any]:
    """Return the object that replaces a large `output` in an answer: blob id, size and preview."""
    preview = result[:PREVIEW_BYTES].decode("utf-8", "ignore")
    return {"blob_id": blob_id, "size_bytes": len(result), "preview": preview}


def summary_of(outcome: Outcome) -> str:
    """Return the summary of a run, at most SUMMARY_CHARACTERS: the one the code set, else `summary` of its result, else
    a generated sentence.

    A result over 256 KiB is not decoded, because decoding blocks all other requests.
    """
    text = outcome.summary or _own_summary(outcome) or _generated(outcome)
    return displayable(text[:SUMMARY_CHARACTERS])[:SUMMARY_CHARACTERS]


def _own_summary(outcome: Outcome) -> str | None:
    """Return the text `summary` of the result, or None if the result is large or has no such text."""
    if not outcome.result or not outcome.result.startswith(b"{") or len(outcome.result) > BIG_TEXT:
        return None
    summary = msgspec.json.decode(outcome.result, type=dict[str, msgspec.Raw]).get("summary")
    if summary is None or not bytes(summary).startswith(b'"'):
        return None
    return msgspec.json.decode(summary, type=str)


def _generated(outcome: Outcome) -> str:
    """Return a sentence on the end of the run: its failure, or its duration and the kind of its result."""
    if outcome.failure is not None:
        first, *further_lines = outcome.failure.message[:MESSAGE_CHARACTERS].strip().splitlines() or [""]
        # The next lines have code or a call to copy, which half a line cannot show.
        first = f"{first.rstrip(':')} (error.message has more)" if further_lines else first
        return f"Failed with {outcome.failure.type}: {first}" if first else f"Failed with {outcome.failure.type}."
    return f"Completed in {outcome.duration_ms:.0f} ms and returned {_described(outcome.result or b'null')}."


def _described(result: bytes) -> str:
    """Return a short description of a JSON value, for example `a list of 3 items`."""
    match result[:1]:
        case b"{" | b"[" if len(result) > BIG_TEXT:
            return f"{'an object' if result.startswith(b'{') else 'a list'} of {len(result)} bytes"
        case b"{":
            count = len(msgspec.json.decode(result, type=dict[str, msgspec.Raw]))
            return f"an object with {count} key{'s' * (count != 1)}"
        case b"[":
            count = len(msgspec.json.decode(result, type=list[msgspec.Raw]))
            return f"a list of {count} item{'s' * (count != 1)}"
        case b'"':
            return "a text"
        case b"n":
            return "nothing"
        case _:
            return result[:40].decode()


async def fitting(result: bytes, host: Host | CalledHost) -> bytes:
    """Return the result of a script, small enough for an answer: long streams are stored as blobs."""
    answer = script_answer(result)
    if len(result) <= OUTPUT_BYTES or answer is None:
        return result
    # Longest stream first: the other stream may then be short enough for the answer.
    for stream in sorted(("stdout", "stderr"), key=lambda name: -len(str(answer.get(name)))):
        text = answer.get(stream)
        if isinstance(text, str) and len(text) > INLINE_CHARACTERS and len(msgspec.json.encode(answer)) > OUTPUT_BYTES:
            content = text.encode()
            blob_id = await host.keep(content, "text/plain")
            preview = text[:INLINE_CHARACTERS]
            answer[stream] = {"blob_id": blob_id, "size_bytes": len(content), "preview": preview}
    return msgspec.json.encode(answer)


def script_summary(path: str, result: bytes) -> str:
    """Return a sentence about the end of a script: its exit status, the number of its files and its hint."""
    answer = script_answer(result)
    if answer is None:
        return f"{path} has ended."
    files = len(answer.get("files", ()))
    files_note = f" and left {files} file{'s' * (files != 1)} in out" if files else ""
    hint = answer.get("hint")
    hint_note = f" Hint: {hint}." if isinstance(hint, str) else ""
    return f"{path} exited with status {answer.get('exit_code')}{files_note}.{hint_note}"[:SUMMARY_CHARACTERS]


# -- Answers before the end of a run: in the background, or if the run takes longer than its call waits ----------------


log = logging.getLogger(__name__)

answer_within: ContextVar[float | None] = ContextVar("answer_within", default=None)
"""Seconds after which a call gets the id of its run instead of a result. The run then continues in the background. None
means that the call waits for the end of the run.
"""


async def answer_at_start(run: ActiveRun, task: asyncio.Task[Rendered]) -> Run:
    """Return the answer of a run in the background as soon as the run has a record. `task` executes the run.

    Raise SkilleryError if the run is refused.
    """
    await asyncio.wait({task, run.announced}, return_when=asyncio.FIRST_COMPLETED)
    if not run.announced.done():
        return (await task).answer
    task.add_done_callback(_log_lost)
    return begun_answer(run)


async def answer_after(run: ActiveRun, task: asyncio.Task[Rendered], seconds: float) -> Run:
    """Return the answer of a run. After `seconds`, move the run to the background, and return an answer without a
    result.

    Raise SkilleryError if the run is refused. If the caller disconnects while the run waits for a slot, stop the run.
    """
    try:
        await asyncio.wait({task}, timeout=seconds)
        # A run without a record may still be refused.
        await asyncio.wait({task, run.announced}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        if run.is_waiting:
            run.stop(CLIENT_GONE)
        raise
    if task.done():
        return task.result().answer
    run.in_background = True
    task.add_done_callback(_log_lost)
    return begun_answer(run)


def _log_lost(task: asyncio.Task[Rendered]) -> None:
    """Log the error of a run in the background whose end could not be recorded. No caller waits for `task`."""
    if not task.cancelled() and task.exception() is not None:
        log.error("a run in the background ended without a record", exc_info=task.exception())
