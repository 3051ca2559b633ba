"""Servers of the previous release and of this one, at the same time on one Postgres."""

from __future__ import annotations

import io
import itertools
import json
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from skillery.database import Database, migrate
from tests.app.test_wheel import build
from tests.conftest import ASKS_FOR_TOKENS, Rpc, Server, clean_environment, manifest, skill_files
from tests.database.test_database import set_revision
from tests.support.processes import eventually

ROOT = Path(__file__).parents[2]
LARGE = "large " * 20_000
CLIENTS = 3
ROUNDS = 2
"""Rounds of each client in each phase of the upgrade."""


def git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True).stdout


def previous_release() -> str:
    """Return the newest tag, or else the last commit without the migrations after `migrate.PREVIOUS`."""
    tags = git("tag", "--list", "v*", "--merged", "HEAD", "--sort=-creatordate").decode().split()
    if tags:
        return tags[0]
    newer = next(revision for revision in migrate.revisions() if revision > migrate.PREVIOUS)
    added = git("log", "--diff-filter=A", "--format=%H", "--", f"migrations/versions/{newer}_*")
    return f"{added.decode().split()[-1]}^"


def test_previous_is_the_newest_revision_of_the_previous_release() -> None:
    files = git("ls-tree", "--name-only", previous_release(), "migrations/versions/").decode().split()

    assert max(Path(file).name.partition("_")[0] for file in files if file.endswith(".py")) == migrate.PREVIOUS


@pytest.fixture(scope="module")
def old_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the packages of the previous release. Their dependencies are those of this environment."""
    source, built, target = (tmp_path_factory.mktemp(name) for name in ("source", "built", "target"))
    with tarfile.open(fileobj=io.BytesIO(git("archive", previous_release()))) as archive:
        archive.extractall(source, filter="data")
    for package in (source, source / "packages/cellblock"):
        with zipfile.ZipFile(build(package, built)) as wheel:
            wheel.extractall(target)
    now, then = ({path.name for path in (folder / "plugins").iterdir()} for folder in (ROOT, source))
    for plugin in now - then:
        # The previous release does not know this plugin. A package with its name and without entry points hides it.
        hides = target / f"{plugin.replace('-', '_')}-0.dist-info"
        hides.mkdir()
        (hides / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {plugin}\nVersion: 0\n")
    return target


class Rotation:
    """The servers behind a load balancer, which sends each call to the next one."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._changed = threading.Condition()
        self._servers = list(servers)
        self._turns = itertools.count()
        self._calls = Counter[str]()

    @contextmanager
    def next(self) -> Iterator[str]:
        with self._changed:
            url = self._servers[next(self._turns) % len(self._servers)].url
            self._calls[url] += 1
        try:
            yield url
        finally:
            with self._changed:
                self._calls[url] -= 1
                self._changed.notify_all()

    def remove(self, server: Server) -> None:
        """Send no more calls to the server, and wait for the calls that it is answering."""
        with self._changed:
            self._servers.remove(server)
            self._changed.wait_for(lambda: not self._calls[server.url], 300)

    def add(self, server: Server) -> None:
        with self._changed:
            self._servers.append(server)


class Load:
    """Clients that call methods until the end of the block, and the calls that failed."""

    def __init__(self, rotation: Rotation, token: str) -> None:
        self._rotation = rotation
        self._http = httpx.Client(headers={"authorization": f"Bearer {token}"}, limits=Rpc.limits, verify=Rpc.tls)
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(CLIENTS)]
        self.failures: list[str] = []
        self.rounds = [0] * CLIENTS
        self.published: list[str] = []

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def go_on(self) -> None:
        """Wait until each client has made ROUNDS more rounds."""
        until = [number + ROUNDS for number in self.rounds]
        eventually(lambda: all(done >= goal for done, goal in zip(self.rounds, until, strict=True)) or self.failures)

    def _work(self, client: int) -> None:
        while not self._stopping.is_set():
            try:
                self._round(client, self.rounds[client])
            except Exception as error:
                self.failures.append(f"{type(error).__name__}: {error}")
            self.rounds[client] += 1

    def _round(self, client: int, number: int) -> None:
        """Publish, find, read and run a skill. Each call may go to another server."""
        name, text = f"rolled.c{client}.n{number}", f"{client} {number} {LARGE}"
        files = [*skill_files(), {"path": "resources/large.txt", "content": text}]
        self.call("create_skill", manifest=manifest(name), skill_md="# A\n", files=files)
        self.published.append(name)
        self.call(
            "create_skill", manifest=manifest(f"rolled.c{client}.same", f"1.{number}.0"), skill_md="# A\n", files=files
        )
        assert self.call("read_skill_file", name=name, path="resources/large.txt")["content"] == text
        run = self.call("execute_skill", name=name, args={"a": number})
        assert (run["status"], run["output"]) == ("completed", {"got": {"a": number}}), run
        assert self.call("get_run", run_id=run["run_id"])["status"] == "completed"
        assert self.call("read_run_log", run_id=run["run_id"])["ended"]
        self.call("define_tool", name="own", description="x", language="bash", code=f"echo {number}", session=name)
        assert self.call("call_tool", name="own", session=name)["result"] == number
        self.call("remove_tool", name="own", session=name)
        failed = self.call("run_code", language="python", code="def main(args):\n    raise ValueError(args)\n")
        assert failed["status"] == "failed"
        assert self.call("search_skills", query=name)["skills"]
        blob = self.call("create_blob", content=text, kind="text/plain")["blob_id"]
        assert self.call("read_blob", blob_id=blob)["content"]
        for sort in ("name", "newest", "used"):
            filters = {"query": "rolled", "namespace": "rolled", "sort": sort, "kind": "action", "limit": 2}
            if cursor := self.call("search_skills", **filters)["next_cursor"]:
                self.call("search_skills", **filters, cursor=cursor)
        self.call("list_runs", limit=5)
        if number % 2:
            self.call("yank_version", name=name, version="1.0.0", reason="replaced")

    def call(self, method: str, /, **params: Any) -> Any:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        with self._rotation.next() as url:
            reply = self._http.post(f"{url}/rpc", json=request, timeout=300).json()
        if "error" in reply:
            raise AssertionError(f"{method} at {url}: {reply['error']}")
        return reply["result"]


