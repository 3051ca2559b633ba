"""Plugins: hooks register backends, settings select them, and invalid choices stop the start of the server."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.test_cli import skillery
from tests.conftest import Server, clean_environment, manifest, skill_files

START = "from skillery import hookimpl\nfrom skillery.backends import *\n"


def folder(tmp_path: Path, **files: str) -> str:
    place = tmp_path / "plugins"
    place.mkdir(exist_ok=True)
    for name, source in files.items():
        (place / f"{name}.py").write_text(START + textwrap.dedent(source))
    return str(place)


def refusal(tmp_path: Path, **env: str) -> str:
    """Return the single line that a server prints when it refuses to start."""
    done = skillery("serve", "--home", str(tmp_path / "home"), "--port", "0", stdin=b"", **env)
    assert done.code != 0
    assert done.out == ""
    lines = done.err.strip().splitlines()
    assert len(lines) == 1, done.err
    return lines[0]


@pytest.mark.parametrize("kind", ["SANDBOX", "STORAGE", "AUTH"])
@pytest.mark.full(after=2)
def test_an_unknown_backend_is_refused_with_the_known_ones(tmp_path: Path, kind: str) -> None:
    line = refusal(tmp_path, **{f"SKILLERY_{kind}": "nobodys"})

    assert "'nobodys'" in line
    assert {"SANDBOX": "linux", "STORAGE": "directory", "AUTH": "open"}[kind] in line


def test_two_offers_of_the_same_name_are_refused(tmp_path: Path) -> None:
    source = """
        @hookimpl
        def skillery_storage() -> Offer:
            return Offer("directory", lambda settings, place: None)
    """
    line = refusal(tmp_path, SKILLERY_PLUGINS_FOLDER=folder(tmp_path, mine=source))

    assert "'mine'" in line
    assert "'directory'" in line


def test_a_misspelt_hook_is_refused(tmp_path: Path) -> None:
    source = """
        @hookimpl
        def befor_publish(publication):
            return []
    """
    line = refusal(tmp_path, SKILLERY_PLUGINS_FOLDER=folder(tmp_path, mine=source))

    assert "'mine'" in line
    assert "befor_publish" in line
    assert "before_publish" in line


def test_a_hook_with_a_wrong_argument_is_refused(tmp_path: Path) -> None:
    source = """
        @hookimpl
        def before_publish(bundle):
            return []
    """
    line = refusal(tmp_path, SKILLERY_PLUGINS_FOLDER=folder(tmp_path, mine=source))

    assert "'mine'" in line
    assert "bundle" in line


def test_a_plugin_that_cannot_be_imported_is_refused(tmp_path: Path) -> None:
    line = refusal(tmp_path, SKILLERY_PLUGINS_FOLDER=folder(tmp_path, mine="import nothing_like_this\n"))

    assert "'mine'" in line
    assert "nothing_like_this" in line


def test_an_offer_of_the_wrong_type_is_refused(tmp_path: Path) -> None:
    source = """
        @hookimpl
        def skillery_storage():
            return "a string"
    """
    assert "Offer" in refusal(tmp_path, SKILLERY_PLUGINS_FOLDER=folder(tmp_path, mine=source))


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    assert "which is not a folder" in refusal(tmp_path, SKILLERY_PLUGINS_FOLDER=str(tmp_path / "nowhere"))


def test_an_unsafe_sandbox_needs_a_second_setting(tmp_path: Path) -> None:
    line = refusal(tmp_path, SKILLERY_SANDBOX="unsafe-subprocess")

    assert "allow_unsafe_sandbox" in line


def test_an_unsafe_sandbox_warns_at_every_start(start_server: Callable[..., Server]) -> None:
    env = {"SKILLERY_SANDBOX": "unsafe-subprocess", "SKILLERY_ALLOW_UNSAFE_SANDBOX": "true"}
    server = start_server(env=env)

    assert server.rpc("run_code", language="python", code="def main(args): return 1")["output"] == 1
    assert "NOT isolate" in server.log.read_text()


def test_a_setting_of_a_backend_is_checked_at_start(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "skillery.toml").write_text("[backends.storage.directory]\npahh = 'x'\n")
    said = refusal(tmp_path)
    assert "unknown setting 'pahh'" in said
    assert "did you mean 'path'" in said

    (home / "skillery.toml").write_text("[backends.storage.s3]\nx = 1\n")
    assert "s3" in refusal(tmp_path)


def test_a_setting_selects_a_backend_of_a_plugin(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    source = """
        from pathlib import Path
        from skillery.builtin.directory_storage import DirectoryStorage

        class Mine(DirectoryStorage):
            pass

        class MineSettings(NoSettings, frozen=True, forbid_unknown_fields=True):
            folder: str

        @hookimpl
        def skillery_storage() -> Offer:
            return Offer("mine", lambda settings, place: Mine(Path(settings.folder)), MineSettings)
    """
    place = tmp_path / "elsewhere"
    server = start_server(
        env={
            "SKILLERY_PLUGINS_FOLDER": folder(tmp_path, mine=source),
            "SKILLERY_STORAGE": "mine",
            "SKILLERY_BACKENDS_STORAGE_MINE_FOLDER": str(place),
        }
    )
    server.rpc.http.post("/blobs", content=os.urandom(100_000))

    assert [path for path in place.rglob("*") if path.is_file()]


MOMENTS = """
    import json
    from pathlib import Path

    NOTES = Path(__file__).with_name("notes")

    def note(moment, **what):
        with NOTES.open("a") as file:
            file.write(json.dumps([moment, what]) + "\\n")

    @hookimpl
    def before_publish(publication: Publication) -> list[Finding]:
        note("before", name=publication.name, files=[file.path for file in publication.files])
        if publication.manifest.get("raise"):
            raise RuntimeError("boom")
        if b"eval(" in b"".join(file.content for file in publication.files):
            return [Finding("no-eval", "eval is not allowed", "error", "code/main.py", 2)]
        return [Finding("style", "could be nicer", "warning")]

    @hookimpl
    def after_publish(publication: Publication) -> None:
        note("after", name=publication.name, identity=publication.identity.name)
        raise RuntimeError("changes nothing")

    @hookimpl
    def run_finished(run: FinishedRun) -> None:
        note("run", status=run.status, skill=run.skill, error=run.error_type)
        raise RuntimeError("changes nothing")
