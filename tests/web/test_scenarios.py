"""Whole visits in a real browser: from the search to a run, from a dropped folder to an approved version, by keyboard
alone, and without JavaScript.
"""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page

from tests.conftest import Server
from tests.support.chromium import OpenPage, layout_shift, problems
from tests.support.people import Caller, Who

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("database_kind", ["sqlite"], scope="session"),
]
CODE = "def main(args):\n    print('counting')\n    return {'words': len(args['text'].split())}\n"


class Team:
    """An author, a reviewer and a reader, who all work in one namespace."""

    def __init__(self, server: Server, namespace: str) -> None:
        self.server = server
        self.name = f"{namespace}.words"
        grant = f"{namespace}.*"
        self.author = Who(f"{namespace}-ann", "read run publish", grant, "agent")
        self.reviewer = Who(f"{namespace}-bob", "read run publish review", grant)
        self.reader = Who(f"{namespace}-eve", "read")

    def files(self, version: str = "1.0.0") -> dict[str, str]:
        toml = (
            f'name = "{self.name}"\nversion = "{version}"\nkind = "action"\n'
            f'description = "Count the words of a text. For {self.name}."\n\n'
            '[inputs.text]\ntype = "string"\nrequired = true\ndescription = "The text to count"\n\n'
            '[runtime]\nlanguage = "python"\nentrypoint = "code/main.py"\n\n'
            '[permissions]\nnetwork = ["https://words.example.com"]\n'
        )
        return {"skill.toml": toml, "SKILL.md": f"# Words\n\nCount words, {version}.\n", "code/main.py": CODE}

    def folder(self, home: Path, version: str = "1.0.0") -> Path:
        for path, text in self.files(version).items():
            (home / "words" / path).parent.mkdir(parents=True, exist_ok=True)
            (home / "words" / path).write_text(text)
        return home / "words"

    async def call(self, who: Who, method: str, **params: Any) -> Any:
        return await asyncio.to_thread(lambda: Caller(self.server.url, who)(method, **params))

    async def publish(self) -> None:
        """Publish version 1.0.0 without a browser."""
        files = [{"path": path, "content": text} for path, text in self.files().items() if path.startswith("code")]
        manifest = tomllib.loads(self.files()["skill.toml"])
        await self.call(self.reviewer, "create_skill", manifest=manifest, skill_md="# Words\n", files=files)


@pytest.fixture
def team(org: Server, new_name: str) -> Team:
    return Team(org, new_name)


@pytest.fixture
def visit(team: Team, open_page: OpenPage) -> Any:
    async def open_one(who: Who, path: str, **more: Any) -> Page:
        headers = {"x-who": f"{who.name};{who.kind};{who.scopes};{who.grants}"}
        return await open_page(team.server, path, extra_http_headers=headers, **more)

    return open_one


async def settled(page: Page) -> None:
    """Wait until the page of a run shows the end of the run. The page loads itself again at the end."""
    await page.get_by_role("link", name="Run again").wait_for()
    await page.wait_for_load_state()


@pytest.mark.smoke
async def test_search_read_try_run(team: Team, visit: Any) -> None:
    await team.publish()
    page = await visit(team.reviewer, "/")
    await page.get_by_role("searchbox").fill(f"{team.name}")
    await page.get_by_role("link", name=team.name).first.click()
    await page.get_by_role("heading", name=team.name).wait_for()
    assert await page.get_by_text("Count the words of a text.").count() > 0
    await page.get_by_role("link", name="Try it").first.click()
    await page.get_by_text("This run may reach").wait_for()
    await page.get_by_label("text string").fill("one two three")
    await page.get_by_role("button", name=f"Run {team.name}").click()
    await settled(page)

    assert await page.get_by_text("counting").count() == 1
    assert await page.locator(".values dl").inner_text() == "words\n3"
    phases = await page.get_by_role("region", name="Phases").inner_text()
    for words in ("prepared", "running", "collected"):
        assert words in phases
    await page.get_by_text("All limits").click()
    for name in ("Memory", "Files in /workspace"):
        assert " of " in await page.locator(f"dt:text-is('{name}') + dd").inner_text()
    assert await layout_shift(page) == 0
    await page.get_by_role("link", name="Run again").click()
    assert await page.get_by_label("text string").input_value() == "one two three"


