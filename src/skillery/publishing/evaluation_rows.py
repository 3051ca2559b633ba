"""The rows of evaluations and of their trials: queries and results. Evaluations are locked before trials."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta
from sqlalchemy import Connection, Row, Select, and_, exists, func, or_, select, true, update

from skillery.attestations.evaluations import OWN, evaluation_text
from skillery.attestations.signing import SignedStatement, insert_attestations, sha256_of
from skillery.audit import SERVER
from skillery.backends import Identity
from skillery.database import in_utc, select_row
from skillery.database.leases import Lease, claim, database_now, is_free, release
from skillery.database.registry import lock_skill_row
from skillery.database.tables import attestations, eval_trials, evaluations, skill_versions, skills
from skillery.errors import Conflict, EvaluationNotFound, NotFound
from skillery.evaluations.trials import Amount, Arm, TrialResult
from skillery.formats.semver import Version
from skillery.formats.version_spec import Exact
from skillery.formats.wording import quoted
from skillery.publishing.evaluation_cases import READER, sees_suite
from skillery.registry.resolution import resolve
from skillery.registry.version_rows import VersionRow

State = Literal["queued", "running", "done", "stopped", "failed", "cancelled"]
ACTIVE = ("queued", "running")
MOST_SUBMITTED = 100
_COLUMNS = ("name", "version", "state", "suite", "suite_digest", "before", "cost", "done", "attestation")
"""The members of an Evaluation that are columns of `select_evaluations`."""
_before = skill_versions.alias()
_trials = select(func.count()).select_from(eval_trials).where(eval_trials.c.evaluation_id == evaluations.c.id)


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation of a version. `verdict` compares it with the version `before`, and is null without one."""

    id: str
    name: str
    version: str
    state: State
    kinds: Annotated[list[str], Meta(description="Kinds of its cases: run, task, search, choice")]
    suite: Annotated[str, Meta(description="own, or the version of another skill that has the tasks")]
    suite_digest: Annotated[str, Meta(description="Equal for equal cases")]
    before: str | None
    by: Annotated[str, Meta(description="The identity that started it, to which its runs belong")]
    kind: Annotated[Literal["person", "agent"], Meta(description="Kind of this identity")]
    model: Annotated[str | None, Meta(description="Model of the tasks and choices, null without these")]
    cost: Annotated[float, Meta(description="What its models have cost, in the currency of evals.currency")]
    tokens: Annotated[int, Meta(description="Tokens that its models have read and written")]
    trials: Annotated[int, Meta(description="All trials")]
    done: Annotated[int, Meta(description="Trials that have ended")]
    verdict: Literal["better", "worse", "same", "unclear"] | None
    shares: Annotated[dict[str, float], Meta(description="Share of passed trials by arm, from 0 to 1")]
    findability: Annotated[dict[str, float], Meta(description="How a search finds the skill by its prompts")]
    choice: Annotated[dict[str, float], Meta(description="How a model chooses the skill for its prompts")]
    summary: str
    error: Annotated[str, Meta(description='Why it has ended without a result, or ""')]
    attestation: Annotated[str | None, Meta(description="The signed statement about the result")]
    created_at: datetime
    ended_at: datetime | None


class OpenTrial(NamedTuple):
    """A trial that no server tries now, with columns of its evaluation."""

    id: int
    evaluation: str
    evaluation_id: int
    kind: str
    case_id: str
    arm: Arm
    attempts: int
    result_json: str | None
    """The problem of the last attempt."""
    identity: str
    identity_kind: Literal["person", "agent"]
    model_json: str | None
    budget: float | None
    suite: str


def select_evaluations() -> Select[Any]:
    """Return the query of evaluations with their versions and the numbers of their trials."""
    signed = and_(attestations.c.sha256 == evaluations.c.sha256, attestations.c.version_id == evaluations.c.version_id)
    joined = (
        evaluations.join(skill_versions, skill_versions.c.id == evaluations.c.version_id)
        .join(skills, skills.c.id == skill_versions.c.skill_id)
        .outerjoin(_before, _before.c.id == evaluations.c.before_id)
        .outerjoin(attestations, signed)
    )
    version = skills.c.name, skill_versions.c.version, skill_versions.c.status, skill_versions.c.digest
    ended = _trials.where(eval_trials.c.is_done)
    used = [
        select(func.coalesce(func.sum(eval_trials.c[name]), 0))
        .where(eval_trials.c.evaluation_id == evaluations.c.id)
        .scalar_subquery()
        .label(name)
        for name in ("cost", "tokens")
    ]
    counts = _trials.scalar_subquery().label("all"), ended.scalar_subquery().label("done"), *used
    more = _before.c.version.label("before"), attestations.c.attestation, *counts
    return select(evaluations, *version, *more).select_from(joined)