"""


def test_event_hooks_are_called_and_may_refuse(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    plugins = folder(tmp_path, mine=MOMENTS)
    rpc = start_server(env={"SKILLERY_PLUGINS_FOLDER": plugins}).rpc

    rpc("create_skill", manifest=manifest("good"), skill_md="# A", files=skill_files())
    error = rpc.error(
        "create_skill",
        manifest=manifest("bad"),
        skill_md="# A",
        files=skill_files("def main(args):\n    return eval(args['x'])\n"),
    )
    raised = rpc.error("create_skill", manifest=manifest("ugly") | {"raise": True}, skill_md="# A", files=skill_files())
    rpc("execute_skill", name="good")
    rpc("run_code", language="python", code="def main(args): raise ValueError")

    assert error["code"] == -32007
    assert {key: error["data"]["findings"][0][key] for key in ("rule", "file", "line")} == {
        "rule": "no-eval",
        "file": "code/main.py",
        "line": 2,
    }
    assert rpc.error("describe_skill", name="bad")["code"] == -32003
    assert raised["code"] == -32007
    assert "boom" not in str(raised)
    assert rpc.error("describe_skill", name="ugly")["code"] == -32003
    notes = (Path(plugins) / "notes").read_text()
    assert '["after", {"name": "good", "identity": "local"}]' in notes
    assert '["after", {"name": "bad"' not in notes
    assert '["run", {"status": "completed", "skill": "good", "error": null}]' in notes
    assert '["run", {"status": "failed", "skill": null, "error": "ValueError"}]' in notes


@pytest.mark.parametrize(
    "answer",
    [
        "None",
        "'no-eval'",
        "['no-eval']",
        "[Finding('no-eval', 'eval is not allowed', 'critical')]",
        "[Finding('no-eval', 'eval is not allowed', 'warning', 'code/main.py', '2')]",
    ],
)
@pytest.mark.full(after=1)
def test_a_check_that_returns_no_findings_refuses_the_version(
    tmp_path: Path, start_server: Callable[..., Server], answer: str
) -> None:
    """A second plugin, which returns a list, does not hide the broken one."""
    # At start, the server publishes its bundled skills.
    broken = f"@hookimpl\ndef before_publish(publication):\n    return {answer} if publication.name == 'a.b' else []\n"
    correct = "@hookimpl\ndef before_publish(publication):\n    return []\n"
    server = start_server(env={"SKILLERY_PLUGINS_FOLDER": folder(tmp_path, broken=broken, correct=correct)})

    error = server.rpc.error("create_skill", manifest=manifest("a.b"), skill_md="# A", files=skill_files())
    assert error["code"] == -32007
    assert [one["rule"] for one in error["data"]["findings"]] == ["before_publish"]
    assert "must return a list of Finding" in server.log.read_text()


def test_a_wrapper_of_a_check_counts_as_no_check(tmp_path: Path, start_server: Callable[..., Server]) -> None:
    source = """
        import pluggy

        @pluggy.HookimplMarker("skillery")(wrapper=True)
        def before_publish(publication):
            return (yield)
    """
    correct = "@hookimpl\ndef before_publish(publication):\n    return []\n"
    server = start_server(env={"SKILLERY_PLUGINS_FOLDER": folder(tmp_path, mine=source, correct=correct)})

    created = server.rpc("create_skill", manifest=manifest("good"), skill_md="# A", files=skill_files())
    assert created["status"] == "published"


def test_a_plugin_package_is_discovered_by_its_entry_point(tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "greeter-1.0.dist-info").mkdir(parents=True)
    (site / "greeter-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: greeter\nVersion: 1.0\n")
    (site / "greeter-1.0.dist-info" / "entry_points.txt").write_text("[skillery]\ngreeter = greeter\n")
    (site / "greeter.py").write_text(
        START + "@hookimpl\ndef skillery_storage():\n    return Offer('greeter', lambda settings, place: None)\n"
    )

    shown = subprocess.run(
        [sys.executable, "-m", "skillery", "plugins", "--json", "--home", str(tmp_path / "home")],
        capture_output=True,
        text=True,
        check=True,
        env=clean_environment({"PYTHONPATH": str(site)}),
    )

    assert "greeter" in shown.stdout


UNABLE = """
    from pathlib import Path
    from skillery.builtin.unsafe_subprocess import UnsafeSubprocess

    class Unable(UnsafeSubprocess):
        capabilities = frozenset({"python", "blobs", "cpus"})

        async def run(self, job, host):
            (Path(__file__).with_name("ran")).touch()
            return await super().run(job, host)

    @hookimpl
    def skillery_sandbox() -> Offer:
        return Offer("unable", lambda settings, place: Unable())
