"""Evaluations with a scripted model: the time of their trials, and of the runs of a caller at the same time."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.processor_time import processor_seconds
from bench.report import Report, format_ms, percentile
from tests.conftest import Rpc, Server, manifest, skill_files
from tests.support.fake_model import FakeModel, Heard, Wanted

TASKS, TRIALS, ARMS = 10, 3, 2
CALLS = 200
"""The number of runs of the caller before and after the evaluation."""
ANSWERS = (0.0, 0.3)
"""The seconds that the model needs for an answer."""
RUNS_PER_LOOK = 10
"""The number of runs between two looks at the evaluation."""
EVALUATED, CALLED = "bench.evaluated", "bench.called"
SETTINGS = """
[evals]
model = "house"

[models.house]
url = "{url}/v1"
model = "scripted"
"""


def measure(report: Report, folder: Path, small: bool) -> None:
    tasks = 2 if small else TASKS
    trials = tasks * TRIALS * ARMS
    report.heading("Evaluations")
    report.text(
        f"{trials} trials with a scripted model on SQLite, the runs of a caller at the same time, and {2 * CALLS} runs "
        "without an evaluation. The processor time is that of the server process for a trial, without the runs of the "
        "caller and the sandboxes. Trials never wait for a model that answers at once."
    )
    rows = [[f"{answer:g} s", *_figures(folder / f"home-{answer:g}", tasks, answer, trials)] for answer in ANSWERS]
    before = ["answer of the model", f"{trials} trials (60 s)", "processor ms of a trial", "runs of the caller"]
    report.table([*before, "p50 alone", "p50", "p95 alone", "p95", "p95, change (+5 %)"], rows)


def _figures(home: Path, tasks: int, answer: float, trials: int) -> list[str]:
    """Return the figures of an evaluation whose model needs `answer` seconds for each answer."""
    home.mkdir()
    with _model(answer) as url:
        (home / "skillery.toml").write_text(SETTINGS.format(url=url))
        server = Server(home)
        try:
            _publish(server.rpc, tasks)
            alone = [_run(server.rpc) for _ in range(CALLS)]
            before, began = processor_seconds(server.process.pid), time.monotonic()
            together = list(_runs_until_the_end(server.rpc))
            seconds, used = time.monotonic() - began, processor_seconds(server.process.pid) - before
            # The caller's own runs also take processor time.
            before = processor_seconds(server.process.pid)
            alone += [_run(server.rpc) for _ in range(CALLS)]
            each = (processor_seconds(server.process.pid) - before) / CALLS
        finally:
            server.stop()
    own = (used - each * len(together)) / trials * 1000
    times = [percentile(runs, part) for part in (50, 95) for runs in (alone, together)]
    change = f"{times[3] / times[2] - 1:+.0%}"
    return [f"{seconds:.0f} s", format_ms(own), str(len(together)), *map(format_ms, times), change]


@contextlib.contextmanager
def _model(answer: float) -> Iterator[str]:
    """Context manager: run the scripted model in its own process, and yield its address."""
    own, other = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(other, answer))
    process.start()
    try:
        yield own.recv()
    finally:
        own.send("")
        process.join()


def _serve(connection: Connection, answer: float) -> None:
    def play(asked: dict[str, Any], heard: Sequence[Heard]) -> Sequence[Wanted] | str:
        time.sleep(answer)
        return _play(asked, heard)

    with FakeModel(play=play) as model:
        connection.send(model.url)
        connection.recv()


def _publish(rpc: Rpc, tasks: int) -> None:
    cases = [
        {"id": number, "prompt": f"Add {number} and 1.", "graders": [{"type": "contains", "pattern": "got"}]}
        for number in range(tasks)
    ]
    files = skill_files(**{"evals/evals.json": json.dumps({"evals": cases})})
    rpc("create_skill", manifest=manifest(EVALUATED), skill_md="# A\n", files=files)
    rpc("create_skill", manifest=manifest(CALLED), skill_md="# A\n", files=skill_files())


def _runs_until_the_end(rpc: Rpc) -> Iterator[float]:
    """Start the evaluation, and yield the milliseconds of each run of the caller until it has ended."""
    started = rpc("start_evaluation", name=EVALUATED, version="1.0.0", kinds=["task"], trials=TRIALS)
    while (evaluation := rpc("get_evaluation", id=started["id"]))["ended_at"] is None:
        for _ in range(RUNS_PER_LOOK):
            yield _run(rpc)
    assert evaluation["state"] == "done", evaluation["error"]
    assert evaluation["shares"] == {"with": 1, "without": 0}, evaluation


def _run(rpc: Callable[..., Any]) -> float:
    began = time.perf_counter()
    assert rpc("execute_skill", name=CALLED)["status"] == "completed"
    return (time.perf_counter() - began) * 1000


def _play(asked: dict[str, Any], heard: Sequence[Heard]) -> Sequence[Wanted] | str:
    """Read the skill and run it, if there is one."""
    if len(asked["tools"]) == 1:
        return "I cannot."
    if not heard:
        return [Wanted("read_skill_file", {"path": "SKILL.md"}), Wanted("execute_skill", {"args": {"a": 1}})]
    return str(heard[-1].content)
