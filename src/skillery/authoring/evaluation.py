"""`skillery eval`: the cases of a skill folder, and their report in the forms of other programs."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any
from xml.etree import ElementTree

import msgspec

from skillery.authoring.folder_runs import FolderRuns
from skillery.authoring.model_evaluation import ModelResults, Tried
from skillery.authoring.own_tests import test_folder
from skillery.authoring.results import Report, Result
from skillery.evaluations.prompts import Candidate, Choice, Findability, Prompt, searched
from skillery.evaluations.trials import ARMS, Arm
from skillery.formats.suites import Suite, read_suite, suite_files
from skillery.formats.timestamps import instant_text
from skillery.formats.wording import one_line

Search = Callable[[str], Awaitable[Sequence[Candidate]]]
"""Return the skills that a registry finds for a prompt, best first."""


class Evaluation(msgspec.Struct, frozen=True):
    """The results of a folder. `findability` is None without a search, or without prompts. `model` is None if no model
    tried the tasks.
    """

    report: Report
    suite: Suite
    began_at: datetime
    seconds: float
    findability: Findability | None = None
    model: ModelResults | None = None

    @property
    def ok(self) -> bool:
        return self.report.ok and (self.model is None or self.model.ok)

    @property
    def runs(self) -> list[Result]:
        return [result for result in self.report.results if result.status != "skipped"]

    @property
    def warnings(self) -> list[str]:
        problems = [*self.suite.problems, *(self.model.problems if self.model else ())]
        return [*self.report.warnings, *(problem.message for problem in problems)]

    def count(self, kind: str) -> int:
        return sum(case.kind == kind for case in self.suite.cases)

    def as_json(self) -> dict[str, Any]:
        findability = {}
        if self.findability:
            listed = {"missed": self.findability.missed, "wrong": self.findability.wrong}
            findability = {"findability": self.findability.figures() | listed}
        facts = {"folder": self.report.folder, "name": self.report.name, "version": self.report.version, "ok": self.ok}
        model = {"model": self.model} if self.model else {}
        tasks = {"tasks": self.count("task"), **model}
        return {**facts, "results": self.runs, **findability, **tasks, "warnings": self.warnings}


async def evaluate_folder(
    runs: FolderRuns, folder: Path, timeout_ms: int, search: Search | None, *, allow_unknown: bool = False
) -> Evaluation:
    """Run the examples of a folder, and search with the prompts of its suites. Without `search`, no prompt is tried.

    Blocking: the files of the suites are read in this thread.
    """
    began_at, began = datetime.now(UTC), time.monotonic()
    report = await test_folder(runs, folder, timeout_ms, update=False, allow_unknown=allow_unknown, own_tests=False)
    suite = _suite(folder)
    prompts = [case for case in suite.cases if case.kind == "trigger"]
    findability = None
    if search is not None and prompts and report.name:
        findability = Findability(tuple([searched(case, report.name, await search(case.prompt)) for case in prompts]))
    return Evaluation(report, suite, began_at, time.monotonic() - began, findability)


def _suite(folder: Path) -> Suite:
    paths = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return read_suite({path: (folder / path).read_bytes() for path in suite_files(paths)})


# -- The forms for other programs --------------------------------------------------------------------------------------


CONFIGURATIONS: dict[Arm, str] = {"with": "with_skill", "without": "without_skill", "before": "old_skill"}


def benchmark_of(evaluation: Evaluation) -> dict[str, Any]:
    """Return the results in the form of benchmark.json, which the viewer of skill-creator shows: the tasks in each arm.
    Without a model, these are the examples, in the only configuration `with_skill`.
    """
    report, model = evaluation.report, evaluation.model
    rows = _task_rows(model.tried) if model else _example_rows(evaluation.runs)
    by_arm = {arm: [row["result"] for row in rows if row["configuration"] == CONFIGURATIONS[arm]] for arm in ARMS}
    summary: dict[str, Any] = {CONFIGURATIONS[arm]: _summary(results) for arm, results in by_arm.items() if results}
    if by_arm["with"] and by_arm["without"]:
        summary["delta"] = {
            key: f"{summary['with_skill'][key]['mean'] - summary['without_skill'][key]['mean']:+.2f}"
            for key in summary["with_skill"]
        }
    return {
        "metadata": {
            "skill_name": report.name,
            "skill_path": report.folder,
            "executor_model": model.model if model else "none",
            "timestamp": instant_text(evaluation.began_at),
            "evals_run": list(dict.fromkeys(row["eval_id"] for row in rows)),
            "runs_per_configuration": max((row["run_number"] for row in rows), default=1),
        },
        "runs": rows,
        "run_summary": summary or {"with_skill": {}},
        "notes": [*([model.reason] if model and model.reason else []), *evaluation.warnings],
    }


def _example_rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    return [_example_row(number, result) for number, result in enumerate(results, 1)]


def _example_row(number: int, result: Result) -> dict[str, Any]:
    is_passed = result.status == "passed"
    counts = {"pass_rate": float(is_passed), "passed": int(is_passed), "failed": int(not is_passed), "total": 1}
    costs = {"time_seconds": result.duration_ms / 1000, "tokens": 0, "tool_calls": 0, "errors": int(not is_passed)}
    expectation = {"text": f"{result.subject} {result.name}", "passed": is_passed, "evidence": result.message}
    head = {"eval_id": number, "eval_name": result.name, "configuration": "with_skill", "run_number": 1}
    return {**head, "result": counts | costs, "expectations": [expectation], "notes": []}


def _task_rows(tried: Sequence[Tried]) -> list[dict[str, Any]]:
    numbers = {task: number for number, task in enumerate(dict.fromkeys(row.trial.task for row in tried), 1)}
    return [_task_row(numbers[row.trial.task], row) for row in tried]


def _task_row(number: int, row: Tried) -> dict[str, Any]:
    trial, grades = row.trial, row.graded.grades
    answers = [entry for entry in trial.transcript if entry["role"] == "tool"]
    passed = sum(grade.passed for grade in grades)
    configuration = CONFIGURATIONS[trial.arm]
    return {
        "eval_id": number,
        "eval_name": trial.task,
        "configuration": configuration,
        "run_number": row.number,
        "result": {
            "pass_rate": row.graded.score,
            "passed": passed,
            "failed": len(grades) - passed,
            "total": len(grades),
            "time_seconds": round(trial.duration_ms / 1000, 3),
            "tokens": trial.tokens.total,
            "tool_calls": len(answers),
            "errors": sum(entry["is_error"] for entry in answers),
        },
        "expectations": [{"text": grade.text, "passed": grade.passed, "evidence": grade.evidence} for grade in grades],
        "notes": [trial.error] if trial.error else [],
    }


def _summary(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {key: _spread([result[key] for result in results]) for key in ("pass_rate", "time_seconds", "tokens")}


def _spread(values: Sequence[float]) -> dict[str, float]:
    spread = {"mean": fmean(values), "stddev": pstdev(values), "min": min(values), "max": max(values)}
    return {name: round(value, 4) for name, value in spread.items()}


def junit_of(evaluations: Sequence[Evaluation]) -> bytes:
    """Return the results as JUnit XML, one test suite for each folder.

    A prompt that led to another skill is `skipped`, with the reason, because prompts do not fail an evaluation.
    """
    root = ElementTree.Element("testsuites")
    for evaluation in evaluations:
        report = evaluation.report
        failed = sum(result.status == "failed" for result in evaluation.runs)
        prompts = list(_prompt_cases(evaluation))
        tests, skipped = len(evaluation.runs) + len(prompts), sum(bool(reason) for *_, reason in prompts)
        counts = {"tests": str(tests), "failures": str(failed), "skipped": str(skipped)}
        suite = ElementTree.SubElement(root, "testsuite", {"name": report.name or report.folder, **counts})
        for result in evaluation.runs:
            about = {"name": _xml_text(result.name), "classname": f"{report.name}.{result.subject}"}
            case = ElementTree.SubElement(suite, "testcase", {**about, "time": f"{result.duration_ms / 1000:.3f}"})
            if result.status == "failed":
                message = _xml_text(result.message)
                ElementTree.SubElement(case, "failure", {"message": message.partition("\n")[0]}).text = message
        for kind, title, reason in prompts:
            about = {"name": _xml_text(title), "classname": f"{report.name}.{kind}", "time": "0"}
            case = ElementTree.SubElement(suite, "testcase", about)
            if reason:
                ElementTree.SubElement(case, "skipped", {"message": _xml_text(reason)})
    xml: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return xml


def _prompt_cases(evaluation: Evaluation) -> Iterator[tuple[str, str, str]]:
    """Yield how a prompt was tried (`search` or `choice`), its title, and why it led to another skill, or ""."""
    for prompt in evaluation.findability.prompts if evaluation.findability else ():
        yield "search", _title(prompt), prompt.problem
    for choice in evaluation.model.choices if evaluation.model else ():
        yield "choice", _title(choice), choice.problem


def _title(case: Prompt | Choice) -> str:
    return f"{case.source}, {case.id}: {one_line(case.prompt, 80)}"


_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _xml_text(text: str) -> str:
    """Return a text without the characters that XML does not have."""
    return _NOT_XML.sub("\ufffd", text)
