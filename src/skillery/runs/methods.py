"""The methods of runs: start, read and cancel them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta
from sqlalchemy import Connection

from skillery.backends import Identity, Language
from skillery.database import in_utc
from skillery.database.registry import Registry
from skillery.database.tables import runs
from skillery.errors import InvalidParams
from skillery.formats.names import parse_skill_name
from skillery.formats.paths import parse_path
from skillery.formats.version_spec import parse_version_spec
from skillery.formats.wording import quoted
from skillery.identity import access
from skillery.method import Cursor, Method, PageLimit, Params, about
from skillery.registry.tool_rows import parse_session
from skillery.runs.ended_runs import Cancellation
from skillery.runs.followed_runs import Following
from skillery.runs.mounts import parse_outputs
from skillery.runs.queries import RunFilter, listing, read_runs
from skillery.runs.requests import CallTool, ExecuteSkill, RunCode, RunParams
from skillery.runs.results import Run, RunLog, RunPage, RunRecord, ToolResult
from skillery.runs.runner import Runner
from skillery.tools.tool_lookup import parse_address
from skillery.workspaces.manifests import parse_files

# -- Start runs --------------------------------------------------------------------------------------------------------


P = TypeVar("P", bound=RunParams)


# -- execute_skill -----------------------------------------------------------------------------------------------------


async def execute_skill(runner: Runner, identity: Identity, params: ExecuteSkill) -> Run:
    parse_skill_name(params.name)
    # Instructions and tools.json often write the path with a leading ./.
    script = parse_path(params.script) if params.script else ""
    _check_what_starts(params)
    return await runner.execute_skill(identity, _parsed(params, script=script))


def _check_what_starts(params: ExecuteSkill) -> None:
    """Raise InvalidParams if `script`, `module` and `cwd` contradict each other or name no module."""
    if params.module and params.script:
        raise InvalidParams("'script' and 'module' are both given", hint="Name one of them.", param="module")
    if params.module and not (len(params.module) <= 255 and all(map(str.isidentifier, params.module.split(".")))):
        raise InvalidParams(
            f"'module' is {quoted(params.module)}, which is not a name of a Python module",
            hint="Write scripts.package_skill for the file scripts/package_skill.py.",
            param="module",
        )
    if params.cwd == "skill" and not (params.module or params.script):
        raise InvalidParams(
            "'cwd' is 'skill', but an entrypoint starts in /workspace",
            hint="Leave 'cwd' out, or name a 'script' or 'module' to run.",
            param="cwd",
        )


# -- run_code ----------------------------------------------------------------------------------------------------------


async def run_code(runner: Runner, identity: Identity, params: RunCode) -> Run:
    _check_entrypoint(params.entrypoint, params.language)
    return await runner.run_code(identity, _parsed(params))


def _check_entrypoint(name: str, language: Language) -> None:
    """Raise InvalidParams if no function of the language can be `name`. For Bash, only the default `main` is valid."""
    if language == "bash" and name != "main":
        raise InvalidParams(
            f"'entrypoint' is {name[:80]!r}, and bash code has none: it runs from its first line",
            hint="Leave 'entrypoint' out; the args are JSON on stdin, and what is printed is the output.",
            param="entrypoint",
        )
    if not (name.replace("$", "_") if language == "javascript" else name).isidentifier():
        language_name = {"javascript": "JavaScript", "python": "Python"}[language]
        raise InvalidParams(
            f"'entrypoint' is {name[:80]!r}, which is not a {language_name} identifier",
            hint="Name a function of the code, for example main.",
            param="entrypoint",
        )


# -- call_tool ---------------------------------------------------------------------------------------------------------


async def call_tool(runner: Runner, identity: Identity, params: CallTool) -> ToolResult:
    """Call a tool. Raise InvalidParams if the params name two skills, or two versions of the skill."""
    skill_param, _, version_in_skill = params.skill.partition("@")
    skill, name = parse_address(params.name, skill_param)
    version = params.version or version_in_skill
    if params.version and version_in_skill and params.version != version_in_skill:
        raise InvalidParams(
            f"'skill' asks for the version '{version_in_skill[:80]}', and 'version' is '{params.version[:80]}'",
            hint="Name one version.",
            param="version",
        )
    if skill is None and params.version:
        raise InvalidParams(
            f"'version' is {params.version[:80]!r}, and no skill is named",
            hint="Name the skill of this version: in 'skill', or with 'skill/tool' in 'name'.",
            param="version",
        )
    if skill:
        parse_version_spec(version)
    parse_session(params.session)
    return await runner.call_tool(identity, _parsed(params, name=name, skill=skill or "", version=version))


def _parsed(params: P, **parsed: str) -> P:
    """Return the params with the values `parsed`. Their files and globs are checked, and without duplicates.

    Raise InvalidPath or InvalidParams if a path or glob is invalid.
    """
    files, outputs = parse_files(params.files), parse_outputs(params.outputs)
    return msgspec.structs.replace(params, files=list(files), outputs=list(outputs), **parsed)


METHODS = (
    Method(execute_skill, "run", audits="", once=True, develops=True),
    Method(run_code, "run", audits="", once=True, develops=True),
    Method(call_tool, "run", audits="", once=True, develops=True),
)


# -- Read and cancel runs ----------------------------------------------------------------------------------------------


# -- get_run -----------------------------------------------------------------------------------------------------------


class GetRun(Params, frozen=True, kw_only=True):
    """Return the record of a run: its result, its caller, its times and its limits."""

    run_id: Annotated[str, about("The run's id")]
    wait_ms: Annotated[int, Meta(ge=0, le=60_000), about("Wait up to this long for the end of the run")] = 0


async def get_run(following: Following, identity: Identity, params: GetRun) -> RunRecord:
    record = await following.get_run(identity, params.run_id, params.wait_ms)
    if not params.wait_ms:
        return record
    # A caller that waits for the end knows the code: models should not read it again with each answer.
    return msgspec.structs.replace(record, code=msgspec.UNSET, same_failure=msgspec.UNSET)


# -- read_run_log ------------------------------------------------------------------------------------------------------


class ReadRunLog(Params, frozen=True, kw_only=True):
    """Read the log of a run, also while it runs."""

    run_id: Annotated[str, about("The run's id")]
    after: Annotated[int, Meta(ge=0), about("Offset in bytes: 'next' of the previous answer")] = 0
    max_bytes: Annotated[int, Meta(ge=4, le=1 << 20), about("Maximum number of bytes")] = 16384
    wait_ms: Annotated[int, Meta(ge=0, le=60_000), about("Wait up to this long for more text")] = 0


async def read_run_log(following: Following, identity: Identity, params: ReadRunLog) -> RunLog:
    return await following.read_log(
        identity, params.run_id, after=params.after, max_bytes=params.max_bytes, wait_ms=params.wait_ms
    )


# -- list_runs ---------------------------------------------------------------------------------------------------------


class ListRuns(Params, frozen=True, kw_only=True):
    """List runs, newest first."""

    skill: Annotated[str, about("Only runs of this skill")] = ""
    status: Annotated[
        Literal["queued", "started", "completed", "failed"] | msgspec.UnsetType, about("Only runs with this status")
    ] = msgspec.UNSET
    since: Annotated[str, about("Only runs since then (e.g., '2026-11-22T10:00:00Z' or '24h')")] = ""
    identity: Annotated[str, about("Only runs of this identity (only admins and auditors may name others)")] = ""
    limit: PageLimit = 50
    cursor: Cursor = ""


async def list_runs(registry: Registry, identity: Identity, params: ListRuns) -> RunPage:
    skill = parse_skill_name(params.skill) if params.skill else ""
    if "\0" in params.identity:
        raise InvalidParams("'identity' contains a NUL character", hint="Write the name of a token.", param="identity")
    status: Any = "" if params.status is msgspec.UNSET else params.status
    work = partial(
        read_runs,
        identity=identity,
        key=registry.cursor_key,
        filters=RunFilter(skill, status, params.since, params.identity),
        limit=params.limit,
        cursor=params.cursor,
    )
    # Slow: with a filter, one page may read many rows.
    return await registry.read_page(work)


MOST_COUNTED = 2000
"""The maximum number of runs that a trend counts."""
PARTS = 30
"""The number of equal parts of the time of a trend."""


class RunTrend(NamedTuple):
    """Counts of the newest runs that match a filter, at most MOST_COUNTED, in PARTS of the time since the first one."""

    runs: int
    is_more: bool
    failed: int
    ended: int
    """The completed and the failed runs."""
    by_time: list[int]
    failed_by_time: list[int]
    since: datetime


def read_trend(connection: Connection, identity: Identity, params: ListRuns) -> RunTrend:
    """Return the trend of the runs that `list_runs` lists with these params, which `list_runs` has checked."""
    status: Any = "" if params.status is msgspec.UNSET else params.status
    owner, now = params.identity if access.is_auditor(identity) else identity.name, datetime.now(UTC)
    matching = listing(owner, RunFilter(params.skill, status, params.since), now)
    matching = matching.with_only_columns(runs.c.status, runs.c.started_at).order_by(runs.c.started_at.desc())
    rows = connection.execute(matching.limit(MOST_COUNTED + 1)).all()
    counted: list[tuple[str, datetime]] = [(row.status, in_utc(row.started_at) or now) for row in rows[:MOST_COUNTED]]
    since = counted[-1][1] if counted else now
    by_time, failed_by_time = [0] * PARTS, [0] * PARTS
    for ended_as, started_at in counted:
        part = min(int((started_at - since) / ((now - since) or timedelta(1)) * PARTS), PARTS - 1)
        by_time[part] += 1
        failed_by_time[part] += ended_as == "failed"
    failed = sum(failed_by_time)
    ended = failed + sum(ended_as == "completed" for ended_as, _ in counted)
    return RunTrend(len(counted), len(rows) > MOST_COUNTED, failed, ended, by_time, failed_by_time, since)


# -- cancel_run --------------------------------------------------------------------------------------------------------


class CancelRun(Params, frozen=True, kw_only=True):
    """Stop a queued or started run."""

    run_id: Annotated[str, about("The run's id")]


async def cancel_run(cancellation: Cancellation, identity: Identity, params: CancelRun) -> RunRecord:
    return await cancellation.cancel_run(identity, params.run_id)


READING = (
    Method(get_run, "read", audits="", for_auditors=True),
    Method(read_run_log, "read", audits="", for_auditors=True),
    Method(list_runs, "read", audits="", for_auditors=True),
    Method(cancel_run, "run", audits="run_id"),
)
