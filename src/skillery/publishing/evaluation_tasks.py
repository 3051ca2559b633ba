"""Tasks of evaluations: an agent does them with the version, without it, or with the version before. Choices: a model
chooses a skill for a prompt.

The agent gets a copy of the version without its suites and without its permissions. Its runs reach no network and get
no secrets. Neither do the skills that they call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import msgspec

from skillery.backends import Identity, Secrets
from skillery.errors import StartupError
from skillery.evaluations.agent import agent_copy, attempt
from skillery.evaluations.grading import Graders
from skillery.evaluations.models import Model, ModelClient, ModelFailed, check_address, open_model
from skillery.evaluations.prompts import Candidate, choose
from skillery.evaluations.tools import AgentTools, CallMethod, PythonGraders, describe
from skillery.evaluations.trials import Amount, Arm, BudgetUsed, Limits, Tokens, TrialResult
from skillery.formats.bundle import SKILL_MD, BundleFile
from skillery.formats.wording import did_you_mean
from skillery.publishing.bundle_checks import BundleChecks
from skillery.publishing.evaluation_cases import Loaded
from skillery.registry.development import EvaluatingIdentity, Overlay, developed
from skillery.settings.versions import Evals, ModelSettings

_SLOT_SECONDS = 0.1
"""The time between two looks for a free slot."""
_RUNS = ("execute_skill", "run_code", "call_tool")
_PROBLEM = 2_000
"""The maximum number of characters of the reasons why a trial has not passed."""


class Models:
    """The models of the settings, and their keys in the backend of secrets."""

    def __init__(self, entries: Mapping[str, ModelSettings], rules: Evals, secrets: Secrets) -> None:
        """Raise StartupError if an address is not valid, or `evals` names no entry."""
        self.rules = rules
        self._entries = entries
        self._secrets = secrets
        self._clients: dict[str, ModelClient] = {}
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()
        for name, entry in entries.items():
            try:
                check_address(entry.url)
            except ValueError as error:
                raise StartupError(f"[models.{name}] has a url that cannot be used: {error}") from None
        for key in ("model", "grader"):
            name = getattr(rules, key)
            if name and name not in entries:
                raise StartupError(f"evals.{key} is {name!r}{did_you_mean(name, entries)}: there is no [models.{name}]")

    def find(self, name: str) -> Model | None:
        """Return the model of an entry, or None."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        prices = entry.input_price, entry.output_price
        return Model(entry.api, entry.url, entry.model, *prices, concurrent=entry.concurrent)

    async def client(self, name: str) -> ModelClient:
        """Return the client of an entry. Raise ModelFailed if there is none, or its key is not stored."""
        async with self._opening:
            if name not in self._clients:
                model, entry = self.find(name), self._entries.get(name)
                if model is None or entry is None:
                    raise ModelFailed(f"this server has no [models.{name}]")
                key = await asyncio.to_thread(self._secrets.get, entry.secret) if entry.secret else ""
                if key is None:
                    raise ModelFailed(f"the secret {entry.secret} of [models.{name}] has no value")
                opened = open_model(model, key, trust_env=not model.url.startswith("http://"))
                self._clients[name] = await self._stack.enter_async_context(opened)
            return self._clients[name]

    async def close(self) -> None:
        await self._stack.aclose()


class Spending(msgspec.Struct):
    """The costs and tokens of the trials of one evaluation."""

    reserved: Amount = Amount()
    """What this server has spent and reserved."""
    own: Amount = Amount()
    """The part of it that is in the database."""
    others: Amount = Amount()
    """What other servers have spent."""
    of_day: Amount = Amount()
    """What all evaluations of the day have used, without this one on this server."""

    def note(self, stored: Amount, of_day: Amount) -> None:
        """Take the amounts that the database has now."""
        self.others, self.of_day = stored.without(self.own), of_day.without(self.own)


class TrialBudget(NamedTuple):
    """The Budget of one trial: the rest of the evaluation, and of the day."""

    spending: Spending
    most: float
    rules: Evals
    used: list[Amount]

    async def reserve(self, tokens: Tokens, cost: float) -> None:
        spending, rules, currency = self.spending, self.rules, self.rules.currency
        spent, of_day = (amount.plus(spending.reserved) for amount in (spending.others, spending.of_day))
        if spent.cost + cost > self.most:
            raise BudgetUsed(f"{spent.cost:.2f} of {self.most:.2f} {currency} are used; raise the budget")
        if of_day.cost + cost > rules.daily_budget:
            used = f"{of_day.cost:.2f} of {rules.daily_budget:.2f} {currency}"
            raise BudgetUsed(f"{used} of this day are used (evals.daily_budget)")
        for amount, key in ((spent, "budget_tokens"), (of_day, "daily_tokens")):
            most = getattr(rules, key)
            if most and amount.tokens + tokens.total > most:
                period = " of this day" if amount is of_day else ""
                raise BudgetUsed(f"{amount.tokens:,} of {most:,} tokens{period} are used (evals.{key})")
        spending.reserved = spending.reserved.plus(Amount(cost, tokens.total))

    async def settle(self, reserved: Tokens, reserved_cost: float, used: Tokens, cost: float) -> None:
        amount = Amount(cost, used.total)
        self.spending.reserved = self.spending.reserved.plus(amount).without(Amount(reserved_cost, reserved.total))
        self.used.append(amount)

    @property
    def total(self) -> Amount:
        """The sum of `used`."""
        return Amount(sum(amount.cost for amount in self.used), sum(amount.tokens for amount in self.used))


