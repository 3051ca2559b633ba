"""`skillery eval --model`: the tasks of a skill folder, tried by an agent in temporary registries of this command.

An agent gets the skill without its suites, and without its permissions: its runs reach no network and get no secrets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import msgspec

from skillery.authoring.folder_host import Finder
from skillery.authoring.own_tests import read_folder
from skillery.client import AnsweredError, AsyncClient, InternalError
from skillery.evaluations.agent import agent_copy, attempt, is_hidden, tasks_of
from skillery.evaluations.grading import Graders
from skillery.evaluations.models import Model, ModelClient, ModelFailed, TokenBudget, open_model
from skillery.evaluations.prompts import Candidate, Choice, candidates_for, choose
from skillery.evaluations.tools import AgentTools, CallMethod, PythonGraders, Refusal, TriedSkill, describe
from skillery.evaluations.trials import (
    Arm,
    BudgetUsed,
    Graded,
    Limits,
    Summary,
    Task,
    Tokens,
    Trial,
    TrialResult,
    summarize,
)
from skillery.formats.bundle import digest_of
from skillery.formats.graders import grade_here
from skillery.formats.suites import Case, Suite
from skillery.formats.wording import Problem
from skillery.publishing.folders import SkillFolder


class ModelPlan(NamedTuple):
    """How tasks are tried. `tokens` is the budget of each folder. `before` is the folder of another version."""

    model: Model
    key: str
    trials: int
    tokens: int
    before: Path | None = None


class Registry(NamedTuple):
    """A registry with other skills: those that a search finds for a prompt, best first, and all that it lists."""

    search: Callable[[str], Awaitable[Sequence[Candidate]]]
    others: Sequence[Candidate] = ()


class Tried(msgspec.Struct, frozen=True):
    """A trial with its grades. `number` counts the trials of a task in an arm, from 1."""

    number: int
    trial: Trial
    graded: Graded


class ModelResults(msgspec.Struct, frozen=True):
    """What an agent did with the tasks of a folder. `reason` says why not all trials are done."""

    model: str
    state: Literal["done", "stopped", "failed"]
    reason: str
    tried: tuple[Tried, ...]
    planned: int
    summary: Summary
    choices: tuple[Choice, ...]
    problems: tuple[Problem, ...]
    tokens: Tokens

    @property
    def ok(self) -> bool:
        """Whether all trials are done, and the skill is not worse than the version before."""
        change = self.summary.change
        return self.state == "done" and not (change is not None and change.verdict == "worse")


OpenRegistry = Callable[[Sequence[SkillFolder]], AbstractAsyncContextManager[AsyncClient]]
"""Open a temporary registry with skills."""


async def evaluate_with_model(
    folder: Path,
    suite: Suite,
    plan: ModelPlan,
    registry: Registry | None,
    finder: Finder,
    open_registry: OpenRegistry,
) -> ModelResults:
    """Try the tasks of a folder. With `registry`, let the model also choose a skill for each prompt of the suite.

    Blocking: the folders are read in this thread. Raise the errors of `read_folder`, of `Finder.find`, and those of
    publishing.
    """
    skills: dict[Arm, SkillFolder] = {"with": _read(folder)}
    if plan.before is not None:
        skills["before"] = _read(plan.before)
    files = {file.path: file.content for file in skills["with"].files}
    seed = digest_of(file for file in skills["with"].files if is_hidden(file.path))
    tasks, problems = tasks_of(suite, files)
    async with AsyncExitStack() as stack:
        is_loopback = plan.model.url.startswith("http://")
        client = await stack.enter_async_context(open_model(plan.model, plan.key, trust_env=not is_loopback))
        work = _Work(plan, client)
        if tasks:
            opened = {}
            for arm, skill in skills.items():
                copies = [_agent_copy(each) for each in (*await finder.find(skill), skill)]
                opened[arm] = await stack.enter_async_context(open_registry(copies))
            await work.open(opened, skills, files)
        prompts = [case for case in suite.cases if case.kind == "trigger"]
        choosing = work.choosing(prompts, skills["with"], registry, seed) if registry else ()
        await work.run([*work.trials(tasks), *choosing])
    tried = tuple(sorted(work.tried, key=lambda row: (row.trial.task, row.trial.arm, row.number)))
    return ModelResults(
        model=plan.model.name,
        state=work.state,
        reason=work.reason,
        tried=tried,
        planned=len(tasks) * len(work.arms) * plan.trials,
        summary=await asyncio.to_thread(summarize, list(map(_finished, tried)), seed),
        choices=tuple(work.choices),
        problems=tuple(problems),
        tokens=work.budget.used,
    )


def _agent_copy(skill: SkillFolder) -> SkillFolder:
    manifest, files = agent_copy(skill.manifest, skill.files)
    return skill._replace(manifest=manifest, files=files)


def _finished(row: Tried) -> tuple[str, Arm, TrialResult]:
    trial = row.trial
    result = TrialResult(row.graded.passed, "", trial.tokens.total, trial.cost, trial.used_skill)
    return trial.task, trial.arm, result


def _read(folder: Path) -> SkillFolder:
    skill, skill_md, _ = read_folder(folder, allow_unknown=True)
    # The SKILL.md of a plain Agent Skill is parsed already, as the publisher takes it.
    return skill._replace(skill_md=cast("str", skill_md))


def _calls(client: AsyncClient) -> CallMethod:
    async def call(method: str, params: Mapping[str, Any]) -> Any:
        try:
            return await client.call(method, params)
        except InternalError:
            raise
        except AnsweredError as error:
            raise Refusal(str(error)) from None

    return call


Job = Callable[[], Awaitable[None]]


class _Work:
    """The trials of one folder, `model.concurrent` at a time. They end early if the budget is used or the model fails.

    Trials that have begun still end.
    """

    def __init__(self, plan: ModelPlan, model: ModelClient) -> None:
        self._plan = plan
        self._model = model
        self._graders: Graders | None = None
        self.budget = TokenBudget(plan.tokens)
        self.arms: dict[Arm, tuple[CallMethod, TriedSkill | None]] = {}
        self.state: Literal["done", "stopped", "failed"] = "done"
        self.reason = ""
        self.tried: list[Tried] = []
        self.choices: list[Choice] = []

    async def open(
        self, registries: Mapping[Arm, AsyncClient], skills: Mapping[Arm, SkillFolder], files: Mapping[str, bytes]
    ) -> None:
        """Describe the skill of each arm, and add the arm `without`."""
        for arm, client in registries.items():
            call, manifest = _calls(client), skills[arm].manifest
            self.arms[arm] = call, await describe(call, str(manifest["name"]), str(manifest["version"]))
        call, _ = self.arms["with"]
        self.arms["without"] = call, None
        self._graders = Graders(self._model, grade_here, PythonGraders(call, files), files)

    def trials(self, tasks: Sequence[Task]) -> Iterator[Job]:
        """Yield each trial. After an early end, all tasks and arms have about the same number of trials."""
        for number in range(1, self._plan.trials + 1):
            for task in tasks:
                yield from (partial(self._try, task, arm, number) for arm in self.arms)

    async def _try(self, task: Task, arm: Arm, number: int) -> None:
        assert self._graders is not None
        tools = await AgentTools.open(*self.arms[arm], task.files)
        trial = await attempt(task, arm, self._model, tools, self.budget, Limits())
        graded = await self._graders.graded(task, trial, self.budget)
        # The contents of all trials together could fill the memory.
        trial = msgspec.structs.replace(trial, files=dict.fromkeys(trial.files, b""))
        self.tried.append(Tried(number, trial, graded))

    def choosing(self, prompts: Sequence[Case], skill: SkillFolder, registry: Registry, seed: str) -> Iterator[Job]:
        """Yield the choice for each prompt."""
        meant = Candidate(str(skill.manifest["name"]), str(skill.manifest.get("description", "")))
        for case in prompts:
            yield partial(self._choose, case, meant, registry, f"{seed} {case.source} {case.id}")

    async def _choose(self, case: Case, meant: Candidate, registry: Registry, seed: str) -> None:
        candidates = candidates_for(meant, await registry.search(case.prompt), registry.others, seed)
        names = frozenset(row.name for row in candidates if case.is_meant(row.name, meant.name))
        if names:
            chosen = [await choose(self._model, case.prompt, candidates, self.budget) for _ in range(self._plan.trials)]
            share = round(sum(name in names for name in chosen) / len(chosen), 4)
            self.choices.append(Choice(case.id, case.source, case.prompt, case.triggers, tuple(chosen), share))

    async def run(self, jobs: Sequence[Job]) -> None:
        """Do the jobs in order, until the budget is used or the model fails."""
        waiting = iter(jobs)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._plan.model.concurrent):
                    group.create_task(self._work(waiting))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _work(self, jobs: Iterator[Job]) -> None:
        for job in jobs:
            try:
                await job()
            except BudgetUsed as error:
                self.state, self.reason = "stopped", str(error)
            except ModelFailed as error:
                self.state, self.reason = "failed", error.message
            if self.reason:
                return
