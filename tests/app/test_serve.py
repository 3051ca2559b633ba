"""`skillery serve` as a process: starting, refusing to start, and stopping."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from skillery.app.builders import limit_rules
from skillery.database import migrate
from skillery.errors import StartupError
from skillery.settings.groups import MaxLimits, RunLimits
from skillery.settings.load import load_settings
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server, clean_environment
from tests.support.prefork import prefork
from tests.support.processes import eventually

SLEEPER = "import time\ndef main(args):\n    time.sleep(args['seconds'])\n    return 'slept'\n"


def refused(home: Path, *flags: str, env: Mapping[str, str] | None = None) -> str:
    """Return the error of a server that refuses to start: one line on stderr, no stdout, exit code 4."""
    ended = skillery("serve", "--home", str(home), "--port", "0", *flags, stdin=b"", **(env or {}))
    assert ended.code == 4, ended.err
    assert ended.out == ""
    errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    return errors[0]


class Background:
    """A call of a method in a thread, because the response arrives after other steps of the test."""

    def __init__(self, rpc: Rpc, method: str, **params: Any) -> None:
        self.answer: Any = None
        self._thread = threading.Thread(target=self._call, args=(rpc, method, params), daemon=True)
        self._thread.start()

    def _call(self, rpc: Rpc, method: str, params: dict[str, Any]) -> None:
        try:
            self.answer = rpc(method, **params)
        except httpx.TransportError as error:
            self.answer = error

    def wait(self) -> Any:
        self._thread.join(300)
        return self.answer


def runs_of(home: Path) -> list[tuple[str, str | None]]:
    connection = sqlite3.connect(home / "skillery.db")
    try:
        return connection.execute("SELECT status, error_json FROM runs ORDER BY started_at").fetchall()
    finally:
        connection.close()


def wait_for_run(home: Path) -> None:
    """Wait until a run has begun. On a loaded machine, a short run may have ended when this returns."""
    eventually(lambda: runs_of(home))


@pytest.mark.full
def test_serve_prints_a_single_line_with_its_chosen_port(start_server: Callable[..., Server]) -> None:
    server = start_server()

    assert not server.url.endswith(":0")
    assert httpx.get(f"{server.url}/healthz").status_code == 200
    assert httpx.get(f"{server.url}/readyz").json()["status"] == "ready"
    assert server.process.stdout is not None
    server.process.send_signal(signal.SIGTERM)
    assert server.process.stdout.read() == b""
    assert server.stop() == 0


@pytest.mark.full
def test_its_line_can_be_json(tmp_path: Path) -> None:
    arguments = ["serve", "--home", str(tmp_path), "--port", "0", "--json"]
    with (tmp_path / "log").open("wb") as log:
        process = prefork().start(arguments, clean_environment(), log.fileno())
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        assert said["pid"] == process.pid
        assert said["home"] == str(tmp_path)
        assert httpx.get(f"{said['url']}/healthz").status_code == 200
    finally:
        process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 0


def test_a_second_server_on_a_home_is_refused_naming_the_first(start_server: Callable[..., Server]) -> None:
    first = start_server()

    said = refused(first.home)

    assert str(first.process.pid) in said
    assert first.url in said
    assert "--home" in said
    assert httpx.get(f"{first.url}/healthz").status_code == 200


def test_an_unknown_setting_names_the_nearest(tmp_path: Path) -> None:
    assert "SKILLERY_PORT" in refused(tmp_path, env={"SKILLERY_PROT": "1"})

    (tmp_path / "skillery.toml").write_text("log_levle = 'info'\n")
    said = refused(tmp_path)
    assert "log_levle" in said
    assert "log_level'" in said


def test_a_setting_with_a_wrong_value_is_named_with_its_source(tmp_path: Path) -> None:
    said = refused(tmp_path, env={"SKILLERY_LOG_LEVEL": "loud"})

    assert "log_level" in said
    assert "loud" in said
    assert "environment" in said


def test_a_limit_above_its_ceiling_is_refused(tmp_path: Path) -> None:
    said = refused(tmp_path, env={"SKILLERY_LIMITS_MEMORY_MB": "2", "SKILLERY_MAX_LIMITS_MEMORY_MB": "1"})

    assert "'limits.memory_mb' is 2" in said
    assert "max_limits.memory_mb (1)" in said


def test_every_limit_has_a_ceiling() -> None:
    defaults, ceilings = msgspec.structs.asdict(RunLimits()), msgspec.structs.asdict(MaxLimits())
    wrong = {}
    for name in defaults:
        environ = {f"SKILLERY_LIMITS_{name.upper()}": "2", f"SKILLERY_MAX_LIMITS_{name.upper()}": "1"}
        with pytest.raises(StartupError) as refusal:
            limit_rules(load_settings({"home": "/x"}, environ=environ)[0])
        message = str(refusal.value)
        if f"'limits.{name}' is 2" not in message or f"max_limits.{name} (1" not in message:
            wrong[name] = message

    assert wrong == {}
    assert {name: ceilings[name] for name in defaults if ceilings[name] < defaults[name]} == {}


def test_open_auth_off_loopback_is_refused_with_remedies(tmp_path: Path) -> None:
    said = refused(tmp_path, "--host", "0.0.0.0")

    assert "0.0.0.0" in said
    assert "127.0.0.1" in said
    assert "auth" in said


def test_a_port_that_is_taken_is_named(tmp_path: Path, sqlite_server: Server) -> None:
    port = sqlite_server.url.rpartition(":")[2]

    said = refused(tmp_path, "--port", port)

    assert port in said
    assert "--port" in said


def test_a_home_that_is_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")

    assert str(file) in refused(file)


def test_a_corrupt_database_is_named_at_start(tmp_path: Path) -> None:
    (tmp_path / "skillery.db").write_bytes(os.urandom(8192))

    said = refused(tmp_path)

    assert "skillery.db" in said
    assert "damaged" in said
    assert "backup" in said


def test_a_database_of_a_later_release_is_refused_unchanged(start_server: Callable[..., Server]) -> None:
    server = start_server()
    home = server.home
    assert server.stop() == 0
    with sqlite3.connect(home / "skillery.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        oldest = connection.execute("UPDATE registry SET value = ? WHERE key = ?", (b"9998", migrate.OLDEST))
        assert oldest.rowcount == 1

    said = refused(home)

    assert "9999" in said
    assert "newer" in said
    with sqlite3.connect(home / "skillery.db") as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [("9999",)]


@pytest.mark.full
def test_sigterm_lets_a_run_finish_and_exits_0(start_server: Callable[..., Server]) -> None:
    server = start_server()
    call = Background(server.rpc, "run_code", language="python", code=SLEEPER, args={"seconds": 1.5})
    wait_for_run(server.home)

    assert server.stop() == 0

    assert call.wait()["output"] == "slept"
    assert [status for status, _ in runs_of(server.home)] == ["completed"]


@pytest.mark.full
def test_sigterm_kills_a_run_after_the_grace_period_and_says_so(start_server: Callable[..., Server]) -> None:
    homes = itertools.count()

    def answer_at_stop() -> Any:
        server = start_server(home=f"home{next(homes)}", env={"SKILLERY_GRACE_SECONDS": "0.5"})
        call = Background(server.rpc, "run_code", language="python", code=SLEEPER, args={"seconds": 600})
        wait_for_run(server.home)
        assert server.stop() == 0
        assert [status for status, _ in runs_of(server.home)] == ["failed"]
        answer = call.wait()
        return answer if isinstance(answer, dict) else None

    answer = eventually(answer_at_stop)  # a loaded machine may take longer for the answer than a stopping server waits
    assert answer["status"] == "failed"
    assert answer["error"]["type"] == "SandboxError"


def test_a_server_restarted_after_kill_9_closes_open_runs(start_server: Callable[..., Server]) -> None:
    server = start_server()
    listed = server.rpc("list_skills")
    call = Background(server.rpc, "run_code", language="python", code=SLEEPER, args={"seconds": 600})
    wait_for_run(server.home)

    assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    assert isinstance(call.wait(), httpx.TransportError)
    again = start_server()

    ((status, error),) = runs_of(server.home)
    assert status == "failed"
    assert json.loads(error or "{}")["type"] == "SandboxError"
    assert again.rpc("list_skills") == listed
    assert again.rpc("run_code", language="python", code=SLEEPER, args={"seconds": 0})["output"] == "slept"


def test_programs_that_the_server_starts_inherit_no_descriptor(start_server: Callable[..., Server]) -> None:
    server = start_server()
    code = "import time\ndef main(args): time.sleep(args['seconds'])"
    server.rpc("run_code", language="python", code=code, args={"seconds": 0})
    run = server.rpc("run_code", language="python", code=code, args={"seconds": 300}, background=True)

    inherited = {}
    for entry in Path(f"/proc/{server.process.pid}/fdinfo").iterdir():
        with suppress(FileNotFoundError):  # the server has closed it
            flags = int(entry.read_text().split("flags:")[1].split()[0], 8)
            if int(entry.name) > 2 and not flags & os.O_CLOEXEC:
                inherited[entry.name] = str(Path(f"/proc/{server.process.pid}/fd/{entry.name}").readlink())
    assert inherited == {}
    server.rpc("cancel_run", run_id=run["run_id"])


@pytest.mark.smoke
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_stops_at_once_and_frees_its_home(
    start_server: Callable[..., Server], number: signal.Signals
) -> None:
    server = start_server()

    assert server.stop(number) == 0

    assert (server.home / "server.lock").read_text() == ""
    assert start_server().rpc("list_skills")["skills"]


@pytest.mark.full
@pytest.mark.parametrize("address", ["@skillery-{}", "/tmp/skillery-{}.socket"])
def test_a_ready_server_notifies_systemd(start_server: Callable[..., Server], address: str) -> None:
    address = address.format(os.getpid())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        systemd.settimeout(300)
        server = start_server(env={"NOTIFY_SOCKET": address})
        message = systemd.recv(1000).decode()
    Path(address).unlink(missing_ok=True)

    assert message == f"READY=1\nSTATUS=Serving at {server.url}"


def test_sighup_leaves_a_single_process_running_and_is_explained(start_server: Callable[..., Server]) -> None:
    server = start_server()

    server.process.send_signal(signal.SIGHUP)

    eventually(lambda: "SIGHUP: the settings stay as they are" in server.log.read_text())
    assert httpx.get(f"{server.url}/healthz").status_code == 200
    assert server.stop() == 0


ENDLESS_START = """
import time
from pathlib import Path

