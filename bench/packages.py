"""Skills with packages: the cost of publishing, building and keeping them."""

from __future__ import annotations

import itertools
import shutil
import time
from pathlib import Path
from typing import Any

import httpx

from bench.report import Report, median, percentile
from tests.conftest import Server, manifest, skill_files
from tests.support.wheels import make_wheel

INDEX = "https://pypi.org/simple"
PANDAS = "pandas>=2,<3"
SKILLS, LOCKS, SHARED = 100, 20, 10
QUEUED, FILES = 35, 3000
CODE = "def main(args):\n    return 1\n"
MIB = 1024 * 1024
_numbers = itertools.count()


def measure(report: Report, folder: Path, small: bool) -> None:
    report.heading("Packages")
    house = folder / "house"
    house.mkdir()
    for number in range(SHARED):
        make_wheel(house, f"shared{number}", "1.0", {f"shared{number}/m{one}.py": f"X = {one}\n" for one in range(100)})
    for number in range(LOCKS):
        make_wheel(house, f"own{number}", "1.0")
    rows = _published(folder, house, 20 if small else 100)
    report.text(
        "`create_skill` over HTTP, SQLite, one caller: without dependencies, and with ten dependencies whose lock is "
        "known (`packages.reuse_hours`) and installed."
    )
    report.table(["what", "p50 ms", "p99 ms"], rows)
    report.table(["on the disk", "MiB", "what it would be without sharing"], _disk(folder, house))
    report.text(
        f"{QUEUED} skills, each with another package of {FILES:,} files, are published. Then another skill with such a "
        "package is run for the first time."
    )
    report.table(["what", "seconds"], _first_run(folder, house))
    built = _pandas(folder) if _is_there() else [["the package index cannot be reached", "", ""]]
    report.text("The lock of pandas, from the real index: published and run once, without the start of the server.")
    report.table(["what", "seconds", ""], built)


def _published(folder: Path, house: Path, times: int) -> list[list[object]]:
    server = Server(folder / "published", env={"SKILLERY_PACKAGES_WHEELHOUSE": str(house)})
    shared = [f"shared{number}" for number in range(SHARED)]
    try:
        _create(server, shared)
        _run(server, _create(server, shared))
        plain = [_taken(server, []) for _ in range(times)]
        known = [_taken(server, shared) for _ in range(times)]
    finally:
        server.stop()
    return [
        ["without dependencies", *_figures(plain)],
        ["with a known lock", *_figures(known)],
        ["it adds", f"{median(known) - median(plain):.1f}", ""],
    ]


def _disk(folder: Path, house: Path) -> list[list[object]]:
    server = Server(folder / "disk", env={"SKILLERY_PACKAGES_WHEELHOUSE": str(house)})
    shared = [f"shared{number}" for number in range(SHARED)]
    place = server.home / "environments"
    try:
        names = [_create(server, shared) for _ in range(SKILLS)]
        for name in names:
            _run(server, name)
        same = _size(place)
        for number in range(LOCKS):
            _run(server, _create(server, [*shared, f"own{number}"]))
        several = _size(place)
    finally:
        server.stop()
    return [
        [f"{SKILLS} skills with one lock of {SHARED} wheels", f"{same:.1f}", f"{same * SKILLS:.1f}"],
        [
            f"and {LOCKS} more locks, each with these wheels and another one",
            f"{several:.1f}",
            f"{same * (LOCKS + 1):.1f}",
        ],
    ]


def _first_run(folder: Path, house: Path) -> list[list[object]]:
    """Measure a first run while the packages of QUEUED other skills wait for their installation."""
    for number in range(QUEUED + 1):
        make_wheel(
            house,
            f"queued{number}",
            "1.0",
            {f"queued{number}/m{module}.py": f"X = {module}\n" for module in range(FILES)},
        )
    server = Server(folder / "queued", env={"SKILLERY_PACKAGES_WHEELHOUSE": str(house)})
    try:
        names = [_create(server, [f"queued{number}"]) for number in range(QUEUED + 1)]
        started = time.perf_counter()
        _run(server, names[-1])
        first = time.perf_counter() - started
        rest = sum(_state(server, name) != "ready" for name in names)
        while any(_state(server, name) != "ready" for name in names):
            time.sleep(0.1)
        return [
            ["the first run, with its installation", f"{first:.2f}"],
            [
                f"all installations ({rest} were not ready after the first run)",
                f"{time.perf_counter() - started:.1f}",
            ],
        ]
    finally:
        server.stop()


def _state(server: Server, name: str) -> str:
    [state] = server.rpc("describe_skill", name=name)["skill"]["lock"]["environments"] or [{"state": ""}]
    return str(state["state"])


def _pandas(folder: Path) -> list[list[object]]:
    """Measure pandas cold (no wheel installed) and warm (wheels installed, as for every lock that shares them)."""
    settings = {"SKILLERY_PACKAGES_INDEX_URLS": INDEX}
    server = Server(folder / "pandas", env=settings)
    try:
        cold = _timed(server)
    finally:
        server.stop()
    shutil.rmtree(server.home / "environments" / "ready")
    server = Server(folder / "pandas", env=settings)
    try:
        warm = _timed(server)
    finally:
        server.stop()
    return [
        ["locking and publishing", f"{cold[0]:.2f}", "from nothing"],
        ["until the first run has its packages", f"{cold[1]:.2f}", "from nothing, with the download"],
        ["the same with its wheels on the disk", f"{warm[1]:.2f}", f"{_size(server.home / 'environments'):.0f} MiB"],
    ]


def _timed(server: Server) -> tuple[float, float]:
    started = time.perf_counter()
    name = _create(server, [PANDAS])
    created = time.perf_counter()
    _run(server, name)
    return created - started, time.perf_counter() - created


def _create(server: Server, dependencies: list[str]) -> str:
    name = f"bench.n{next(_numbers)}"
    runtime: dict[str, Any] = {"entrypoint": "code/main.py", "dependencies": dependencies}
    made = manifest(name, runtime=runtime if dependencies else {"entrypoint": "code/main.py"})
    server.rpc("create_skill", manifest=made, skill_md="# A\n", files=skill_files(CODE))
    return name


def _run(server: Server, name: str) -> None:
    answer = server.rpc("execute_skill", name=name)
    if answer["status"] != "completed":
        raise RuntimeError(answer["error"]["message"])


def _taken(server: Server, dependencies: list[str]) -> float:
    started = time.perf_counter()
    _create(server, dependencies)
    return (time.perf_counter() - started) * 1000


def _figures(taken: list[float]) -> tuple[str, str]:
    return f"{median(taken):.1f}", f"{percentile(taken, 99):.1f}"


def _size(folder: Path) -> float:
    """Return MiB of disk blocks. A file with several names counts once."""
    seen = {(found.st_dev, found.st_ino): found.st_blocks for path in folder.rglob("*") for found in [path.lstat()]}
    return sum(seen.values()) * 512 / MIB


def _is_there() -> bool:
    try:
        return httpx.get(f"{INDEX}/six/", timeout=10).status_code == 200
    except httpx.HTTPError:
        return False
