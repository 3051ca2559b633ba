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
    home = folder / "home"
    home.mkdir()
    with _model() as url:
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
    trials = tasks * TRIALS * ARMS
    own = used - each * len(together)
    report.heading("Evaluations")
    report.text(
        f"{trials} trials with a scripted model on SQLite, {len(together)} runs of a caller at the same time, and "
        f"{2 * CALLS} runs without an evaluation. The processor time is that of the server process, without the runs "
        "of the caller and the sandboxes."
    )
    report.table(
        ["figure", "measured", "goal"],
        [
            [f"{trials} trials, with the runs of the caller", f"{seconds:.0f} s", "60 s"],
            ["processor time of a trial", f"{format_ms(own / trials * 1000)} ms", ""],
            ["p95 of the caller's runs without the evaluation", f"{format_ms(percentile(alone, 95))} ms", ""],
            ["p95 during it", f"{format_ms(percentile(together, 95))} ms", "+5 %"],
        ],
    )


@contextlib.contextmanager
def _model() -> Iterator[str]:
    """Context manager: run the scripted model in its own process, and yield its address."""
    own, other = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(other,))
    process.start()
    try:
        yield own.recv()
    finally:
        own.send("")
        process.join()


def _serve(connection: Connection) -> None:
    with FakeModel(play=_play) as model:
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
