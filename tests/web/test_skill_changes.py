"""Changes of a skill by the forms of its page: yank, deprecate, labels, visibility, submit, each with its undo."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.async_api import expect

from tests.conftest import Rpc, Server
from tests.support.browser import Browser, part_of, token_of
from tests.support.chromium import OpenPage, problems
from tests.support.processes import eventually

HTML = {"accept": "text/html"}


class Author:
    """A publisher who changes a skill by the forms of its page, on each database."""

    def __init__(self, server: Server, name: str) -> None:
        self.name = f"{name}.text"
        self.server = server
        token = token_of(server, f"{name}-ann", "read", "publish", namespaces=[f"{name}.*"])
        self.rpc = Rpc(server.url, token)
        self.browser = Browser(server.url, **HTML)
        assert self.browser.sign_in(token).status_code == 303
        for version in ("1.0.0", "1.1.0"):
            self.publish(version)
        self.page = f"/s/{self.name}@1.1.0"

    def publish(self, version: str, **more: Any) -> None:
        manifest = {"name": self.name, "version": version, "kind": "instruction", "description": "A text."}
        self.rpc("create_skill", manifest=manifest, skill_md="# Text\n", **more)

    def skill(self, version: str = "1.1.0") -> dict[str, Any]:
        found: dict[str, Any] = self.rpc("describe_skill", name=self.name, version=version, detail="summary")["skill"]
        return found

    def send(self, **fields: str) -> str:
        """Send a form, and return the line about the change."""
        token = self.browser.fields(self.page)["form_token"]
        answer = self.browser.post(self.page, {"form_token": token, **fields})
        assert answer.status_code == 303, answer.text
        page = self.browser.get(answer.headers["location"]).text
        return part_of(page, '<div class="note done" role="status">(.*?)</div>')

    def undo(self, line: str) -> str:
        """Send the form of "Undo" in a line."""
        self.page = part_of(line, 'action="([^"]+)"')
        fields = re.findall(r'name="([a-z_]+)" value="([^"]*)"', line)
        return self.send(**{name: html.unescape(value) for name, value in fields if name != "form_token"})


@pytest.fixture
def author(tokens_server: Server, new_name: str) -> Author:
    return Author(tokens_server, new_name)


def test_changes_have_an_undo(author: Author) -> None:
    changes: list[tuple[dict[str, str], Callable[[], bool]]] = [
        ({"action": "yank", "reason": "It leaks <b>rows</b>."}, lambda: author.skill()["status"] == "yanked"),
        ({"action": "deprecate", "message": "old"}, lambda: author.skill()["status"] == "deprecated"),
        ({"action": "set_label", "label": "stable"}, lambda: author.skill()["labels"] == ["stable"]),
        ({"action": "set_visibility", "visibility": "private"}, lambda: author.skill()["visibility"] == "private"),
    ]
    for fields, is_done in changes:
        line = author.send(**fields)
        assert is_done(), fields
        author.undo(line)
        assert not is_done(), fields


def test_undo_restores_previous_state(author: Author) -> None:
    author.rpc("set_label", name=author.name, label="stable", version="1.0.0")
    line = author.send(action="set_label", label="stable")
    assert "stable moved from 1.0.0 to 1.1.0." in line
    author.undo(line)
    assert author.skill("1.0.0")["labels"] == ["stable"]

    author.undo(author.send(action="remove_label", label="stable"))
    assert author.skill("1.0.0")["labels"] == ["stable"]

    author.rpc("set_label", name=author.name, label="stable", version="1.1.0")
    line = author.send(action="rollback_label", label="stable")
    assert "stable is 1.0.0 again." in line
    author.undo(line)
    assert author.skill("1.1.0")["labels"] == ["stable"]

    author.rpc("yank_version", name=author.name, version="1.1.0", reason="first")
    author.undo(author.send(action="unyank"))
    assert author.skill()["yanked"]["reason"] == "first"
    author.rpc("unyank_version", name=author.name, version="1.1.0")

    author.send(action="yank", reason="leaks", severity="security")
    first = author.skill()["yanked"]
    page = author.browser.get(f"/s/{author.name}@1.1.0").text
    assert all(words in page for words in ("as security", first["advisory"], "Only reviewers run this version."))
    token = token_of(author.server, f"{author.name}-adam", "admin", namespaces=["*"])
    assert author.browser.sign_in(token).status_code == 303
    author.undo(author.send(action="unyank"))
    second = author.skill()["yanked"]
    assert (second["severity"], second["advisory"] > first["advisory"]) == ("security", True)


def test_labels_name_the_version_of_a_rollback(author: Author) -> None:
    for label, versions in (("canary", ("1.1.0",)), ("stable", ("1.0.0", "1.1.0"))):
        for version in versions:
            author.rpc("set_label", name=author.name, label=label, version=version)

    page = author.browser.get(author.page).text
    assert re.findall("Roll back[^<]*", page) == ["Roll back stable to 1.0.0"]


def test_a_rollback_from_an_old_page_changes_nothing(author: Author) -> None:
    for version in ("1.0.0", "1.1.0"):
        author.rpc("set_label", name=author.name, label="stable", version=version)
    page = author.browser.get(author.page).text
    assert "Roll back stable to 1.0.0" in page
    form = {"form_token": author.browser.fields(author.page)["form_token"], "label": "stable", "to": "1.0.0"}

    first, second = (author.browser.post(author.page, form | {"action": "rollback_label"}) for _ in range(2))

    assert (first.status_code, second.status_code) == (303, 409)
    assert author.skill("1.0.0")["labels"] == ["stable"]
    assert "Roll back stable" not in author.browser.get(author.page).text


def test_a_draft_is_submitted(author: Author) -> None:
    author.publish("2.0.0", submit=False)
    author.page = f"/s/{author.name}@2.0.0"

    assert "Version 2.0.0 is" in author.send(action="submit")
    assert author.skill("2.0.0")["status"] in {"published", "in_review"}


def test_problems_are_at_their_fields(author: Author) -> None:
    token = author.browser.fields(author.page)["form_token"]
    for fields, text in (
        ({"action": "yank", "reason": " "}, "'reason' is blank. Write a sentence."),
        ({"action": "yank", "reason": "x" * 2001}, "'reason' is not valid"),
        ({"action": "set_label", "label": "1.0"}, "'1.0' is not a label"),
        ({"action": "deprecate", "message": " "}, "'message' is blank. Write a sentence."),
        ({"action": "deprecate", "message": "x", "successor": "Not a name"}, "Nothing was changed."),
        ({"action": "set_visibility", "visibility": "x"}, "'visibility' is one of namespace, private, public."),
        ({"action": "steal"}, "The form has no known action."),
    ):
        answer = author.browser.post(author.page, {"form_token": token, **fields})

        assert answer.status_code in {400, 404, 409}, fields
        assert text in html.unescape(answer.text), fields
    assert author.skill()["status"] == "published"


def test_readers_have_no_buttons_and_their_forms_are_refused(author: Author, new_name: str) -> None:
    reader = Browser(author.server.url, **HTML)
    token = token_of(author.server, f"{new_name}-reader", "read", "run", "publish", namespaces=["elsewhere.*"])
    assert reader.sign_in(token).status_code == 303
    form = reader.fields("/account")["form_token"]

    assert 'id="change"' not in reader.get(author.page).text
    for fields in (
        {"action": "yank", "reason": "x"},
        {"action": "deprecate", "message": "x"},
        {"action": "set_label", "label": "stable"},
        {"action": "set_visibility", "visibility": "private"},
        {"action": "submit"},
    ):
        assert reader.post(author.page, {"form_token": form, **fields}).status_code == 403, fields
    assert author.skill()["status"] == "published"


@pytest.mark.full(after=1)
def test_a_refused_form_leaves_a_single_audit_entry(author: Author, new_name: str) -> None:
    reader = Browser(author.server.url, **HTML)
    assert reader.sign_in(token_of(author.server, f"{new_name}-reader", "read")).status_code == 303
    form = {"form_token": reader.fields("/account")["form_token"], "action": "yank", "reason": "x"}
    ids = [reader.post(author.page, form).headers["x-request-id"] for _ in range(2)]

    admin = Rpc(author.server.url, token_of(author.server, f"{new_name}-admin", "admin"))

    def entries(request_id: str) -> list[str]:
        listed = admin("list_audit", outcome="refused")["entries"]
        return [entry["action"] for entry in listed if entry["request_id"] == request_id]

    assert eventually(lambda: entries(ids[1]))  # entries are written in order
    assert entries(ids[0]) == ["yank_version"]


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_a_publisher_yanks_and_takes_back_without_javascript(
    tokens_sqlite: Server, open_page: OpenPage, new_name: str
) -> None:
    author = Author(tokens_sqlite, new_name)
    cookie = {"name": "skillery", "value": author.browser.cookie(), "url": tokens_sqlite.url}
    page = await open_page(tokens_sqlite, "/login", javascript=False)
    await page.context.add_cookies([cookie])  # type: ignore[list-item]
    await page.goto(author.page)
    await page.get_by_text("Yank 1.1.0").first.click()
    await page.get_by_label("Reason").fill("It leaks.")
    await page.get_by_role("button", name="Yank 1.1.0").click()
    await expect(page.get_by_role("status")).to_contain_text("Version 1.1.0 is yanked.")
    await expect(page.locator("main")).to_contain_text("Reason: It leaks.")
    await page.get_by_role("button", name="Undo").click()

    await expect(page.get_by_role("status")).to_contain_text("no longer yanked")
    assert author.skill()["status"] == "published"


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_a_publisher_rolls_a_label_back_and_undoes_it(
    tokens_server: Server, open_page: OpenPage, new_name: str
) -> None:
    author = Author(tokens_server, new_name)
    for version in ("1.0.0", "1.1.0"):
        author.rpc("set_label", name=author.name, label="stable", version=version)
    page = await open_page(tokens_server, "/login")
    cookie = {"name": "skillery", "value": author.browser.cookie(), "url": tokens_server.url}
    await page.context.add_cookies([cookie])  # type: ignore[list-item]
    await page.goto(author.page)

    await page.get_by_role("button", name="Roll back stable to 1.0.0").click()
    await expect(page.get_by_role("status").first).to_contain_text("stable is 1.0.0 again.")
    assert author.skill("1.0.0")["labels"] == ["stable"]
    await page.get_by_role("button", name="Undo").click()
    await expect(page.get_by_role("status").first).to_contain_text("stable moved from 1.0.0 to 1.1.0.")


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_back_opens_the_page_of_a_refused_form(tokens_sqlite: Server, open_page: OpenPage, new_name: str) -> None:
    author = Author(tokens_sqlite, new_name)
    page = await open_page(tokens_sqlite, "/login")
    cookie = {"name": "skillery", "value": author.browser.cookie(), "url": tokens_sqlite.url}
    await page.context.add_cookies([cookie])  # type: ignore[list-item]
    await page.goto(author.page)
    await page.get_by_text("Yank 1.1.0").first.click()
    for reason, answer in ((" ", "is blank. Write a sentence."), ("It leaks.", "Version 1.1.0 is yanked.")):
        await page.get_by_label("Reason").fill(reason)
        await page.get_by_role("button", name="Yank 1.1.0").click()
        await expect(page.get_by_text(answer).first).to_be_visible()

    await page.go_back()

    await expect(page.get_by_role("button", name="Unyank 1.1.0")).to_be_visible()
    assert [line for line in await problems(page) if "400 (Bad Request)" not in line] == []