@pytest.mark.full
async def test_invalid_input_is_reported_at_its_field(team: Team, visit: Any) -> None:
    await team.publish()
    page = await visit(team.reviewer, f"/s/{team.name}/try")
    await page.get_by_text("More arguments").click()
    await page.get_by_label("An object in JSON").fill('{"text": 7}')
    await page.get_by_role("button", name=f"Run {team.name}").click()
    await page.get_by_role("alert").wait_for()

    assert "400" in " ".join(await problems(page))
    field = page.get_by_label("text string")
    assert await field.get_attribute("aria-invalid") == "true"
    assert "expected type string" in await page.locator("#a0-problem").inner_text()
    assert await page.get_by_label("An object in JSON").input_value() == '{"text": 7}'


@pytest.mark.full
@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
async def test_publish_review_approve_run_yank(team: Team, visit: Any, tmp_path: Path, javascript: bool) -> None:
    page = await visit(team.author, "/publish", javascript=javascript)
    await page.get_by_label("A folder").set_input_files(team.folder(tmp_path))
    await page.get_by_role("button", name="Check the skill").click()
    await page.get_by_role("heading", name="What it may do").wait_for()
    await page.get_by_role("button", name="1.0.0").first.click()
    await page.wait_for_url(f"**/s/{team.name}@1.0.0")
    submit = page.get_by_role("button", name="Submit")
    if await submit.count():
        await submit.first.click()
        await page.get_by_text("In review.", exact=True).wait_for()

    page = await visit(team.reviewer, "/review", javascript=javascript)
    assert "1" in await page.locator(".count").inner_text()
    await page.get_by_role("link", name=team.name).click()
    await page.get_by_role("button", name="Approve").click()
    await page.get_by_role("alert").get_by_text("Confirm each new permission").wait_for()
    assert "400" in " ".join(await problems(page)) or not javascript
    await page.get_by_role("checkbox", name="words.example.com").check()
    await page.get_by_role("button", name="Approve").click()
    await page.get_by_text("is approved and published").wait_for()
    assert await page.locator(".count").count() == 0

    await page.goto(f"/s/{team.name}/try")
    await page.get_by_label("text string").fill("one two")
    await page.get_by_role("button", name=f"Run {team.name}").click()
    await page.wait_for_url("**/runs/run_*")
    run_id = page.url.rpartition("/")[2]
    run = await team.call(team.reviewer, "get_run", run_id=run_id, wait_ms=60000)
    if javascript:
        await settled(page)
    assert run["output"] == {"words": 2}
    await page.goto(f"/runs/{run_id}")
    assert await page.get_by_text("completed", exact=True).count() == 1

    await team.call(team.reviewer, "yank_version", name=team.name, version="1.0.0", reason="It miscounts.")
    await page.goto(f"/s/{team.name}@1.0.0")
    assert await page.get_by_text("Reason: It miscounts.").count() == 1


@pytest.mark.full
async def test_readers_cannot_open_pages_beyond_their_scopes(team: Team, visit: Any) -> None:
    await team.publish()
    page = await visit(team.reader, f"/s/{team.name}")
    assert await page.get_by_role("link", name="Try it").count() == 0
    links = await page.get_by_role("navigation", name="Main").inner_text()
    assert links.split() == ["Skills"]
    for path in (f"/s/{team.name}/try", "/publish", "/review", f"/review/{team.name}@1.0.0"):
        answer = await page.goto(path)
        assert answer is not None
        assert answer.status == 403, path
        assert await page.get_by_role("link", name="What may I do?").count() == 1
    answer = await page.goto("/runs/run_unknown")
    assert answer is not None
    assert answer.status == 404
    assert all("403" in one or "404" in one for one in await problems(page))


