"""Several servers on one Postgres, a Postgres that restarts under load, and repeated kill -9 of servers."""

from __future__ import annotations

import itertools
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from bench.kills import kill_again_and_again
from skillery.formats.tokens import REMEMBERED_SECONDS
from tests.conftest import Rpc, RpcError, Server, clean_environment, manifest, skill_files
from tests.support.mcp_client import LEGACY, MODERN, Mcp, message_of
from tests.support.needing import create, needing
from tests.support.package_index import PackageIndex
from tests.support.postgres import a_postgres
from tests.support.prefork import prefork
from tests.support.processes import eventually
from tests.support.wheels import make_wheel

pytestmark = pytest.mark.postgres

LARGE = "large " * 20_000


class RoundRobin:
    """A client that sends each call to the next server."""

    def __init__(self, servers: list[Server], token: str) -> None:
        self._turns = itertools.cycle([Rpc(server.url, token) for server in servers])
        self._lock = threading.Lock()

    def __call__(self, method: str, /, **params: Any) -> Any:
        return self.next()(method, **params)

    def next(self) -> Rpc:
        with self._lock:
            return next(self._turns)


@pytest.fixture(scope="module")
def trio(
    migrated_postgres_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory, package_index: PackageIndex
) -> Iterator[list[Server]]:
    """Yield three servers that start together on an empty Postgres, with separate homes and one folder for contents."""
    folder = tmp_path_factory.mktemp("trio")
    env = {
        "SKILLERY_DATABASE": migrated_postgres_database(),
        "SKILLERY_AUTH": "tokens",
        "SKILLERY_BACKENDS_STORAGE_DIRECTORY_PATH": str(folder / "contents"),
        "SKILLERY_BACKENDS_AUTHENTICATOR_TOKENS_FAILURES_PER_MINUTE": "100000",
        "SKILLERY_PACKAGES_INDEX_URLS": package_index.url,
    }
    with ThreadPoolExecutor(3) as pool:
        servers = list(pool.map(lambda number: Server(folder / f"home{number}", env=env), range(3)))
    servers[0].database = env["SKILLERY_DATABASE"]
    yield servers
    for server in servers:
        assert server.stop() == 0, server.log.read_text()[-4000:]


@pytest.fixture(scope="module")
def token(trio: list[Server]) -> str:
    command = ["token", "create", "--name", "all", "--scope", "admin", "--namespace", "*", "--json"]
    return created(trio, *command)


def created(trio: list[Server], *command: str) -> str:
    env = clean_environment({"SKILLERY_DATABASE": trio[0].database, "SKILLERY_AUTH": "tokens"})
    made = prefork().run([*command, "--home", str(trio[0].home)], env, b"")
    assert made.returncode == 0, made.stderr
    value: str = json.loads(made.stdout)["token"]
    return value


def test_writes_on_a_server_are_visible_on_the_others_at_once(trio: list[Server], token: str) -> None:
    first, *others = [Rpc(server.url, token) for server in trio]
    for number in range(5):
        version = f"1.0.{number}"
        files = [*skill_files(), {"path": "resources/large.txt", "content": LARGE + version}]
        first("create_skill", manifest=manifest("at.once", version), skill_md="# A\n", files=files)
        blob_id = first("create_blob", content=LARGE + version, kind="text/plain")["blob_id"]
        for other in others:
            assert other("describe_skill", name="at.once")["skill"]["version"] == version
            assert other("read_skill_file", name="at.once", path="resources/large.txt")["content"] == LARGE + version
            assert other.http.get(f"/blobs/{blob_id}").text == LARGE + version
    assert all(other("execute_skill", name="at.once", args={"a": 1})["output"] == {"got": {"a": 1}} for other in others)


def test_a_tool_defined_on_a_server_is_called_on_the_others(trio: list[Server], token: str) -> None:
    first, *others = [Rpc(server.url, token) for server in trio]
    for number in range(2):
        first("define_tool", name="own", description="x", language="bash", code=f"echo {number}", session="s")
        assert [other("call_tool", name="own", session="s")["result"] for other in others] == [number] * len(others)