def find_evaluation(connection: Connection, evaluation: str | int) -> Row[Any]:
    """Return the row of an evaluation, by its public id or the id of its row. Raise EvaluationNotFound if there is
    none.
    """
    column = evaluations.c.evaluation if isinstance(evaluation, str) else evaluations.c.id
    row = connection.execute(select_evaluations().where(column == evaluation)).one_or_none()
    if row is None:
        raise not_found(str(evaluation))
    return row


def find_seen(connection: Connection, identity: Identity, evaluation: str) -> Row[Any]:
    """Return the row of an evaluation of a version that the identity sees. Raise EvaluationNotFound."""
    row = find_evaluation(connection, evaluation)
    try:
        resolve(connection, identity, row.name, Exact(Version.parse(row.version)), manages=True)
    except NotFound:
        raise not_found(evaluation) from None
    return row


def not_found(evaluation: str) -> EvaluationNotFound:
    hint = "list_evaluations shows the evaluations of a skill."
    return EvaluationNotFound(f"there is no evaluation {quoted(evaluation)}", hint=hint)


def read_results(connection: Connection, evaluation_id: int) -> list[tuple[str, str, Arm, TrialResult]]:
    """Return the kind, case, arm and result of each trial that has ended, in the order of the cases."""
    of_evaluation = eval_trials.c.evaluation_id == evaluation_id, eval_trials.c.is_done
    rows = connection.execute(select(eval_trials).where(*of_evaluation).order_by(eval_trials.c.id))
    return [(row.kind, row.case_id, row.arm, msgspec.json.decode(row.result_json, type=TrialResult)) for row in rows]


def evaluation_of(connection: Connection, identity: Identity, row: Row[Any]) -> Evaluation:
    return Evaluation(**evaluation_fields(row, is_seen=sees_suite(connection, identity, row.suite)))


def evaluation_fields(row: Row[Any], *, is_seen: bool) -> dict[str, Any]:
    """Return the members of an Evaluation. `is_seen` says whether the caller sees the suite, which errors may quote."""
    predicate = msgspec.json.decode(row.summary_json) if row.summary_json else None
    return {key: getattr(row, key) for key in _COLUMNS} | {
        "id": row.evaluation,
        "kinds": row.kinds.split(),
        "by": row.identity,
        "kind": row.identity_kind,
        "model": model_of(row),
        "tokens": int(row.tokens),  # Postgres sums up integers to decimals
        "trials": row.all,
        "verdict": predicate and predicate["verdict"],
        "shares": predicate["shares"] if predicate else {},
        **{key: (predicate or {}).get(key, {}) for key in ("findability", "choice")},
        "summary": evaluation_text(predicate) if predicate else "",
        "error": (row.error or "") if is_seen or not row.error else f"only readers of {row.suite} see the error",
        "created_at": in_utc(row.created_at),
        "ended_at": in_utc(row.ended_at) if row.ended_at else None,
    }


def end_evaluation(connection: Connection, evaluation_id: int, state: State, error: str = "", **values: object) -> bool:
    """End an evaluation that has not ended. Return False if it has ended."""
    active = evaluations.c.id == evaluation_id, evaluations.c.state.in_(ACTIVE)
    values |= {"state": state, "error": error or None, "ended_at": datetime.now(UTC)}
    return connection.execute(update(evaluations).where(*active).values(values)).rowcount > 0


# -- Trials ----------------------------------------------------------------------------------------------------------


def model_of(row: Any) -> str | None:
    """Return the name of the model of an evaluation, as its endpoint calls it, or None without tasks."""
    return str(msgspec.json.decode(row.model_json)["model"]) if row.model_json else None


def identity_of(row: Any) -> Identity:
    return Identity(row.identity, row.identity_kind, frozenset({"read", "run"}))


def owner_of(row: Any) -> Identity:
    """Return the identity to which the runs and files of a trial belong. Records of runs quote the tasks, so those of
    the suite of another skill belong to the server.
    """
    return identity_of(row) if row.suite == OWN else Identity(SERVER.name, SERVER.kind, frozenset({"read", "run"}))


def read_active(connection: Connection) -> dict[int, bool]:
    """Return the evaluations that have not ended, and whether they have trials that have not ended."""
    has_open = exists().where(eval_trials.c.evaluation_id == evaluations.c.id, ~eval_trials.c.is_done)
    active = select(evaluations.c.id, has_open).where(evaluations.c.state.in_(ACTIVE)).order_by(evaluations.c.id)
    return {evaluation_id: bool(is_open) for evaluation_id, is_open in connection.execute(active).all()}