"""


@pytest.mark.parametrize(
    ("permissions", "lacking"),
    [({"network": ["https://api.example.com"]}, "network"), ({"secrets": ["API_KEY"]}, "secrets")],
)
def test_a_run_with_unsupported_permissions_is_refused_and_recorded(
    tmp_path: Path, start_server: Callable[..., Server], permissions: dict[str, list[str]], lacking: str
) -> None:
    plugins = folder(tmp_path, unable=UNABLE)
    env = {"SKILLERY_PLUGINS_FOLDER": plugins, "SKILLERY_SANDBOX": "unable"}
    server = start_server(env=env)
    made = manifest("acme.mail", permissions=permissions)
    server.rpc("create_skill", manifest=made, skill_md="# Mail", files=skill_files())
    refused = server.rpc("execute_skill", name="acme.mail")

    assert (refused["status"], refused["error"]["type"]) == ("failed", "SandboxError")
    assert "'unable'" in refused["error"]["message"]
    assert f"does not have {lacking}," in refused["error"]["message"]
    assert "'acme.mail'" in refused["error"]["message"]
    assert not (Path(plugins) / "ran").exists()
    with sqlite3.connect(server.home / "skillery.db") as database:
        assert database.execute("SELECT status FROM runs WHERE id = ?", (refused["run_id"],)).fetchall() == [
            ("failed",)
        ]


def test_a_run_lists_unclaimed_sandbox_capabilities_as_degraded(
    tmp_path: Path, start_server: Callable[..., Server]
) -> None:
    env = {"SKILLERY_PLUGINS_FOLDER": folder(tmp_path, unable=UNABLE), "SKILLERY_SANDBOX": "unable"}
    ran = start_server(env=env).rpc("run_code", language="python", code="def main(args): return 1")

    assert ran["status"] == "completed", ran
    assert {"isolation", "memory_tree", "processes", "disk", "disk_files"} <= set(ran["degraded"])
    assert len(ran["degraded"]) == len(set(ran["degraded"]))


def test_a_sandbox_without_capabilities_is_refused(tmp_path: Path) -> None:
    source = """
        class Silent:
            def probe(self): return []
            async def start(self): ...
            async def run(self, job, host): ...
            async def close(self): ...

        @hookimpl
        def skillery_sandbox() -> Offer:
            return Offer("silent", lambda settings, place: Silent())
    """
    env = {"SKILLERY_PLUGINS_FOLDER": folder(tmp_path, mine=source), "SKILLERY_SANDBOX": "silent"}

    assert "it lacks capabilities" in refusal(tmp_path, **env)


MISSHAPEN = """
    class Misshapen:
        loopback_only = read_only = capabilities = None
        def __init__(self, settings, place): ...
        def begin(self): ...
        async def open(self, digest): ...
        def local_path(self): ...
        check = "not a method"
        def authenticate(self, credentials): ...
        def get(self, name, version): ...
        def names(self): ...
        def set(self, name, value): ...
        def probe(self): ...
        def start(self): ...
        async def run(self, job, host, more=None): ...
        async def close(self): ...

    @hookimpl
    def skillery_KIND() -> Offer:
        return Offer("misshapen", Misshapen)