def test_a_cursor_of_a_server_is_valid_on_the_others(trio: list[Server], token: str) -> None:
    rpc = RoundRobin(trio, token)
    for number in range(7):
        rpc("create_skill", manifest=manifest(f"paged.n{number}"), skill_md="# A\n", files=skill_files())
    names, cursor = [], None
    while True:
        page = rpc("list_skills", namespace="paged", limit=2, cursor=cursor)
        names += [row["name"] for row in page["skills"]]
        cursor = page.get("next_cursor")
        if not cursor:
            break
    assert names == [f"paged.n{number}" for number in range(7)]


@pytest.mark.parametrize("era", [MODERN, LEGACY])
@pytest.mark.full(after=1)
def test_a_conversation_of_mcp_goes_on_on_any_of_them(trio: list[Server], token: str, era: str) -> None:
    first, second, third = (Mcp(Rpc(server.url, token), era) for server in trio)
    hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    session = {}
    if era == LEGACY:
        session = {"mcp-session-id": first.send("initialize", hello).headers["mcp-session-id"]}
    made = {"content": "x" * 10, "kind": "text/plain"}

    blob = message_of(second.send("tools/call", {"name": "create_blob", "arguments": made}, **session))
    arguments = {"blob_id": blob["result"]["structuredContent"]["blob_id"]}
    read = message_of(third.send("tools/call", {"name": "read_blob", "arguments": arguments}, **session))

    assert read["result"]["structuredContent"]["content"] == made["content"]
    entries = [mcp("skills/get", uri="skill://skills/protocol/guide/SKILL.md") for mcp in (first, second, third)]
    assert entries[0] == entries[1] == entries[2]


@pytest.mark.smoke
def test_concurrent_writes_on_several_servers_agree_on_winner_and_latest_version(
    trio: list[Server], token: str
) -> None:
    rpc = RoundRobin(trio, token)

    def publish(number: int) -> str:
        files = skill_files(f"def main(args):\n    return {number}\n")
        try:
            rpc("create_skill", manifest=manifest("raced"), skill_md="# A\n", files=files)
            rpc("create_skill", manifest=manifest("counted", f"1.{number}.0"), skill_md="# A\n", files=files)
        except RpcError as error:
            assert error.error["data"]["type"] == "version_exists"  # noqa: PT017
            rpc("create_skill", manifest=manifest("counted", f"1.{number}.0"), skill_md="# A\n", files=files)
            return "lost"
        return "won"

    with ThreadPoolExecutor(12) as pool:
        ends = list(pool.map(publish, range(60)))

    assert ends.count("won") == 1
    assert {rpc("describe_skill", name="counted")["skill"]["version"] for _ in range(3)} == {"1.59.0"}


def test_a_revoked_token_is_refused_on_other_servers_within_a_second(trio: list[Server], token: str) -> None:
    admin = Rpc(trio[0].url, token)
    made = admin("create_token", name="short", scopes=["read"])
    short = [Rpc(server.url, made["token"]) for server in trio]
    assert all(rpc("list_skills") for rpc in short)

    admin("revoke_token", id=made["id"])

    body = {"jsonrpc": "2.0", "id": 1, "method": "list_skills"}
    assert short[0].http.post("/rpc", json=body).status_code == 401
    time.sleep(REMEMBERED_SECONDS)
    assert [rpc.http.post("/rpc", json=body).status_code for rpc in short] == [401, 401, 401]


def test_each_says_that_it_is_there(trio: list[Server]) -> None:
    ids = {(server.home / "server.id").read_text().strip() for server in trio}

    def seen() -> set[str]:
        with psycopg.connect(trio[0].database.replace("+psycopg", "")) as connection:
            recent = "SELECT id FROM servers WHERE seen_at > now() - interval '1 minute'"
            return {server for (server,) in connection.execute(recent).fetchall()}

    eventually(lambda: seen() == ids, problem=seen)
    assert len(ids) == 3


