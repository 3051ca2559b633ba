"""Real servers for the tests: `skillery serve` as a process, on SQLite and on Postgres, called over HTTP."""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from skillery.database import Database
from tests.support.durations import shared_work
from tests.support.package_index import PackageIndex
from tests.support.parallel import postgres_url
from tests.support.prefork import Forked, prefork
from tests.support.results import check_result
from tests.support.templates import postgres_template, prepare_home, prepare_key, sqlite_template

DATABASES = ("sqlite", "postgres")
ON_SQLITE = pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
"""Mark of a test whose statements other tests execute on Postgres."""
START_SECONDS = 300
POOLED = 4
"""Number of servers of a worker in the pool of `configured_server`."""
# The import check runs code for each version: the servers `usual` have it, and no other server of a test.
IMPORT_CHECK = {"SKILLERY_PUBLISHING_IMPORT_SECONDS": "300"}
NO_IMPORT_CHECK = {"SKILLERY_PUBLISHING_IMPORT_SECONDS": "0"}
# Receivers of webhooks in tests are on loopback. Failed attempts are repeated soon.
LOCAL_WEBHOOKS = {
    "SKILLERY_WEBHOOKS_ALLOW_PRIVATE": "127.0.0.1,::1",
    "SKILLERY_WEBHOOKS_RETRY_SECONDS": "0.1",
    "SKILLERY_WEBHOOKS_RETRY_MAX_SECONDS": "0.5",
}
ASKS_FOR_TOKENS = {
    "SKILLERY_AUTH": "tokens",
    # Tests of refused requests would reach the usual limit of failed logins.
    "SKILLERY_BACKENDS_AUTHENTICATOR_TOKENS_FAILURES_PER_MINUTE": "100000",
}
NO_SANDBOX_PROBES: dict[str, Any] = {"SKILLERY_SANDBOX": "unsafe-subprocess", "SKILLERY_ALLOW_UNSAFE_SANDBOX": "true"}
"""Settings of `skillery doctor` in tests of other rows: those of the usual sandbox take a second."""
_numbers = itertools.count()
for step in ("connect", "read", "write", "pool"):
    # A loaded machine takes longer than the five seconds of httpx. Calls that state a limit keep theirs.
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, step, 300)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # The tests were started with nohup. Commands under test would inherit it, and ignore the signals that tests send.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class RpcError(Exception):
    """A JSON-RPC error, raised in tests that do not expect it."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']} {error.get('data')}")
        self.error = error


class Rpc:
    """A JSON-RPC client: `rpc("list_skills", limit=5)` returns the result, `rpc.error(…)` the error of a call that
    fails. Each result is compared with its types.
    """

    tls = ssl.create_default_context()  # unused; without it, httpx reads all certificates for each client
    limits = httpx.Limits(keepalive_expiry=1)
    """No request is sent on a connection that a server of a test may close at the same moment."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self.http = httpx.Client(base_url=url, timeout=300, headers=headers, verify=self.tls, limits=self.limits)
        self._ids = itertools.count(1)

    def __call__(self, method: str, /, **params: Any) -> Any:
        reply = self.send(method, params)
        if "error" in reply:
            raise RpcError(reply["error"])
        return reply["result"]

    def error(self, method: str, /, **params: Any) -> dict[str, Any]:
        reply = self.send(method, params)
        assert "error" in reply, f"{method} did not fail: {reply}"
        error: dict[str, Any] = reply["error"]
        return error

    def send(self, method: str, params: Any) -> dict[str, Any]:
        number = next(self._ids)
        response = self.http.post("/rpc", json={"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        assert response.status_code == 200, response.text
        reply: dict[str, Any] = response.json()
        assert reply["jsonrpc"] == "2.0"
        assert reply["id"] == number
        if "result" in reply:
            check_result(method, reply["result"])
        return reply

    def raw(self, body: bytes | str, **headers: str) -> httpx.Response:
        return self.http.post("/rpc", content=body, headers={"content-type": "application/json", **headers})


class Server:
    """A `skillery serve` process, forked from a process that has imported its modules.

    With `wrapper`, or PYTHON variables in `env`, a new process is started. `wrapper` is a command that executes its
    remaining arguments. A home without a database gets a copy of a template, unless `new_home` asks for a real first
    start.
    """

    def __init__(
        self,
        home: Path,
        *flags: str,
        env: Mapping[str, str] | None = None,
        wrapper: Sequence[str] = (),
        new_home: bool = False,
    ) -> None:
        self.home = home
        self.database = ""
        self.log = home.parent / f"{home.name}.log"
        arguments = ["serve", "--home", str(home), "--port", "0", *flags]
        environment = clean_environment(NO_IMPORT_CHECK | LOCAL_WEBHOOKS | dict(env or {}))
        if not (new_home or wrapper or environment.get("SKILLERY_DATABASE")):
            prepare_home(home)
        if not (new_home or wrapper):
            prepare_key(home)
        self.process: subprocess.Popen[bytes] | Forked
        with self.log.open("ab") as log:
            if wrapper or any(name.startswith("PYTHON") for name in env or ()):
                command = [*wrapper, sys.executable, "-m", "skillery", *arguments]
                self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment)
            else:
                self.process = prefork().start(arguments, environment, log.fileno())
        self.url = self._wait_for_url()
        self.rpc = Rpc(self.url)

    def _wait_for_url(self) -> str:
        assert self.process.stdout is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            ready, _, _ = select.select([self.process.stdout], [], [], 0.2)
            line = self.process.stdout.readline().decode() if ready else ""
            if "http://" in line:
                return "http://" + line.split("http://")[1].split()[0].rstrip("/")
            if self.process.poll() is not None:
                break
        self.stop(signal.SIGKILL)
        raise AssertionError(f"the server did not start:\n{self.log.read_text()[-4000:]}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(300)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


INDEX_VARIABLES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL")


def clean_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of this process without settings of Skillery and indexes of pip, for commands and FORKED.

    Compiled code is kept, which makes a start faster.
    """
    dropped = ("SKILLERY_", "PYTHONDONTWRITEBYTECODE", *INDEX_VARIABLES)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return {**kept, "PIP_CONFIG_FILE": os.devnull, **prefork().variables, **(more or {})}


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> str:
    """Return the URL of a Postgres server. Without Postgres the suite fails; no test is skipped."""
    return postgres_url(pytestconfig)


@pytest.fixture(scope="session")
def new_postgres_database(postgres: str) -> Callable[[], str]:
    """Return a function that creates a database without tables and returns its URL."""

    def make() -> str:
        name = f"test_{os.getpid()}_{next(_numbers)}"
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return postgres.replace("/postgres?", f"/{name}?")

    return make


@pytest.fixture(scope="session")
def migrated_postgres_database(postgres: str) -> Callable[[], str]:
    """Return a function that creates a database with all tables and no rows, and returns its URL."""

    def make() -> str:
        name = f"test_{os.getpid()}_{next(_numbers)}"
        template = postgres_template(postgres)
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return postgres.replace("/postgres?", f"/{name}?")

    return make


@pytest.fixture(scope="session", params=DATABASES)
def database_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


StartShared = Callable[..., Server]


@pytest.fixture(scope="session")
def shared_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartShared]:
    """Yield `shared_server("tokens", kind, SKILLERY_…)`, which returns the server with this name and kind of database.

    A shared server starts at its first use and stops after the last test, so tests on both databases may alternate.
    """
    servers: dict[tuple[str, str], Server] = {}

    def start(name: str, kind: str, **more: str) -> Server:
        if (name, kind) not in servers:
            url = request.getfixturevalue("migrated_postgres_database")() if kind == "postgres" else ""
            home = tmp_path_factory.mktemp(f"{name}_server") / "home"
            servers[name, kind] = Server(home, env={"SKILLERY_DATABASE": url, **more})
            servers[name, kind].database = url
        return servers[name, kind]

    yield start
    ended = {name: (running.stop(), running.log.read_text()[-4000:]) for name, running in servers.items()}
    assert all(code == 0 for code, _ in ended.values()), ended


class ServerPool:
    """Running servers by their settings. If there are too many, the least recently used one stops."""

    def __init__(self) -> None:
        self._servers: dict[Hashable, Server] = {}

    def get(self, settings: Hashable, start: Callable[[], Server]) -> Server:
        """Return the server with these settings. Its start is not counted for the test that is the first to need it."""
        with shared_work():
            server = self._servers.pop(settings, None) or start()
            self._servers[settings] = server  # the last one is the most recently used one
            if len(self._servers) > POOLED:
                self._stop(next(iter(self._servers)))
        assert server.process.poll() is None, server.log.read_text()[-4000:]
        return server

    def _stop(self, settings: Hashable) -> None:
        server = self._servers.pop(settings)
        code, log = server.stop(), server.log.read_text()[-4000:]
        assert code == 0, log

    def close(self) -> None:
        for settings in list(self._servers):
            self._stop(settings)


@pytest.fixture(scope="session")
def configured_server(server_pool: ServerPool, tmp_path_factory: pytest.TempPathFactory) -> StartShared:
    """Return `configured_server(SKILLERY_…)`, which returns a running server with exactly these settings.

    Later tests with the same settings get the same server. So a test uses new names, and neither stops the server, nor
    counts what the whole server has, nor reads its home and log.
    """

    def configured(**settings: str) -> Server:
        home = tmp_path_factory.getbasetemp() / f"configured{next(_numbers)}" / "home"
        return server_pool.get(frozenset(settings.items()), lambda: Server(home, env=settings))

    return configured


@pytest.fixture(scope="session")
def server(database_kind: str, shared_server: StartShared) -> Server:
    """Return the shared server of each database, for tests that use only new names."""
    return shared_server("usual", database_kind, **IMPORT_CHECK)


@pytest.fixture(scope="session")
def fuzzed_server(database_kind: str, shared_server: StartShared) -> Server:
    """Return a server for random calls, which may yank, deprecate or hide skills that other tests need."""
    return shared_server("fuzzed", database_kind)


@pytest.fixture(scope="session")
def database_url(server: Server) -> str:
    """Return the database URL of `server` for settings. "" is the embedded default."""
    return server.database


@pytest.fixture(scope="session")
def sqlite_server(shared_server: StartShared) -> Server:
    """Return a server on SQLite, for tests that do not depend on the database."""
    return shared_server("usual", "sqlite", **IMPORT_CHECK)


@pytest.fixture(scope="session")
def org(
    database_kind: str, shared_server: StartShared, tmp_path_factory: pytest.TempPathFactory, wheelhouse: Path
) -> Server:
    """Return the shared server with several callers: tests/support/people.py."""
    from tests.support.people import people_settings

    # Evaluations stay queued, so that tests can cancel them.
    more = {"SKILLERY_EVALS_RUNS": "0", **environment("data", "figures==1.0")}
    more["SKILLERY_PACKAGES_WHEELHOUSE"] = str(wheelhouse)
    return shared_server("org", database_kind, **people_settings(tmp_path_factory.mktemp("people")), **more)


@pytest.fixture(scope="session")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with all packages of `packages`. Tests add packages with new names."""
    from tests.support.wheels import make_wheel

    house = tmp_path_factory.mktemp("wheelhouse")
    for version in ("1.0", "1.5", "2.0"):
        make_wheel(house, "frames", version, requires=["figures>=1"])
    make_wheel(house, "figures", "1.0")
    make_wheel(house, "figures", "2.0")
    make_wheel(house, "forbidden", "1.0")
    make_wheel(house, "elsewhere", "1.0", tag="cp27-cp27m-win32")
    make_wheel(house, "torn", "1.0", requires=["frames<2", "figures==1.0"])
    return house


@pytest.fixture(scope="session")
def packages(database_kind: str, shared_server: StartShared, wheelhouse: Path) -> Server:
    """Return the shared server with packages."""
    more = {"SKILLERY_PACKAGES_WHEELHOUSE": str(wheelhouse), "SKILLERY_PACKAGES_DENIED": "forbidden"}
    return shared_server("packages", database_kind, **more)


def environment(name: str, *dependencies: str, **more: Any) -> dict[str, str]:
    """Return the setting of a named environment."""
    return {f"SKILLERY_ENVIRONMENTS_{name.upper()}": json.dumps({"dependencies": dependencies, **more})}


@pytest.fixture(scope="session")
def named(database_kind: str, shared_server: StartShared, wheelhouse: Path) -> Server:
    """Return the shared server with named environments.

    `growing` uses a package that only this server has. `broken` cannot be locked.
    """
    from tests.support.wheels import make_wheel

    make_wheel(wheelhouse, f"growing_{database_kind}", "1.0")
    settings = {
        "SKILLERY_PACKAGES_WHEELHOUSE": str(wheelhouse),
        **environment(
            "data", "frames<2", preload=["frames", "figures"], description="Tables and their shapes.", default=True
        ),
        **environment("old", "frames==1.0", preload=["absent_module"]),
        **environment("growing", f"growing_{database_kind}"),
        **environment("broken", "nothere>=1"),
    }
    return shared_server("named", database_kind, **settings)


@pytest.fixture
def named_rpc(named: Server) -> Rpc:
    return named.rpc


@pytest.fixture(scope="session")
def packages_sqlite(shared_server: StartShared, wheelhouse: Path) -> Server:
    """Return the shared server with packages on SQLite, for tests that do not depend on the database."""
    more = {"SKILLERY_PACKAGES_WHEELHOUSE": str(wheelhouse), "SKILLERY_PACKAGES_DENIED": "forbidden"}
    return shared_server("packages", "sqlite", **more)


@pytest.fixture(scope="session")
def package_index(wheelhouse: Path) -> Iterator[PackageIndex]:
    """Yield an HTTP index with all packages of `indexed`."""
    index = PackageIndex(wheelhouse)
    yield index
    index.close()


@pytest.fixture(scope="session")
def indexed(shared_server: StartShared, package_index: PackageIndex) -> Server:
    """Return a server whose packages come from an index and are built from source if they have no wheel."""
    settings = {
        "INDEX_URLS": package_index.url,
        "EXCLUDE_NEWER": "2026-01-01",
        "LOCK_SECONDS": "300",
        "BUILD_FROM_SOURCE": "*",
        "MAX_MB": "64",
        "BUILD_SECONDS": "300",
    }
    packages = {f"SKILLERY_PACKAGES_{name}": text for name, text in settings.items()}
    return shared_server("indexed", "sqlite", **packages)


@pytest.fixture
def packages_rpc(packages: Server) -> Rpc:
    return packages.rpc


@pytest.fixture(scope="session")
def tokens_server(database_kind: str, shared_server: StartShared) -> Server:
    """Return the shared server that requires tokens. Its commands need its `database` as SKILLERY_DATABASE."""
    return shared_server("tokens", database_kind, **ASKS_FOR_TOKENS)


@pytest.fixture(scope="session")
def tokens_sqlite(shared_server: StartShared) -> Server:
    """Return the shared server with tokens on SQLite, for tests that do not depend on the database."""
    return shared_server("tokens", "sqlite", **ASKS_FOR_TOKENS)


@pytest.fixture
def database(database_kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Database]:
    """Yield a migrated database of this test, without a server."""
    if database_kind == "sqlite":
        shutil.copyfile(sqlite_template(), tmp_path / "x.db")
    postgres = database_kind == "postgres" and request.getfixturevalue("migrated_postgres_database")()
    database = Database(postgres or f"sqlite:///{tmp_path / 'x.db'}")
    yield database
    database.close()


@pytest.fixture
def rpc(server: Server) -> Rpc:
    return server.rpc


@pytest.fixture
def sqlite_rpc(sqlite_server: Server) -> Rpc:
    return sqlite_server.rpc


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Yield `start_server(env={…})`, which starts a server of this test. Without `home`, each server has the same
    home.
    """
    with ExitStack() as stack:

        def start(
            *flags: str,
            home: str = "home",
            env: Mapping[str, str] | None = None,
            wrapper: Sequence[str] = (),
            new_home: bool = False,
        ) -> Server:
            running = Server(tmp_path / home, *flags, env=env, wrapper=wrapper, new_home=new_home)
            stack.callback(running.stop, signal.SIGKILL)
            return running

        yield start


@pytest.fixture
def new_name() -> str:
    """Return a namespace that no other test uses. Names that differ only in their last digits are look-alikes."""
    return f"t{os.getpid()}x{next(_numbers)}z"


def manifest(name: str, version: str = "1.0.0", **more: Any) -> dict[str, Any]:
    """Return a small valid manifest. Without `kind`, it is an action skill."""
    made: dict[str, Any] = {"name": name, "version": version, "description": f"What {name} does."}
    if more.get("kind") != "instruction":
        made["runtime"] = {"language": "python", "entrypoint": "code/main.py", "export": "main"}
    return made | more


def skill_files(code: str = "def main(args):\n    return {'got': args}\n", **more: str) -> list[dict[str, Any]]:
    return [{"path": "code/main.py", "content": code}] + [
        {"path": path, "content": content} for path, content in more.items()
    ]


@pytest.fixture
def publish(rpc: Rpc) -> Callable[..., dict[str, Any]]:
    return publisher(rpc)


@pytest.fixture
def sqlite_publish(sqlite_rpc: Rpc) -> Callable[..., dict[str, Any]]:
    return publisher(sqlite_rpc)


def publisher(rpc: Rpc) -> Callable[..., dict[str, Any]]:
    """Return `publish(name, version, code)`, which publishes a small skill and returns the result."""

    def publish(name: str, version: str = "1.0.0", code: str | None = None, **more: Any) -> dict[str, Any]:
        made = manifest(name, version, **more)
        files = [] if more.get("kind") == "instruction" else skill_files(*([code] if code else []))
        result: dict[str, Any] = rpc("create_skill", manifest=made, skill_md=f"# {name}\n", files=files)
        return result

    return publish


@pytest.fixture
def small_disk(tmp_path: Path) -> list[str]:
    """Return a command that runs its arguments with a home of 16 MiB, a tmpfs in a separate mount namespace."""
    if shutil.which("unshare") is None:
        raise RuntimeError("unshare (util-linux) is needed for a disk that is really full")
    home = tmp_path / "home"
    home.mkdir()
    script = f'mount -t tmpfs -o size=16m tmpfs {home} && exec "$@"'
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]
