"""The page of a namespace: its texts, their form, and "Ask the owner" on the pages of its skills and failed runs."""

from __future__ import annotations

import html
import re

import pytest
from playwright.async_api import expect

from tests.conftest import Rpc, Server, publisher
from tests.support.browser import Browser, token_of
from tests.support.chromium import OpenPage, faults

HTML = {"accept": "text/html"}
CONNECTS = "import urllib.request\ndef main(args):\n    urllib.request.urlopen('https://other.example.com/')\n"


def header_of(page: str) -> str:
    """Return the text about the namespace on a page, or ""."""
    section = page.partition('class="card about-namespace"')[2].partition("</section>")[0]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", section.partition(">")[2])).split())


@pytest.mark.full
def test_publishers_change_the_texts_of_a_namespace_and_undo_it(tokens_server: Server, new_name: str) -> None:
    token = token_of(tokens_server, f"{new_name}-ann", "read", "publish", namespaces=[f"{new_name}.*"])
    reader = token_of(tokens_server, f"{new_name}-bob", "read")
    publisher(Rpc(tokens_server.url, token))(f"{new_name}.a")
    ann, bob = Browser(tokens_server.url, **HTML), Browser(tokens_server.url, **HTML)
    ann.sign_in(token)
    bob.sign_in(reader)
    address = f"/?ns={new_name}"
    form = ann.fields(address) | {"action": "set_namespace", "title": "Sales", "text": "Reports <b>", "pinned": "x.y"}
    form |= {"contact": "https://chat.example.com/sales"}

    refused = ann.post(address, form)
    answer = ann.post(address, form | {"pinned": f"{new_name}.a"})

    assert refused.status_code == 400
    assert "there is no published skill" in refused.text
    assert 'value="x.y"' in refused.text
    assert header_of(bob.get("/").text) == ""
    assert bob.get(address).text.count(f'<span><bdi class="foreign">{new_name}</bdi>') == 1, "it is no child of itself"
    assert answer.status_code == 303
    done = ann.get(answer.headers["location"]).text
    assert f"The texts of {new_name} are set." in done
    shown = header_of(bob.get(address).text)
    assert shown.startswith(f"Sales {new_name} Ask the owner Reports <b>")
    assert f"{new_name}.a" in shown
    assert "Change these texts" not in shown
    assert 'href="https://chat.example.com/sales"' in bob.get(f"/s/{new_name}.a").text
    note = done.partition('<div class="note done"')[2].partition("</div>")[0]
    ann.post(address, dict(re.findall(r'name="([a-z_]+)" value="([^"]*)"', note)))
    assert header_of(bob.get(address).text) == ""
    assert bob.post(address, bob.fields("/account") | form).status_code in {403, 404}


@pytest.mark.full
@pytest.mark.parametrize(
    ("contact", "link"),
    [
        ("sales@example.com", 'href="mailto:sales@example.com?subject='),
        ("mailto:sales@example.com", 'href="mailto:sales@example.com?subject='),
        ("mailto:mailto:sales@example.com", ""),
        ("https://chat.example.com/sales", 'href="https://chat.example.com/sales"'),
        ("#sales in chat", ""),
        ("javascript:alert(1)", ""),
        ("https://chat.example.com/ x", ""),
        ("a@b.example?bcc=c@d.example", ""),
    ],
)
def test_contacts_are_links_only_if_they_are_addresses(
    sqlite_server: Server, new_name: str, contact: str, link: str
) -> None:
    publisher(sqlite_server.rpc)(f"{new_name}.team.a")
    sqlite_server.rpc("set_namespace", namespace=new_name, contact=contact)
    browser = Browser(sqlite_server.url, **HTML)

    for path in (f"/?ns={new_name}", f"/s/{new_name}.team.a"):
        page = browser.get(path).text
        assert "Ask the owner" in page
        assert (link in page) if link else f'Ask the owner: <bdi class="foreign">{html.escape(contact)}' in page


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_texts_of_a_namespace_are_set_in_a_browser(
    sqlite_server: Server, new_name: str, open_page: OpenPage
) -> None:
    publish = publisher(sqlite_server.rpc)
    publish(f"{new_name}.weekly", code=CONNECTS)
    page = await open_page(sqlite_server, f"/?ns={new_name}", width=390)
    await page.get_by_text("Change these texts").click()
    await page.get_by_label("Title").fill("Sales")
    await page.get_by_label("Contact of the owners").fill("sales@example.com")
    await page.get_by_label("Skills to show first").fill(f"{new_name}.weekly")
    assert await faults(page) == []
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("heading", name="Sales")).to_be_visible()
    assert await faults(page) == []

    run = sqlite_server.rpc("execute_skill", name=f"{new_name}.weekly")
    await page.goto(f"/runs/{run['run_id']}")
    owner = page.get_by_role("link", name="Ask the owner")
    await expect(owner).to_be_visible()
    assert run["run_id"] in str(await owner.get_attribute("href"))
    assert await faults(page) == []
