"""The eight trust facts of a skill page, yanked pages, and the findings of a server without a scanner."""

from __future__ import annotations

import html
import re
from typing import Any, NamedTuple

import pytest

from tests.conftest import Rpc, Server
from tests.formats.test_licences import APACHE, MIT
from tests.proof.test_attestations import execute
from tests.support.archives import skill_md, zipped
from tests.support.browser import Browser, part_of, token_of
from tests.support.chromium import OpenPage, faults
from tests.support.processes import eventually

CODE = "def main(args):\n    if args.get('fail'):\n        raise ValueError('no')\n    return 1\n"
RIGHTS = {"network": ["https://api.example.com"], "secrets": ["KPI_TOKEN"]}
NAMES = ["source", "licence", "review", "rights", "code", "tests", "signed", "use"]


class Fact(NamedTuple):
    sign: str
    words: str
    detail: str


def facts_of(browser: Browser, path: str) -> dict[str, Fact]:
    """Return the facts of a page by their keys."""
    page = html.unescape(browser.get(path).text)
    facts = {}
    for sign, key, text in re.findall(r'<div class="is-(\w+) of-(\w+)">(.*?)</div>', page, re.S):
        words, *detail = (re.sub("<[^>]*>", "", part) for part in re.findall(r"<dd>(.*?)</dd>", text, re.S))
        facts[key] = Fact(sign, words, *detail, *[""] * (1 - len(detail)))
    return facts


class Shelf:
    """A publisher with a namespace, who reads the pages of its skills."""

    def __init__(self, server: Server, namespace: str) -> None:
        self.server = server
        self.namespace = namespace
        scopes = ("read", "run", "publish", "review")
        self.token = token_of(server, f"{namespace}-ann", *scopes, namespaces=[f"{namespace}.*"])
        self.rpc = Rpc(server.url, self.token)
        self.browser = self.browser_of(self.token)

    def browser_of(self, token: str) -> Browser:
        browser = Browser(self.server.url, accept="text/html")
        assert browser.sign_in(token).status_code == 303
        return browser

    def publish(self, name: str, version: str = "1.0.0", licence: str = "MIT", **more: Any) -> str:
        """Return the full name of the skill."""
        full = f"{self.namespace}.{name}"
        manifest = {"name": full, "version": version, "description": f"Count {full}.", "kind": "action", **more}
        manifest.setdefault("runtime", {"language": "python", "entrypoint": "main.py"})
        files = [{"path": "main.py", "content": CODE}]
        text = skill_md(name, license=licence)
        self.rpc("create_skill", manifest=manifest, skill_md=text, files=files)
        return full

    def facts(self, name: str) -> dict[str, Fact]:
        return facts_of(self.browser, f"/s/{name}")

    def send(self, files: dict[str, str], **more: str) -> None:
        params = {"namespace": self.namespace, "source": "https://git.example.org/acme/skills", **more}
        assert self.rpc.http.post("/import", params=params, content=zipped(files)).status_code == 200


@pytest.fixture
def shelf(tokens_sqlite: Server, new_name: str) -> Shelf:
    return Shelf(tokens_sqlite, new_name)


# -- the facts -------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_the_usage_of_a_skill_without_code_is_its_loads_by_program(shelf: Shelf) -> None:
    shelf.send({"repo/guide/SKILL.md": skill_md("guide")})
    name = f"{shelf.namespace}.guide"

    def usage() -> str:
        text = part_of(shelf.browser.get(f"/s/{name}").text, r'<h2 id="usage">(.*?)</section>')
        return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())

    assert "No use yet." in usage()
    for program, loads in (("codex/1", 1), ("claude-code/2 (cli)", 2)):
        agent = Rpc(shelf.server.url, shelf.token)
        agent.http.headers["user-agent"] = program
        for _ in range(loads):
            agent("read_skill_file", name=name, path="SKILL.md")

    shown = eventually(lambda: "Loads 3 in" in usage() and usage(), problem=usage)
    assert "Loads 3 in 30 days: claude-code 2, codex 1" in shown.replace(" ,", ",")
    assert "run," not in shown
    assert "This version" not in shown