"""


@pytest.mark.parametrize(
    ("kind", "protocol", "found"),
    [
        (
            "storage",
            "Storage",
            [
                "it has 'async def open(digest)' in place of 'def open(self, digest: str) -> BinaryIO'",
                "it has 'def local_path()' in place of 'def local_path(self, digest: str) -> Path | None'",
                "it lacks the method 'def delete(self, digest: str) -> None'",
                "it has 'check', which must be a method 'def check(self) -> None'",
            ],
        ),
        (
            "authenticator",
            "Authenticator",
            [
                "it has an attribute 'loopback_only' that is not a bool, but None",
                "it has 'def authenticate(credentials)' in place of "
                "'async def authenticate(self, credentials: Credentials) -> Identity'",
                "it has 'def start()' in place of 'async def start(self) -> None'",
            ],
        ),
        (
            "secrets",
            "Secrets",
            [
                "it has an attribute 'read_only' that is not a bool, but None",
                "it has 'def get(name, version)' in place of 'def get(self, name: str) -> str | None'",
                "it lacks the method 'def remove(self, name: str) -> bool'",
                "it has 'def start()' in place of 'async def start(self) -> None'",
            ],
        ),
        ("sandbox", "Sandbox", ["it has 'def start()' in place of 'async def start(self) -> None'"]),
    ],
)
@pytest.mark.full(after=1)
def test_a_backend_that_is_not_shaped_as_its_protocol_is_refused(
    tmp_path: Path, kind: str, protocol: str, found: list[str]
) -> None:
    setting = "AUTH" if kind == "authenticator" else kind.upper()
    plugins = folder(tmp_path, mine=MISSHAPEN.replace("KIND", kind))

    line = refusal(tmp_path, SKILLERY_PLUGINS_FOLDER=plugins, **{f"SKILLERY_{setting}": "misshapen"})

    start = f"plugin 'mine': the {kind} 'misshapen' is not a skillery.backends.{protocol}: "
    assert line[line.index("plugin") :] == start + "; ".join(found)


SESSIONS = """
    import asyncio
    from datetime import UTC, datetime, timedelta
    from skillery.errors import NotAuthenticated

    class Sessions:
        loopback_only = True

        def __init__(self, settings, place):
            self.values, self.tokens = place.values, place.tokens

        async def authenticate(self, credentials):
            token = credentials.headers.get("authorization", "").removeprefix("Bearer ")
            if token:
                return (await self.tokens.verify(token)).identity
            name = await asyncio.to_thread(self.find, credentials.headers.get("x-session", ""))
            if name is None:
                raise NotAuthenticated("no session")
            return Identity(name.decode(), "person", frozenset({"admin"}), ("*",))

        def find(self, session):
            if session == "new":
                self.values.set("session/1", b"ada", datetime.now(UTC) + timedelta(hours=1))
                self.values.set("session/2", b"ada", datetime.now(UTC) - timedelta(hours=1))
                return b"ada"
            return self.values.get(f"session/{session}")

    @hookimpl
    def skillery_authenticator() -> Offer:
        return Offer("sessions", Sessions)
