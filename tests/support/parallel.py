"""Run the tests safely and quickly in several processes: `pytest -n auto --dist worksteal`.

Each worker has its own servers, and all workers share one Postgres. A test looks only at its own processes and files.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
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
        # A shell that starts pytest in the background makes it ignore SIGINT. Commands that tests interrupt would
        # inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        end_servers_below(common_folder(config))
    config.stash[STACK].close()


def end_servers_below(folder: Path) -> None:
    """End the servers of a worker that was killed or ran out of time. Their homes are in `folder`."""
    home = f"{folder}/".encode()
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # the process has ended
            arguments = process.read_bytes().split(b"\0")
            if b"serve" in arguments and any(argument.startswith(home) for argument in arguments):
                os.kill(int(process.parent.name), signal.SIGTERM)


def postgres_url(config: pytest.Config) -> str:
    """Return the URL of the only Postgres server of this pytest run. It starts at its first use and stops with the
    run.
    """
    given: str | None = getattr(config, "workerinput", {}).get("postgres")
    if given is not None:
        return given
    if POSTGRES not in config.stash:
        config.stash[POSTGRES] = config.stash[STACK].enter_context(running_postgres())
    return config.stash[POSTGRES]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return four for each processor, because many tests wait for limits and for other processes."""
    return min(4 * len(os.sched_getaffinity(0)), MOST_WORKERS)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Send the Postgres URL to each worker, from the process that starts the workers."""
    with suppress(RuntimeError):  # the first test that needs Postgres fails with the reason
        node.workerinput["postgres"] = postgres_url(node.config)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without the garbage collector, then exclude the collected objects from it: they are a million objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort long tests first, so that no worker runs one alone at the end."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def common_folder(config: pytest.Config) -> Path:
    """Return a folder of this pytest run that all workers know."""
    factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
    own = factory.getbasetemp()
    return own.parent if hasattr(config, "workerinput") else own


def is_first(what: str) -> bool:
    """Return whether this is the first call with this text in all workers of this pytest run."""
    try:
        (common_folder(_config[0]) / f"first {what}".replace("/", "-")).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