def test_an_imported_text_has_a_stated_source_and_no_code(shelf: Shelf) -> None:
    text = skill_md("pdf", license="Proprietary")
    shelf.send({"repo/pdf/SKILL.md": text, "repo/pdf/LICENSE.txt": "No.", "repo/doc/SKILL.md": skill_md("doc")})
    facts = shelf.facts(f"{shelf.namespace}.pdf")

    assert list(facts) == NAMES
    stated = f"Stated by the importer {shelf.namespace}-ann, not proved."
    assert facts["source"] == Fact("none", "git.example.org/acme/skills", f"repo/pdf. {stated}")
    assert facts["licence"] == Fact("look", "Proprietary", "From its SKILL.md. Not a known open licence.")
    assert facts["review"] == Fact("none", "No review", "This server requires none for it.")
    assert facts["rights"][:2] == ("ok", "No network, no secrets")
    assert facts["code"][:2] == ("ok", "Text only")
    assert facts["tests"][:2] == ("none", "No examples")
    assert facts["signed"][0] == "ok"
    assert "provenance" in facts["signed"].detail
    assert facts["use"][:2] == ("none", "No use yet")
    assert shelf.facts(f"{shelf.namespace}.doc")["licence"][:2] == ("none", "Not stated")


def test_imports_take_licence_and_commit_from_their_source(shelf: Shelf) -> None:
    texts = {"a": skill_md("a"), "b/own": skill_md("own"), "b/stated": skill_md("stated", license="ISC")}
    licences = {"LICENSE": APACHE, "b/COPYING": "Ask Ann.", "b/own/LICENSE.txt": MIT}
    files = {**{f"{folder}/SKILL.md": text for folder, text in texts.items()}, **licences}
    shelf.send({f"repo/{path}": text for path, text in files.items()}, commit="c" * 40)
    names = {name: f"{shelf.namespace}.{name}" for name in ("a", "own", "stated")}
    facts = {name: shelf.facts(full) for name, full in names.items()}
    origin = shelf.rpc("describe_skill", name=names["a"])["skill"]["origin"]
    listed = shelf.rpc("list_skills", namespace=shelf.namespace, licence="Apache-2.0")["skills"]
    [attested] = shelf.rpc("list_attestations", name=names["a"], predicate="provenance")["attestations"]
    wrong = {"namespace": shelf.namespace, "commit": "main"}

    assert facts["a"]["licence"] == Fact("ok", "Apache-2.0", "From repo/LICENSE of its source. An open licence.")
    assert facts["a"]["source"].detail.startswith("repo/a, commit cccccccc. Stated by the importer")
    assert facts["own"]["licence"][:2] == ("ok", "MIT")
    assert facts["stated"]["licence"] == Fact("ok", "ISC", "From its SKILL.md. An open licence.")
    assert origin == {
        "source": "https://git.example.org/acme/skills",
        "path": "repo/a",
        "commit": "c" * 40,
        "licence": "Apache-2.0",
        "licence_path": "repo/LICENSE",
    }
    assert "at ccccccc" in attested["summary"]
    assert [skill["name"] for skill in listed] == [names["a"]]
    assert shelf.rpc.http.post("/import", params=wrong, content=zipped(files)).status_code == 400


def test_unknown_licence_files_need_a_look(shelf: Shelf) -> None:
    shelf.send({"repo/b/SKILL.md": skill_md("b"), "repo/LICENSE": "Ask Ann.", "LICENSE": MIT})

    fact = shelf.facts(f"{shelf.namespace}.b")["licence"]
    assert fact == Fact("look", "Another licence", "From repo/LICENSE of its source. Not a known open licence.")


