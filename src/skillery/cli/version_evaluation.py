"""`skillery eval NAME@VERSION`: an evaluation on the server, or the results of another tool."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, cast

import click
import msgspec

from skillery.cli.connection import with_client
from skillery.cli.failures import CHECK_FAILED
from skillery.cli.options import Target
from skillery.cli.output import clean, print_json
from skillery.cli.proof import add_signed, read_key
from skillery.client import Conflict
from skillery.formats.wording import one_line

if TYPE_CHECKING:
    from skillery.cli.model_evaluation import ModelOptions
    from skillery.client import AsyncClient

EvaluationKind = Literal["run", "task", "search", "choice"]
POLL_SECONDS = 0.5


def evaluate_version(
    target: Target,
    name: str,
    version: str,
    kinds: list[EvaluationKind],
    model: ModelOptions,
    suite: str,
    folder: Path | None,
    *,
    as_json: bool,
) -> None:
    """Start an evaluation, wait for its end, save its transcripts in `folder`, and print its result.

    Ctrl-C cancels the evaluation. Exit with CHECK_FAILED if the evaluation has no result, or if the version is worse
    than the version before.
    """

    async def work(client: AsyncClient) -> Any:
        options: dict[str, Any] = {"suite": suite or None}
        if {"task", "choice"} & {*kinds}:
            options |= {"model": model.name, "trials": model.trials, "budget": model.budget}
        started = await client.start_evaluation(name, version, kinds=kinds, **options)
        click.echo(f"{started['id']}: {started['trials']} trials", err=True)
        try:
            while True:
                evaluation = await client.get_evaluation(started["id"])
                if evaluation["ended_at"]:
                    return evaluation, await _read_transcripts(client, evaluation) if folder else {}
                await asyncio.sleep(POLL_SECONDS)
        except asyncio.CancelledError:
            with suppress(Conflict):  # it has just ended
                await client.cancel_evaluation(started["id"])
                click.echo(f"{started['id']} is cancelled", err=True)
            raise

    evaluation, texts = with_client(target, work, sandbox=True)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            (folder / Path(file).name).write_text(text, encoding="utf-8")
    if as_json:
        print_json(evaluation)
    else:
        _print_cases(evaluation)
    if evaluation["state"] != "done" or evaluation["verdict"] == "worse":
        raise click.exceptions.Exit(CHECK_FAILED)


def kinds_of(*, find: bool, tasks: bool, suite: str | None) -> list[EvaluationKind]:
    """Return the kinds of cases that the options name."""
    if find:
        return ["search", "choice"] if tasks else ["search"]
    if suite:
        return ["task"]
    return ["run", "task"] if tasks else ["run"]


async def _read_transcripts(client: AsyncClient, evaluation: Mapping[str, Any]) -> dict[str, str]:
    """Return the transcripts by file name: the number of the case, the arm, and the number of the trial."""
    texts = {}
    for number, case in enumerate(evaluation["cases"], 1):
        trials: Counter[str] = Counter()
        for kept in case["transcripts"]:
            trials[kept["arm"]] += 1
            read = await client.read_transcript(evaluation["id"], kept["id"])
            texts[f"{number}-{kept['arm']}-{trials[kept['arm']]}.jsonl"] = read["text"]
    return texts


def _print_cases(evaluation: Mapping[str, Any]) -> None:
    """Print the cases that have not passed, and the result."""
    for case in evaluation["cases"]:
        counts = case["arms"].get("with", {"passed": 0, "trials": 0})
        if counts["passed"] == counts["trials"]:
            continue
        before = case["arms"].get("before")
        compared = f", before {before['passed']} of {before['trials']}" if before else ""
        click.echo(clean(f"  {case['id']}: {counts['passed']} of {counts['trials']}{compared}"))
        for problem in dict.fromkeys(case["problems"]):
            click.echo(clean(f"    {one_line(problem, 300)}"))
    done = f"{evaluation['state']} after {evaluation['done']} of {evaluation['trials']} trials"
    result = evaluation["summary"] or f"{done}: {evaluation['error']}"
    click.echo(clean(f"{evaluation['name']} {evaluation['version']}: {result}"))


# -- The results of another tool ---------------------------------------------------------------------------------------


def import_results(target: Target, name: str, version: str, file: Path, sign_file: Path | None) -> None:
    """Sign the results in a benchmark.json with the caller's key, and store them as a statement about a version."""
    if sign_file is None:
        raise click.UsageError("results of another tool are signed with your own key: pass --sign KEYFILE")
    key, predicate = read_key(sign_file), _results_in(file)

    async def work(client: AsyncClient) -> str:
        skill = (await client.describe_skill(name, version=version))["skill"]
        return await add_signed(client, key, "evaluation", cast(Mapping[str, Any], skill), predicate)

    click.echo(with_client(target, work))


def _results_in(file: Path) -> dict[str, Any]:
    """Return the predicate of the results in a benchmark.json. Raise UsageError if no result has the skill."""
    from skillery.authoring.evaluation import CONFIGURATIONS

    content = file.read_bytes()
    arms = {configuration: arm for arm, configuration in CONFIGURATIONS.items()}
    results: dict[str, dict[str, list[float]]] = {}
    try:
        for run in msgspec.json.decode(content)["runs"]:
            of_cases = results.setdefault(arms.get(run["configuration"], ""), {})
            of_cases.setdefault(str(run["eval_id"]), []).append(float(run["result"]["pass_rate"]))
    except (msgspec.DecodeError, LookupError, TypeError, ValueError):
        raise click.UsageError(f"{file} is no benchmark.json: it needs runs with results") from None
    if not results.get("with"):
        raise click.UsageError(f"{file} has no run with the configuration with_skill")
    shares = {arm: fmean(fmean(shares) for shares in cases.values()) for arm, cases in results.items() if arm}
    return {
        "executed": "outside",
        "suite": {"name": "own", "digest": f"sha256:{hashlib.sha256(content).hexdigest()}"},
        "count": len(results["with"]),
        "trials": max(map(len, results["with"].values())),
        "shares": {arm: round(share, 4) for arm, share in shares.items()},
        "evaluation": "",
        "before": None,
        "verdict": None,
        "worse": [],
    }
