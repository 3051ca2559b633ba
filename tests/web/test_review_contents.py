"""The page of a decision in full: hosts, limits, packages, programs, pictures, renamed files, and decisions."""

from __future__ import annotations

import base64
import html
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.conftest import Server
from tests.support.browser import Browser
from tests.support.chromium import OpenPage
from tests.support.people import Caller, Who

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
GIF = base64.b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7")


class Team:
    """People with a grant for a namespace of their own, as browsers and as clients."""

    def __init__(self, server: Server, namespace: str) -> None:
        self.server = server
        self.name = f"{namespace}.orders"
        grant = f"{namespace}.*"
        self.ann = Who(f"{namespace}-ann", "read run publish review", grant)
        self.bob = Who(f"{namespace}-bob", "read run review", grant)
        self.bot = Who(f"{namespace}-bot", "read publish", grant, "agent")

    def rpc(self, who: Who) -> Caller:
        return Caller(self.server.url, who)

    def browser(self, who: Who) -> Browser:
        headers = {"accept": "text/html", "x-who": f"{who.name};{who.kind};{who.scopes};{who.grants}"}
        return Browser(self.server.url, **headers)

    def publish(self, who: Who, version: str, name: str = "", files: Any = (), **more: Any) -> None:
        """Publish a version. The versions of agents wait for a review."""
        name = name or self.name
        manifest = {
            "name": name,
            "version": version,
            "kind": "action",
            "description": f"Export orders {version} of {name}.",
            **{key: value for key, value in more.items() if key != "runtime"},
            "runtime": {"language": "python", "entrypoint": "code/main.py", **more.get("runtime", {})},
        }
        code = {"path": "code/main.py", "content": "def main(args):\n    return {}\n"}
        rpc = self.rpc(who)
        rpc("create_skill", manifest=manifest, skill_md=f"# Orders\n\nVersion {version}.\n", files=[code, *files])
        if who.kind == "agent":
            rpc("submit_version", name=name, version=version)

    @property
    def page(self) -> str:
        return f"/review/{self.name}@1.1.0"

    def status(self, version: str = "1.1.0") -> str:
        found: str = self.rpc(self.ann)("describe_skill", name=self.name, version=version)["skill"]["status"]
        return found


@pytest.fixture
def team(org: Server, new_name: str) -> Team:
    return Team(org, new_name)


