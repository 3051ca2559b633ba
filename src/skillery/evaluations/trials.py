"""The values of an evaluation: tasks, limits, budgets, trials and grades. Statistics of trials.

A task is tried several times in each arm. The command `skillery eval DIR` and the server pass their own calls of
methods (`evaluations.tools`) and budgets to the same loop.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import comb, sqrt
from statistics import NormalDist, fmean
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
    rival: str = ""
    """The other skill that was found first or chosen, or "". Only callers who see the skill read its name."""


# -- Statistics of trials ----------------------------------------------------------------------------------------------

DRAWS = 4_000
SAME = 0.1
"""Two arms are the same if the whole interval of their change is within this distance of zero."""
FEWEST_TASKS = 5
"""With fewer tasks, an interval says too little, so that each change is unclear."""
_Z = NormalDist().inv_cdf(0.975)

Passed = Mapping[str, Sequence[bool]]
"""Whether the trials of each task passed, in one arm."""
Word = Literal["better", "worse", "same", "unclear"]


class Share(msgspec.Struct, frozen=True):
    """A share of trials that passed, with its interval of 95 % (Wilson)."""

    passed: int
    trials: int
    share: float
    low: float
    high: float


class Change(msgspec.Struct, frozen=True):
    """The difference of the shares of two arms over the tasks that both have, with its interval of 95 %."""

    change: float
    low: float
    high: float
    verdict: Word


def share_of(arm: Passed) -> Share | None:
    """Return the share of an arm, or None without trials."""
    trials = [passed for results in arm.values() for passed in results]
    if not trials:
        return None
    count, passed = len(trials), sum(trials)
    share, square = passed / count, _Z * _Z
    middle = share + square / (2 * count)
    spread = _Z * sqrt(share * (1 - share) / count + square / (4 * count * count))
    low, high = ((middle + sign * spread) / (1 + square / count) for sign in (-1, 1))
    return Share(passed, count, round(share, 4), round(max(0.0, low), 4), round(min(1.0, high), 4))


def change_between(arm: Passed, other: Passed, seed: str) -> Change | None:
    """Return how much better `arm` is than `other`, or None if no task has trials in both.

    The same trials and the same `seed`, which is the digest of the suite, give the same interval. Blocking: 2,000 tasks
    take about 2 s.
    """
    pairs = [(arm[task], other[task]) for task in sorted(arm) if arm[task] and other.get(task)]
    if not pairs:
        return None
    change = fmean(fmean(results) - fmean(others) for results, others in pairs)
    low, high = _interval(pairs, random.Random(seed))
    verdict = _verdict(low, high) if len(pairs) >= FEWEST_TASKS else "unclear"
    return Change(round(change, 4), round(low, 4), round(high, 4), verdict)


def _verdict(low: float, high: float) -> Word:
    if low > 0:
        return "better"
    if high < 0:
        return "worse"
    return "same" if low >= -SAME and high <= SAME else "unclear"


def _interval(pairs: Sequence[tuple[Sequence[bool], Sequence[bool]]], source: random.Random) -> tuple[float, float]:
    """Return the interval of the mean change when tasks are drawn, and then trials of each task.

    Drawing a task and then its trials is one draw from the mixture of what each task can give. So the mixture is
    computed once.
    """
    mixture = defaultdict[float, float](float)
    for results, others in pairs:
        for passed, chance in _redrawn(results):
            for other_passed, other_chance in _redrawn(others):
                mixture[passed - other_passed] += chance * other_chance / len(pairs)
    changes, cumulative = list(mixture), list(accumulate(mixture.values()))
    count = len(pairs)
    sums = sorted(sum(source.choices(changes, cum_weights=cumulative, k=count)) for _ in range(DRAWS))
    return sums[int(DRAWS * 0.025)] / count, sums[int(DRAWS * 0.975) - 1] / count


def _redrawn(results: Sequence[bool]) -> list[tuple[float, float]]:
    """Return each share that the results can have if they are drawn again with replacement, and its chance."""
    count, share = len(results), fmean(results)
    if share in (0.0, 1.0):
        return [(share, 1.0)]
    chances = (comb(count, passed) * share**passed * (1 - share) ** (count - passed) for passed in range(count + 1))
    return [(passed / count, chance) for passed, chance in enumerate(chances)]


# -- The summary of an evaluation --------------------------------------------------------------------------------------


class Summary(msgspec.Struct, frozen=True, omit_defaults=True):
    """The numbers of an evaluation, for people and for policies."""

    shares: dict[Arm, Share]
    tokens_per_trial: dict[Arm, int]
    cost_per_trial: dict[Arm, float]
    used: int
    """In how many trials of the arm `with` the agent opened the skill."""
    lift: Change | None = None
    """With the skill against no skill."""
    change: Change | None = None
    """With the skill against the version before."""
    sight: str = ""
    """What the suite can show."""


def summarize(trials: Sequence[tuple[str, Arm, TrialResult]], seed: str) -> Summary:
    """Return the summary of trials, each with its task and arm. `seed` is the digest of the suite. Blocking, as
    `change_between`.
    """
    arms: dict[Arm, dict[str, list[bool]]] = {arm: {} for arm in ARMS}
    of_arm: dict[Arm, list[TrialResult]] = {arm: [] for arm in ARMS}
    for task, arm, result in trials:
        arms[arm].setdefault(task, []).append(result.passed)
        of_arm[arm].append(result)
    lines = {arm: share for arm in ARMS if (share := share_of(arms[arm])) is not None}
    tried = arms["with"]
    return Summary(
        shares=lines,
        tokens_per_trial={arm: round(fmean(trial.tokens for trial in of_arm[arm])) for arm in lines},
        cost_per_trial={arm: round(fmean(trial.cost for trial in of_arm[arm]), 6) for arm in lines},
        used=sum(trial.used_skill for trial in of_arm["with"]),
        lift=change_between(tried, arms["without"], seed),
        change=change_between(tried, arms["before"], seed),
        sight=sight_of(len(tried), max(map(len, tried.values()))) if tried else "",
    )


# -- What a suite can see ----------------------------------------------------------------------------------------------


_FALL = 0.2
_BETWEEN_TASKS = 0.09
"""The variance of a change between tasks. With it, the formula gives the shares of a simulation with such suites."""
_TIMES = ((0.2, "rarely"), (0.29, "every fourth time"), (0.42, "every third time"), (0.6, "every second time"))


def sight_of(tasks: int, trials: int) -> str:
    """Return a sentence about what a suite can show: how often it notices a fall from 80 to 60 %."""
    if tasks < FEWEST_TASKS:
        return f"{tasks} task{'s' * (tasks != 1)}: with fewer than {FEWEST_TASKS}, every change is unclear"
    variance = (0.8 * 0.2 + 0.6 * 0.4) / trials + _BETWEEN_TASKS
    noticed = NormalDist().cdf(_FALL / sqrt(variance / tasks) - _Z)
    position = bisect_left([limit for limit, _ in _TIMES], noticed)
    words = _TIMES[position][1] if position < len(_TIMES) else "almost always" if noticed > 0.9 else "mostly"
    return f"{tasks} tasks × {trials}: a fall of 20 points is noticed {words}"
