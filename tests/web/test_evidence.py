"""The card "Evidence" on the page of a review and on the page of a skill."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

import pytest

from skillery.proof.dsse import SigningKey
from tests.conftest import Rpc, Server
from tests.proof.test_keys import register, signed
from tests.support.browser import token_of
from tests.support.chromium import OpenPage, check_axe, overflow
from tests.web.test_reviews import OLD, Shop, approve

POLICIES = """
[policy."two.*"]
needs = ["scan", "review"]
reviews = 2

[policy."own.*"]
needs = ["author"]
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("evidence")
    (home / "skillery.toml").write_text(POLICIES)
    running = Server(home, env={"SKILLERY_AUTH": "tokens"})
    yield running
    running.stop()


def reviewer(shop: Shop, name: str) -> str:
    return token_of(shop.server, name, "read", "review", namespaces=[f"{shop.name.rpartition('.')[0]}.*"])


@pytest.mark.full
def test_the_card_shows_approvals(house: Server, new_name: str) -> None:
    shop = Shop(house, f"two.{new_name}")
    page = f"/review/{shop.name}@1.0.0"
    rita, otto = (shop.browser(reviewer(shop, f"{new_name}-{name}")) for name in ("rita", "otto"))
    first = html.unescape(rita.get(page).text)

    assert "policy <code>two.*</code>: 1 of 2 met" in first
    assert "0 of 2 approvals" in first
    assert approve(rita, page, [])[0] == 303
    assert "You have approved this version." in html.unescape(rita.get(page).text)
    assert "1 of 2 approvals" in otto.get(page).text
    assert approve(otto, page, [])[0] == 303
    about = html.unescape(otto.get(f"/s/{shop.name}@1.0.0").text)
    assert "policy <code>two.*</code>: 2 of 2 met" in about
    assert "The registry has signed that this version meets its policy." in about
    assert shop.status("1.0.0") == "published"


@pytest.mark.full
def test_the_navigation_counts_versions_of_withdrawn_approvals(house: Server, new_name: str) -> None:
    shop = Shop(house, f"two.{new_name}")
    rita, otto = (shop.browser(reviewer(shop, f"{new_name}-{name}")) for name in ("rita", "otto"))
    page = f"/review/{shop.name}@1.0.0"
    for browser in (rita, otto):
        assert approve(browser, page, [])[0] == 303
    admin = Rpc(house.url, token_of(house, f"{new_name}-admin", "admin"))
    [review, _] = admin("list_attestations", name=shop.name, predicate="review")["attestations"]
    queues = [rita.get("/review").text]
    admin("end_attestation", id=review["id"], reason="not a review")
    queues.append(rita.get("/review").text)

    listed = [len(set(re.findall(r'href="(/review/[^"?#]+@[^"?#]+)"', queue))) for queue in queues]
    counts = [sum(map(int, re.findall(r'title="(\d+) waiting"', queue))) for queue in queues]
    assert (counts, listed[1] - listed[0]) == (listed, 1)
    assert f'href="{page}"' in queues[1]


@pytest.mark.full
def test_a_changed_signer_needs_a_tick(house: Server, new_name: str) -> None:
    name = f"own.{new_name}"
    shop = Shop(house, name)
    for token, signer, version in ((shop.ann, f"{name}-ann", "1.0.0"), (shop.bot, f"{name}-bot", "2.0.0")):
        rpc, key = Rpc(house.url, token), SigningKey.new()
        register(rpc, key)
        if version == "2.0.0":
            shop.publish(token, version, OLD)
        created = rpc("describe_skill", name=shop.name, version=version)["skill"]
        envelope = signed(key, "author", created, author=signer)
        rpc("add_attestation", name=shop.name, version=version, envelope=envelope)
    page, browser = f"/review/{shop.name}@2.0.0", shop.browser(shop.bob)

    assert "signer changed" in browser.get(page).text
    assert approve(browser, page, [])[0] == 400
    assert approve(browser, page, ["signer"])[0] == 303
    assert shop.status("2.0.0") == "published"
    assert "same signer as before" not in browser.get(f"/s/{shop.name}@2.0.0").text
    shop.publish(shop.bot, "2.1.0", OLD)
    created = rpc("describe_skill", name=shop.name, version="2.1.0")["skill"]
    envelope = signed(key, "author", created, author=f"{name}-bot")
    rpc("add_attestation", name=shop.name, version="2.1.0", envelope=envelope)
    assert "same signer as before" in browser.get(f"/review/{shop.name}@2.1.0").text


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.full
async def test_the_card_is_accessible_in_both_colours(house: Server, new_name: str, open_page: OpenPage) -> None:
    shop = Shop(house, f"two.{new_name}")
    for scheme in ("light", "dark"):
        for path in (f"/review/{shop.name}@1.0.0", f"/s/{shop.name}@1.0.0"):
            page = await open_page(house, path, token=shop.ann, color_scheme=scheme)
            if path.startswith("/s/"):
                await page.get_by_text("Evidence, policy").click()
            await page.get_by_role("link", name="Attestations", exact=True).wait_for()
            assert await check_axe(page) == []
            assert await overflow(page) == []
