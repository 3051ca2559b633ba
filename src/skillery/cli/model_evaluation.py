"""`skillery eval --model`: the options of a model, and the lines about what it did."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

from skillery.formats.wording import one_line

if TYPE_CHECKING:
    from skillery.authoring.model_evaluation import ModelPlan, ModelResults
    from skillery.evaluations.trials import Change

MOST_FAILED = 10
"""The maximum number of failed trials that are printed."""
KEY_VARIABLE = "MODEL_KEY"
TRIALS = 3
"""The number of trials of a task in a folder, without --trials."""


class ModelOptions(NamedTuple):
    """The options of a model. None: the user has not given the option."""

    address: str | None
    name: str | None
    api: Literal["openai", "anthropic"]
    key_env: str
    trials: int | None
    budget: float | None
    tokens: int
    before: Path | None

    def plan(self) -> ModelPlan | None:
        """Return the plan for folders, or None without a model. Raise UsageError if options contradict each other."""
        if self.budget is not None:
            raise click.UsageError("--budget is about a version on a server: with DIR, pass --max-tokens")
        if self.address is None or self.name is None:
            if self.address or self.name or self.before:
                raise click.UsageError("a model needs both --model URL and --name NAME")
            return None
        from skillery.authoring.model_evaluation import ModelPlan
        from skillery.evaluations.models import Model, check_address

        try:
            check_address(self.address)
        except ValueError as error:
            raise click.UsageError(f"--model: {error}") from None
        if self.key_env != KEY_VARIABLE and self.key_env not in os.environ:
            raise click.UsageError(f"--key-env: the environment has no variable {self.key_env}")
        key = os.environ.get(self.key_env, "").strip()
        return ModelPlan(Model(self.api, self.address, self.name), key, self.trials or TRIALS, self.tokens, self.before)


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a model to a command, which gets them as `model`, ModelOptions."""

    @click.option(
        "--model", "address", metavar="URL", help="Let a model do the tasks: the address of its API, with /v1."
    )
    @click.option("--name", metavar="NAME", help="The name of the model; with --tasks, the one in the settings.")
    @click.option("--api", type=click.Choice(["openai", "anthropic"]), default="openai", show_default=True)
    @click.option(
        "--key-env",
        metavar="VARIABLE",
        default=KEY_VARIABLE,
        show_default=True,
        help="The environment variable with the key of the API.",
    )
    @click.option("--trials", type=click.IntRange(1, 100), help=f"Trials of each task.  [default: {TRIALS}]")
    @click.option(
        "--budget",
        type=click.FloatRange(0, min_open=True),
        metavar="AMOUNT",
        help="With --tasks: what the model may cost.  [default: that of the server]",
    )
    @click.option(
        "--max-tokens",
        "tokens",
        type=click.IntRange(1),
        default=2_000_000,
        show_default=True,
        help="The budget of each DIR: stop before a request that could exceed it.",
    )
    @click.option(
        "--before",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        metavar="DIR",
        help="Compare with the version of the skill in this folder.",
    )
    @functools.wraps(command)
    def with_model(**options: Any) -> Any:
        chosen = {key: options.pop(key) for key in ModelOptions._fields}
        return command(model=ModelOptions(**chosen), **options)

    return with_model


ARM_WORDS = {"with": "with the skill", "without": "without", "before": "before"}


def model_lines(results: ModelResults) -> Iterator[str]:
    """Yield the lines about the tasks and the choices of a model."""
    summary = results.summary
    for problem in results.problems:
        yield f"not tried: {problem.message}"
    for arm, share in summary.shares.items():
        passed = f"{share.passed} of {share.trials} trials passed, {share.share:.0%}"
        interval = f"{share.low:.0%} to {share.high:.0%}"
        yield f"{ARM_WORDS[arm]}: {passed} ({interval}), {summary.tokens_per_trial[arm]:,} tokens a trial"
    if summary.lift is not None:
        yield f"lift by the skill: {_change_words(summary.lift)}"
    if summary.change is not None:
        yield f"change since the version before: {_change_words(summary.change)}"
    if "with" in summary.shares:
        yield f"the agent opened the skill in {summary.used} of {summary.shares['with'].trials} trials"
        yield summary.sight
    for positive in (True, False):
        choices = [choice for choice in results.choices if choice.triggers == positive]
        if choices:
            words = "should" if positive else "should not"
            chosen = sum(choice.ok == positive for choice in choices)
            yield f"chosen by the model for {chosen} of {len(choices)} prompts that {words} lead to the skill"
    failed = [row for row in results.tried if row.trial.arm == "with" and not row.graded.passed]
    for row in failed[:MOST_FAILED]:
        grade = next(grade for grade in row.graded.grades if not grade.passed)
        reason = row.trial.error or f"{one_line(grade.text, 100)}: {grade.evidence}"
        yield f"  failed: {row.trial.task}, trial {row.number}: {one_line(reason, 300)}"
    yield f"tokens used: {results.tokens.total:,}"
    if results.reason:
        done = f"{results.state} after {len(results.tried)} of {results.planned} trials"
        yield f"{done}: {results.reason}{'; raise --max-tokens' if results.state == 'stopped' else ''}"


def _change_words(change: Change) -> str:
    points = f"{100 * change.change:+.0f} points ({100 * change.low:+.0f} to {100 * change.high:+.0f})"
    return f"{points}, {change.verdict}"
