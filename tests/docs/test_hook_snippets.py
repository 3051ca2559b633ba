"""Every python and toml snippet of docs/reference/hooks.md runs as printed.

A snippet is a module, or a part of one. The names that a reader brings along, such as a client of a vault, are
stand-ins of this test.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from skillery.backends import KINDS, Credentials, Event, Identity, Offer, Place, Ranker
from skillery.errors import ContentMissing, NotAllowed, NotAuthenticated, StartupError
from skillery.plugins import load_plugins
from skillery.testing import RankerContract, sample_events
from tests.cli.test_cli import skillery
from tests.conftest import Server, clean_environment, manifest, skill_files

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "hooks.md"
IMPORTS = (
    "from skillery import hookimpl\nfrom skillery.backends import *\n"
    "from collections.abc import Callable, Collection, Mapping, Sequence\n"
    "from datetime import datetime\nfrom typing import Any\n"
)
BLOCKS = re.findall(r"^```(python|toml)\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
PYTHON = [text for kind, text in BLOCKS if kind == "python"]
TOML = [text for kind, text in BLOCKS if kind == "toml"]


def block(part: str, blocks: list[str] = PYTHON) -> str:
    """Return the first snippet that contains `part`."""
    return next(text for text in blocks if part in text)


def run(text: str, **given: Any) -> dict[str, Any]:
    """Execute a snippet, and return its names."""
    names: dict[str, Any] = {"__name__": "snippet"}
    exec(IMPORTS, names)
    names |= given
    exec(compile(text, str(PAGE), "exec", dont_inherit=True), names)
    return names


def stand_in(name: str) -> type:
    return type(name, (), {"__init__": lambda self, *given, **more: None})


GIVEN: dict[str, Any] = {
    "NotAuthenticated": NotAuthenticated,
    "NotAllowed": NotAllowed,
    "StartupError": StartupError,
    "VaultClient": stand_in("VaultClient"),
    "VaultSettings": stand_in("VaultSettings"),
    "announce": print,
    "notify_reviewers": print,
    "statistics": SimpleNamespace(timing=print),
}
TESTS = ("TestShelf", "TestMySandbox")


@pytest.mark.parametrize("number", range(len(PYTHON)))
def test_each_snippet_runs_as_printed(number: int) -> None:
    """Snippets with tests run in the tests below."""
    text = PYTHON[number]
    if any(name in text for name in TESTS):
        return
    more = "import msgspec\nimport secrets\nfrom datetime import UTC, timedelta\n"
    names = run(f"{more}{text}", **GIVEN)

    for hook in ("storage", "sandbox", "authenticator", "secrets", "ranker", "plugin"):
        if f"skillery_{hook}" in names:
            assert isinstance(names[f"skillery_{hook}"](), Offer)


class TestRankerOfThePage(RankerContract):
    @pytest.fixture
    def ranker(self) -> Ranker:
        ranker: Ranker = KINDS["ranker"].completed(run(block("class Letters:"))["Letters"]())
        return ranker


def test_each_toml_snippet_is_valid() -> None:
    assert len(TOML) >= 3
    for text in TOML:
        assert tomllib.loads(text)


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    """A folder with the snippets that are plugins, each in its own file."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    notes = f"def note(*words): open({str(tmp_path / 'notes')!r}, 'a').write(' '.join(map(str, words)) + '\\n')\n"
    parts = {
        "no_eval": block("# plugins/no_eval.py"),
        "shelf": block("class Shelf:"),
        "words": f"import msgspec\n{IMPORTS}{block('class Words:')}",
        "shout": f"{IMPORTS}{block('def shout(')}",
        "greetings": block("def greet("),
        "published": f"{IMPORTS}{notes}announce = note\n{block('def after_publish(')}",
        "ran": f"from types import SimpleNamespace\n{IMPORTS}{notes}statistics = SimpleNamespace(timing=note)\n"
        + block("def run_finished("),
    }
    for name, source in parts.items():
        (folder / f"{name}.py").write_text(source)
    return folder


@pytest.mark.full
def test_a_server_works_with_the_plugins_of_the_page(
    tmp_path: Path, plugins: Path, start_server: Callable[..., Server]
) -> None:
    settings = tmp_path / "settings.toml"
    shelf = block('storage = "shelf"', TOML).replace("/srv/skills", str(tmp_path / "shelf"))
    settings.write_text(shelf + block("[plugins.words]", TOML))
    env = {"SKILLERY_PLUGINS_FOLDER": str(plugins), "SKILLERY_CONFIG": str(settings)}
    server = start_server(env=env)

    def create(name: str, code: str) -> Any:
        files = skill_files(f"def main(args):\n    return {code}\n")
        return server.rpc.send("create_skill", {"manifest": manifest(name), "skill_md": "# A", "files": files})

    assert create("evil.one", "eval('1')")["error"]["data"]["findings"][0]["rule"] == "no-eval"
    assert create("rude.one", "'FIXME'")["error"]["data"]["findings"][0]["rule"] == "word"
    assert create("good.one", "7")["result"]["status"] == "published"
    assert server.rpc("execute_skill", name="good.one")["output"] == 7
    notes = (tmp_path / "notes").read_text()
    assert "good.one 1.0.0 by local\n" in notes
    assert "skillery.execute_skill" in notes
    server.rpc.http.post("/blobs", content=b"x" * 100_000)
    assert [path for path in (tmp_path / "shelf").iterdir() if len(path.name) == 64]
    assert httpx.get(f"{server.url}/x/greetings/greet/de").json() == {"greeting": "Hallo, local"}
    assert "Greetings" in httpx.get(f"{server.url}/x/greetings/").text
    assert httpx.get(f"{server.url}/x/greetings/greet/fr").json()["error"]["data"]["hint"] == "Known languages: en, de"
    shouted = skillery("shout", "good.one", "--url", server.url, stdin=b"", **env)
    assert shouted.out == "GOOD.ONE\n"


