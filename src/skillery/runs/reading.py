"""The methods that read runs and cancel them."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from skillery.backends import Identity
from skillery.database.registry import Registry
from skillery.errors import InvalidParams
from skillery.formats.names import parse_skill_name
from skillery.method import Cursor, Method, PageLimit, Params, about
from skillery.runs.cancellation import Cancellation
from skillery.runs.followed_runs import Following
from skillery.runs.queries import RunFilter, read_runs
from skillery.runs.results import RunLog, RunPage, RunRecord

# -- get_run -----------------------------------------------------------------------------------------------------------


class GetRun(Params, frozen=True, kw_only=True):
    """Return the record of a run: its result, its caller, its times and its limits."""

    run_id: Annotated[str, about("The run's id")]
    wait_ms: Annotated[int, Meta(ge=0, le=60_000), about("Wait up to this long for the end of the run")] = 0


async def get_run(following: Following, identity: Identity, params: GetRun) -> RunRecord:
    return await following.get_run(identity, params.run_id, params.wait_ms)


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
    identity: Annotated[str, about("Only runs of this identity (only admins may name others)")] = ""
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


# -- cancel_run --------------------------------------------------------------------------------------------------------


class CancelRun(Params, frozen=True, kw_only=True):
    """Stop a queued or started run."""

    run_id: Annotated[str, about("The run's id")]


async def cancel_run(cancellation: Cancellation, identity: Identity, params: CancelRun) -> RunRecord:
    return await cancellation.cancel_run(identity, params.run_id)


METHODS = (
    Method(get_run, "read", audits=""),
    Method(read_run_log, "read", audits=""),
    Method(list_runs, "read", audits=""),
    Method(cancel_run, "run", audits="run_id"),
)