def test_files_of_unknown_kinds_are_not_text(shelf: Shelf) -> None:
    texts = {"repo/a/LICENSE": "MIT", "repo/a/doc.md": "# x"}
    shelf.send({"repo/a/SKILL.md": skill_md("a"), **texts})
    shelf.send({"repo/b/SKILL.md": skill_md("b"), "repo/b/setup": "#!/bin/sh\n", "repo/b/run.bat": "echo\n"})

    assert shelf.facts(f"{shelf.namespace}.a")["code"][:2] == ("ok", "Text only")
    assert shelf.facts(f"{shelf.namespace}.b")["code"][:2] == ("look", "2 files of other kinds")


def test_findings_come_after_the_instructions(shelf: Shelf) -> None:
    shelf.send({"repo/a/SKILL.md": skill_md("a", body="# A\n\nRead [more](more.md).\n")})
    page = shelf.browser.get(f"/s/{shelf.namespace}.a").text

    assert page.index('id="trust"') < page.index('id="skill-md"') < page.index('id="findings"')


def test_scripts_without_their_packages_need_a_look(shelf: Shelf) -> None:
    texts = {"a.py": "import pdfplumber, rich\nprint(1)\n", "b.py": "import rich\nprint(2)\n", "c.py": "print(3)\n"}
    shelf.send({"repo/s/SKILL.md": skill_md("s"), **{f"repo/s/scripts/{path}": text for path, text in texts.items()}})

    fact = shelf.facts(f"{shelf.namespace}.s")["code"]
    assert fact[:2] == ("look", "3 Python scripts")
    assert "2 of 3 scripts cannot run here: this server does not offer pdfplumber, rich." in fact.detail


def test_a_skill_without_its_source_is_a_problem(shelf: Shelf) -> None:
    one, two = skill_md("one"), skill_md("two")
    shelf.send({"repo/one/SKILL.md": one, "repo/two/SKILL.md": two})
    shelf.send({"repo/two/SKILL.md": two})

    assert shelf.facts(f"{shelf.namespace}.one")["source"].sign == "bad"
    assert shelf.facts(f"{shelf.namespace}.two")["source"].sign == "none"


@pytest.mark.full
def test_rights_name_hosts_and_the_grants_of_secrets(shelf: Shelf) -> None:
    name = shelf.publish("kpi", permissions=RIGHTS)
    before = shelf.facts(name)["rights"]
    admin = shelf.browser_of(token_of(shelf.server, f"{name}-admin", "admin"))
    form = {**admin.fields("/account"), "secret": "KPI_TOKEN", "grantee": name, "action": "grant"}
    assert admin.post("/admin/secrets", form).status_code == 303
    after = shelf.facts(name)["rights"]
    anybody = shelf.publish("open", permissions={**RIGHTS, "network": ["https://*.workers.dev"]})

    assert before == Fact(
        "look",
        "Reach api.example.com, use 1 secret",
        "KPI_TOKEN is not granted, and has no value here. The default limits of this server.",
    )
    assert after.detail.startswith("KPI_TOKEN is granted, and has no value here.")
    assert shelf.facts(anybody)["rights"].sign == "bad"
    many = shelf.publish("many", permissions={"network": [f"https://h{number}.example.com" for number in range(9)]})
    named = "Reach h0.example.com, h1.example.com, h2.example.com, 6 other hosts"
    assert shelf.facts(many)["rights"].words == named


def test_code_and_examples_are_counted(shelf: Shelf) -> None:
    examples = [{"name": "one", "args": {}, "expect": 1}]
    facts = shelf.facts(shelf.publish("tested", licence="Apache 2.0", examples=examples))

    assert facts["licence"] == Fact("ok", "Apache-2.0", "From its SKILL.md. An open licence.")
    assert facts["code"][:2] == ("ok", "1 Python file")
    assert facts["tests"] == Fact("ok", "1 of 1 example passed", "Before 1.0.0 was published.")