def read_next(connection: Connection, turn: Callable[[str], int]) -> OpenTrial | None:
    """Return the next trial that no server tries now, or None. Identities take turns, so that none waits for all trials
    of another: the one with the least `turn` is first, with its oldest evaluation.
    """
    about, free = evaluations.c, (~eval_trials.c.is_done, is_free(eval_trials, database_now(connection)))
    has_free = exists().where(eval_trials.c.evaluation_id == about.id, *free)
    active = select(about.id, about.identity).where(about.state.in_(ACTIVE), has_free).order_by(about.id)
    waiting = connection.execute(active).all()
    if not waiting:
        return None
    first = min(waiting, key=lambda row: turn(row.identity))
    joined = eval_trials.join(evaluations, about.id == eval_trials.c.evaluation_id)
    of_first = select_row(OpenTrial, eval_trials, evaluations).select_from(joined).where(about.id == first.id, *free)
    row = connection.execute(of_first.order_by(eval_trials.c.id).limit(1)).first()
    return OpenTrial(*row) if row else None  # None: another server was faster


def claim_trial(connection: Connection, trial: OpenTrial, server: str) -> Lease | None:
    """Take a trial for a server. Return None if another server was faster, or the evaluation has ended."""
    active = evaluations.c.id == trial.evaluation_id, evaluations.c.state.in_(ACTIVE)
    if not connection.execute(update(evaluations).where(*active).values(state="running")).rowcount:
        return None
    attempts = eval_trials.c.attempts + 1
    return claim(connection, eval_trials, trial.id, server, ~eval_trials.c.is_done, attempts=attempts)


def postpone(connection: Connection, lease: Lease, pause: timedelta, attempts: int, result_json: str) -> None:
    """Give back a trial that has not ended. No server tries it again before the `pause` is over."""
    until = database_now(connection) + pause
    release(connection, lease, leased_until=until, attempts=attempts, result_json=result_json)


def read_version(connection: Connection, evaluation_id: int) -> tuple[VersionRow, str | None, str]:
    """Return the version of an evaluation, the number of the version before, and the suite."""
    evaluation = find_evaluation(connection, evaluation_id)
    spec = Exact(Version.parse(evaluation.version))
    return resolve(connection, READER, evaluation.name, spec, manages=True), evaluation.before, evaluation.suite


def end_with(
    connection: Connection,
    evaluation_id: int,
    predicate: dict[str, Any],
    statements: Sequence[SignedStatement],
    evaluation: Row[Any],
    *,
    inserts: bool,
) -> None:
    """End an evaluation with its result. Raise Conflict if it has ended: then its statement is not stored."""
    lock_skill_row(connection, evaluation.name)
    summary, sha256 = msgspec.json.encode(predicate).decode(), sha256_of(statements[0].envelope) if statements else None
    if not end_evaluation(connection, evaluation_id, "done", summary_json=summary, sha256=sha256):
        raise Conflict(f"{evaluation.evaluation} has ended")
    if inserts:
        insert_attestations(connection, evaluation.version_id, evaluation.digest, statements)


def read_submitted(connection: Connection, patterns: Sequence[str]) -> list[Any]:
    """Return the id, name and number of versions in review that were never evaluated, of the skills of the patterns."""
    covered = [
        true() if pattern == "*" else skills.c.name.startswith(pattern.removesuffix("*"), autoescape=True)
        for pattern in patterns
    ]
    is_evaluated = exists().where(evaluations.c.version_id == skill_versions.c.id)
    waiting = select(skill_versions.c.id, skills.c.name, skill_versions.c.version).join(
        skills, skills.c.id == skill_versions.c.skill_id
    )
    waiting = waiting.where(skill_versions.c.status == "in_review", or_(*covered), ~is_evaluated)
    return list(connection.execute(waiting.order_by(skill_versions.c.id.desc()).limit(MOST_SUBMITTED)))


# -- Costs -------------------------------------------------------------------------------------------------------------


def add_cost(connection: Connection, trial_id: int, amount: Amount) -> None:
    trial = update(eval_trials).where(eval_trials.c.id == trial_id)
    more = {"cost": eval_trials.c.cost + amount.cost, "tokens": eval_trials.c.tokens + amount.tokens}
    connection.execute(trial.values(more))


def read_costs(connection: Connection, evaluation_id: int) -> tuple[Amount, Amount]:
    """Return the costs and tokens of an evaluation, and of all evaluations that have not ended before today (UTC)."""
    sums = [func.coalesce(func.sum(eval_trials.c[name]), 0) for name in ("cost", "tokens")]
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    # Those that began yesterday count, too: otherwise, many that begin before midnight would have no limit after it.
    is_of_day = or_(evaluations.c.ended_at.is_(None), evaluations.c.ended_at >= today)
    of_day = select(*sums).join(evaluations).where(is_of_day)
    own = select(*sums).where(eval_trials.c.evaluation_id == evaluation_id)
    whole, whole_of_day = (connection.execute(query).one() for query in (own, of_day))
    return Amount(float(whole[0]), int(whole[1])), Amount(float(whole_of_day[0]), int(whole_of_day[1]))