from skillery import hookimpl
from skillery.backends import Offer


def open_secrets(settings, place):
    Path(__file__).with_name("reached").touch()
    while True:
        time.sleep(1)


@hookimpl
def skillery_secrets():
    return Offer("endless", open_secrets)
"""


@pytest.mark.full
def test_sigterm_while_it_starts_exits_0_too(tmp_path: Path) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "endless.py").write_text(ENDLESS_START)
    process = subprocess.Popen(
        [sys.executable, "-m", "skillery", "serve", "--home", str(tmp_path / "home"), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment({"SKILLERY_PLUGINS_FOLDER": str(plugins), "SKILLERY_SECRETS": "endless"}),
    )
    eventually((plugins / "reached").exists, of=process)
    process.terminate()

    assert (*process.communicate(timeout=300), process.returncode) == ("", "", 0)


@pytest.mark.full
@pytest.mark.parametrize(("name", "code"), [("", 5), ("missing", 4)])
def test_the_exit_code_says_whether_a_later_start_may_reach_postgres(
    postgres: str, tmp_path: Path, name: str, code: int
) -> None:
    unreachable = f"postgresql://skillery@/postgres?host={tmp_path}"
    url = postgres.replace("/postgres?", f"/{name}?") if name else unreachable

    ended = skillery("serve", "--home", str(tmp_path / "home"), "--port", "0", SKILLERY_DATABASE=url, stdin=b"")

    assert (ended.code, ended.out) == (code, "")
    assert "error: cannot open the database" in ended.err


def url_in(lock: Path) -> str:
    """Return the address of the server, or "" while the server starts."""
    text = lock.read_text() if lock.exists() else ""
    return str(json.loads(text)["url"] or "") if text.endswith("}") else ""


@pytest.mark.full
def test_the_server_continues_when_its_stdout_is_closed(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "skillery", "serve", "--home", str(tmp_path), "--port", "0"],
        stdout=writing,
        env=clean_environment(),
    )
    os.close(writing)
    os.close(reading)
    lock = tmp_path / "server.lock"
    try:
        url = eventually(lambda: url_in(lock), of=process)
        assert httpx.get(f"{url}/healthz").status_code == 200
    finally:
        process.terminate()
    assert process.wait(300) == 0