def text_of(answer: httpx.Response) -> str:
    """Return the text of a page without tags, with single spaces."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())


def decide(browser: Browser, page: str, action: str, **fields: Any) -> httpx.Response:
    form = browser.fields(page) | {"action": action, **fields}
    return browser.http.post(page, data=form, headers={"origin": browser.url})


def test_a_new_host_says_how_many_skills_reach_it(team: Team, new_name: str) -> None:
    host = f"https://api.{new_name}.example.net"
    team.publish(team.ann, "1.0.0")
    network = [host, f"https://only.{new_name}.example.org"]
    team.publish(team.bot, "1.1.0", permissions={"network": network})
    browser = team.browser(team.bob)
    before = text_of(browser.get(team.page))
    for number, one in enumerate((host, f"https://*.{new_name}.example.net", f"http://api.{new_name}.example.net")):
        team.publish(team.bot, "1.0.0", f"{new_name}.other{number}", permissions={"network": [one]})
        team.rpc(team.bob)("approve_version", name=f"{new_name}.other{number}", version="1.0.0")
    after = text_of(browser.get(team.page))

    assert f"May send to and read from {host} No other published skill that you see reaches this host." in before
    assert f"May send to and read from {host} 2 other published skills that you see reach this host." in after
    assert f"{network[1]} No other published skill that you see reaches this host." in after


@pytest.mark.full
def test_a_new_call_has_a_note_on_the_permissions_of_its_skill(team: Team, new_name: str) -> None:
    mail, host = f"{new_name}.mail", f"https://mail.{new_name}.example.net"
    team.publish(team.bot, "1.0.0", mail, permissions={"network": [host], "secrets": ["MAIL_KEY"]})
    team.rpc(team.bob)("approve_version", name=mail, version="1.0.0")
    team.publish(team.ann, "1.0.0")
    team.publish(team.bot, "1.1.0", requires={"skills": {mail: "*"}})

    page = text_of(team.browser(team.bob).get(team.page))

    assert f"with the permissions of that skill, {mail} Version 1.0.0 may use {host}, MAIL_KEY." in page


def test_review_shows_changed_limits_packages_and_programs(team: Team) -> None:
    def runtime(figures: str, **limits: int) -> dict[str, Any]:
        return {"dependencies": [f"figures=={figures}"], **({"limits": limits} if limits else {})}

    script = {"path": "code/go.sh", "content": "#!/bin/sh\n", "executable": True}
    team.publish(team.ann, "1.0.0", runtime=runtime("1.0"))
    more = runtime("2.0", memory_mb=1024, timeout_ms=2000)
    team.publish(team.bot, "1.1.0", runtime=more, files=[script], permissions={"network": ["https://x.example.com"]})
    page = text_of(team.browser(team.bob).get(team.page))

    assert "May use 1,024 MiB of memory The default of this server is 512 MiB of memory." in page
    assert "of time" not in page
    assert "Can be run as a program: code/go.sh" in page
    assert "Package Before Now figures 1.0 2.0" in page


def test_a_permission_in_workspaces_needs_a_tick(team: Team) -> None:
    permissions = {"network": ["https://x.example.com"]}
    team.publish(team.bot, "1.0.0", permissions=permissions)
    assert team.rpc(team.bob)("approve_version", name=team.name, version="1.0.0")["status"] == "published"
    team.publish(team.bot, "1.1.0", permissions=permissions, runtime={"workspace": True})
    browser = team.browser(team.bob)

    assert "May use its permissions on files of workspaces" in text_of(browser.get(team.page))
    assert decide(browser, team.page, "approve").status_code == 400
    assert decide(browser, team.page, "approve", tick=["workspace:workspaces"]).status_code == 303


def test_review_shows_both_pictures_and_combines_renamed_files(team: Team) -> None:
    def files(picture: bytes, path: str) -> list[dict[str, Any]]:
        encoded = base64.b64encode(picture).decode()
        return [
            {"path": "resources/logo.png", "content": encoded, "encoding": "base64"},
            {"path": path, "content": "a\n" * 9},
        ]

    team.publish(team.ann, "1.0.0", files=files(PNG, "resources/old.txt"))
    team.publish(team.bot, "1.1.0", files=files(GIF, "resources/new.txt"))
    answer = team.browser(team.bob).get(team.page)

    for version in ("1.0.0", "1.1.0"):
        assert f'<img src="/s/{team.name}@{version}/raw/resources/logo.png"' in answer.text
    assert "resources/new.txt renamed 18 B Before: resources/old.txt" in text_of(answer)
    assert ">resources/old.txt</" not in answer.text
    assert re.search(r'<td class="t">[^\n]*<ins>', answer.text)  # a renamed file leaves the marks of other files
    assert "3 changed, 1 unchanged" in text_of(answer)


def test_both_versions_are_shown_rendered(team: Team) -> None:
    team.publish(team.ann, "1.0.0")
    team.publish(team.bot, "1.1.0")
    browser = team.browser(team.bob)
    page, shown = browser.get(team.page).text, browser.get(f"{team.page}?show=rendered").text
    diff = browser.get(f"/s/{team.name}@1.1.0/diff/1.0.0?show=rendered").text

    assert f'href="{team.page}?show=rendered#instructions"' in page
    for text in (shown, diff):
        assert "<p>Version 1.0.0.</p>" in text
        assert "<p>Version 1.1.0.</p>" in text
    assert "<p>Version" not in page


def test_the_navigation_counts_the_versions_that_the_user_may_review(team: Team, new_name: str) -> None:
    def count(who: Who) -> list[str]:
        return re.findall(r'class="count" title="(\d+) waiting"', team.browser(who).get("/account").text)

    before = count(team.bob)
    team.publish(team.bot, "1.0.0")
    team.publish(team.bot, "1.0.0", f"{new_name}.second")
    queue = team.browser(team.bob).get("/review").text
    waiting = count(team.bob)
    team.rpc(team.bob)("approve_version", name=team.name, version="1.0.0")

    assert before == []
    assert waiting == ["2"]
    assert queue.count(f'href="/review/{new_name}.') == 2
    assert count(team.bob) == ["1"]
    assert count(Who(f"{new_name}-carl", "read review", f"{new_name}x.*")) == []
    assert count(Who(f"{new_name}-dora", "read", f"{new_name}.*")) == []


def test_a_first_version_is_new_in_every_part(team: Team) -> None:
    team.publish(team.bot, "1.1.0", permissions={"secrets": ["SHOP_TOKEN"]})
    page = team.browser(team.bob).get(team.page)

    assert "first version: everything is new" in page.text
    assert "This is its first version." in text_of(page)
    assert "May read the secret SHOP_TOKEN" in text_of(page)
    assert "<p>Version 1.1.0.</p>" in page.text
    assert "Files 3, all new" in text_of(page)


def test_a_reviewer_rejects_an_own_version_but_does_not_approve_it(team: Team) -> None:
    author = Who(team.bot.name, "read publish review", team.bot.grants)
    team.publish(team.bot, "1.1.0")
    browser = team.browser(author)
    page = browser.get(team.page).text
    digest = team.rpc(author)("describe_skill", name=team.name, version="1.1.0")["skill"]["digest"]

    assert "You cannot approve this version" in page
    assert 'value="approve"' not in page
    form = {**browser.fields("/account"), "digest": digest, "note": "mine", "reason": "mine"}
    assert browser.post(team.page, {**form, "action": "approve"}).status_code == 403
    assert team.status() == "in_review"
    assert browser.post(team.page, {**form, "action": "reject"}).status_code == 303
    assert team.status() == "rejected"


@pytest.mark.postgres
def test_concurrent_approvals_record_single_decision(team: Team) -> None:
    team.publish(team.ann, "1.0.0")
    team.publish(team.bot, "1.1.0")
    browsers = [team.browser(team.ann), team.browser(team.bob)]
    forms = [browser.fields(team.page) | {"action": "approve"} for browser in browsers]
    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(lambda pair: pair[0].post(team.page, pair[1]), zip(browsers, forms, strict=True)))
    entries = team.rpc(Who("root", "read admin"))("list_audit", subject=team.name, outcome="done")["entries"]

    assert [answer.status_code for answer in answers] == [303, 303]
    assert sum(one["action"] == "approve_version" for one in entries) == 1
    assert team.status() == "published"


def test_nothing_is_decided_after_a_rejection(team: Team) -> None:
    team.publish(team.ann, "1.0.0")
    team.publish(team.bot, "1.1.0")
    late = team.browser(team.ann)
    form = late.fields(team.page) | {"action": "approve"}
    assert decide(team.browser(team.bob), team.page, "reject", note="It leaks.").status_code == 303
    answer = late.post(team.page, form)

    assert answer.status_code == 303
    assert f"{team.bob.name} rejected version 1.1.0 just now: It leaks." in text_of(
        late.get(answer.headers["location"])
    )
    assert team.status() == "rejected"
    page = late.get(team.page)
    assert "rejected version 1.1.0" in text_of(page)
    assert 'value="approve"' not in page.text


def test_other_contents_lose_the_ticks_and_keep_the_note(team: Team) -> None:
    team.publish(team.bot, "1.1.0", permissions={"secrets": ["SHOP_TOKEN"]})
    browser = team.browser(team.bob)
    answer = decide(
        browser, team.page, "approve", tick=["secret:SHOP_TOKEN"], note="as agreed", digest="sha256:" + "0" * 64
    )

    assert answer.status_code == 400
    assert "Version 1.1.0 has other contents now. You have seen 00000000, it is" in text_of(answer)
    assert "as agreed</textarea>" in answer.text
    assert " checked>" not in answer.text
    assert team.status() == "in_review"


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_open_review_page_shows_decision_of_other_reviewer(
    org: Server, open_page: OpenPage, new_name: str
) -> None:
    team = Team(org, new_name)
    team.publish(team.ann, "1.0.0")
    team.publish(team.bot, "1.1.0")
    who = team.bob
    headers = {"x-who": f"{who.name};{who.kind};{who.scopes};{who.grants}"}
    page = await open_page(org, team.page, extra_http_headers=headers)
    team.rpc(team.ann)("approve_version", name=team.name, version="1.1.0")
    await page.get_by_role("button", name="Approve").click()
    await page.get_by_text(f"{team.ann.name} approved version 1.1.0 just now.").wait_for()