def test_a_server_with_a_folder_of_its_own_is_refused(trio: list[Server], tmp_path: Path) -> None:
    env = {"SKILLERY_DATABASE": trio[0].database, "SKILLERY_AUTH": "tokens"}
    with pytest.raises(AssertionError, match="servers of one database share it"):
        Server(tmp_path / "home", env=env)


# -- Postgres goes away under load -----------------------------------------------------------------------------------


@pytest.mark.full
def test_postgres_restarts_under_load_answer_unavailable_and_lose_no_acknowledged_write(tmp_path: Path) -> None:
    with a_postgres() as postgres:
        server = Server(tmp_path / "home", env={"SKILLERY_DATABASE": postgres.url})
        stop = threading.Event()
        kept: list[tuple[str, str]] = []
        errors: list[dict[str, Any]] = []

        def write(worker: int) -> None:
            rpc = Rpc(server.url)
            for number in itertools.count():
                if stop.is_set():
                    return
                name = f"w{worker}.n{number}"
                try:
                    rpc("create_skill", manifest=manifest(name), skill_md="# A\n", files=skill_files())
                    kept.append(("skill", name))
                    kept.append(("blob", rpc("create_blob", content=name, kind="text/plain")["blob_id"]))
                except RpcError as error:
                    errors.append(error.error)
                    time.sleep(0.02)

        def wait_for_more(things: Sequence[object], more: int) -> None:
            wanted = len(things) + more
            eventually(lambda: len(things) >= wanted, problem=lambda: (len(kept), errors[-1:]))

        workers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for worker in workers:
            worker.start()
        try:
            for how in (signal.SIGINT, signal.SIGQUIT):
                wait_for_more(kept, 20)
                postgres.stop(how)
                wait_for_more(errors, 4)
                postgres.start()
            wait_for_more(kept, 20)
        finally:
            stop.set()
            for worker in workers:
                worker.join()
        rpc = server.rpc
        assert {(error["code"], error["data"]["type"]) for error in errors} == {(-32603, "unavailable")}
        for kind, name in kept:
            if kind == "skill":
                assert rpc("describe_skill", name=name)["skill"]["name"] == name
            else:
                assert rpc("read_blob", blob_id=name, mode="full")["content"]
        assert server.stop() == 0


@pytest.mark.full
def test_a_run_ending_during_a_postgres_outage_is_answered_and_recorded(tmp_path: Path) -> None:
    with a_postgres() as postgres:
        server = Server(tmp_path / "home", env={"SKILLERY_DATABASE": postgres.url})
        code = "import time\ndef main(args):\n    time.sleep(1.5)\n    return 'ended'\n"
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(Rpc(server.url), "run_code", language="python", code=code)
            eventually(lambda: server.rpc("list_runs")["runs"])
            postgres.stop(signal.SIGQUIT)
            time.sleep(2)  # no event: the code ends while the database is away
            postgres.start()
            answer = asked.result(300)
        assert (answer["status"], answer["output"]) == ("completed", "ended")
        [recorded] = server.rpc("list_runs")["runs"]
        assert (recorded["run_id"], recorded["status"]) == (answer["run_id"], "completed")
        assert server.stop() == 0


# -- kill -9 -----------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_kill_nine_again_and_again_leaves_nothing_for_check_to_find(
    database_kind: str, migrated_postgres_database: Callable[[], str], tmp_path: Path
) -> None:
    """A short version of `make kills`."""
    database = migrated_postgres_database() if database_kind == "postgres" else ""
    done = kill_again_and_again(tmp_path, 3, database)
    assert done.acknowledged
    assert done.lost == []
    assert done.check == ""