def test_the_plugins_of_the_page_have_valid_hooks(tmp_path: Path, plugins: Path) -> None:
    names = {name for name, _ in load_plugins(plugins).manager.list_name_plugin()}

    assert {path.stem for path in plugins.glob("*.py")} <= names


@pytest.mark.full
def test_the_shelf_of_the_page_passes_the_contract(tmp_path: Path) -> None:
    (tmp_path / "test_shelf.py").write_text(f"{block('class Shelf:')}\n\n{block('class TestShelf')}")

    assert "passed" in pytest_in(tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("number", [0, 1])
def test_pytest_finds_the_cases_of_a_sandbox_of_the_page(tmp_path: Path, number: int) -> None:
    text = [one for one in PYTHON if "class TestMySandbox" in one][number]
    start = "import pytest\nfrom skillery.testing import *\nclass MySandbox: ...\n"
    (tmp_path / "test_sandbox.py").write_text(start + text)

    assert "TestMySandbox::test_null_is_a_result" in pytest_in(tmp_path, "--collect-only")


def pytest_in(folder: Path, *options: str) -> str:
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:]
    return ended.stdout


async def test_the_authenticator_of_the_page_takes_a_header() -> None:
    names = run(block("class ProxyHeader:"), **GIVEN)
    proxy = names["skillery_authenticator"]().open(None, Place(Path()))

    assert (await proxy.authenticate(Credentials({"x-forwarded-user": "ann"}, ""))).name == "ann"
    with pytest.raises(NotAuthenticated):
        await proxy.authenticate(Credentials({}, ""))
    recognizes = run(block("def recognizes("))["recognizes"]
    assert recognizes(proxy, Credentials({"x-forwarded-user": "ann"}, ""))
    assert not recognizes(proxy, Credentials({}, ""))


async def test_the_further_methods_of_an_authenticator_work() -> None:
    async def verify(token: str) -> Any:
        return SimpleNamespace(identity=Identity(token))

    async def answers() -> bool:
        return False

    badge = SimpleNamespace(owner="ann", identity=Identity("ann"))
    stored: list[str] = []
    myself = SimpleNamespace(
        tokens=SimpleNamespace(verify=verify),
        provider=SimpleNamespace(answers=answers),
        find=lambda credentials: badge if credentials.headers else None,
        values=SimpleNamespace(set=lambda key, value, within: stored.append(key)),
    )
    authenticate = run(block('token.startswith("sky_")'))["authenticate"]
    identity = await authenticate(myself, Credentials({"authorization": "Bearer sky_1"}, ""))
    assert identity.name == "sky_1"

    names = run(block("def resource("), **GIVEN)
    assert names["resource"](myself).scopes == ("skills.read",)
    with pytest.raises(StartupError, match="does not answer"):
        await names["start"](myself)
    assert (await names["explain"](myself, Credentials({"a": "b"}, ""))).identity == badge.identity
    assert (await names["explain"](myself, Credentials({}, ""))).identity is None
    assert names["revoke"](myself, "ann", None)
    assert stored == ["revoked/ann"]


def test_the_vault_of_the_page_is_read_only() -> None:
    class Client:
        def __init__(self, address: str) -> None:
            self.address = address

        def read(self, path: str) -> str:
            return f"value of {path}"

        def list(self, path: str) -> list[str]:
            return ["B", "A"]

    names = run(block("class Vault:"), **GIVEN | {"VaultClient": Client})
    vault = names["skillery_secrets"]().open(SimpleNamespace(address="x"), Place(Path()))

    assert (vault.get("KEY"), vault.names()) == ("value of skillery/KEY", ["A", "B"])
    with pytest.raises(NotAllowed):
        vault.set("KEY", "value")


def test_the_sessions_of_the_page_keep_values() -> None:
    kept: dict[str, bytes] = {}
    values = SimpleNamespace(
        set=lambda key, value, expires_at: kept.update({key: value}),
        get=kept.get,
        add=kept.setdefault,
        take=lambda key: kept.pop(key, None),
    )
    text = f"import secrets\nfrom datetime import UTC, timedelta\n{block('class Sessions:')}"
    sessions = run(text)["Sessions"](values)

    assert sessions.name_of(sessions.begin("ann")) == "ann"
    assert sessions.signing_key() == sessions.signing_key()
    assert not sessions.use_nonce("x")


def test_the_shelf_of_the_page_signs_nothing_and_has_no_unknown_content(tmp_path: Path) -> None:
    shelf = run(block("class Shelf:"))["Shelf"](tmp_path)
    with pytest.raises(ContentMissing):
        shelf.open("../x")
    client = SimpleNamespace(presigned_url=lambda method, digest, expires, overrides: f"{method} {digest} {expires}")

    sign = run(block("def sign("))["sign"]
    assert sign(SimpleNamespace(_client=client), "abc", 60, {}) == "GET abc 60"


def test_the_hook_events_of_the_page_tells_reviewers() -> None:
    told: list[Any] = []
    events = run(block("def events("), notify_reviewers=lambda *words: told.append(words))["events"]
    for event in sample_events():
        assert isinstance(event, Event)
        events(event)

    assert told == [("team", "team.greet 1.0.0 waits for review")]
