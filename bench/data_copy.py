"""Copies of a large registry under load: its contents to another storage and back, its database to the other kind and
back. Copiers and a server are killed in the middle.

`python -m bench.data_copy 10000 2000` uses 10,000 versions with 2,000 MB in the storage, on SQLite and on Postgres. The
exit code is 1 if an acknowledged version is missing, or if `skillery check --deep` finds a fault.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from tests.conftest import RpcError, Server, clean_environment
from tests.support.data_copies import Load, Registry, read_large
from tests.support.postgres import a_postgres

SKILL_MD = "---\nname: {name}\ndescription: What {name} does.\n---\n# {name}\n"
LOAD_BEFORE_KILL = 5


class Bench(NamedTuple):
    registry: Registry
    load: Load

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "skillery", *args, "--home", str(self.registry.folder / "home")]

    def run(self, *args: str, storage: str) -> str:
        env = clean_environment(self.registry.with_storage(storage))
        done = subprocess.run(self.command(*args), env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{args} failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    def kill_when(self, is_due: Callable[[], bool], *args: str, storage: str) -> None:
        """Start a command, and kill it when `is_due` returns True."""
        env = clean_environment(self.registry.with_storage(storage))
        process = subprocess.Popen(self.command(*args), env=env, stderr=subprocess.DEVNULL)
        while not is_due() and process.poll() is None:
            time.sleep(0.05)
        print(f"  killed in the middle: {process.poll() is None}", flush=True)
        process.kill()
        process.wait()

    def server(self, storage: str) -> Server:
        return Server(self.registry.folder / "home", env=self.registry.with_storage(storage))


def fill(bench: Bench, versions: int, megabytes: int, prefix: str = "s") -> None:
    """Import generated skills, each with one large file."""
    source = bench.registry.folder / "generated"
    size = max(70_000, megabytes * 1_000_000 // versions)
    for number in range(versions):
        name = f"{prefix}{number}"
        folder = source / name
        folder.mkdir(parents=True)
        (folder / "SKILL.md").write_text(SKILL_MD.format(name=name))
        (folder / "large.txt").write_text(f"{number} " * (size // (len(str(number)) + 1)))
    started = time.perf_counter()
    bench.run("import", str(source), "--source", prefix, "--json", storage="directory")
    shutil.rmtree(source)
    print(f"  filled with {versions} versions in {time.perf_counter() - started:.0f} s", flush=True)


def move_storage(bench: Bench, source: str, target: str) -> None:
    """Copy all contents under load, with a kill of the copier and of the server, and use the target."""
    server = bench.server(source)
    with bench.load.on(server):
        total = bench.registry.state()["contents"]
        bench.kill_when(lambda: copied(bench) > total / 3, "storage", "copy", "--to", target, storage=source)
    server.stop(signal.SIGKILL)
    server = bench.server(source)
    with bench.load.on(server):
        started = time.perf_counter()
        bench.run("storage", "copy", "--to", target, "--verify", storage=source)
        seconds = time.perf_counter() - started
        bench.load.wait_for(LOAD_BEFORE_KILL)
    server.stop(signal.SIGKILL)
    server = bench.server(target)
    with bench.load.on(server):
        bench.run("storage", "finish", storage=target)
    found = bench.registry.state()
    print(f"  {source} to {target}: resumed and verified in {seconds:.1f} s, {found['bytes'] / 1e6:.0f} MB", flush=True)
    end(bench, server, target)


def copied(bench: Bench) -> int:
    copy = bench.registry.state()["copy"]
    return int(copy["contents"]) if copy else 0


def move_database(bench: Bench, target: str) -> None:
    """Copy the database under load, with a kill of the copier, and use the target."""
    server = bench.server("directory")
    with bench.load.on(server):
        bench.kill_when(lambda: refuses(server), "db", "copy", "--to", target, storage="directory")
        bench.run("db", "copy", "--resume-writes", storage="directory")
        bench.load.wait_for(LOAD_BEFORE_KILL)
        done: dict[str, Any] = json.loads(bench.run("db", "copy", "--to", target, "--json", storage="directory"))
    server.stop(signal.SIGKILL)
    rows = sum(done["rows"].values())
    kind = target.partition(":")[0]
    print(
        f"  to {kind}: {rows} rows in {done['seconds']:.1f} s, read-only for {done['read_only_seconds']:.1f} s",
        flush=True,
    )
    bench.registry.env["SKILLERY_DATABASE"] = target
    end(bench, bench.server("directory"), "directory")


def refuses(server: Server) -> bool:
    try:
        server.rpc("create_blob", content="probe", kind="text/plain")
    except RpcError as error:
        return "read-only" in str(error)
    return False


def end(bench: Bench, server: Server, storage: str) -> None:
    """Look for every acknowledged version, and check the registry."""
    lost = [name for name in bench.load.acknowledged if not read_large(server.rpc, name).startswith(name)]
    server.stop()
    bench.run("check", "--deep", storage=storage)
    print(f"  {len(bench.load.acknowledged)} acknowledged, {len(lost)} lost, {bench.load.reads} reads", flush=True)
    if lost:
        raise SystemExit(f"lost: {lost}")


def main(arguments: Sequence[str]) -> None:
    versions, megabytes = (int(one) for one in arguments)
    with tempfile.TemporaryDirectory(prefix="skillery-data-") as name, a_postgres() as postgres:
        for kind in ("sqlite", "postgres"):
            folder = Path(name) / kind
            folder.mkdir()
            urls = {"sqlite": f"sqlite:///{folder / 'first.db'}", "postgres": created(postgres.url, f"{kind}_first")}
            others = {
                "sqlite": created(postgres.url, f"{kind}_second"),
                "postgres": f"sqlite:///{folder / 'second.db'}",
            }
            last = {"sqlite": f"sqlite:///{folder / 'last.db'}", "postgres": created(postgres.url, f"{kind}_last")}
            print(kind, flush=True)
            bench = Bench(Registry(folder, urls[kind]), Load())
            fill(bench, versions, megabytes)
            move_storage(bench, "directory", "second")
            move_storage(bench, "second", "directory")
            move_database(bench, others[kind])
            move_database(bench, last[kind])


def created(postgres: str, name: str) -> str:
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return postgres.replace("/postgres?", f"/{name}?")


if __name__ == "__main__":
    main(sys.argv[1:])
