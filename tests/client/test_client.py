"""skillery.client: both clients against real servers, over good and faulty connections."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

import skillery.client
from skillery.app.server import KEEP_ALIVE_SECONDS
from skillery.client import (
    AsyncClient,
    Busy,
    Client,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidParams,
    MethodNotFound,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    Refused,
    Retries,
    StrangeAnswer,
    errors,
)
from skillery.client.generated import AsyncMethods, BatchMethods, Methods, SkillFile
from skillery.client.wire import IDLE_SECONDS, authorization
from skillery.client_source import python
from skillery.methods.table import METHODS
from skillery.settings.load import load_settings
from tests.conftest import Server, manifest
from tests.support.broken_line import Line, hanging_up, line_to

FLAVOURS = ("sync", "async")
COUNTED = "from runtime import blobs\ndef main(args):\n    return blobs.write_text('once')\n"
FILES: list[SkillFile] = [{"path": "code/main.py", "content": "def main(args):\n    return {'got': args}\n"}]
BIG = bytes(range(256)) * 4096 * 3
"""Three MiB."""


class Dripping:
    """A server whose response never ends: a head, then one byte again and again. Entering returns the URL."""

    def __enter__(self) -> str:
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            client, _ = self._listener.accept()
            with client:
                client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
                while True:
                    client.sendall(b" ")
                    time.sleep(0.02)


class Awaited:
    """An AsyncClient with the interface of Client: each call runs in an event loop."""

    def __init__(self, client: AsyncClient, runner: asyncio.Runner) -> None:
        self._client, self._runner = client, runner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **params: Any) -> Any:
            made = getattr(self._client, name)(*args, **params)
            return self._runner.run(_gathered(made) if inspect.isasyncgen(made) else made)

        return call


async def _gathered(pieces: Any) -> list[Any]:
    return [piece async for piece in pieces]


@pytest.fixture(params=FLAVOURS)
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Yield `make(url, …)`, which returns a client, and close all clients after the test."""
    runner = asyncio.Runner()
    closing: list[Callable[[], Any]] = []

    def made(*args: Any, **options: Any) -> Any:
        if request.param == "sync":
            client = Client(*args, **options)
            closing.append(client.close)
            return client
        awaited = Awaited(AsyncClient(*args, **options), runner)
        closing.append(awaited.aclose)
        return awaited

    yield made
    for close in closing:
        close()
    runner.close()


@pytest.fixture
def client(make: Callable[..., Any], sqlite_server: Server) -> Any:
    return make(sqlite_server.url)


@pytest.fixture
def line(sqlite_server: Server) -> Iterator[Line]:
    with line_to(sqlite_server.url) as line:
        yield line


# -- generated code ----------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_generated_client_sources_are_up_to_date() -> None:
    stale = [path.name for path, source in python.sources().items() if path.read_text("utf-8") != source]

    assert stale == [], "run `make client`"


@pytest.mark.parametrize("methods", [Methods, AsyncMethods, BatchMethods])
def test_every_method_is_there(methods: type[Any]) -> None:
    own = {name for name, value in vars(methods).items() if inspect.isfunction(value)} - {"call"}

    assert own == METHODS.keys()
    for name in own:
        required = [field for field, _, _, is_required in python._fields(METHODS[name].params) if is_required]
        taken = inspect.signature(getattr(methods, name)).parameters
        assert [one.name for one in taken.values() if one.kind is one.POSITIONAL_OR_KEYWORD] == ["self", *required]
        assert taken.keys() - {"self", "idempotency_key"} == set(METHODS[name].params.__struct_encode_fields__)


def test_importing_it_imports_nothing_of_the_server() -> None:
    code = "import sys; from skillery.client import *; print(*sorted(name.partition('.')[0] for name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert {"httpx", "msgspec"} <= set(loaded)
    assert not {"litestar", "sqlalchemy", "uvicorn", "alembic", "psycopg", "yaml", "tomli_w"} & set(loaded)
    code = "import sys; from skillery.client import *; print(*(m for m in sys.modules if m.startswith('skillery.')))"
    ours = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in ours if not name.startswith("skillery.client")] == []


