"""The background job of evaluations: it takes trials by lease, runs them while no caller waits, and states the result
of evaluations whose trials have all ended.

A trial has one result, and an evaluation one statement. If a server dies, another one tries its open trials again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial

import msgspec
from sqlalchemy import Connection

from skillery.attestations.evaluations import OWN, case_results, evaluation_predicate
from skillery.audit import SERVER
from skillery.backends import Identity
from skillery.database import Database
from skillery.database.leases import Lease, release, release_own, renew
from skillery.database.tables import eval_trials
from skillery.errors import Busy, Conflict, InvalidParams, NotFound, SkilleryError
from skillery.evaluations.models import ModelFailed
from skillery.evaluations.prompts import prompt_figures
from skillery.evaluations.trials import BudgetUsed, TrialResult, summarize
from skillery.formats.semver import Version
from skillery.formats.version_spec import Exact
from skillery.publishing.evaluation_cases import READER, Loaded, find_suite
from skillery.publishing.evaluation_rows import (
    OpenTrial,
    add_cost,
    claim_trial,
    end_evaluation,
    end_with,
    find_evaluation,
    identity_of,
    model_of,
    owner_of,
    postpone,
    read_active,
    read_costs,
    read_next,
    read_results,
    read_submitted,
    read_version,
)
from skillery.publishing.evaluation_tasks import Spending, TaskRuns, TrialBudget
from skillery.publishing.evaluations import JUDGED, Evaluations, Plan
from skillery.publishing.passing import Passing, step_if_met
from skillery.registry.resolution import resolve
from skillery.runs.active_run import begun_runs
from skillery.runs.runner import Runner
from skillery.settings.versions import PolicyRules
from skillery.versions.new_versions import NewVersion

log = logging.getLogger(__name__)
POLL_SECONDS = 0.5
SUBMITTED_SECONDS = 2.0
"""Seconds between two looks at versions that wait for their first evaluation."""
RENEW_SECONDS = 10.0
PAUSE = timedelta(seconds=5)
"""The time until a trial that could not run is tried again, for the first time."""
MOST_ATTEMPTS = 5
MOST_LOADED = 4
"""The number of evaluations whose files are kept in memory."""


class EvaluationJobs:
    """Carries out the evaluations of a registry, together with the other servers of its database."""

    def __init__(
        self,
        database: Database,
        server: str,
        parts: Evaluations,
        runner: Runner,
        passing: Passing,
        tasks: TaskRuns,
    ) -> None:
        self._database = database
        self._server = server
        self._parts = parts
        self._runner = runner
        self._passing = passing
        self._tasks = tasks
        self._rules = tasks.models.rules
        self._spending: dict[int, Spending] = {}
        self._task: asyncio.Task[None] | None = None
        self._trying: dict[asyncio.Task[None], tuple[OpenTrial, Lease, list[str]]] = {}
        """The trials of this server, with their leases and the runs that they have begun."""
        self._served: dict[str, int] = {}
        """The last turn of each identity."""
        self._turns = itertools.count(1)
        self._has_ended = asyncio.Event()
        """Set when a trial has ended: the next one then begins at once."""
        self._loaded: dict[int, Loaded] = {}
        self._unable: set[int] = set()
        """Versions that wait for an evaluation, and have no cases."""
        self._looked_at = self._renewed_at = float("-inf")

    async def start(self) -> None:
        for policy in self._passing.policies.named:
            suite = self._left_suite(policy.rules)
            if suite and not (policy.rules.evaluation and policy.rules.evaluation.outside):
                log.warning(
                    '[policy."%s"] needs the suite %s, whose tasks evals.on_submit = "%s" does not start: start them '
                    "with skillery eval NAME@VERSION --suite '%s', or set evals.on_submit to 'all'",
                    policy.name, suite, self._rules.on_submit, suite,
                )  # fmt: skip
        await self._database.write(partial(release_own, tables=[eval_trials], server=self._server))
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop. The next server tries the trials that have not ended again."""
        tasks, trying = [*self._trying, *([self._task] if self._task else [])], [*self._trying.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for _, lease, _ in trying:
            await self._database.write(partial(release, lease=lease, attempts=eval_trials.c.attempts - 1))
        await self._tasks.models.close()

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._has_ended.wait(), POLL_SECONDS)
            self._has_ended.clear()
            try:
                await self._look()
            except SkilleryError as error:
                log.debug("evaluations: %s", error.message)
            except Exception:  # a fault of one look ends neither the job nor the server
                log.exception("evaluations failed")

    async def _look(self) -> None:
        """Begin trials, end evaluations, and stop the runs of cancelled ones."""
        now = time.monotonic()
        if self._rules.on_submit != "none" and now - self._looked_at > SUBMITTED_SECONDS:
            self._looked_at = now
            await self._start_submitted()
        active = await self._database.read(read_active)
        if self._trying and now - self._renewed_at > RENEW_SECONDS:
            self._renewed_at = now
            for _, lease, _ in list(self._trying.values()):
                await self._database.write(partial(renew, lease=lease))
        for task, (trial, _, run_ids) in list(self._trying.items()):
            if trial.evaluation_id not in active and not task.cancelling():
                for run_id in run_ids:
                    await self._runner.cancellation.cancel_abandoned_run(READER, run_id)
                task.cancel()
        for evaluation_id in [key for key, has_open in active.items() if not has_open]:
            try:
                await self._finish(evaluation_id)
            except SkilleryError as error:
                log.warning("an evaluation cannot end yet: %s", error.message)
        if any(active.values()):
            for _ in range(self._rules.runs - len(self._trying)):
                following = await self._database.read(partial(read_next, turn=lambda name: self._served.get(name, 0)))
                if following is None:
                    break
                await self._begin(following)

    async def _begin(self, trial: OpenTrial) -> None:
        """Begin a trial, if a slot is free that no caller waits for. Fail its evaluation after MOST_ATTEMPTS."""
        if trial.attempts >= MOST_ATTEMPTS:
            last = msgspec.json.decode(trial.result_json, type=TrialResult) if trial.result_json else None
            problem = last.problem if last else "its servers have ended"
            error = f"the case {trial.case_id} could not be tried: {problem}"
            end = partial(end_evaluation, evaluation_id=trial.evaluation_id, state="failed", error=error)
            await self._database.write(end)
            return
        claim = partial(claim_trial, trial=trial, server=self._server)
        if self._runner.has_room and (lease := await self._database.write(claim)):
            self._served[trial.identity] = next(self._turns)
            run_ids: list[str] = []
            task = asyncio.create_task(self._try(trial, lease, run_ids))
            self._trying[task] = trial, lease, run_ids
            task.add_done_callback(self._tried)

    def _tried(self, task: asyncio.Task[None]) -> None:
        del self._trying[task]
        self._has_ended.set()

    async def _try(self, trial: OpenTrial, lease: Lease, run_ids: list[str]) -> None:
        begun_runs.set(run_ids)
        end = partial(end_evaluation, evaluation_id=trial.evaluation_id)
        try:
            loaded = await self._load(trial.evaluation_id)
            result = await self._result(trial, loaded)
            await self._database.write(partial(release, lease=lease, is_done=True, result_json=_encoded(result)))
        except BudgetUsed as error:
            await self._database.write(partial(end, state="stopped", error=str(error)))
        except ModelFailed as error:
            await self._database.write(partial(end, state="failed", error=error.message))
        except Exception as error:
            is_expected = isinstance(error, SkilleryError)
            log.log(logging.DEBUG if is_expected else logging.ERROR, "the trial %s of %s failed", trial.case_id,
                    trial.evaluation, exc_info=not is_expected)  # fmt: skip
            # An attempt on a busy server does not count.
            attempts = trial.attempts + (not isinstance(error, Busy))
            problem = TrialResult(False, error.message if isinstance(error, SkilleryError) else "the server failed")
            back = partial(postpone, lease=lease, pause=PAUSE * max(1, trial.attempts**2), attempts=attempts)
            await self._database.write(partial(back, result_json=_encoded(problem)))

    async def _result(self, trial: OpenTrial, loaded: Loaded) -> TrialResult:
        """Try a case. What a model has cost is stored, also if the trial has no result."""
        cases = self._parts.cases
        if trial.kind == "run":
            return await cases.run(identity_of(trial), loaded, trial.case_id, trial.arm)
        if trial.kind == "search":
            return await cases.search(loaded, trial.case_id)
        spending = self._spending.setdefault(trial.evaluation_id, Spending())
        spending.note(*await self._database.read(partial(read_costs, evaluation_id=trial.evaluation_id)))
        budget = TrialBudget(spending, trial.budget or 0.0, self._rules, [])
        model: str = msgspec.json.decode(trial.model_json or "{}")["name"]
        keep = partial(self._parts.transcripts.keep, trial.evaluation)
        try:
            if trial.kind == "choice":
                offered = await cases.candidates(loaded, trial.case_id)
                return await self._tasks.choose(loaded, trial.case_id, offered, model, budget)
            return await self._tasks.run(owner_of(trial), loaded, trial.case_id, trial.arm, model, budget, keep)
        finally:
            if (amount := budget.total).tokens:
                await self._database.write(partial(add_cost, trial_id=trial.id, amount=amount))
                spending.own = spending.own.plus(amount)

    async def _load(self, evaluation_id: int) -> Loaded:
        """Return the versions and cases of an evaluation."""
        if evaluation_id not in self._loaded:
            version = await self._database.read(partial(read_version, evaluation_id=evaluation_id))
            loaded = await self._parts.cases.load(*version)
            while len(self._loaded) >= MOST_LOADED:
                self._loaded.pop(next(iter(self._loaded)))
            self._loaded[evaluation_id] = loaded
        return self._loaded[evaluation_id]

    # -- The end of an evaluation --------------------------------------------------------------------------------------

    async def _finish(self, evaluation_id: int) -> None:
        """Sign and store the result of an evaluation, and publish its version if it meets its policy then."""
        evaluation = await self._database.read(partial(find_evaluation, evaluation=evaluation_id))
        results = await self._database.read(partial(read_results, evaluation_id=evaluation_id))
        by = identity_of(evaluation)
        name, version = evaluation.name, Version.parse(evaluation.version)
        judged = [row for row in results if row[0] in JUDGED]
        cases = case_results((kind, case_id, arm, result.passed) for kind, case_id, arm, result in judged)
        prompts = prompt_figures((kind, case_id, result) for kind, case_id, _, result in results)
        suite = {"name": evaluation.suite, "digest": evaluation.suite_digest}
        if evaluation.suite != OWN:
            of_suite = await self._database.read(partial(find_suite, identity=READER, suite=evaluation.suite))
            suite["bundle"] = of_suite.digest
        tasks = [(case_id, arm, result) for kind, case_id, arm, result in results if kind == "task"]
        summary = await asyncio.to_thread(summarize, tasks, evaluation.suite_digest) if tasks else None
        facts = {"model": model_of(evaluation), "cost": round(evaluation.cost, 4), "currency": self._rules.currency}
        measured = (msgspec.to_builtins(summary) if summary else {}) | facts if evaluation.model_json else None
        predicate = evaluation_predicate(by, evaluation.evaluation, suite, evaluation.before, cases, measured, prompts)
        about = (by, name, evaluation.version, evaluation.digest)
        statements = await self._passing.signing.attest(*about, {"evaluation": predicate})
        end = partial(end_with, evaluation_id=evaluation_id, predicate=predicate, statements=statements)
        waits = partial(self._passing.waiting, identity=READER, name=name, version=version)
        try:
            if await self._database.read(waits) is None:
                await self._database.write(partial(end, evaluation=evaluation, inserts=True))
                return

            def store(connection: Connection, *, meets: bool) -> NewVersion:
                end(connection, evaluation=evaluation, inserts=False)
                return step_if_met(connection, READER, name, version, meets=meets)

            await self._passing.settle(READER, name, version, statements, store)
        except NotFound as error:
            fail = partial(end_evaluation, evaluation_id=evaluation_id, state="failed", error=error.message)
            await self._database.write(fail)
        finally:
            self._loaded.pop(evaluation_id, None)
            self._spending.pop(evaluation_id, None)

    def _left_suite(self, policy: PolicyRules) -> str:
        """Return the suite of another skill that a policy needs and the server does not start, or "": its tasks need a
        model, which only `on_submit = "all"` uses.
        """
        suite = policy.evaluation.suite if policy.evaluation else OWN
        return suite if suite != OWN and self._rules.on_submit != "all" else ""

    async def _start_submitted(self) -> None:
        """Start the first evaluation of each version that needs it to meet its policy, for its publisher."""
        patterns = [policy.name for policy in self._passing.policies.named if "evaluation" in policy.rules.needs]
        if not patterns:
            return
        for version_id, name, number in await self._database.read(partial(read_submitted, patterns=patterns)):
            policy = self._passing.policies.of(name).rules
            suite = policy.evaluation.suite if policy.evaluation else OWN
            if version_id in self._unable or "evaluation" not in policy.needs or self._left_suite(policy):
                continue
            plan = Plan(["run"] if self._rules.on_submit == "run" else (), suite=suite, also=["search"])
            find = partial(resolve, identity=READER, name=name, spec=Exact(Version.parse(number)), manages=True)
            row = await self._database.read(find)
            try:
                await self._parts.start(Identity(row.publisher, row.publisher_kind), row, SERVER, plan)
            except (InvalidParams, NotFound, Conflict) as error:
                self._unable.add(version_id)
                log.warning("%s@%s is not evaluated: %s", name, number, error.message)


def _encoded(result: TrialResult) -> str:
    return msgspec.json.encode(result).decode()
