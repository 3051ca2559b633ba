"""The start and the end of evaluations: start_evaluation and cancel_evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta
from sqlalchemy import Connection, insert, select

from skillery import audit
from skillery.attestations.evaluations import OWN
from skillery.attestations.policies import Policies
from skillery.audit import Actor
from skillery.backends import Identity
from skillery.contents.kept_contents import Transcripts
from skillery.database.registry import Registry, lock_skill_row
from skillery.database.tables import eval_trials, evaluations, skill_versions
from skillery.errors import Conflict, InvalidParams
from skillery.evaluations.models import Model
from skillery.formats.names import parse_skill_name
from skillery.formats.semver import Version
from skillery.formats.texts import new_evaluation_id, parse_id
from skillery.formats.version_spec import Exact
from skillery.identity import access
from skillery.method import ExactVersion, Method, Params, SkillName, about
from skillery.publishing.evaluation_cases import CaseRuns, Loaded, choose_suite
from skillery.publishing.evaluation_rows import (
    ACTIVE,
    Evaluation,
    end_evaluation,
    evaluation_of,
    find_evaluation,
    find_seen,
)
from skillery.publishing.evaluation_tasks import Models
from skillery.registry.resolution import resolve
from skillery.registry.version_rows import VersionRow

Kind = Literal["run", "task", "search", "choice"]
JUDGED: tuple[Kind, ...] = ("run", "task")
"""The kinds that policies judge."""
BY_MODEL: tuple[Kind, ...] = ("task", "choice")
"""The kinds that need a model, and are tried several times."""
_ADD = {
    "run": "Add [[examples]] to skill.toml. Examples that need permissions do not count.",
    "task": "Add tasks with expectations to evals/evals.json.",
    **dict.fromkeys(("search", "choice"), "Add prompts to evals/triggers.json."),
}
MOST_TRIALS = 20_000
"""The maximum number of trials of an evaluation: servers look for open ones twice a second."""
EVALUATED = ("draft", "in_review", "published", "deprecated")


# -- start_evaluation --------------------------------------------------------------------------------------------------


class StartEvaluation(Params, frozen=True, kw_only=True):
    """Run the cases of a version in the background, and compare it with the version before."""

    name: SkillName
    version: ExactVersion
    kinds: Annotated[list[Kind], about("Kinds of cases (omit for run, or for task with suite)")] = []
    suite: Annotated[str, about("Suite of another skill, NAME@RANGE (omit for the cases of the version)")] = ""
    model: Annotated[str, about("Name of a model of the settings, for tasks and choices (omit for evals.model)")] = ""
    trials: Annotated[
        Annotated[int, Meta(ge=0, le=20)], about("Trials of each task and choice (omit for evals.trials)")
    ] = 0
    budget: Annotated[Annotated[float, Meta(ge=0)], about("Most that the model may cost (omit for evals.budget)")] = 0.0


class Plan(NamedTuple):
    """What an evaluation tries. Without `kinds`, all of JUDGED that the version has cases of. For the kinds in `also`,
    the version may have none.
    """

    kinds: Sequence[Kind]
    model: str = ""
    trials: int = 0
    budget: float = 0.0
    suite: str = OWN
    """The suite as the caller names it."""
    also: Sequence[Kind] = ()


class Evaluations:
    """Starts evaluations. `EvaluationJobs` carries them out."""

    def __init__(
        self, registry: Registry, cases: CaseRuns, models: Models, transcripts: Transcripts, policies: Policies
    ) -> None:
        self.registry = registry
        self._policies = policies
        self.cases = cases
        self.models = models
        self.transcripts = transcripts

    async def start(self, identity: Identity, row: VersionRow, actor: Actor, plan: Plan) -> Evaluation:
        """Start an evaluation of a version. Its runs belong to `identity`. `actor` is in the audit trail.

        Raise InvalidParams if the version has no cases of a kind, if they need a model and there is none, if the budget
        is above that of the settings, or above MOST_TRIALS. Raise Conflict if another evaluation of the version has not
        ended, or its status permits none. Raise the errors of `choose_suite`.
        """
        suite, rules_of_policy = plan.suite, self._policies.of(row.name).rules.evaluation
        if suite != OWN:
            wanted = rules_of_policy.suite if rules_of_policy else ""
            choose = partial(choose_suite, identity=identity, suite=suite, wanted=wanted)
            suite = await self.registry.read(choose)
        loaded = await self.cases.load_new(row, suite)
        kinds = plan.kinds or [kind for kind in JUDGED if loaded.of_kind(kind)] or ["run"]
        kinds = [*kinds, *(kind for kind in plan.also if loaded.of_kind(kind))]
        for kind in kinds:
            if not loaded.of_kind(kind):
                subject = f"'{row.name}' {row.version}" if suite == OWN else f"the suite {suite}"
                hint = _ADD[kind] if suite == OWN else "Of another skill, only the tasks in evals/ are tried."
                raise InvalidParams(f"{subject} has no cases of the kind {kind}", hint=hint, param="kinds")
        rules = self.models.rules
        if plan.budget > rules.budget:
            raise InvalidParams(
                f"'budget' is {plan.budget:g}, at most {rules.budget:g} {rules.currency} are permitted",
                hint="An admin raises evals.budget in the settings.",
                param="budget",
            )
        plan = Plan(kinds, plan.model or rules.model, plan.trials or rules.trials, plan.budget or rules.budget, suite)
        by_model = [kind for kind in kinds if kind in BY_MODEL]
        model = self.models.find(plan.model) if by_model else None
        if model is None and by_model:
            raise InvalidParams(
                f"{by_model[0]} cases need a model, and there is no [models.{plan.model or 'NAME'}]",
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
    suite = params.suite or OWN
    kinds = tuple(dict.fromkeys(params.kinds)) or (("run",) if suite == OWN else ("task",))
    plan = Plan(kinds, params.model, params.trials, params.budget, suite)
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
        "suite": loaded.suite,
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
    after = {"id": values["evaluation"], "kinds": plan.kinds, "suite": loaded.suite, "trials": len(trials)}
    audit.record(connection, actor, "start_evaluation", f"{row.name}@{row.version}", after=after)
    return evaluation_of(connection, identity, find_evaluation(connection, str(values["evaluation"])))


def _trials_of(loaded: Loaded, plan: Plan) -> Iterator[dict[str, object]]:
    """Yield the trials in their order: after an early end, all cases and arms have about the same number."""
    for kind in plan.kinds:
        arms = [*loaded.versions, *(["without"] if kind == "task" else [])] if kind in JUDGED else ["with"]
        for trial in range(1, (plan.trials if kind in BY_MODEL else 1) + 1):
            for case_id in loaded.of_kind(kind):
                yield from ({"kind": kind, "case_id": case_id, "arm": arm, "trial": trial} for arm in arms)


# -- cancel_evaluation -------------------------------------------------------------------------------------------------


class CancelEvaluation(Params, frozen=True, kw_only=True):
    """End an evaluation and its runs. It then has no result."""

    id: Annotated[str, about("Id of the evaluation")]


async def cancel_evaluation(parts: Evaluations, identity: Identity, params: CancelEvaluation) -> Evaluation:
    return await parts.registry.write(partial(_cancel, identity=identity, evaluation=parse_id(params.id)))


def _cancel(connection: Connection, identity: Identity, evaluation: str) -> Evaluation:
    row = find_seen(connection, identity, evaluation)
    _require_right(identity, row.name)
    if not end_evaluation(connection, row.id, "cancelled", f"cancelled by {identity.name}"):
        raise Conflict(f"{evaluation} has ended: it is {row.state}", hint="There is nothing to cancel.")
    audit.record(
        connection, identity, "cancel_evaluation", evaluation, before={"state": row.state}, after={"state": "cancelled"}
    )
    return evaluation_of(connection, identity, find_evaluation(connection, evaluation))


METHODS = (
    Method(start_evaluation, "read", audits="name"),
    Method(cancel_evaluation, "read", audits="id"),
)