def test_the_client_package_has_a_py_typed_marker() -> None:
    assert (Path(skillery.client.__file__).parents[1] / "py.typed").exists()


@pytest.mark.parametrize("module", python.AWAITED.values())
def test_nothing_is_awaited_in_the_client_that_does_not_await(module: str) -> None:
    source = ast.parse((Path(skillery.client.__file__).parent / module).read_text("utf-8"))

    assert not [node for node in ast.walk(source) if isinstance(node, ast.Await | ast.AsyncFunctionDef)]


# -- calls -------------------------------------------------------------------------------------------------------------


def test_methods_accept_typed_params_and_return_their_results(client: Any, new_name: str) -> None:
    made = client.create_skill(manifest(f"{new_name}.a"), f"# {new_name}\n", files=FILES)
    run = client.execute_skill(f"{new_name}.a", args={"n": 1})

    assert made["status"] == "published"
    assert run["status"] == "completed"
    assert run["output"] == {"got": {"n": 1}}
    assert [row["name"] for row in client.list_skills(namespace=new_name)["skills"]] == [f"{new_name}.a"]
    assert client.call("read_skill_file", {"name": f"{new_name}.a", "path": "SKILL.md"})["content"] == f"# {new_name}\n"
    assert client.is_ready()


def test_errors_raise_the_exception_of_their_code_with_all_fields(client: Any) -> None:
    with pytest.raises(NotFound) as caught:
        client.describe_skill("text.csv.profil")

    error = caught.value
    assert (error.code, error.type) == (-32003, "skill_not_found")
    assert error.hint is not None
    assert "text.csv.profile" in error.hint
    assert error.hint in str(error)
    assert error.object == {"code": -32003, "message": error.message, "data": error.data}
    assert error.retry_after_ms is None
    with pytest.raises(MethodNotFound):
        client.call("drop_tables")
    with pytest.raises(InvalidParams):
        client.list_skills(limit=0)
    with pytest.raises(InvalidParams, match=r"more\)\. [A-Z]"):
        client.create_skill({"name": "x", "kind": 7, "version": 7}, "# x")


def test_a_check_that_refuses_says_why_in_its_findings(client: Any, new_name: str) -> None:
    made = manifest(new_name, examples=[{"args": {}, "expect": {"got": 1}}])

    with pytest.raises(Refused) as caught:
        client.create_skill(made, "# x\n", files=FILES)
    assert caught.value.findings


def test_there_is_an_exception_for_every_code_of_the_protocol() -> None:
    protocol = [-32700, *range(-32603, -32599), *range(-32007, -32000)]

    assert {code for code in errors.BY_CODE if code is not None} == set(protocol)
    assert all(type(errors.error_of({"code": code, "message": "x"})) is errors.BY_CODE[code] for code in protocol)
    unknown = errors.error_of({"code": -32099, "message": "new"})
    assert type(unknown) is errors.AnsweredError
    assert unknown.code == -32099


