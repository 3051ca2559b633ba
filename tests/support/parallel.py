"""Run the tests safely and quickly in several processes: `pytest -n auto --dist worksteal`.

Each worker has its own servers. All workers share one Postgres, one process that forks commands, and the templates of
databases. A test looks only at its own processes and files.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.support.postgres import running_postgres
from tests.support.prefork import running_prefork

MOST_WORKERS = 8
STACK = pytest.StashKey[ExitStack]()
POSTGRES = pytest.StashKey[str]()
PREFORK = pytest.StashKey[str]()
_config: list[pytest.Config] = []
_without_pytest = ExitStack()
"""What a process without pytest uses, such as a benchmark, until its end."""
atexit.register(_without_pytest.close)


@pytest.hookimpl(tryfirst=True)
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
    return of_the_run(config, POSTGRES, "postgres", running_postgres)


def forking_process() -> str:
    """Return the address of the only forking process of this pytest run: see tests/support/prefork.py."""
    return of_the_run(_config[0], PREFORK, "prefork", running_prefork) if _config else _own_forking_process()


@cache
def _own_forking_process() -> str:
    return _without_pytest.enter_context(running_prefork())


def of_the_run(
    config: pytest.Config, key: pytest.StashKey[str], name: str, running: Callable[[], AbstractContextManager[str]]
) -> str:
    """Return the address of a program that all workers share. It starts at its first use, in the process that starts
    the workers.
    """
    given: str | None = getattr(config, "workerinput", {}).get(name)
    if given is not None:
        return given
    if key not in config.stash:
        config.stash[key] = config.stash[STACK].enter_context(running())
    return config.stash[key]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return two for each processor and one more.

    A test that waits leaves its processor to another worker. Further workers cost more than they gain: each one takes
    12 s of processor time and 400 MB for its imports, its collection and its shared servers.
    """
    return min(2 * len(os.sched_getaffinity(0)) + 1, MOST_WORKERS)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Send the addresses of the shared programs to each worker, from the process that starts the workers."""
    node.workerinput["prefork"] = forking_process()
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


@cache
def own_folder() -> Path:
    """Return a folder of this process."""
    if not _config:
        return Path(_without_pytest.enter_context(TemporaryDirectory(prefix="skillery-")))
    factory: pytest.TempPathFactory = _config[0]._tmp_path_factory  # type: ignore[attr-defined]
    return factory.getbasetemp()


def common_folder(config: pytest.Config | None = None) -> Path:
    """Return a folder of this pytest run that all workers know."""
    config = config or next(iter(_config), None)
    return own_folder().parent if hasattr(config, "workerinput") else own_folder()


def is_first(what: str) -> bool:
    """Return whether this is the first call with this text in all workers of this pytest run."""
    try:
        (common_folder() / f"first {what}".replace("/", "-")).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def once(name: str, make: Callable[[Path], None]) -> Path:
    """Return a file of this pytest run. The first worker to need the file calls `make(path)`, the others wait."""
    path = common_folder() / name
    with path.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            unfinished = path.with_name(f"{name}.unfinished")
            unfinished.unlink(missing_ok=True)
            make(unfinished)
            unfinished.rename(path)
    return path
