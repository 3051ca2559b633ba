"""Choices of a model: which skill it loads for a prompt, by the names and descriptions of many skills."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from skillery.evaluations.dialects import Chat, Tool
from skillery.evaluations.models import ModelClient
from skillery.evaluations.trials import Budget
from skillery.formats.suites import Case
from skillery.formats.wording import one_line

NEAREST, DRAWN = 20, 30
"""How many skills a model chooses from: the best results of a search, and others that are drawn."""
THRESHOLD = 0.5
"""The share of trials from which a skill counts as chosen, as in skill-creator."""
NONE = "none"
_MOST_DESCRIPTION = 1_024
_ANSWER_TOKENS = 1_024
_SYSTEM = """\
You get a request of a user. Before you answer it, you may load one skill of this list. Call choose_skill with the name
of the skill that helps with this request, or with "none" if no skill fits. Do not answer the request itself.
"""


class Candidate(NamedTuple):
    """A skill that a model may choose."""

    name: str
    description: str


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


def candidates_of(
    meant: Candidate, nearest: Sequence[Candidate], others: Sequence[Candidate], seed: str
) -> list[Candidate]:
    """Return the candidates for a prompt, with the meant skill, in an order that only `seed` decides."""
    source = random.Random(seed)
    drawn = source.sample(others, min(DRAWN, len(others)))
    by_name = {candidate.name: candidate for candidate in (*drawn, *nearest[:NEAREST], meant)}
    candidates = [by_name[name] for name in sorted(by_name)]
    source.shuffle(candidates)
    return candidates


async def choose(
    model: ModelClient, case: Case, candidates: Sequence[Candidate], names: frozenset[str], trials: int, budget: Budget
) -> Choice:
    """Let the model choose `trials` times. `names` are those of the meant skill. Raise ModelFailed or BudgetUsed."""
    chosen = [await _chosen(model, case.prompt, candidates, budget) for _ in range(trials)]
    share = sum(name in names for name in chosen) / trials
    return Choice(case.id, case.source, case.prompt, case.triggers, tuple(chosen), round(share, 4))


async def _chosen(model: ModelClient, prompt: str, candidates: Sequence[Candidate], budget: Budget) -> str:
    """Return the name that the model chooses, or "" for none, and for a name that is not in the list."""
    names = [candidate.name for candidate in candidates]
    listed = "\n".join(
        f"{candidate.name}: {one_line(candidate.description, _MOST_DESCRIPTION)}" for candidate in candidates
    )
    parameters = {
        "type": "object",
        "properties": {"name": {"type": "string", "enum": [*names, NONE]}},
        "required": ["name"],
    }
    tool = Tool("choose_skill", "Load a skill, or say that none fits.", parameters)
    reply = await model.ask(Chat(f"{_SYSTEM}\n{listed}", [prompt], [tool], _ANSWER_TOKENS), budget)
    calls = [call.arguments.get("name") for call in reply.message.calls if call.name == tool.name]
    return next((name for name in names if calls[:1] == [name]), "")
