"""Prompts that should lead to a skill, or should not: whether a search finds the skill, and whether a model chooses it.

`skillery eval DIR` searches a registry as its caller. The server searches as if the evaluated version was published.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Sequence
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

import msgspec

from skillery.evaluations.dialects import Chat, Tool
from skillery.evaluations.models import ModelClient
from skillery.evaluations.trials import Budget, TrialResult
from skillery.formats.suites import Case
from skillery.formats.wording import one_line

SEARCHED = 20
"""The number of search results that count for a prompt."""
DEPTHS = (1, 3, 5)
THRESHOLD = 0.5
"""The share of trials from which a skill counts as chosen, as in skill-creator."""


class Candidate(NamedTuple):
    """A skill that a search finds, or that a model may choose."""

    name: str
    description: str


# -- Searches ----------------------------------------------------------------------------------------------------------


class Prompt(msgspec.Struct, frozen=True, omit_defaults=True):
    """A prompt of a suite, and what a search with it found. `rank` counts from 1, or is None if the skill was not among
    the first SEARCHED results. `first` is the first result, or "" without results.
    """

    id: str
    source: str
    prompt: str
    triggers: bool
    rank: int | None = None
    first: str = ""

    @property
    def problem(self) -> str:
        """What was expected and what was found, or "" if the search is as expected."""
        return with_rival("search", self.difference, self.rival)

    @property
    def difference(self) -> str:
        """The problem without the name of the first result."""
        if (self.rank == 1) == self.triggers:
            return ""
        expected = "the skill as the first result" if self.triggers else "another first result, or none"
        place = f"the skill is number {self.rank}" if self.rank else "the skill is not found"
        return f"expected {expected}: {place}"

    @property
    def rival(self) -> str:
        return self.first if self.rank != 1 and self.difference else ""


def with_rival(kind: str, problem: str, rival: str) -> str:
    """Return the problem of a case with the name of the skill that was found first or chosen, if there is one."""
    return f"{problem}, {'first is ' if kind == 'search' else ''}{rival}" if rival else problem


def searched(case: Case, own_name: str, results: Sequence[Candidate]) -> Prompt:
    """Return what a search with the prompt of a case has found."""
    names = [candidate.name for candidate in results[:SEARCHED]]
    rank = next((rank for rank, name in enumerate(names, 1) if case.is_meant(name, own_name)), None)
    return Prompt(case.id, case.source, case.prompt, case.triggers, rank, names[0] if names else "")


class Findability(msgspec.Struct, frozen=True):
    """How well a search finds the skill by the prompts that should lead to it."""

    prompts: tuple[Prompt, ...]

    @property
    def expected(self) -> list[Prompt]:
        return [prompt for prompt in self.prompts if prompt.triggers]

    @property
    def missed(self) -> list[Prompt]:
        """The prompts whose skill is not first."""
        return [prompt for prompt in self.expected if prompt.rank != 1]

    @property
    def wrong(self) -> list[Prompt]:
        """The prompts that should not lead to the skill, and have it first."""
        return [prompt for prompt in self.prompts if not prompt.triggers and prompt.rank == 1]

    def share_at(self, depth: int) -> float:
        """Return the share of the expected prompts with the skill among the first `depth` results."""
        return fmean(prompt.rank is not None and prompt.rank <= depth for prompt in self.expected)

    @property
    def reciprocal_rank(self) -> float:
        return fmean(1 / prompt.rank if prompt.rank else 0.0 for prompt in self.expected)

    def figures(self) -> dict[str, Any]:
        shares = {f"at_{depth}": round(self.share_at(depth), 4) for depth in DEPTHS} if self.expected else {}
        mean = {"mean_reciprocal_rank": round(self.reciprocal_rank, 4)} if self.expected else {}
        counts = {"prompts": len(self.prompts), "expected": len(self.expected)}
        return {**counts, **shares, **mean, "wrong": len(self.wrong)}


# -- Choices: which skill a model loads for a prompt, by the names and descriptions of many skills ---------------------


class Choice(msgspec.Struct, frozen=True):
    """How often the meant skill was chosen for a prompt. `chosen` has the choice of each trial, "" for none."""

    id: str
    source: str
    prompt: str
    triggers: bool
    chosen: tuple[str, ...]
    share: float

    @property
    def ok(self) -> bool:
        return (self.share >= THRESHOLD) == self.triggers

    @property
    def problem(self) -> str:
        """What was expected and what was found, or "" if the choice is as expected."""
        if self.ok:
            return ""
        expected = "the skill to be chosen" if self.triggers else "the skill not to be chosen"
        return f"expected {expected}: it is chosen in {self.share:.0%} of {len(self.chosen)} trials"


_NEAREST, _DRAWN = 20, 30
"""How many skills a model chooses from: the best results of a search, and others that are drawn."""
_NONE = "none"
_MOST_DESCRIPTION = 1_024
_ANSWER_TOKENS = 1_024
_SYSTEM = """\
You get a request of a user. Before you answer it, you may load one skill of this list. Call choose_skill with the name
of the skill that helps with this request, or with "none" if no skill fits. Do not answer the request itself.
"""


def candidates_for(
    meant: Candidate, nearest: Sequence[Candidate], others: Sequence[Candidate], seed: str
) -> list[Candidate]:
    """Return the candidates for a prompt: the meant skill, the nearest ones, and a sample of all others. `seed` and the
    names decide the sample and the order, so a new skill in the registry replaces at most one candidate.
    """
    listed = {candidate.name: candidate for candidate in (*nearest[:_NEAREST], meant)}
    drawn = heapq.nsmallest(_DRAWN, (each for each in others if each.name not in listed), partial(_draw, seed))
    return sorted((*listed.values(), *drawn), key=partial(_draw, f"order {seed}"))


def _draw(seed: str, candidate: Candidate) -> bytes:
    return hashlib.sha256(f"{seed} {candidate.name}".encode()).digest()


async def choose(model: ModelClient, prompt: str, candidates: Sequence[Candidate], budget: Budget) -> str:
    """Return the name that the model chooses, or "" for none, and for a name that is not in the list."""
    names = [candidate.name for candidate in candidates]
    listed = "\n".join(
        f"{candidate.name}: {one_line(candidate.description, _MOST_DESCRIPTION)}" for candidate in candidates
    )
    parameters = {
        "type": "object",
        "properties": {"name": {"type": "string", "enum": [*names, _NONE]}},
        "required": ["name"],
    }
    tool = Tool("choose_skill", "Load a skill, or say that none fits.", parameters)
    reply = await model.ask(Chat(f"{_SYSTEM}\n{listed}", [prompt], [tool], _ANSWER_TOKENS), budget)
    calls = [call.arguments.get("name") for call in reply.message.calls if call.name == tool.name]
    return next((name for name in names if calls[:1] == [name]), "")


# -- The results of a server -------------------------------------------------------------------------------------------


def prompt_figures(results: Iterable[tuple[str, str, TrialResult]]) -> dict[str, dict[str, Any]]:
    """Return how well the prompts of an evaluation lead to the skill: `findability` of searches, and `choice` of a
    model. A result is the kind, the id of the case, and the result of the trial.
    """
    prompts: list[Prompt] = []
    trials: dict[str, list[TrialResult]] = {}
    for kind, case_id, result in results:
        if kind == "search":
            prompts.append(Prompt(case_id, "", "", result.triggers, result.rank or None))
        elif kind == "choice":
            trials.setdefault(case_id, []).append(result)
    figures = {"findability": Findability(tuple(prompts)).figures()} if prompts else {}
    if trials:
        shares = [
            (tried[0].triggers, fmean(each.passed == each.triggers for each in tried)) for tried in trials.values()
        ]
        chosen = {of: [share >= THRESHOLD for triggers, share in shares if triggers is of] for of in (True, False)}
        counts = {"prompts": len(shares), "expected": len(chosen[True])}
        figures["choice"] = {**counts, "chosen": sum(chosen[True]), "wrong": sum(chosen[False])}
    return figures