async def focus_by_tab(page: Page, condition: str, most: int = 80) -> None:
    """Press Tab until the focused element matches a CSS selector."""
    for _ in range(most):
        if await page.evaluate("selector => document.activeElement.matches(selector)", condition):
            return
        await page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not reach {condition}")


@pytest.mark.full
async def test_publish_review_and_run_by_keyboard_alone(team: Team, visit: Any, tmp_path: Path) -> None:
    page = await visit(team.author, "/")
    await page.keyboard.press("g")
    await page.keyboard.press("p")
    await page.wait_for_url("**/publish")
    page.on("filechooser", lambda _: None)  # long before the key: Chromium reports choosers only from then on
    await focus_by_tab(page, "#folder")
    async with page.expect_file_chooser() as chooser:
        await page.keyboard.press("Enter")
    await (await chooser.value).set_files(team.folder(tmp_path))
    await focus_by_tab(page, "button.main")
    await page.keyboard.press("Enter")
    await page.get_by_role("heading", name="What it may do").wait_for()
    await page.keyboard.press("a")
    await focus_by_tab(page, "button.main")
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/s/{team.name}@1.0.0")
    await team.call(team.author, "submit_version", name=team.name, version="1.0.0")

    page = await visit(team.reviewer, "/")
    await page.keyboard.press("g")
    await page.keyboard.press("v")
    await page.wait_for_url("**/review")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"**/review/{team.name}@1.0.0")
    for key, focused in (("f", "#findings"), ("a", "#decide")):
        await page.keyboard.press(key)
        assert await page.evaluate("selector => document.activeElement.matches(selector)", focused)
    await focus_by_tab(page, "[name=tick]")
    await page.keyboard.press("Space")
    await focus_by_tab(page, "#note")
    await page.keyboard.type("as agreed, g s / ? stay text")
    await focus_by_tab(page, "[value=approve]")
    await page.keyboard.press("Enter")
    await page.get_by_text("is approved and published").wait_for()

    await page.keyboard.press("/")
    await page.keyboard.type(team.name)
    await page.keyboard.press("Enter")
    await page.locator("[data-rows] a", has_text=team.name).first.wait_for()
    await focus_by_tab(page, "main a, main input")
    await page.evaluate("document.activeElement.blur()")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.get_by_role("heading", name=team.name).wait_for()
    await page.keyboard.press("y")
    await page.wait_for_url(f"**/s/{team.name}@1.0.0")
    await focus_by_tab(page, "a.btn.main")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/try")
    await focus_by_tab(page, "#a0")
    await page.keyboard.type("four words and three")
    await focus_by_tab(page, "form.card button.main")
    await page.keyboard.press("Enter")
    await settled(page)

    assert await page.locator(".values dl").inner_text() == "words\n4"


@pytest.mark.full
async def test_keys_move_in_differences_and_can_be_switched_off(team: Team, visit: Any) -> None:
    await team.publish()
    files = [{"path": "code/main.py", "content": CODE.replace("counting", "other")}]
    manifest = tomllib.loads(team.files("1.1.0")["skill.toml"])
    await team.call(team.reviewer, "create_skill", manifest=manifest, skill_md="# Words\n\nNew.\n", files=files)
    page = await visit(team.reviewer, f"/s/{team.name}@1.1.0/diff/1.0.0")
    changes = "[...document.querySelectorAll('[data-change]')].indexOf(document.activeElement)"
    seen = []
    for key in ("n", "n", "p"):
        await page.keyboard.press(key)
        seen.append(await page.evaluate(changes))
    assert seen == [0, 1, 0]
    await page.keyboard.press("?")
    await page.get_by_role("dialog").wait_for()
    await page.keyboard.press("Escape")
    await page.goto("/account")
    await page.get_by_label("off", exact=True).check()
    await page.get_by_role("button", name="Save the settings").click()
    await page.locator("html[data-keys=off]").wait_for()
    await page.goto("/runs")
    await page.keyboard.press("?")
    await page.keyboard.press("g")
    await page.keyboard.press("p")
    assert await page.get_by_role("dialog").count() == 0
    assert page.url.endswith("/runs")
