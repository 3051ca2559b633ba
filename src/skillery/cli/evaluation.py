"""`skillery eval`: how well a skill works, and how well it is found."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import msgspec

from skillery.cli.authoring import TIMEOUT_MS, print_report
from skillery.cli.failures import CHECK_FAILED, signals_interrupt
from skillery.cli.model_evaluation import ModelOptions, model_lines, model_options
from skillery.cli.options import (
    Target,
    allow_unknown_option,
    folders_argument,
    json_option,
    name_and_version,
    target_options,
)
from skillery.cli.output import clean, print_json, show_log
from skillery.cli.proof import sign_option
from skillery.formats.wording import one_line

if TYPE_CHECKING:
    from skillery.authoring.evaluation import Evaluation
    from skillery.authoring.folder_host import Finder
    from skillery.authoring.model_evaluation import ModelPlan, Registry
    from skillery.client import AsyncClient
    from skillery.evaluations.prompts import Candidate, Findability
    from skillery.settings.load import Settings

MOST_MISSED = 10
"""The maximum number of missed prompts that are printed."""


@click.command("eval", short_help="Evaluate the skill in each DIR: its examples, its tasks, and how it is found.")
@folders_argument
@click.option("--find", is_flag=True, help="Search with the prompts of the suites; with NAME@VERSION, try only these.")
@click.option(
    "--timeout-ms",
    type=click.IntRange(1, 3_600_000),
    default=TIMEOUT_MS,
    show_default=True,
    help="Limit of each example.",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write a benchmark.json.")
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write JUnit XML.")
@click.option("--tasks", is_flag=True, help="With NAME@VERSION: also do the tasks, with the model of the server.")
@click.option("--suite", metavar="NAME@RANGE", help="With NAME@VERSION: do the tasks of another skill instead.")
@click.option("--transcripts", type=click.Path(path_type=Path), metavar="DIR", help="With --tasks: save transcripts.")
@click.option(
    "--import",
    "imported",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="With NAME@VERSION: store the results in a benchmark.json of another tool.",
)
@sign_option
@model_options
@allow_unknown_option
@target_options
@json_option
def evaluate(
    folders: Sequence[Path],
    find: bool,
    timeout_ms: int,
    out: Path | None,
    junit: Path | None,
    tasks: bool,
    suite: str | None,
    transcripts: Path | None,
    imported: Path | None,
    sign_file: Path | None,
    model: ModelOptions,
    allow_unknown: bool,
    target: Target,
    as_json: bool,
) -> None:
    """Evaluate the skill in each DIR: run its examples with their graders, and read its suites. With NAME@VERSION in
    place of DIR, the server evaluates this version, and compares it with the version before; with --find, it tries only
    the prompts, and with --find --tasks its model also chooses a skill for each.

    Suites are evals.json, the JSON files in evals/, and evals/SCENARIO/task.md with criteria.json. With --find, the
    registry is searched with each prompt of the suites that should find the skill, or should not. With --model, an
    agent does each task with and without the skill. Prompts, files of cases, SKILL.md and what the agent reads are sent
    to the model. Nothing is published.
    """
    import asyncio

    from skillery.cli.connection import with_client

    version = _version_in(folders)
    if version is None and (tasks or suite or imported or sign_file):
        raise click.UsageError("--tasks, --suite, --import and --sign are about a version: write NAME@VERSION, not DIR")
    if version is not None and (out or junit or model.address or model.before):
        raise click.UsageError("--out, --junit, --model and --before are about folders: write DIR, not NAME@VERSION")
    if transcripts and not (tasks or suite):
        raise click.UsageError("--transcripts saves what agents do: pass --tasks, too")
    if version is not None:
        from skillery.cli.version_evaluation import evaluate_version, import_results, kinds_of

        if imported is not None:
            import_results(target, *version, imported, sign_file)
        else:
            kinds = kinds_of(find=find, tasks=tasks, suite=suite)
            evaluate_version(target, *version, kinds, model, suite or "", transcripts, as_json=as_json)
        return
    plan = model.plan()
    if out is not None and len(folders) > 1:
        raise click.UsageError("--out writes the report of one folder: give one DIR")
    if plan is not None and plan.before is not None and len(folders) > 1:
        raise click.UsageError("--before is another version of one folder: give one DIR")
    settings = target.load().settings
    show_log(settings)
    session = _Session(folders, timeout_ms, allow_unknown, plan, target)

    async def searching(client: AsyncClient) -> list[Evaluation]:
        return await session.run(settings, client)

    with signals_interrupt():
        evaluations = with_client(target, searching) if find else asyncio.run(session.run(settings, None))
    _write_reports(evaluations, out, junit)
    if as_json:
        print_json([evaluation.as_json() for evaluation in evaluations])
    else:
        for evaluation in evaluations:
            _print_evaluation(evaluation, is_searched=find, has_model=plan is not None)
    if not all(evaluation.ok for evaluation in evaluations):
        raise click.exceptions.Exit(CHECK_FAILED)


class _Session(NamedTuple):
    """One execution of `skillery eval`. All folders share one sandbox."""

    folders: Sequence[Path]
    timeout_ms: int
    allow_unknown: bool
    plan: ModelPlan | None
    target: Target

    async def run(self, settings: Settings, client: AsyncClient | None) -> list[Evaluation]:
        """Return the evaluation of each folder. With a client, the prompts of the suites are searched."""
        from skillery.authoring.evaluation import evaluate_folder
        from skillery.authoring.folder_host import Finder
        from skillery.authoring.folder_runs import open_runs
        from skillery.authoring.model_evaluation import Registry
        from skillery.cli.connection import connect
        from skillery.evaluations.prompts import SEARCHED, Candidate

        async def search(prompt: str) -> list[Candidate]:
            assert client is not None
            page = await client.search_skills(prompt, limit=SEARCHED)
            return [Candidate(skill["name"], skill["description"]) for skill in page["skills"]]

        find = search if client is not None else None
        finder = Finder(self.folders, lambda: connect(self.target) if client is None else nullcontext(client))
        async with open_runs(settings, finder) as runs:
            evaluations = [
                await evaluate_folder(runs, folder, self.timeout_ms, find, allow_unknown=self.allow_unknown)
                for folder in self.folders
            ]
        if self.plan is None:
            return evaluations
        registry = None
        if client is not None:
            registry = Registry(search, await _listed(client))
        return [
            await self._with_model(self.plan, settings, *pair, registry, finder)
            for pair in zip(self.folders, evaluations, strict=True)
        ]

    async def _with_model(
        self,
        plan: ModelPlan,
        settings: Settings,
        folder: Path,
        evaluation: Evaluation,
        registry: Registry | None,
        finder: Finder,
    ) -> Evaluation:
        """Add the results of the model, unless the folder has failed already."""
        from skillery.authoring.model_evaluation import evaluate_with_model
        from skillery.cli.files import temporary_client

        if not evaluation.ok:
            return evaluation
        open_registry = functools.partial(temporary_client, settings)
        results = await evaluate_with_model(folder, evaluation.suite, plan, registry, finder, open_registry)
        return msgspec.structs.replace(evaluation, model=results)


async def _listed(client: AsyncClient) -> list[Candidate]:
    """Return all skills that the caller sees."""
    from skillery.evaluations.prompts import Candidate

    skills, cursor = list[Candidate](), None
    while True:
        page = await client.list_skills(limit=100, cursor=cursor)
        skills += [Candidate(skill["name"], skill["description"]) for skill in page["skills"]]
        cursor = page["next_cursor"]
        if cursor is None:
            return skills


def _write_reports(evaluations: Sequence[Evaluation], out: Path | None, junit: Path | None) -> None:
    from skillery.authoring.evaluation import benchmark_of, junit_of

    if out is not None:
        out.write_bytes(msgspec.json.format(msgspec.json.encode(benchmark_of(evaluations[0])), indent=2) + b"\n")
    if junit is not None:
        junit.write_bytes(junit_of(evaluations))


def _print_evaluation(evaluation: Evaluation, *, is_searched: bool, has_model: bool) -> None:
    """Print the results of the examples, what the searches found, and what the model did."""
    print_report(evaluation.report, evaluation.seconds)
    for problem in evaluation.suite.problems:
        click.echo(f"  {click.style('warning', fg='yellow')}  {clean(problem.message)}")
    if evaluation.findability is not None:
        _print_findability(evaluation.findability)
    prompts, tasks = evaluation.count("trigger"), evaluation.count("task")
    if prompts and not is_searched:
        click.echo(f"  prompts of its suites, not searched: {prompts}; --find searches the registry with them")
    if evaluation.model is not None:
        for line in model_lines(evaluation.model):
            click.echo(clean(f"  {line}"))
    elif tasks:
        reason = "a check or an example failed" if has_model else "they need a model (--model)"
        click.echo(f"  tasks of its suites, not run because {reason}: {tasks}")


def _print_findability(findability: Findability) -> None:
    from skillery.evaluations.prompts import DEPTHS

    expected, missed, wrong = findability.expected, findability.missed, findability.wrong
    if expected:
        shares = ", ".join(f"{findability.share_at(depth):.0%} among {depth}" for depth in DEPTHS)
        mean = f"mean reciprocal rank {findability.reciprocal_rank:.2f}"
        click.echo(f"  search: of {len(expected)} prompts, the skill is {shares} ({mean})")
    for prompt in missed[:MOST_MISSED]:
        place = f"is number {prompt.rank}" if prompt.rank else "is not found"
        first = f", first is {prompt.first}" if prompt.first else ""
        click.echo(clean(f"    {place}{first}: {one_line(prompt.prompt, 80)}  ({prompt.source}, {prompt.id})"))
    for prompt in wrong[:MOST_MISSED]:
        text = one_line(prompt.prompt, 80)
        click.echo(clean(f"    is first and should not be: {text}  ({prompt.source}, {prompt.id})"))
    if left := max(0, len(missed) - MOST_MISSED) + max(0, len(wrong) - MOST_MISSED):
        click.echo(f"    {left} more: --json lists all")


def _version_in(folders: Sequence[Path]) -> tuple[str, str] | None:
    """Return the name and number of the version that the arguments of `skillery eval` name, or None for folders."""
    named = [str(folder) for folder in folders if "@" in folder.name and not folder.exists()]
    if not named:
        return None
    if len(folders) > 1:
        raise click.UsageError(f"{clean(named[0])} is a version: evaluate one version at a time, without folders")
    name, version = name_and_version(named[0], None)
    return name, version or ""
