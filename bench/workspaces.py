"""`python -m bench.workspaces`: what a workspace of 10 MB in 200 files costs a run, and what a fork costs."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conftest import Rpc, Server, clean_environment

FILES, FILE_BYTES, REPEATS = 200, 50_000, 20
FILLS = f"""
import os
def main(args):
    for number in range({FILES}):
        os.makedirs(f"d{{number % 10}}", exist_ok=True)
        open(f"d{{number % 10}}/{{number}}", "wb").write(os.urandom({FILE_BYTES}))
"""
CHANGES = "import os\ndef main(args): open('d0/0', 'wb').write(os.urandom(50_000))"
NOTHING = "def main(args): return 1"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder) / "home", env=clean_environment())
        try:
            measure(server.rpc)
        finally:
            server.stop()


def measure(rpc: Rpc) -> None:
    workspace = rpc("create_workspace")["id"]
    run(rpc, FILLS, workspace)
    print(f"copy of the files with Python  {median(copy):6.1f} ms")
    bare = median(lambda: run(rpc, NOTHING))
    print(f"run without workspace          {bare:6.1f} ms")
    for name, code, mode in (
        ("restore, save nothing", NOTHING, "read"),
        ("restore, save without change", NOTHING, "write"),
        ("restore, save one changed file", CHANGES, "write"),
    ):
        found = median(lambda code=code, mode=mode: run(rpc, code, workspace, mode))  # type: ignore[misc]
        print(f"{name:30} {found:6.1f} ms, {found - bare:5.1f} more")
    print(f"fork                           {median(lambda: rpc('create_workspace', origin=workspace)):6.1f} ms")


def copy() -> None:
    """Copy as many files from memory to memory: the measure for the speed of the machine."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        content = bytes(FILE_BYTES)
        for number in range(FILES):
            Path(folder, str(number)).write_bytes(content)


def run(rpc: Rpc, code: str, workspace: str = "", mode: str = "write") -> Any:
    given = {"workspace": workspace, "workspace_mode": mode} if workspace else {}
    answer = rpc("run_code", language="python", code=code, **given)
    assert answer["status"] == "completed", answer
    return answer


def median(act: Callable[[], object]) -> float:
    took = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        act()
        took.append((time.perf_counter() - begun) * 1000)
    return statistics.median(took)


if __name__ == "__main__":
    main()
