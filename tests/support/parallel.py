"""What makes the tests safe, and quick, in several processes at once: `pytest -n auto --dist worksteal`.

Each worker has servers of its own; one Postgres is everybody's. A test that looks at the whole machine, or needs quiet,
says `@pytest.mark.alone`: nothing else runs meanwhile.
"""

from __future__ import annotations

import fcntl
import gc
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.postgres import running_postgres

MOST_WORKERS = 8
STACK = pytest.StashKey[ExitStack]()
POSTGRES = pytest.StashKey[str]()
_config: list[pytest.Config] = []


def pytest_configure(config: pytest.Config) -> None:
    _config.append(config)
    config.stash[STACK] = ExitStack()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell that starts us in the background says so, and commands that are to be interrupted would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        end_servers_below(common_folder(config))
    config.stash[STACK].close()


def end_servers_below(folder: Path) -> None:
    """Of a worker that was killed, or had no time to end them: their homes are ours."""
    home = f"{folder}/".encode()
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            arguments = process.read_bytes().split(b"\0")
            if b"serve" in arguments and any(argument.startswith(home) for argument in arguments):
                os.kill(int(process.parent.name), signal.SIGTERM)


def postgres_url(config: pytest.Config) -> str:
    """Of the one server of this run of pytest. It is started when it is first asked for, and stopped with the run."""
    given: str | None = getattr(config, "workerinput", {}).get("postgres")
    if given is not None:
        return given
    if POSTGRES not in config.stash:
        config.stash[POSTGRES] = config.stash[STACK].enter_context(running_postgres())
    return config.stash[POSTGRES]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than processors: a good part of the suite waits, for limits of time to pass."""
    return min(len(os.sched_getaffinity(0)) + 1, MOST_WORKERS)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """In the process that has the workers: what it tells each of them."""
    with suppress(RuntimeError):  # the first test that needs it says why it cannot be had
        node.workerinput["postgres"] = postgres_url(node.config)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without the garbage collector, and hide what was collected from it: these are a million objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long ones first, so that at the end nobody waits for the worker that has one."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """From the first fixture's beginning to the last one's end."""
    run = getattr(item.config, "workerinput", {}).get("testrunuid")
    if run is None:
        return (yield)
    with turn(common_folder(item.config), alone=item.get_closest_marker("alone") is not None):
        return (yield)


def common_folder(config: pytest.Config) -> Path:
    """A folder of this run of pytest, which all workers know."""
    factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
    own = factory.getbasetemp()
    return own.parent if hasattr(config, "workerinput") else own


@contextmanager
def turn(folder: Path, *, alone: bool) -> Iterator[None]:
    """Together with others, or alone. Whoever wants to be alone waits at the gate for those inside to leave, and
    nobody else gets through it meanwhile."""
    with (folder / "room.lock").open("w") as room:
        with (folder / "gate.lock").open("w") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        try:
            yield
        finally:
            fcntl.flock(room, fcntl.LOCK_UN)  # closing is not enough where a fork has it too


def is_first(what: str) -> bool:
    """Whether nobody in this run of pytest has asked for it before, in no worker."""
    try:
        (common_folder(_config[0]) / f"first {what}".replace("/", "-")).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