def test_an_approval_names_its_digest(shelf: Shelf) -> None:
    bot = token_of(
        shelf.server, f"{shelf.namespace}-bot", "read", "publish", namespaces=[f"{shelf.namespace}.*"], is_agent=True
    )
    author, shelf.rpc = shelf.rpc, Rpc(shelf.server.url, bot)
    name = shelf.publish("made")
    draft = shelf.facts(f"{name}@1.0.0")["review"]
    digest = author("describe_skill", name=name, version="1.0.0")["skill"]["digest"]
    if author("describe_skill", name=name, version="1.0.0")["skill"]["status"] == "draft":
        shelf.rpc("submit_version", name=name, version="1.0.0")
    author("approve_version", name=name, version="1.0.0", digest=digest, note="Fine.")
    approved = shelf.facts(name)["review"]

    assert (draft.sign, draft.words in ("Waits for a review", "Not reviewed")) == ("look", True)
    assert approved == Fact(
        "ok", f"by {shelf.namespace}-ann, just now", f"For these files, digest {digest.partition(':')[2][:8]}. Fine."
    )


def test_loads_without_runs_are_a_use(shelf: Shelf) -> None:
    name = shelf.publish("read")
    agent = Rpc(shelf.server.url, shelf.token)
    agent.http.headers["user-agent"] = "agent/1"
    agent("read_skill_file", name=name, path="SKILL.md")

    expected = Fact("none", "1 load in 30 days", "No run in 30 days.")
    eventually(lambda: shelf.facts(name)["use"] == expected, problem=lambda: shelf.facts(name)["use"])


@pytest.mark.full
def test_many_failures_make_the_use_a_problem(shelf: Shelf) -> None:
    name = shelf.publish("used", inputs={"fail": {"type": "boolean"}})
    for _ in range(18):
        shelf.rpc("execute_skill", name=name)
    few = shelf.facts(name)["use"]
    for _ in range(2):
        shelf.rpc("execute_skill", name=name, args={"fail": True})
    some = shelf.facts(name)["use"]
    for _ in range(4):
        shelf.rpc("execute_skill", name=name, args={"fail": True})

    assert few == Fact("ok", "18 runs in 30 days", "18 of 18 completed.")
    most = "18 of 20 completed. Most failures since 1.0.0: ValueError: no"
    assert some == Fact("look", "20 runs in 30 days, 10 % fail", most)
    assert shelf.facts(name)["use"].sign == "bad"


@pytest.mark.full
def test_the_top_failure_has_its_message_only_for_publishers(tokens_server: Server, new_name: str) -> None:
    shelf = Shelf(tokens_server, new_name)
    name = shelf.publish("used", inputs={"fail": {"type": "boolean"}})
    token = token_of(tokens_server, f"{new_name}-bob", "read", "run")
    bob, reader = Rpc(tokens_server.url, token), shelf.browser_of(token)
    for number in range(20):
        bob("execute_skill", name=name, args={"fail": number < 4})
    address = f'href="/insight/failures?skill={name}"'

    assert shelf.facts(name)["use"].detail == "16 of 20 completed. Most failures since 1.0.0: ValueError: no"
    assert address in shelf.browser.get(f"/s/{name}").text
    assert facts_of(reader, f"/s/{name}")["use"].detail == "16 of 20 completed. Most failures since 1.0.0: ValueError"
    assert address not in reader.get(f"/s/{name}").text


def test_a_broken_signature_is_a_problem(shelf: Shelf) -> None:
    name = shelf.publish("forged")
    of_skill = f"SELECT v.id FROM skill_versions v JOIN skills s ON s.id = v.skill_id WHERE s.name = '{name}'"
    broken = 'replace(envelope, \'"sig":"\', \'"sig":"AAAA\')'
    execute(
        shelf.server,
        f"""
        INSERT INTO attestations (attestation, version_id, digest, predicate, predicate_type, key_id, made_by,
            made_by_kind, envelope, sha256, created_at)
        SELECT 'att_{shelf.namespace}', version_id, digest, predicate, predicate_type, key_id, made_by, made_by_kind,
            {broken}, sha256, created_at
        FROM attestations WHERE predicate = 'scan' AND version_id = ({of_skill})
        """,
    )

    assert shelf.facts(name)["signed"][:2] == ("bad", "1 attestation not valid")