"""


@pytest.mark.full
def test_a_plugin_authenticator_keeps_sessions_and_accepts_registry_tokens(
    tmp_path: Path, start_server: Callable[..., Server]
) -> None:
    env = {"SKILLERY_PLUGINS_FOLDER": folder(tmp_path, mine=SESSIONS), "SKILLERY_AUTH": "sessions"}

    def identity(server: Server, **headers: str) -> str:
        body = {"jsonrpc": "2.0", "id": 1, "method": "create_token", "params": {"name": "bob", "scopes": ["read"]}}
        done = server.rpc.http.post("/rpc", json=body, headers=headers).json()
        return str(done["result"]["token"] if "result" in done else done["error"]["code"])

    server = start_server(env=env)
    token = identity(server, **{"x-session": "new"})
    assert token.startswith("sky_")
    assert identity(server, authorization=f"Bearer {token}") == "-32002"
    assert identity(server, authorization=f"Bearer {token}x") == "-32001"
    assert server.stop() == 0
    server = start_server(env=env)
    assert identity(server, **{"x-session": "1"}).startswith("sky_")
    assert identity(server, **{"x-session": "2"}) == "-32001"


VERSIONED = """
    api_version = VERSION

    @hookimpl
    def befor_publish(publication):
        return []
"""


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("2", "is written for version 2 of the hook API, and this Skillery has version 1: install a release of the "),
        ("'1'", "api_version is '1'; write a number: api_version = 1"),
        ("0", "api_version is 0; write a number: api_version = 1"),
        ("True", "api_version is True; write a number"),
    ],
)
def test_a_plugin_for_another_version_of_the_hooks_is_refused(tmp_path: Path, version: str, said: str) -> None:
    """The refusal names the version, not the hook that this version does not have."""
    line = refusal(tmp_path, SKILLERY_PLUGINS_FOLDER=folder(tmp_path, mine=VERSIONED.replace("VERSION", version)))

    assert f"plugin 'mine'{': ' if 'write' in said else ' '}{said}" in line


def test_a_plugin_for_this_version_of_the_hooks_or_for_none_starts(
    tmp_path: Path, start_server: Callable[..., Server]
) -> None:
    stated = VERSIONED.replace("VERSION", "1").replace("befor_", "before_")
    silent = "@hookimpl\ndef before_publish(publication):\n    return []\n"
    server = start_server(env={"SKILLERY_PLUGINS_FOLDER": folder(tmp_path, stated=stated, silent=silent)})

    assert "api_version" not in server.log.read_text()
