"""The values of an evaluation: tasks, limits, budgets, trials and grades.

A task is tried several times in each arm. The command `skillery eval DIR` and the server pass their own calls of
methods (`evaluations.tools`) and budgets to the same loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from skillery.formats.suites import Case

Arm = Literal["with", "without", "before"]
"""Whether the agent has the skill, has no skill, or has the version before."""
ARMS: tuple[Arm, ...] = ("with", "without", "before")


class Task(msgspec.Struct, frozen=True):
    """A case of the kind `task`, ready to be tried."""

    id: str
    """Unique among the tasks of a skill: the path of the file and the id of the case."""
    case: Case
    files: Mapping[str, bytes]
    """The files that the agent finds in `/workspace`, by path."""


class Limits(msgspec.Struct, frozen=True):
    """Limits of one trial."""

    steps: int = 20
    """The maximum number of requests to the model."""
    seconds: float = 600.0
    answer_tokens: int = 8_192
    """The maximum number of tokens that the model may write in one step."""
    result_characters: int = 20_000
    """The maximum length of the result of a tool, as the model reads it."""


# -- What a trial costs ------------------------------------------------------------------------------------------------


class Tokens(NamedTuple):
    """Numbers of tokens that a model has read and written."""

    read: int = 0
    written: int = 0

    def plus(self, other: Tokens) -> Tokens:
        """Return the sum."""
        return Tokens(self.read + other.read, self.written + other.written)

    @property
    def total(self) -> int:
        return self.read + self.written


class Amount(NamedTuple):
    """The cost and the tokens of requests to models."""

    cost: float = 0.0
    tokens: int = 0

    def plus(self, other: Amount) -> Amount:
        """Return the sum."""
        return Amount(self.cost + other.cost, self.tokens + other.tokens)

    def without(self, other: Amount) -> Amount:
        """Return the difference, at least zero."""
        return Amount(max(0.0, self.cost - other.cost), max(0, self.tokens - other.tokens))


class BudgetUsed(Exception):
    """Raised before a request that the budget does not suffice for. The message is for the user. The evaluation is
    `stopped`.
    """


class Budget(Protocol):
    """The budget of an evaluation. Its trials share it, and may ask at the same time."""

    async def reserve(self, tokens: Tokens, cost: float) -> None:
        """Reserve the most that a request can use. Raise BudgetUsed if the rest does not suffice."""

    async def settle(self, reserved: Tokens, reserved_cost: float, used: Tokens, cost: float) -> None:
        """Replace a reservation by what the request used. Called once for each reservation, also after failures."""


# -- A trial and its grades --------------------------------------------------------------------------------------------


class Trial(msgspec.Struct):
    """What an agent does in one trial. If it used up its steps or its time, `error` says so, and it is graded."""

    task: str
    arm: Arm
    transcript: list[Mapping[str, Any]]
    """What was said, in JSON: `{"role": "user" | "assistant" | "tool", "text": …}`, with `calls` (`id`, `name`,
    `arguments`) of an assistant, and `id`, `name` and `is_error` of a tool.
    """
    answer: str = ""
    """The final text of the agent."""
    files: Mapping[str, bytes] = {}
    steps: int = 0
    tokens: Tokens = Tokens()
    cost: float = 0.0
    duration_ms: float = 0.0
    used_skill: bool = False
    """Whether the agent opened or ran the skill."""
    run_ids: list[str] = []
    error: str = ""


class Grade(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether a trial passed one grader, and why. `text` is what the grader expects."""

    text: str
    passed: bool
    evidence: str = ""
    weight: float = 1.0


class Graded(msgspec.Struct, frozen=True):
    """The grades of a trial. `score` is the share of the weights that passed."""

    passed: bool
    score: float
    grades: tuple[Grade, ...]
    tokens: Tokens = Tokens()
    """What the model that grades has used."""
    cost: float = 0.0


class TrialResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one trial, as it is stored and counted. `problem` says why it has not passed."""

    passed: bool
    problem: str = ""
    tokens: int = 0
    cost: float = 0.0
    used_skill: bool = False
    transcript: str = ""
    """The id of the stored transcript of an agent, which expires, or ""."""
    rank: int = 0
    """The place of the skill among the results of a search, or 0."""
    triggers: bool = True
    """Whether the prompt should lead to the skill."""
