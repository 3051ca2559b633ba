"""Evaluations of versions: start_evaluation, get_evaluation, list_evaluations and cancel_evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec
from msgspec import Meta
from sqlalchemy import Connection, Row, insert, select

from skillery import audit
from skillery.attestations.evaluations import OWN, case_results
from skillery.audit import Actor
from skillery.backends import Identity
from skillery.database.registry import Registry, lock_skill_row
from skillery.database.tables import eval_trials, evaluations, skill_versions
from skillery.errors import Conflict, InvalidParams, NotFound
from skillery.evaluations.models import Model
from skillery.formats.names import parse_skill_name
from skillery.formats.semver import Version
from skillery.formats.texts import new_evaluation_id, parse_id
from skillery.formats.version_spec import Exact, parse_named
from skillery.identity import access
from skillery.method import Cursor, ExactVersion, Method, PageLimit, Params, SkillName, about
from skillery.publishing.evaluation_cases import CaseRuns, Loaded
from skillery.publishing.evaluation_rows import (
    ACTIVE,
    Evaluation,
    end_evaluation,
    evaluation_fields,
    evaluation_of,
    find_evaluation,
    not_found,
    read_results,
    select_evaluations,
)
from skillery.publishing.evaluation_tasks import Models
from skillery.registry.cursors import NextCursor, fitting_items, make_cursor, read_cursor
from skillery.registry.resolution import find_skill, resolve, skill_not_found
from skillery.registry.version_rows import VersionRow
from skillery.registry.visibility import SEEN_BY_ALL

Kind = Literal["run", "task"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_ADD = {
    "run": "Add [[examples]] to skill.toml. Examples that need permissions do not count.",
    "task": "Add tasks with expectations to evals/evals.json.",
}
MOST_TRIALS = 20_000
"""The maximum number of trials of an evaluation: servers look for open ones twice a second."""
EVALUATED = ("draft", "in_review", "published", "deprecated")


class ArmCount(msgspec.Struct, frozen=True):
    """The trials of an arm that have passed, and all that have ended."""

    passed: int
    trials: int


class EvaluatedCase(msgspec.Struct, frozen=True):
    """A case of an evaluation, with its results by arm: `with` the version, `without` it, or `before` it."""

    id: str
    kind: str
    arms: dict[str, ArmCount]
    problems: Annotated[list[str], Meta(description="Why trials with the version have not passed")]


class EvaluationCases(Evaluation, frozen=True, kw_only=True):
    """An evaluation with its cases."""

    cases: list[EvaluatedCase]


class EvaluationPage(msgspec.Struct, frozen=True):
    """A page of evaluations, newest first."""

    evaluations: Sequence[Evaluation]
    next_cursor: NextCursor


# -- start_evaluation --------------------------------------------------------------------------------------------------


class StartEvaluation(Params, frozen=True, kw_only=True):
    """Run the cases of a version in the background, and compare it with the version before."""

    name: SkillName
    version: ExactVersion
    kinds: Annotated[list[Kind], about("Kinds of cases (omit for those that need no model)")] = []
    model: Annotated[str, about("Name of a model of the settings, for tasks (omit for evals.model)")] = ""
    trials: Annotated[Annotated[int, Meta(ge=0, le=20)], about("Trials of each task (omit for evals.trials)")] = 0
    budget: Annotated[Annotated[float, Meta(ge=0)], about("Most that the model may cost (omit for evals.budget)")] = 0.0


class Plan(NamedTuple):
    """What an evaluation tries. Without `kinds`, all kinds that the version has cases of."""

    kinds: Sequence[Kind]
    model: str = ""
    trials: int = 0
    budget: float = 0.0


class Evaluations:
    """Starts evaluations. `EvaluationJobs` carries them out."""

    def __init__(self, registry: Registry, cases: CaseRuns, models: Models) -> None:
        self.registry = registry
        self.cases = cases
        self.models = models

    async def start(self, identity: Identity, row: VersionRow, actor: Actor, plan: Plan) -> Evaluation:
        """Start an evaluation of a version. Its runs belong to `identity`. `actor` is in the audit trail.

        Raise InvalidParams if the version has no cases of a kind, if they need a model and there is none, if the budget
        is above that of the settings, or above MOST_TRIALS. Raise Conflict if another evaluation of the version has not
        ended, or its status permits none.
        """
        loaded = await self.cases.load_new(row)
        kinds = plan.kinds or [kind for kind in KINDS if loaded.of_kind(kind)] or ["run"]
        for kind in kinds:
            if not loaded.of_kind(kind):
                raise InvalidParams(f"'{row.name}' {row.version} has no cases of the kind {kind}", hint=_ADD[kind],
                                    param="kinds")  # fmt: skip
        rules = self.models.rules
        if plan.budget > rules.budget:
            raise InvalidParams(
                f"'budget' is {plan.budget:g}, at most {rules.budget:g} {rules.currency} are permitted",
                hint="An admin raises evals.budget in the settings.",
                param="budget",
            )
        plan = Plan(kinds, plan.model or rules.model, plan.trials or rules.trials, plan.budget or rules.budget)
        model = self.models.find(plan.model) if "task" in kinds else None
        if model is None and "task" in kinds:
            raise InvalidParams(
                f"task cases need a model, and there is no [models.{plan.model or 'NAME'}]",
                hint="An admin adds [models.NAME] and evals.model to the settings.",
                param="model",
            )
        number = sum(1 for _ in _trials_of(loaded, plan))
        if number > MOST_TRIALS:
            raise InvalidParams(
                f"the evaluation would have {number} trials, at most {MOST_TRIALS} are permitted", param="trials"
            )
        return await self.registry.write(
            partial(_insert, identity=identity, loaded=loaded, actor=actor, plan=plan, model=model)
        )


async def start_evaluation(parts: Evaluations, identity: Identity, params: StartEvaluation) -> Evaluation:
    name, version = parse_skill_name(params.name), Version.parse(params.version)
    _require_right(identity, name)
    row = await parts.registry.read(partial(resolve, identity=identity, name=name, spec=Exact(version), manages=True))
    plan = Plan(tuple(dict.fromkeys(params.kinds)) or ("run",), params.model, params.trials, params.budget)
    return await parts.start(identity, row, identity, plan)


def _require_right(identity: Identity, name: str) -> None:
    """Raise NotAllowed if the identity neither reviews nor publishes the skill."""
    if not access.reviews(identity, name):
        access.require_namespace(identity, "publish", name)


def _insert(
    connection: Connection, identity: Identity, loaded: Loaded, actor: Actor, plan: Plan, model: Model | None
) -> Evaluation:
    row = loaded.row
    lock_skill_row(connection, row.name)
    status = connection.scalar(select(skill_versions.c.status).where(skill_versions.c.id == row.version_id))
    if status not in EVALUATED:
        raise Conflict(f"'{row.name}' {row.version} is {status}: it cannot be evaluated")
    of_version = evaluations.c.version_id == row.version_id, evaluations.c.state.in_(ACTIVE)
    if (active := connection.scalar(select(evaluations.c.evaluation).where(*of_version))) is not None:
        raise Conflict(f"{active} evaluates this version", hint="Wait until it has ended, or cancel it.")
    values = {
        "evaluation": new_evaluation_id(),
        "version_id": row.version_id,
        "suite": OWN,
        "suite_digest": loaded.suite_digest,
        "kinds": " ".join(plan.kinds),
        "model_json": model and msgspec.json.encode({"name": plan.model, "model": model.name}).decode(),
        "trials": plan.trials if model else 1,
        "budget": plan.budget if model else None,
        "before_id": loaded.before.version_id if loaded.before else None,
        "identity": identity.name,
        "identity_kind": identity.kind,
        "state": "queued",
        "created_at": datetime.now(UTC),
    }
    evaluation_id = connection.execute(insert(evaluations).values(values).returning(evaluations.c.id)).scalar_one()
    shared = {"evaluation_id": evaluation_id, "is_done": False, "attempts": 0, "cost": 0.0}
    trials = [{**shared, **values} for values in _trials_of(loaded, plan)]
    connection.execute(insert(eval_trials), trials)
    after = {"id": values["evaluation"], "kinds": plan.kinds, "trials": len(trials)}
    audit.record(connection, actor, "start_evaluation", f"{row.name}@{row.version}", after=after)
    return evaluation_of(find_evaluation(connection, str(values["evaluation"])))


def _trials_of(loaded: Loaded, plan: Plan) -> Iterator[dict[str, object]]:
    """Yield the trials in their order: after an early end, all cases and arms have about the same number."""
    for kind in plan.kinds:
        arms = [*loaded.versions, *(["without"] if kind == "task" else [])]
        for trial in range(1, (plan.trials if kind == "task" else 1) + 1):
            for case_id in loaded.of_kind(kind):
                yield from ({"kind": kind, "case_id": case_id, "arm": arm, "trial": trial} for arm in arms)


# -- get_evaluation, list_evaluations ----------------------------------------------------------------------------------


def _find_seen(connection: Connection, identity: Identity, evaluation: str) -> Row[Any]:
    """Return the row of an evaluation of a version that the identity sees. Raise EvaluationNotFound."""
    row = find_evaluation(connection, evaluation)
    try:
        resolve(connection, identity, row.name, Exact(Version.parse(row.version)), manages=True)
    except NotFound:
        raise not_found(evaluation) from None
    return row


class GetEvaluation(Params, frozen=True, kw_only=True):
    """Return an evaluation with the results of its cases."""

    id: Annotated[str, about("Id of the evaluation")]


async def get_evaluation(parts: Evaluations, identity: Identity, params: GetEvaluation) -> EvaluationCases:
    work = partial(_read_cases, identity=identity, evaluation=parse_id(params.id))
    return await parts.registry.read_page(work)


def _read_cases(connection: Connection, identity: Identity, evaluation: str) -> EvaluationCases:
    """Return an evaluation with its cases. Only publishers and reviewers see why trials have not passed: the texts
    quote results of runs.
    """
    row = _find_seen(connection, identity, evaluation)
    tried = read_results(connection, row.id)
    problems: dict[tuple[str, str], list[str]] = {}
    if access.reviews(identity, row.name) or access.publishes(identity, row.name):
        for kind, case_id, arm, result in tried:
            if arm == "with" and result.problem:
                problems.setdefault((kind, case_id), []).append(result.problem)
    cases = case_results((kind, case_id, arm, result.passed) for kind, case_id, arm, result in tried)
    return EvaluationCases(
        **evaluation_fields(row),
        cases=[
            EvaluatedCase(
                each.id,
                each.kind,
                {arm: ArmCount(*counts) for arm, counts in each.arms.items()},
                problems.get((each.kind, each.id), []),
            )
            for each in cases
        ],
    )


class ListEvaluations(Params, frozen=True, kw_only=True):
    """List the evaluations of a skill, newest first."""

    name: SkillName
    version: Annotated[str, about("Version spec (omit for all versions)")] = ""
    limit: PageLimit = 50
    cursor: Cursor = ""


async def list_evaluations(parts: Evaluations, identity: Identity, params: ListEvaluations) -> EvaluationPage:
    work = partial(_read_page, identity=identity, key=parts.registry.cursor_key, params=params)
    return await parts.registry.read_page(work)


def _read_page(connection: Connection, identity: Identity, key: bytes, params: ListEvaluations) -> EvaluationPage:
    """Return a page of evaluations of the versions that the identity sees. Raise the errors of `resolve`."""
    name, spec = parse_named(params.name, params.version)
    if params.version:
        row = resolve(connection, identity, name, spec, manages=True)
        where = [evaluations.c.version_id == row.version_id]
    else:
        skill_id = find_skill(connection, identity, name)
        if skill_id is None:
            raise skill_not_found(connection, identity, name)
        where = [skill_versions.c.skill_id == skill_id]
        if not access.reviews(identity, name):
            is_own = skill_versions.c.publisher == identity.name
            where.append(skill_versions.c.status.in_(SEEN_BY_ALL) | is_own)
    bound_to = ("list_evaluations", name, params.version)
    if params.cursor:
        where.append(evaluations.c.id < int(read_cursor(key, bound_to, params.cursor, 1)[0]))
    newest = select_evaluations().where(*where).order_by(evaluations.c.id.desc()).limit(params.limit + 1)
    rows = connection.execute(newest).all()
    page = fitting_items([evaluation_of(row) for row in rows[: params.limit]])
    next_cursor = make_cursor(key, bound_to, (str(rows[len(page) - 1].id),)) if len(rows) > len(page) else None
    return EvaluationPage(page, next_cursor)


# -- cancel_evaluation -------------------------------------------------------------------------------------------------


class CancelEvaluation(Params, frozen=True, kw_only=True):
    """End an evaluation and its runs. It then has no result."""

    id: Annotated[str, about("Id of the evaluation")]


async def cancel_evaluation(parts: Evaluations, identity: Identity, params: CancelEvaluation) -> Evaluation:
    return await parts.registry.write(partial(_cancel, identity=identity, evaluation=parse_id(params.id)))


def _cancel(connection: Connection, identity: Identity, evaluation: str) -> Evaluation:
    row = _find_seen(connection, identity, evaluation)
    _require_right(identity, row.name)
    if not end_evaluation(connection, row.id, "cancelled", f"cancelled by {identity.name}"):
        raise Conflict(f"{evaluation} has ended: it is {row.state}", hint="There is nothing to cancel.")
    audit.record(
        connection, identity, "cancel_evaluation", evaluation, before={"state": row.state}, after={"state": "cancelled"}
    )
    return evaluation_of(find_evaluation(connection, evaluation))


METHODS = (
    Method(start_evaluation, "read", audits="name"),
    Method(get_evaluation, "read", audits=""),
    Method(list_evaluations, "read", audits=""),
    Method(cancel_evaluation, "read", audits="id"),
)
