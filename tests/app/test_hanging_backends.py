"""Backends of plugins that hang: their callers get `unavailable` in time, and the server goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.app.test_plugin_failures import failures
from tests.app.test_plugins import folder
from tests.cli.test_cli import skillery
from tests.conftest import Server, manifest, skill_files
from tests.support.processes import eventually

HANGING = """
    import asyncio
    import time
    from pathlib import Path
    from skillery.builtin.directory_storage import DirectoryStorage

    HANGS = Path(__file__).with_name("hangs")

    def wait():
        while HANGS.exists():
            time.sleep(0.1)

    class Hanging(DirectoryStorage):
        def open(self, digest):
            wait()
            return super().open(digest)

        def check(self):
            wait()

    class Vault:
        read_only = True

        def get(self, name):
            wait()
            return "value"

        def names(self):
            wait()
            return ["API_KEY"]

        def set(self, name, value): ...
        def remove(self, name): ...

    class Doors:
        loopback_only = True

        async def authenticate(self, credentials):
            while HANGS.exists():
                await asyncio.sleep(0.02)
            if "late" in credentials.headers.get("x-who", ""):
                raise TimeoutError("the door's own")
            return Identity("ann", "person", ALL_SCOPES, ("*",))

    @hookimpl
    def skillery_storage() -> Offer:
        return Offer("hanging", lambda settings, place: Hanging(place.home / "hanging"))

    @hookimpl
    def skillery_secrets() -> Offer:
        return Offer("vault", lambda settings, place: Vault())

    @hookimpl
    def skillery_authenticator() -> Offer:
        return Offer("doors", lambda settings, place: Doors())
"""
LARGE = "x" * 100_000
Start = Callable[..., Server]


@pytest.fixture
def hangs(tmp_path: Path) -> Iterator[Path]:
    """Return the path of the file that lets the backends hang."""
    folder(tmp_path, mine=HANGING)
    path = tmp_path / "plugins" / "hangs"
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def settings(hangs: Path) -> dict[str, str]:
    return {"SKILLERY_PLUGINS_FOLDER": str(hangs.parent), "SKILLERY_HOOK_SECONDS": "1"}


def counted(server: Server, function: str) -> set[tuple[str, float]]:
    """Return the reasons of the failures of a function, with their numbers."""
    lines = [line for line in failures(server) if f'function="{function}",plugin="mine"' in line]
    return {(line.split('reason="')[1].partition('"')[0], float(line.split()[-1])) for line in lines}


@pytest.mark.full
def test_an_authenticator_that_hangs_meets_its_time_limit(
    settings: dict[str, str], hangs: Path, start_server: Start
) -> None:
    server = start_server(env={**settings, "SKILLERY_AUTH": "doors"})
    hangs.touch()
    answers = [httpx.get(f"{server.url}/tools") for _ in range(6)]

    assert {(one.status_code, one.json()["error"]["data"]["type"]) for one in answers} == {(503, "unavailable")}
    assert "mine" in answers[0].json()["error"]["message"]
    assert httpx.get(f"{server.url}/healthz").status_code == 200
    hangs.unlink()
    assert counted(server, "authenticate") == {("timed_out", 6.0)}
    # On a loaded machine, the first answer may still be late.
    eventually(lambda: httpx.get(f"{server.url}/tools").status_code == 200)
    assert "plugin 'mine' failed in authenticate: no answer within 1 seconds" in server.log.read_text()
    eventually(lambda: httpx.get(f"{server.url}/tools", headers={"x-who": "late"}).status_code == 500)
    assert ("raised", 1.0) in counted(server, "authenticate")


@pytest.mark.full
def test_secrets_that_hang_fail_their_runs_only(settings: dict[str, str], hangs: Path, start_server: Start) -> None:
    env = {**settings, "SKILLERY_SECRETS": "vault"}
    server = start_server(env=env)
    made = manifest("acme.mail", permissions={"secrets": ["API_KEY"]})
    server.rpc("create_skill", manifest=made, skill_md="# A", files=skill_files())
    patient = {**env, "SKILLERY_HOOK_SECONDS": "300"}
    granted = skillery("secret", "grant", "API_KEY", "acme.mail", "--home", str(server.home), stdin=b"", **patient)
    assert granted.code == 0, granted.err
    hangs.touch()
    runs = [server.rpc("execute_skill", name="acme.mail") for _ in range(6)]
    listed = skillery("secret", "list", "--home", str(server.home), stdin=b"", **env)

    assert {run["error"]["type"] for run in runs} == {"SecretUnavailable"}
    assert runs[0]["error"]["message"] == "the plugin 'mine' did not answer in time"
    assert counted(server, "get") == {("timed_out", 4.0), ("hangs", 2.0)}
    assert server.rpc("run_code", language="python", code="def main(args): return 1")["output"] == 1
    assert (listed.code != 0, "did not answer in time" in listed.err) == (True, True)
    hangs.unlink()
    # The backend is called again after its calls have returned.
    eventually(lambda: server.rpc("execute_skill", name="acme.mail")["status"] == "completed")
    assert server.stop() == 0


@pytest.mark.full
def test_a_storage_that_hangs_while_it_reads_is_unavailable(
    settings: dict[str, str], hangs: Path, start_server: Start
) -> None:
    server = start_server(env={**settings, "SKILLERY_STORAGE": "hanging"})
    # On a loaded machine, the storage may take longer than its second.
    made = eventually(lambda: server.rpc.send("create_blob", {"content": LARGE, "kind": "text/plain"}).get("result"))
    blob = made["blob_id"]
    hangs.touch()
    errors = [server.rpc.error("read_blob", blob_id=blob, mode="full") for _ in range(6)]

    assert {(error["code"], error["data"]["type"]) for error in errors} == {(-32603, "unavailable")}
    # The server itself may read a content at the same time.
    assert dict(counted(server, "open"))["timed_out"] >= 4
    assert "hangs" in dict(counted(server, "open"))
    assert server.rpc.http.get("/readyz").status_code == 503
    assert server.rpc("list_skills")["skills"]
    hangs.unlink()
    # The storage is called again after its calls have returned.
    eventually(lambda: "result" in server.rpc.send("read_blob", {"blob_id": blob, "mode": "full"}))
