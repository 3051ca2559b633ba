"""`python -m bench.git`: clones of skills with the program `git`, and the memory of the server that makes a large pack.

`--skills 1000 --large 10000` are the sizes.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from bench.report import median
from skillery.database import Database
from skillery.database.tables import blobs
from skillery.git.requests import pkt
from tests.conftest import Server, manifest

ROUNDS = 5
BATCH = 100
CODE = (
    "import json\n\n\ndef main(args):\n    return json.dumps(args)\n"
    + "# a line of code that others would write\n" * 20
)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--skills", type=int, default=1_000)
    asked.add_argument("--large", type=int, default=10_000)
    numbers = asked.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        server = Server(folder / "home", env={"SKILLERY_INDEX_SKILLS": "20000"})
        try:
            _measure(server, folder, numbers.skills, numbers.large)
        finally:
            server.stop()


def _measure(server: Server, folder: Path, count: int, large: int) -> None:
    _publish(server, "team", 0, count)
    _wait_for_facts(server, count)
    # Without this clone, the first server measured would wait for the disk, and the others would not.
    _clone(server, "team", folder / "first")
    cold, kept, local = [], [], []
    for number in range(ROUNDS):
        _drop_packs(server)
        cold.append(_clone(server, "team", folder / f"cold{number}"))
        kept.append(_clone(server, "team", folder / f"kept{number}"))
        local.append(_clone_from((folder / "first").as_uri(), folder / f"local{number}"))
    print(f"{count} skills, depth 1, pack made:  {median(cold):.2f} s ({min(cold):.2f} to {max(cold):.2f}), target 0.6")
    print(f"{count} skills, depth 1, pack kept:  {median(kept):.2f} s ({min(kept):.2f} to {max(kept):.2f}), target 0.3")
    print(f"{count} skills, depth 1, from a folder: {median(local):.2f} s ({min(local):.2f} to {max(local):.2f})")
    seen = [_publish_and_see(server, number) for number in range(ROUNDS)]
    print(f"a published version is in a list of refs after {max(seen):.2f} s, target 1.0")
    if large:
        _publish(server, "large", 0, large)
        before = _memory(server)
        taken = _clone(server, "large", folder / "large")
        print(f"{large} skills, depth 1, pack made: {taken:.2f} s")
        print(
            f"peak memory of the server: {_memory(server)} MiB, before the pack {before} MiB, target 300 more at most"
        )
        print(f"{large} skills, depth 1, pack kept: {_clone(server, 'large', folder / 'large2'):.2f} s")


def _publish(server: Server, namespace: str, first: int, count: int) -> None:
    for start in range(first, first + count, BATCH):
        calls = [
            {
                "jsonrpc": "2.0",
                "id": number,
                "method": "create_skill",
                "params": _skill(f"{namespace}.s{number}", "1.0.0"),
            }
            for number in range(start, min(start + BATCH, first + count))
        ]
        for reply in server.rpc.http.post("/rpc", json=calls, timeout=300).json():
            assert "result" in reply, reply


def _skill(name: str, version: str) -> dict[str, object]:
    body = f"# {name}\n" + "".join(f"Step {number}: look at {name} and {number * 7919}.\n" for number in range(50))
    files = [{"path": "code/main.py", "content": f"{CODE}# {name} {version}\n"}]
    return {"manifest": manifest(name, version), "skill_md": body, "files": files}


def _publish_and_see(server: Server, number: int) -> float:
    address = f"{server.url}/git/team.git"
    version = f"1.0.{number + 1}"
    before = _head(address)
    server.rpc("create_skill", **_skill("team.s0", version))
    started = time.perf_counter()
    while _head(address) == before:
        pass
    return time.perf_counter() - started


def _head(address: str) -> str:
    body = pkt("command=ls-refs\n") + b"0001" + pkt("ref-prefix HEAD\n") + b"0000"
    kind = {"content-type": "application/x-git-upload-pack-request", "git-protocol": "version=2"}
    return httpx.post(f"{address}/git-upload-pack", content=body, headers=kind, timeout=60).text


def _clone(server: Server, namespace: str, to: Path) -> float:
    return _clone_from(f"{server.url}/git/{namespace}.git", to)


def _clone_from(address: str, to: Path) -> float:
    started = time.perf_counter()
    command = ["git", "clone", "--quiet", "--depth", "1", address, str(to)]
    subprocess.run(command, check=True, env={"PATH": "/usr/bin:/bin", "HOME": str(to.parent)})
    return time.perf_counter() - started


def _in_database(server: Server, work: Callable[[Database], object]) -> object:
    database = Database(f"sqlite:///{server.home / 'skillery.db'}")
    try:
        return work(database)
    finally:
        database.close()


def _wait_for_facts(server: Server, count: int) -> None:
    """Wait until the facts of all skills are prepared, as on a server that runs for some time."""
    statement = "SELECT count(*) FROM exports"

    def prepared() -> bool:
        found = _in_database(
            server, lambda database: database.read_now(lambda one: one.exec_driver_sql(statement).scalar_one())
        )
        return isinstance(found, int) and found >= count

    while not prepared():
        time.sleep(0.2)


def _drop_packs(server: Server) -> None:
    _in_database(
        server,
        lambda database: database.write_now(lambda one: one.execute(blobs.delete().where(blobs.c.path == "team"))),
    )


def _memory(server: Server) -> int:
    """Return the peak memory of the server in MiB."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


if __name__ == "__main__":
    main()
