"""The card "Add to my agent" of a skill page: its lines are those of `skillery connect`, for this server and skill."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import httpx
import pytest

from skillery.formats.agent_clients import CLIENTS
from skillery.formats.agent_clients import Server as Connected
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server
from tests.support.browser import Browser, attributes, token_of
from tests.support.chromium import OpenPage, faults, problems
from tests.support.client_user import ClientUser

OTHERS = ["shell", "python", "curl", "lock"]
TOOL = {
    "name": "price_of",
    "description": "Return a price.",
    "script": "scripts/price.py",
    "parameters": {"item": {"type": "string", "description": "Its name"}},
}


class Card(NamedTuple):
    clients: list[str]
    blocks: list[str]
    link: str
    text: str


def card_of(browser: Browser, path: str) -> Card:
    """Return the card of a page, with the texts of its blocks."""
    page = browser.get(path).text
    section = re.search(r'<section class="card agent".*?</section>', page, re.S)
    assert section is not None
    blocks = [
        html.unescape(re.sub("<[^>]*>", "", block)) for block in re.findall(r"<pre [^>]*>(.*?)</pre>", section[0], re.S)
    ]
    link = re.search(r'<a class="btn" href="([^"]*)"', section[0])
    return Card(
        re.findall(r'href="\?client=([a-z]+)#agent"', section[0]),
        blocks,
        html.unescape(link[1]) if link else "",
        html.unescape(re.sub("<[^>]*>", "", section[0])),
    )


class Agents:
    """A server with a skill `agents.greet`, its page in a browser, and a user of `skillery connect`."""

    name = "agents.greet"

    def __init__(self, server: Server, token: str, folder: Path) -> None:
        self.server = server
        self.token = token
        self.rpc = Rpc(server.url, token) if token else Rpc(server.url)
        self.browser = Browser(server.url, accept="text/html")
        assert not token or self.browser.sign_in(token).status_code == 303
        self.user = ClientUser(server.url, folder)
        if token:
            self.user.log_in(token)
        self.publish(self.name)

    def publish(self, name: str, version: str = "1.0.0", *, submit: bool = True, has_tool: bool = False) -> None:
        manifest = {"name": name, "version": version, "description": "Greet.", "kind": "instruction"}
        files = [
            {"path": "tools.json", "content": json.dumps([TOOL])},
            {"path": "scripts/price.py", "content": "print(1)\n"},
        ]
        more = {"files": files} if has_tool else {}
        if has_tool:
            del manifest["kind"]
        self.rpc("create_skill", manifest=manifest, skill_md="# Greet\n", submit=submit, **more)

    def card(self, client: str, skill: str = "") -> Card:
        return card_of(self.browser, f"/s/{skill or self.name}?client={client}")


@pytest.fixture(scope="module")
def closed(tokens_sqlite: Server, tmp_path_factory: pytest.TempPathFactory) -> Agents:
    scopes = ("read", "run", "publish")
    token = token_of(tokens_sqlite, "agents-ann", *scopes, namespaces=["agents.*"])
    return Agents(tokens_sqlite, token, tmp_path_factory.mktemp("closed"))


@pytest.fixture(scope="module")
def opened(sqlite_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Agents:
    return Agents(sqlite_server, "", tmp_path_factory.mktemp("opened"))


def connected(agents: Agents, client: str) -> list[str]:
    """Return what `skillery connect` prints for a client, with the name of the skill in place of placeholders."""
    printed = agents.user.connect(client, "--json").json
    text = "\n".join(part for part in (printed["text"], *printed["commands"]) if part)
    text = re.sub(r'[^\s"]*/skillery(?=[\s"])', "skillery", text)
    text = text.replace("PLUGIN", "agents-greet").replace("skills/NAME", "skills/agents-greet")
    if CLIENTS[client].skills_as == "folders":
        text = text.replace("/git/_all.git", f"/git/n/{agents.name}.git")
    return text.split("\n") if text else []


@pytest.mark.parametrize("client", [client for client in CLIENTS if client != "apm"])
@pytest.mark.full(after=2)
def test_the_card_has_the_lines_of_connect(client: str, closed: Agents) -> None:
    shown = closed.card(client)
    lines = "\n".join(shown.blocks).split("\n")
    write = [] if client == "mcp" else [f"skillery connect {client} --url {closed.server.url} --write"]

    assert lines == [f"skillery login --url {closed.server.url}", *write, *connected(closed, client)]
    assert closed.token not in closed.browser.get(f"/s/{closed.name}?client={client}").text


@pytest.mark.parametrize("client", ["claude", "npx", "apm", "mcp"])
@pytest.mark.full(after=1)
def test_lines_for_an_open_server_have_no_login(client: str, opened: Agents) -> None:
    shown = opened.card(client)
    lines = "\n".join(shown.blocks).split("\n")
    write = [f"skillery connect {client} --url {opened.server.url} --write"] if client == "claude" else []

    assert lines == [*write, *connected(opened, client)]
    for other in OTHERS:
        assert "skillery login" not in opened.card(other).text
        assert "SKILLERY_TOKEN" not in opened.card(other).text


@pytest.mark.full
def test_the_lines_work(closed: Agents) -> None:
    login, connect, marketplace, install, _ = closed.card("claude").blocks[0].split("\n")
    assert login == f"skillery login --url {closed.server.url}"
    done = skillery(*shlex.split(connect)[1:], **closed.user.variables)
    assert done.code == 0, done.err
    address, plugin = marketplace.split()[-1], install.split()[-1]
    assert closed.user.git("clone", "--quiet", address, "marketplace").returncode == 0
    repository = closed.card("npx").blocks[0].split()[-1]
    assert closed.user.git("clone", "--quiet", repository, "skill").returncode == 0

    described = json.loads((closed.user.home / "marketplace/.claude-plugin/marketplace.json").read_text())
    assert plugin in {f"{entry['name']}@{described['name']}" for entry in described["plugins"]}
    assert (closed.user.home / "skill/skills/agents-greet/SKILL.md").exists()


@pytest.mark.parametrize(("client", "path"), [("cursor", ".cursor/mcp.json"), ("vscode", ".vscode/mcp.json")])
def test_install_links_have_the_written_settings(
    client: str, path: str, closed: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(closed.user.home)  # `vscode` writes to the current folder
    closed.user.written(client)
    [[name, written]] = next(iter(json.loads((closed.user.home / path).read_text()).values())).items()
    link = urlsplit(closed.card(client).link)
    if client == "cursor":
        assert link[:3] == ("cursor", "anysphere.cursor-deeplink", "/mcp/install")
        query = parse_qs(link.query, strict_parsing=True)
        settings = {"name": query["name"][0], **json.loads(base64.b64decode(query["config"][0], validate=True))}
    else:
        assert link[:3] == ("vscode", "", "mcp/install")
        settings = json.loads(unquote(link.query))

    assert settings == {"name": name, **written, "command": "skillery"}
    foreign = httpx.get(f"{closed.server.url}/s/{closed.name}", headers={"host": "evil.example"})
    assert (foreign.status_code, "evil.example/" in foreign.text) == (403, False)


def test_the_choice_is_kept(closed: Agents) -> None:
    browser = Browser(closed.server.url, accept="text/html")
    browser.sign_in(closed.token)
    path = f"/s/{closed.name}"
    first = browser.get(path)
    chosen = browser.get(f"{path}?client=codex")

    assert "claude plugin install" in card_of(browser, f"{path}?client=claude").text
    assert "set-cookie" not in first.headers
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= attributes(chosen, "skillery-client")
    browser.get(f"{path}?client=codex")
    assert "codex plugin add" in card_of(browser, path).text
    assert "set-cookie" not in browser.get(f"{path}?client=emacs").headers
    assert "codex plugin add" in card_of(browser, f"{path}?client=emacs").text


def test_clients_that_cannot_work_are_absent(closed: Agents, opened: Agents) -> None:
    all_but_apm = [client for client in CLIENTS if client != "apm"]
    closed.publish("agents.idea", submit=False)
    closed.publish("agents.same-name")
    closed.publish("agents.same.name")

    assert opened.card("claude").clients == [*CLIENTS, *OTHERS]
    assert closed.card("claude").clients == [*all_but_apm, *OTHERS]
    assert closed.card("claude", "agents.idea").clients == ["cursor", "vscode", "mcp", *OTHERS]
    second = closed.card("claude", "agents.same.name").clients
    assert second == ["cursor", "vscode", "npx", "mcp", *OTHERS], "another skill is the plugin agents-same-name"
    assert "skillery read agents.idea@1.0.0" in closed.card("claude", "agents.idea").text


@pytest.mark.parametrize(
    ("url", "needs_login", "reaches"),
    [
        ("https://skills.example.org", True, True),
        ("http://127.0.0.1:8000", False, True),
        ("http://127.0.0.1:8000", True, False),
        ("https://localhost", True, False),
    ],
)
def test_apm_needs_tls_and_a_full_host(url: str, needs_login: bool, reaches: bool) -> None:
    assert CLIENTS["apm"].reaches(Connected(url, "skills", needs_login=needs_login)) is reaches


def test_the_card_of_another_version_names_the_installed_version(closed: Agents) -> None:
    name = "agents.aged"
    for version in ("1.0.0", "1.1.0", "2.0.0"):
        closed.publish(name, version)
    closed.rpc("yank_version", name=name, version="1.1.0", reason="Wrong.")
    old, yanked = (closed.card("claude", f"{name}@{version}").text for version in ("1.0.0", "1.1.0"))

    assert "Claude Code gets the latest version, 2.0.0. This page shows another." in old
    assert "Version 1.1.0 is yanked. These lines use 2.0.0." in yanked
    assert "skillery read agents.aged@2.0.0" in closed.card("shell", f"{name}@1.1.0").text


@pytest.mark.full(after=1)
@pytest.mark.parametrize("client", ["cursor", "claude", "npx"])
def test_lines_of_a_skill_with_tools_offer_them(client: str, closed: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"agents.priced-{client}"
    closed.publish(name, has_tool=True)
    monkeypatch.chdir(closed.user.home)
    shown = closed.card(client, name)
    connect = shown.blocks[0].split("\n")[1]

    assert (f" --tools {name} " in connect) is (client != "npx")
    assert ("The client then has the tool price_of." in shown.text) is (client != "npx")
    done = skillery(*shlex.split(connect)[1:], "--json", **closed.user.variables)
    assert done.code == 0, done.err
    if client == "cursor":
        assert f'"{name}"' in done.json["files"][0]["addition"]
        assert name in json.dumps(json.loads(base64.b64decode(parse_qs(urlsplit(shown.link).query)["config"][0])))


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_the_card_has_no_fault_in_a_browser(opened: Agents, open_page: OpenPage) -> None:
    page = await open_page(opened.server, f"/s/{opened.name}")
    for client in CLIENTS:
        await page.get_by_label("Client").get_by_role("link", name=CLIENTS[client].title, exact=True).click()
        await page.wait_for_url(f"**?client={client}#agent")

        assert await faults(page) == [], client
        assert await problems(page) == [], client
        copied = page.locator(".agent [data-copy]")
        assert await copied.count() == await page.locator(".agent pre").count()
        assert await copied.first.is_visible()