# -- yanked pages, and the owner -------------------------------------------------------------------------------------


def test_a_yanked_page_looks_yanked(shelf: Shelf) -> None:
    examples = [{"name": "one", "args": {}, "expect": 1}]
    name = shelf.publish("old", examples=examples)
    shelf.publish("old", "1.1.0", examples=examples)
    shelf.rpc("set_label", name=name, label="stable", version="1.0.0")
    healthy = shelf.browser.get(f"/s/{name}@1.0.0").text
    shelf.rpc("remove_label", name=name, label="stable")
    shelf.rpc("yank_version", name=name, version="1.0.0", reason="It counts twice.")
    yanked = html.unescape(shelf.browser.get(f"/s/{name}@1.0.0?client=shell").text)

    for part in ('<span class="tag ok">verified</span>', "btn main end", '<span class="tag info">stable</span>'):
        assert part in healthy
        assert part not in yanked
    assert 'class="title is-yanked"' in yanked
    assert "Version 1.0.0 is yanked. These lines use 1.1.0." in yanked
    assert f"skillery run {name}@1.1.0" in yanked


def test_the_owner_is_the_publisher_of_the_first_published_version(shelf: Shelf) -> None:
    scopes = ("read", "publish")
    grants = [f"{shelf.namespace}.*"]
    bot = Rpc(shelf.server.url, token_of(shelf.server, f"{shelf.namespace}-bot", *scopes, namespaces=grants))
    manifest = {"name": f"{shelf.namespace}.idea", "description": "An idea.", "kind": "instruction"}
    bot("create_skill", manifest={**manifest, "version": "0.1.0"}, skill_md="# Idea\n", submit=False)
    before = shelf.browser.get(f"/s/{manifest['name']}@0.1.0").text
    shelf.rpc("create_skill", manifest={**manifest, "version": "1.0.0"}, skill_md="# Idea\n")
    after = shelf.browser.get(f"/s/{manifest['name']}").text

    assert owner_of(before) == f"{shelf.namespace}-bot"
    assert owner_of(after) == f"{shelf.namespace}-ann"


def owner_of(page: str) -> str:
    return re.sub("<[^>]*>", "", page.partition("<dt>Owner</dt>")[2].partition("</dd>")[0])


# -- a server without a scanner --------------------------------------------------------------------------------------


def test_a_review_without_a_scanner_has_no_tick_for_findings(shelf: Shelf) -> None:
    name = shelf.publish("waits", permissions=RIGHTS)
    page = html.unescape(shelf.browser.get(f"/review/{name}@1.0.0").text)
    row = re.search(r"<li>(?:(?!</li>).)*Open findings.*?</li>", page, re.S)

    assert "No scanner is installed. Five built-in rules found nothing." in page
    assert row is not None
    assert "✓" not in row[0]
    assert "0, no scanner" in row[0]


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_the_trust_card_is_first_and_accessible(
    tokens_sqlite: Server, new_name: str, open_page: OpenPage
) -> None:
    shelf = Shelf(tokens_sqlite, new_name)
    name = shelf.publish("seen", permissions=RIGHTS)
    page = await open_page(shelf.server, f"/s/{name}", token=shelf.token, color_scheme="dark")
    assert await faults(page) == []
    await page.emulate_media(color_scheme="light")
    assert await faults(page) == []
    for width in (1280, 390):
        await page.set_viewport_size({"width": width, "height": 800})
        end = await page.evaluate("document.querySelector('.trust').getBoundingClientRect().bottom")
        assert end < await page.evaluate("document.querySelector('.tabs').getBoundingClientRect().top")
        assert end < 900