CallAs = Callable[[Identity], CallMethod]
"""Return the function that calls methods as an identity."""


Keep = Callable[[Sequence[Mapping[str, Any]]], str]
"""Store a transcript, and return its id. Blocking."""


class TaskRuns:
    """Tries tasks with a model."""

    def __init__(self, checks: BundleChecks, models: Models, call_as: CallAs, has_room: Callable[[], bool]) -> None:
        """`has_room` returns whether a run would have a slot that no caller waits for."""
        self.models = models
        self._checks = checks
        self._call_as = call_as
        self._has_room = has_room

    async def run(
        self, by: Identity, loaded: Loaded, case_id: str, arm: Arm, model: str, budget: TrialBudget, keep: Keep
    ) -> TrialResult:
        """Let an agent do a task once, grade it, and keep its transcript. The runs belong to `by`. Raise ModelFailed or
        BudgetUsed, and the errors of methods that do not work now.
        """
        task, files = loaded.tasks[case_id], loaded.files
        client, grader = [await self.models.client(name) for name in (model, self.models.rules.grader or model)]
        identity, skill = await self._acting(by, loaded, arm)
        async with self._calls(identity) as call:
            tried = await describe(call, *skill) if skill else None
            tools = await AgentTools.open(call, tried, task.files)
            trial = await attempt(task, arm, client, tools, budget, Limits())
        async with self._calls(by) as call:
            grade = self._checks.examples.grade
            graders = Graders(grader, grade, PythonGraders(call, files), files, by.name)
            graded = await graders.graded(task, trial, budget)
        failed = [f"{each.text}: {each.evidence}" for each in graded.grades if not each.passed]
        return TrialResult(
            graded.passed,
            "; ".join(filter(None, [trial.error, *failed]))[:_PROBLEM],
            trial.tokens.plus(graded.tokens).total,
            budget.total.cost,
            trial.used_skill,
            await asyncio.to_thread(keep, trial.transcript),
        )

    async def choose(
        self, loaded: Loaded, case_id: str, candidates: Sequence[Candidate], model: str, budget: TrialBudget
    ) -> TrialResult:
        """Let a model choose a skill for a prompt once. Raise ModelFailed or BudgetUsed."""
        case, own_name = loaded.prompts[case_id], loaded.row.name
        chosen = await choose(await self.models.client(model), case.prompt, candidates, budget)
        expected = "the skill to be chosen" if case.triggers else "the skill not to be chosen"
        is_passed = bool(chosen and case.is_meant(chosen, own_name)) == case.triggers
        rival = "" if is_passed or chosen == own_name else chosen
        choice = "another" if rival else chosen or "none"
        problem = "" if is_passed else f"expected {expected}: the model chose {choice}"
        used = budget.total
        return TrialResult(is_passed, problem, used.tokens, used.cost, triggers=case.triggers, rival=rival)

    async def _acting(self, by: Identity, loaded: Loaded, arm: Arm) -> tuple[Identity, tuple[str, str] | None]:
        """Return the identity of an agent, and the name and number of its copy of the version, or None without it."""
        if arm == "without":
            return by, None
        subject = loaded.versions[arm].subject
        manifest, files = agent_copy(subject.manifest.raw, subject.files)
        contents = {file.path: file for file in files}
        skill_md = contents.pop(SKILL_MD).content.decode()
        copied = [BundleFile(file.path, file.content, file.executable) for file in contents.values()]
        bundle = await self._checks.parse(by.name, manifest, skill_md, copied)
        overlay = Overlay({subject.manifest.name: developed(by, bundle, ())})
        identity = EvaluatingIdentity(by.name, by.kind, by.scopes, overlay=overlay, closure=loaded.closures[arm])
        return identity, (subject.manifest.name, str(subject.manifest.version))

    @asynccontextmanager
    async def _calls(self, identity: Identity) -> AsyncIterator[CallMethod]:
        """Context manager: yield the function that calls methods as an identity. At the end, delete the workspaces that
        it has made. A run begins when no caller waits for its slot.
        """
        perform, made = self._call_as(identity), list[str]()

        async def call(method: str, params: Mapping[str, Any]) -> Any:
            while method in _RUNS and not self._has_room():  # noqa: ASYNC110 - other processes cannot set an event
                await asyncio.sleep(_SLOT_SECONDS)
            result = await perform(method, params)
            if method == "create_workspace":
                made.append(result["id"])
            return result

        try:
            yield call
        finally:
            for workspace in made:
                await perform("delete_workspace", {"workspace": workspace})