def test_url_and_token_come_from_the_environment(
    make: Callable[..., Any], sqlite_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKILLERY_URL", f"{sqlite_server.url}/")
    assert make().load_skills_protocol_guide()["content"].startswith("---")

    # The server ignores the setting SKILLERY_URL.
    load_settings({"home": "/x"})
    monkeypatch.setenv("SKILLERY_URL", "ftp://example.com")
    with pytest.raises(ValueError, match="ftp://example"):
        make()


@pytest.mark.parametrize("database_kind", ["sqlite"], indirect=True)
def test_an_invalid_token_is_reported(
    make: Callable[..., Any], tokens_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SKILLERY_TOKEN", raising=False)
    with pytest.raises(NotAuthenticated):
        make(tokens_server.url).list_skills()
    with pytest.raises(NotAuthenticated):
        make(tokens_server.url).prompt()
    assert not isinstance(NotAuthenticated({}), NotAllowed)


# -- batches -----------------------------------------------------------------------------------------------------------


def test_calls_of_a_batch_have_separate_results_and_errors(line: Line) -> None:
    with Client(line.url) as client, client.batch() as batch:
        listed = batch.list_skills(limit=1)
        missing = batch.describe_skill("no.such.skill")
        named = batch.call("describe_skill", {"name": "text.csv.profile"})
        with pytest.raises(RuntimeError, match="list_skills has no result yet"):
            listed.result()

    assert len(listed.result()["skills"]) == 1
    assert named.result()["skill"]["name"] == "text.csv.profile"
    with pytest.raises(NotFound):
        missing.result()


async def test_more_than_the_server_takes_at_once_are_several_requests(sqlite_server: Server) -> None:
    async with AsyncClient(sqlite_server.url) as client:
        async with client.batch() as batch:
            pending = [batch.read_skill_file("text.csv.profile", "SKILL.md") for _ in range(201)]

        assert len({one.result()["content"] for one in pending}) == 1
        async with client.batch():
            pass


def fail(_: object) -> None:
    raise ZeroDivisionError


def test_a_batch_is_not_sent_if_its_block_raises(sqlite_server: Server, new_name: str) -> None:
    with Client(sqlite_server.url) as client:
        with pytest.raises(ZeroDivisionError), client.batch() as batch:
            fail(batch.create_skill(manifest(new_name), "# x\n", files=FILES))
        with pytest.raises(NotFound):
            client.describe_skill(new_name)


# -- faulty connections ------------------------------------------------------------------------------------------------


def test_a_run_with_a_lost_response_is_executed_once_and_returned(make: Callable[..., Any], line: Line) -> None:
    line.troubles = ["lost", "lost"]

    run = make(line.url).run_code("python", COUNTED)

    assert run["status"] == "completed"
    assert line.connections == 3
    later = make(line.url).list_runs(limit=2)["runs"]
    assert later[0]["run_id"] == run["run_id"]
    assert len(run["output_blobs"]) == 1


def test_a_run_longer_than_the_timeout_is_awaited_and_executed_once(
    make: Callable[..., Any], sqlite_server: Server, new_name: str
) -> None:
    client = make(sqlite_server.url, timeout=0.5, retries=Retries(attempts=100))
    code = "import time\ndef main(args):\n    time.sleep(1.5)\n    return 'slept'\n"
    make(sqlite_server.url).create_skill(manifest(new_name), "# x\n", files=[{"path": "code/main.py", "content": code}])

    assert client.execute_skill(new_name)["output"] == "slept"
    assert len(client.list_runs(skill=new_name)["runs"]) == 1


def test_a_call_that_is_not_answered_before_the_deadline_is_an_error(
    make: Callable[..., Any], sqlite_server: Server
) -> None:
    code = "import time\ndef main(args):\n    time.sleep(args['s'])\n    return 'slept'\n"

    assert make(sqlite_server.url, deadline=300).run_code("python", code, args={"s": 0})["output"] == "slept"
    with pytest.raises(DeadlineExceeded, match="within 1 s"):
        make(sqlite_server.url, deadline=1).run_code("python", code, args={"s": 3})


def test_an_answer_that_comes_byte_by_byte_does_not_outlast_the_deadline(make: Callable[..., Any]) -> None:
    with Dripping() as url, pytest.raises(DeadlineExceeded):
        make(url, deadline=0.5).list_skills()


def test_retries_end_with_the_deadline(make: Callable[..., Any], line: Line) -> None:
    line.troubles = ["lost"] * 100

    with pytest.raises(ConnectionFailed):
        make(line.url, deadline=1, retries=Retries(attempts=100)).list_skills()


def test_a_background_run_is_waited_for_past_the_deadline_of_a_call(
    make: Callable[..., Any], sqlite_server: Server
) -> None:
    client = make(sqlite_server.url, deadline=10)  # on a loaded machine, an answer comes seconds late
    code = "import time\ndef main(args):\n    time.sleep(12)\n    return 'slept'\n"
    began = make(sqlite_server.url).run_code("python", code, background=True)

    assert client.wait_run(began["run_id"])["output"] == "slept"


def test_a_skill_with_a_lost_response_is_published_once(make: Callable[..., Any], line: Line, new_name: str) -> None:
    line.troubles = ["lost"]

    assert make(line.url).create_skill(manifest(new_name), "# x\n", files=FILES)["status"] == "published"


def test_a_lost_read_is_retried_and_a_lost_deletion_is_not(make: Callable[..., Any], line: Line, new_name: str) -> None:
    client = make(line.url)
    blob = client.create_blob("x", "text/plain")["blob_id"]
    line.troubles = ["lost"]
    assert make(line.url).read_blob(blob)["content"] == "x"

    line.troubles = ["lost"]
    with pytest.raises(ConnectionFailed, match="was lost") as caught:
        make(line.url).delete_blob(blob)
    assert caught.value.sent
    with pytest.raises(NotFound):
        client.read_blob(blob)


def test_an_unreachable_server_is_reported_after_the_last_attempt(make: Callable[..., Any]) -> None:
    client = make("http://127.0.0.1:9", retries=Retries(attempts=2))

    with pytest.raises(ConnectionFailed, match="cannot connect to http://127") as caught:
        client.yank_version("a", "1.0.0", "r")
    assert not caught.value.sent
    assert not client.is_ready()


def test_a_connection_that_the_server_may_close_is_not_used_again(make: Callable[..., Any]) -> None:
    with hanging_up(DONE[1].encode()) as url:
        client = make(url, retries=Retries(attempts=1))
        assert client.set_visibility("x", "public") == {"name": "x"}
        time.sleep(IDLE_SECONDS + 0.1)  # no event: the client looks at the clock when it sends the next request
        assert client.set_visibility("x", "public") == {"name": "x"}


def test_the_server_keeps_idle_connections_longer_than_its_clients() -> None:
    assert IDLE_SECONDS < httpx.Limits(max_connections=1).keepalive_expiry < KEEP_ALIVE_SECONDS  # type: ignore[operator]


class Scripted(ThreadingHTTPServer):
    """A server that sends prepared responses in order and records the idempotency keys of the requests."""

    daemon_threads = True

    def __init__(self, *answers: tuple[int, str]) -> None:
        super().__init__(("127.0.0.1", 0), ScriptedHandler)
        self.answers = list(answers)
        self.keys: list[str | None] = []
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class ScriptedHandler(BaseHTTPRequestHandler):
    server: Scripted

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.keys.append(self.headers.get("idempotency-key"))
        status, text = self.server.answers.pop(0)
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self) -> None:
        """Announce ten bytes with the status and headers of the script, send the first five, and close."""
        status, headers = self.server.answers.pop(0)
        self.send_response(status)
        for line in headers.split("|"):
            self.send_header(*line.split(": "))
        self.send_header("content-length", "10")
        self.end_headers()
        self.wfile.write(b"first")
        self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def busy(kind: str, milliseconds: int) -> tuple[int, str]:
    data = f'{{"type": "{kind}", "retry_after_ms": {milliseconds}}}'
    return 200, f'{{"jsonrpc": "2.0", "id": 1, "error": {{"code": -32006, "message": "busy", "data": {data}}}}}'


DONE = (200, '{"jsonrpc": "2.0", "id": 1, "result": {"name": "x"}}')


def test_a_busy_server_is_retried_for_non_idempotent_calls_too(make: Callable[..., Any]) -> None:
    with Scripted(busy("busy", 1), busy("rate_limited", 1), DONE) as server:
        assert make(server.url).set_visibility("x", "public") == {"name": "x"}
        assert server.keys == [None, None, None]


def test_a_call_in_progress_is_retried_with_the_same_idempotency_key(make: Callable[..., Any]) -> None:
    with Scripted(*[busy("call_under_way", 1)] * 8, DONE) as server:
        assert make(server.url, retries=Retries(attempts=2)).run_code("python", "x") == {"name": "x"}
        assert len(server.keys) == 9
        assert len(set(server.keys)) == 1
        assert server.keys[0]


def test_a_key_of_ones_own_is_kept(make: Callable[..., Any]) -> None:
    with Scripted(DONE) as server:
        make(server.url).create_blob("x", "text/plain", idempotency_key="mine")
        assert server.keys == ["mine"]


def test_patience_ends_with_the_attempts_and_where_it_would_take_too_long(make: Callable[..., Any]) -> None:
    with Scripted(*[busy("busy", 1)] * 3, busy("busy", 5_000)) as server:
        with pytest.raises(Busy) as caught:
            make(server.url, retries=Retries(attempts=3)).list_skills()
        assert caught.value.retry_after_ms == 1
        with pytest.raises(Busy):
            make(server.url, retries=Retries(longest_wait_seconds=4)).list_skills()
        assert server.answers == []


def test_a_bad_gateway_response_is_retried_only_for_idempotent_calls(make: Callable[..., Any]) -> None:
    with Scripted((502, "<h1>Bad Gateway</h1>"), DONE, (502, "<h1>Bad Gateway</h1>")) as server:
        assert make(server.url).list_skills() == {"name": "x"}
        with pytest.raises(StrangeAnswer) as caught:
            make(server.url).set_visibility("x", "public")
        assert caught.value.status == 502


@pytest.mark.parametrize("text", ["hello", "[]", "{}", '{"jsonrpc": "2.0"}', "[" * 5000, ""])
def test_a_non_skillery_response_raises_strange_answer(make: Callable[..., Any], text: str) -> None:
    with Scripted((200, text)) as server, pytest.raises(StrangeAnswer, match="not a Skillery response"):
        make(server.url).list_skills()


@pytest.mark.parametrize(
    "text", ["{}", "[]", "[1]", '[{"id": 0}]', '[{"id": 1, "result": 1}]', '[{"id": true, "result": 1}]', "["]
)
def test_a_malformed_batch_response_raises_strange_answer(text: str) -> None:
    with Scripted((200, text)) as server, Client(server.url) as client:
        batch = client.batch()
        pending = batch.list_skills()
        with pytest.raises(StrangeAnswer):
            batch.__exit__(None)
        with pytest.raises(RuntimeError):
            pending.result()


def test_a_transport_of_ones_own_carries_everything(sqlite_server: Server) -> None:
    class Counting(httpx.HTTPTransport):
        requests = 0

        def handle_request(self, request: httpx.Request) -> httpx.Response:
            self.requests += 1
            return super().handle_request(request)

    transport = Counting()
    with Client(sqlite_server.url, transport=transport) as client:
        client.list_skills()
        client.prompt()
    assert transport.requests == 2


# -- blobs -------------------------------------------------------------------------------------------------------------


def test_a_file_goes_up_and_down_with_progress(client: Any, tmp_path: Path) -> None:
    source, target = tmp_path / "big.csv", tmp_path / "copy"
    source.write_bytes(BIG)
    up: list[tuple[int, int | None]] = []
    down: list[tuple[int, int | None]] = []

    made = client.upload_blob(source, progress=lambda *at: up.append(at))
    size = client.download_blob(made["blob_id"], target, progress=lambda *at: down.append(at))

    assert made["size_bytes"] == size == len(BIG)
    assert target.read_bytes() == BIG
    assert client.read_blob(made["blob_id"], max_bytes=1)["kind"] == "text/csv"
    for steps in (up, down):
        assert steps == sorted(steps)
        assert len(steps) > 5
        assert steps[-1] == (len(BIG), len(BIG))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big.csv", "copy"]


def test_bytes_and_open_files_are_taken_from_where_they_stand(client: Any) -> None:
    file = io.BytesIO(b"skipped, and kept")
    file.seek(9)
    target = io.BytesIO()

    made = client.upload_blob(file, "text/plain", ttl=60)
    client.download_blob(made["blob_id"], target)

    assert target.getvalue() == b"and kept"[-8:]
    assert "expires_at" in made
    assert client.upload_blob(b"")["size_bytes"] == 0
    assert b"".join(client.stream_blob(client.upload_blob(b"")["blob_id"])) == b""
    with pytest.raises(TypeError, match="pathlib"):
        client.upload_blob("a text")


def test_a_part_of_a_blob(client: Any) -> None:
    blob = client.upload_blob(BIG)["blob_id"]
    seen: list[tuple[int, int | None]] = []

    def part(start: int, stop: int | None) -> bytes:
        return b"".join(client.stream_blob(blob, start=start, stop=stop, progress=lambda *at: seen.append(at)))

    assert part(5, 300_000) == BIG[5:300_000]
    assert seen[-1] == (299_995, 299_995)
    assert part(len(BIG) - 3, None) == BIG[-3:]
    assert part(0, 10**9) == BIG
    assert part(7, 7) == b""


def test_a_download_that_breaks_off_goes_on_where_it_was(make: Callable[..., Any], line: Line, tmp_path: Path) -> None:
    blob = make(line.url).upload_blob(BIG)["blob_id"]
    line.connections, line.troubles = 0, [1_000_000, 500_000, "lost"]

    assert make(line.url).download_blob(blob, tmp_path / "x") == len(BIG)
    assert (tmp_path / "x").read_bytes() == BIG
    assert line.connections == 4


@pytest.mark.parametrize(
    "again",
    [
        (200, "etag: a"),
        (206, "etag: b|content-range: bytes 5-9/10"),
        (206, "etag: a|content-range: bytes 4-9/10"),
        (206, "etag: a|content-range: bytes x-y/z"),
        (206, "etag: a"),
    ],
)
def test_a_download_refuses_another_range_than_requested(
    make: Callable[..., Any], again: tuple[int, str], tmp_path: Path
) -> None:
    with Scripted((200, "etag: a"), again) as server, pytest.raises(StrangeAnswer, match="another range"):
        make(server.url).download_blob("blob:x", tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_an_upload_with_a_lost_response_creates_a_single_blob(make: Callable[..., Any], line: Line) -> None:
    line.troubles = ["lost"]
    before = make(line.url, retries=Retries(attempts=1))
    with pytest.raises(ConnectionFailed):
        before.upload_blob(BIG, idempotency_key="upload-once")

    line.troubles = ["lost"]
    made = make(line.url).upload_blob(BIG, idempotency_key="upload-once")
    again = make(line.url).upload_blob(BIG, idempotency_key="upload-once")

    assert made["size_bytes"] == len(BIG)
    assert made["blob_id"] == again["blob_id"]


def test_a_stream_that_cannot_go_back_is_sent_once(make: Callable[..., Any], line: Line) -> None:
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    assert make(line.url).upload_blob(Pipe(b"x" * 10))["size_bytes"] == 10
    line.troubles = ["lost"]
    with pytest.raises(ConnectionFailed):
        make(line.url).upload_blob(Pipe(b"x"))


def test_a_failed_download_keeps_the_existing_file(client: Any, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")

    with pytest.raises(NotFound):
        client.download_blob("blob:none", tmp_path / "x")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_an_open_blob_has_kind_and_size_and_resumes_after_a_break(client: Any, line: Line, make: Any) -> None:
    blob = client.upload_blob(BIG, "application/x-thing")["blob_id"]
    empty = client.upload_blob(b"", "text/plain")["blob_id"]

    line.troubles = [len(BIG) // 2]
    assert opened(make(line.url), blob) == ("application/x-thing", len(BIG), BIG)
    assert opened(client, empty) == ("text/plain", 0, b"")
    with pytest.raises(NotFound):
        opened(client, "blob:none")


def opened(client: Any, blob_id: str) -> tuple[str, int | None, bytes]:
    """Return kind, size and content from `open_blob`, with either client."""
    if isinstance(client, Client):
        with client.open_blob(blob_id) as blob:
            return blob.kind, blob.size_bytes, b"".join(blob.pieces)

    async def read() -> tuple[str, int | None, bytes]:
        async with client._client.open_blob(blob_id) as blob:
            return blob.kind, blob.size_bytes, b"".join([piece async for piece in blob.pieces])

    result: tuple[str, int | None, bytes] = client._runner.run(read())
    return result


def test_files_of_unknown_size_and_growing_files_are_uploaded(client: Any, tmp_path: Path) -> None:
    growing = tmp_path / "log"
    growing.write_bytes(b"x" * 600_000)

    def grow(_sent: int, _total: int | None) -> None:
        with growing.open("ab") as file:
            file.write(b"y" * 10_000)

    version = Path("/proc/version")
    assert client.upload_blob(version)["size_bytes"] == len(version.read_bytes())
    assert client.upload_blob(growing, progress=grow)["size_bytes"] == 600_000


def test_an_archive_is_imported_from_a_file_bytes_or_pieces(client: Any, new_name: str, tmp_path: Path) -> None:
    archive = tmp_path / "skills.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr("a/SKILL.md", f"---\nname: a\ndescription: About \u2028 {new_name}.\n---\n# A\n")
    content = archive.read_bytes()
    options = {"namespace": new_name, "source": new_name, "permissions": {}, "take_over": []}

    first = dict(client.import_archive(archive, **options))
    assert list(first) == ["begun", "skill", "summary"]
    assert (first["skill"]["name"], first["skill"]["outcome"]) == (f"{new_name}.a", "published")
    for same in (content, io.BytesIO(content), pieces_for(client, content)):
        assert dict(client.import_archive(same, **options))["skill"]["outcome"] == "unchanged"
    checked = dict(client.import_archive(content, namespace=f"{new_name}.b", dry_run=True))
    assert checked["skill"]["outcome"] == "checked"
    with pytest.raises(InvalidParams):
        list(client.import_archive(content, namespace="No Good"))


def pieces_for(client: Any, content: bytes) -> Any:
    if isinstance(client, Client):
        return iter([content[:10], content[10:]])

    async def pieces() -> AsyncIterator[bytes]:
        yield content[:10]
        yield content[10:]

    return pieces()


def test_without_retries_a_call_has_no_key_and_is_sent_once(make: Callable[..., Any]) -> None:
    with Scripted(busy("busy", 1), DONE, (200, '{"blob_id": "blob:x", "size_bytes": 1}')) as server:
        client = make(server.url, retries=Retries(attempts=1))
        with pytest.raises(Busy):
            client.run_code("python", "x")
        client.run_code("python", "x")
        client.upload_blob(b"x")
        assert server.keys == [None, None, None]


def test_an_empty_token_is_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKILLERY_TOKEN", "of the environment")

    assert "authorization" not in authorization("")
    assert authorization(None) == {"authorization": "Bearer of the environment"}


# -- files and logs of runs --------------------------------------------------------------------------------------------


def test_files_go_into_a_run_and_come_out_of_it(client: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("from disk")
    code = """
import os
def main(args):
    os.mkdir("out")
    os.rename("in/a.txt", "out/a.txt")
    os.rename("b", "out/b")
"""
    run = client.run_code("python", code, files={"in/a.txt": tmp_path / "a.txt", "b": b"bytes"})
    places = client.download_files(run, tmp_path / "results")
    assert {place.name: place.read_text() for place in places} == {"a.txt": "from disk", "b": "bytes"}
    leads_out = {**run, "files": [{**run["files"][0], "path": "../a.txt"}]}
    with pytest.raises(ValueError, match="leads outside the folder"):
        client.download_files(leads_out, tmp_path / "other")
    assert not (tmp_path / "other").exists()
    twice = {**run, "files": [run["files"][0]] * 2}
    assert [place.name for place in client.download_files(twice, tmp_path / "twice")] == ["a.txt", "a-2.txt"]


def test_a_run_is_followed_and_waited_for(server: Server) -> None:
    code = "import time\ndef main(args):\n    print('one')\n    time.sleep(0.3)\n    print('two')\n    return 3\n"
    with Client(server.url) as client:
        run_id = client.run_code(language="python", code=code, background=True)["run_id"]

        parts = list(client.follow_run(run_id))

        assert "".join(part["text"] for part in parts) == "one\ntwo\n"
        assert parts[-1]["ended"]
        assert client.wait_run(run_id)["output"] == 3


class Flood(BaseHTTPRequestHandler):
    """A server that sends much more than the client wants, with and without saying so."""

    def do_POST(self) -> None:
        self.send_response(200)
        if b"list_tokens" in self.rfile.read(int(self.headers["content-length"])):
            self.send_header("content-length", str(10**12))
        self.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(64):
                self.wfile.write(b" " * 100_000)

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize("method", ["list_skills", "list_tokens"])
async def test_an_answer_over_the_limit_is_refused(method: str) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Flood) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        with Client(url, max_answer_mb=1) as client, pytest.raises(StrangeAnswer, match="more than 1 MiB"):
            client.call(method)
        async with AsyncClient(url, max_answer_mb=1) as client:
            with pytest.raises(StrangeAnswer, match="more than 1 MiB"):
                await client.call(method)
        server.shutdown()