@pytest.mark.full
@pytest.mark.long
@pytest.mark.postgres
def test_an_upgrade_under_load_fails_no_call(
    new_postgres_database: Callable[[], str], old_packages: Path, tmp_path: Path
) -> None:
    env = {
        **ASKS_FOR_TOKENS,
        "SKILLERY_DATABASE": new_postgres_database(),
        "SKILLERY_BACKENDS_STORAGE_DIRECTORY_PATH": str(tmp_path / "contents"),
    }
    old_env = env | {"PYTHONPATH": str(old_packages)}
    olds = [Server(tmp_path / f"home{number}", env=old_env) for number in range(2)]
    news: list[Server] = []
    rotation = Rotation(olds)
    create = ["token", "create", "--name", "all", "--scope", "admin", "--namespace", "*", "--json"]
    token = json.loads(skillery(olds[0], old_env, *create))["token"]

    with Load(rotation, token) as load:
        load.go_on()
        for old in olds:
            rotation.remove(old)
            assert old.stop() == 0, old.log.read_text()[-4000:]
            news.append(Server(old.home, env=env))
            rotation.add(news[-1])
            load.go_on()

    assert not load.failures, "\n".join(sorted({*load.failures}))
    assert "migrating the database to " in news[0].log.read_text()
    assert json.loads(skillery(news[0], env, "check", "--deep", "--json"))["faults"] == []
    # Rows that the previous release wrote during the upgrade have the columns of this one.
    rpc = Rpc(news[0].url, token)
    names = {row["name"] for row in rpc("list_skills", namespace="rolled", limit=1000)["skills"]}
    with_code = {"namespace": "rolled", "contains": "action", "limit": 1000}
    eventually(lambda: {row["name"] for row in rpc("list_skills", **with_code)["skills"]} == names)
    for server in news:
        assert server.stop() == 0, server.log.read_text()[-4000:]


def skillery(server: Server, env: dict[str, str], *command: str) -> bytes:
    done = subprocess.run(
        [sys.executable, "-m", "skillery", *command, "--home", server.home],
        env=clean_environment(env), capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done
    return done.stdout


# -- A server of this release and a database of the next one -----------------------------------------------------------


@pytest.mark.full
def test_a_server_serves_the_database_of_the_next_release_without_deleting_contents(
    database_kind: str, migrated_postgres_database: Callable[[], str], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    url = migrated_postgres_database() if database_kind == "postgres" else f"sqlite:///{home}/skillery.db"
    env = {"SKILLERY_DATABASE": url} if database_kind == "postgres" else {}
    Server(home, env=env).stop()
    database = Database(url)
    set_revision(database, "9999", migrate.head())
    database.close()

    server = Server(home, env=env)

    server.rpc("create_skill", manifest=manifest("next"), skill_md="# A\n", files=skill_files())
    assert server.rpc("execute_skill", name="next", args={})["status"] == "completed"
    deletions = {"collect_garbage": {}, "purge_version": {"name": "next", "version": "1.0.0", "reason": "x"}}
    for method, params in deletions.items():
        assert "being upgraded" in server.rpc.error(method, **params)["message"]
    assert server.rpc("describe_skill", name="next")["skill"]["version"] == "1.0.0"
    assert "revision 9999 of the next release" in server.log.read_text()
    assert server.stop() == 0