@pytest.mark.full
def test_hundreds_of_publishers_of_a_version_have_a_single_winner(server: Server, new_name: str) -> None:
    made: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "create_skill"}

    def publish(number: int) -> Any:
        files = skill_files(f"def main(args):\n    return {number}\n")
        params = {"manifest": manifest(new_name), "skill_md": "# A\n", "files": files}
        return http.post("/rpc", json=made | {"params": params}).json()

    # A server closes connections that are idle for five seconds, which is also the default of httpx. A client that
    # reuses a connection just then gets an error, so this client closes them earlier.
    limits = httpx.Limits(max_connections=100, keepalive_expiry=1)
    with httpx.Client(base_url=server.url, timeout=600, limits=limits) as http, ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(publish, range(300)))

    won = [answer["result"] for answer in answers if "result" in answer]
    assert len(won) == 1
    assert {answer["error"]["data"]["type"] for answer in answers if "error" in answer} == {"version_exists"}
    assert server.rpc("describe_skill", name=new_name)["skill"]["digest"] == won[0]["digest"]


def test_a_run_is_followed_from_another_server(trio: list[Server], token: str) -> None:
    """Another server serves the log and the progress completely, with the offsets of the server that executes the
    run. The run goes on until it is cancelled, so that all of it is read while it goes on.
    """
    code = (
        "import time\nfrom runtime import progress\ndef main(args):\n"
        "    for i in range(8):\n        print('line', i)\n        progress(i + 1, 8)\n        time.sleep(0.1)\n"
        "    time.sleep(600)\n"
    )
    here, there = (Rpc(server.url, token) for server in trio[:2])
    run_id = here("run_code", language="python", code=code, background=True)["run_id"]
    text, part = "", dict[str, Any](next=0)
    while text.count("\n") < 8 or part.get("progress", {}).get("done") != 8:
        part = there("read_run_log", run_id=run_id, after=part["next"], wait_ms=1000)
        assert (part["status"], part["ended"]) == ("started", False)
        text += part["text"]
    here("cancel_run", run_id=run_id)
    ended = eventually(lambda: (last := there("read_run_log", run_id=run_id, after=part["next"]))["ended"] and last)

    assert text == "".join(f"line {i}\n" for i in range(8))
    assert (ended["status"], ended["text"]) == ("failed", "")
    assert here("read_run_log", run_id=run_id, after=7)["text"] == "".join(f"line {i}\n" for i in range(1, 8))
    with there.http.stream("GET", f"/v1/runs/{run_id}/events", timeout=300) as events:
        assert "event: end" in "".join(events.iter_text())


def test_other_servers_show_the_packages_of_a_waiting_run(
    trio: list[Server], token: str, new_name: str, package_index: PackageIndex
) -> None:
    here, there = (Rpc(server.url, token) for server in trio[:2])
    own = f"own{new_name}"
    wheel = make_wheel(package_index.folder, own, "1.0")
    package_index.held[wheel.name] = threading.Event()
    create(here, needing(new_name, own), f"import {own}\ndef main(args): return {own}.VERSION")
    workspace = here("create_workspace")["id"]
    code = "import time\ndef main(args): time.sleep(600)"
    writer = here("run_code", language="python", code=code, workspace=workspace, background=True)
    run_id = here("execute_skill", name=new_name, workspace=workspace, background=True)["run_id"]

    first = there("get_run", run_id=run_id)
    eventually(lambda: there("get_run", run_id=run_id)["packages"]["step"] == f"fetching {own} 1.0")
    log = there("read_run_log", run_id=run_id)
    package_index.held[wheel.name].set()
    eventually(lambda: "state" not in there("get_run", run_id=run_id))
    later = [rpc("get_run", run_id=run_id) for rpc in (here, there)]
    here("cancel_run", run_id=writer["run_id"])
    ended = there("get_run", run_id=run_id, wait_ms=60_000)

    assert (first["status"], first["state"]) == ("queued", "waiting_for_packages")
    assert (log["status"], log["state"]) == ("queued", "waiting_for_packages")
    assert [(run["status"], run.keys() & {"state", "packages", "progress"}) for run in later] == [("queued", set())] * 2
    assert ended["output"] == "1.0"
