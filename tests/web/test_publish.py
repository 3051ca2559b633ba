"""Publishing in the browser: folders and archives, problems at their lines, versions, drafts, imports, other users."""

from __future__ import annotations

import html
import io
import re
import tarfile
import zipfile
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Page

from tests.conftest import Server
from tests.support.browser import Browser, token_of
from tests.support.chromium import OpenPage, faults

HTML = {"accept": "text/html"}


def files_of(name: str, version: str = "1.0.0", **more: str) -> dict[str, str]:
    toml = f"""name = "{name}"
version = "{version}"
kind = "action"
description = "Published by a form."

[runtime]
language = "python"
entrypoint = "code/main.py"
"""
    code = "def main(args):\n    return {}\n"
    return {"skill.toml": toml, "SKILL.md": "# Form\n", "code/main.py": code, **more}


def send(browser: Browser, files: dict[str, str], root: str = "my-skill", **fields: str) -> httpx.Response:
    """Send a folder as browsers do."""
    token = {**browser.fields("/publish"), **fields}
    parts: list[tuple[str, object]] = [(name, (None, value)) for name, value in token.items()]
    parts += [("files", (f"{root}/{path}", text.encode())) for path, text in files.items()]
    parts.append(("archive", ("", b"")))
    return browser.http.post("/publish", files=parts, headers={"origin": browser.url})  # type: ignore[arg-type]


def send_archive(browser: Browser, name: str, content: bytes) -> httpx.Response:
    fields = {key: (None, value) for key, value in browser.fields("/publish").items()}
    return browser.http.post("/publish", files={**fields, "archive": (name, content)}, headers={"origin": browser.url})


def press(browser: Browser, page: str, action: str, **fields: str) -> httpx.Response:
    return browser.post(page, {**browser.fields(page), "action": action, **fields})


def test_a_folder_is_checked_and_published(server: Server, new_name: str) -> None:
    browser = Browser(server.url, **HTML)
    sent = send(browser, files_of(new_name, **{".git/config": "secret"}))
    assert sent.status_code == 303, sent.text
    page = browser.get(sent.headers["location"]).text

    assert "1 hidden file was left out" in page
    assert "The version is published at once" in page
    made = press(browser, sent.headers["location"], "publish")
    assert made.headers["location"] == f"/s/{new_name}@1.0.0"
    files = server.rpc("describe_skill", name=new_name, detail="full")["skill"]["files"]
    assert {one["path"] for one in files} == {"skill.toml", "SKILL.md", "code/main.py"}


def test_published_bytes_are_not_published_again(sqlite_server: Server, new_name: str) -> None:
    browser = Browser(sqlite_server.url, **HTML)
    upload = send(browser, files_of(new_name)).headers["location"]
    form = {**browser.fields(upload), "action": "publish"}
    browser.post(upload, form)

    page = browser.get(upload).text
    assert f'Already published as <a href="/s/{new_name}@1.0.0">{new_name}@1.0.0</a> with these bytes.' in page
    assert 'value="publish"' not in page
    assert browser.post(upload, form).headers["location"].startswith(f"/s/{new_name}@1.0.0")


def test_problems_are_shown_at_their_lines(sqlite_server: Server, new_name: str) -> None:
    browser = Browser(sqlite_server.url, **HTML)
    files = files_of(new_name)
    files["skill.toml"] += '\n[permissions]\nsecrets = ["NO-NAME"]\n'
    files["code/main.py"] = "def main(args:\n"
    found = browser.get(send(browser, files).headers["location"]).text
    page = html.unescape(re.sub(r"</?(?:bdi|code)[^>]*>", "", found))

    assert "skill.toml, line 11" in page
    assert "secrets = [" in page
    assert "code/main.py, line 1" in page
    assert 'value="publish"' not in found


def test_advice_about_a_name_is_the_similar_name(sqlite_server: Server, new_name: str) -> None:
    browser = Browser(sqlite_server.url, **HTML)
    page = browser.get(send(browser, files_of(f"{new_name}.Broken Name")).headers["location"]).text

    assert f'name = "{new_name}.broken-name"' in html.unescape(page)


def test_the_start_page_has_the_limits_of_a_skill(sqlite_server: Server) -> None:
    page = Browser(sqlite_server.url, **HTML).get("/publish").text

    assert "A skill has at most 512 files and 16 MiB." in page


def test_broken_toml_is_a_problem(sqlite_server: Server, new_name: str) -> None:
    browser = Browser(sqlite_server.url, **HTML)
    page = browser.get(send(browser, {**files_of(new_name), "skill.toml": "name = \n<b>"}).headers["location"])

    assert page.status_code == 200
    assert "Problems" in page.text
    assert "<b>" not in page.text


def test_a_taken_version_offers_free_ones_and_shows_the_changes(server: Server, new_name: str) -> None:
    browser = Browser(server.url, **HTML)
    press(browser, send(browser, files_of(new_name)).headers["location"], "publish")
    changed = send(browser, {**files_of(new_name), "SKILL.md": "# Other\n"}).headers["location"]
    page = browser.get(changed).text

    assert re.findall(r'name="version" value="([^"]+)"', page) == ["1.0.1", "1.1.0", "2.0.0"]
    assert "exists already with other contents" in page
    assert '<span class="muted num">1 file</span>' in page
    assert "<ins>Other</ins>" in page
    assert page.count('class="body changed-file"') == 1
    moved = press(browser, changed, "version", version="1.1.0").headers["location"]
    assert moved != changed
    assert press(browser, moved, "publish").headers["location"] == f"/s/{new_name}@1.1.0"


def test_a_draft_is_not_published(server: Server, new_name: str) -> None:
    browser = Browser(server.url, **HTML)
    made = press(browser, send(browser, files_of(new_name)).headers["location"], "draft")

    assert made.status_code == 303
    assert server.rpc("describe_skill", name=new_name, version="1.0.0")["skill"]["status"] == "draft"


def test_other_bytes_than_the_seen_ones_are_refused(sqlite_server: Server, new_name: str) -> None:
    browser = Browser(sqlite_server.url, **HTML)
    page = send(browser, files_of(new_name)).headers["location"]
    answer = press(browser, page, "publish", digest="0" * 64)

    assert answer.status_code == 400
    assert "Nothing was published" in answer.text


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_archives_are_unpacked(sqlite_server: Server, new_name: str, kind: str) -> None:
    made = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(made, "w") as archive:
            for path, text in files_of(new_name).items():
                archive.writestr(f"top/{path}", text)
    else:
        with tarfile.open(fileobj=made, mode="w:gz") as tar:
            for path, text in files_of(new_name).items():
                info = tarfile.TarInfo(f"./top/{path}")
                info.size = len(text)
                tar.addfile(info, io.BytesIO(text.encode()))
            link = tarfile.TarInfo("top/link.md")
            link.type, link.linkname = tarfile.SYMTYPE, "SKILL.md"
            tar.addfile(link)
    browser = Browser(sqlite_server.url, **HTML)
    sent = send_archive(browser, "x.zip" if kind == "zip" else "x.tar.gz", made.getvalue())

    assert press(browser, sent.headers["location"], "publish").headers["location"] == f"/s/{new_name}@1.0.0"


def test_broken_and_bursting_archives_are_refused(sqlite_server: Server) -> None:
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("skill.toml", b"0" * 70_000_000)
    browser = Browser(sqlite_server.url, **HTML)

    assert "unpacks to more than" in send_archive(browser, "x.zip", bomb.getvalue()).text
    for content in (b"", b"PK\x03\x04broken", b"\x1f\x8bbroken", b"text"):
        answer = send_archive(browser, "x.zip", content)
        assert answer.status_code == 400, content
        assert 'role="alert"' in answer.text


def test_an_archive_of_many_skills_is_imported_with_a_report(server: Server, new_name: str) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for one in ("alpha", "beta"):
            text = f"---\nname: {one}\ndescription: Does {one}.\n---\n# {one}\n"
            archive.writestr(f"skills/{one}/SKILL.md", text)
        archive.writestr("skills/broken/SKILL.md", "---\nname: [\n---\n")
        archive.writestr("README.md", "x")
    browser = Browser(server.url, **HTML)
    page = send_archive(browser, "x.zip", made.getvalue()).headers["location"]
    report = press(browser, page, "import", namespace=new_name)

    assert report.status_code == 200
    assert f">{new_name}.alpha</a>" in report.text
    assert server.rpc("describe_skill", name=f"{new_name}.beta")["skill"]["kind"] == "instruction"


@pytest.mark.parametrize(
    "body",
    [b"", b"--x\r\n\r\n", b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--\r\n", b"--b--", b"\x00" * 5000],
)
def test_broken_forms_are_refused(sqlite_server: Server, body: bytes) -> None:
    headers = {"origin": sqlite_server.url, "content-type": "multipart/form-data; boundary=b", **HTML}
    answer = httpx.post(f"{sqlite_server.url}/publish", content=body, headers=headers)

    assert answer.status_code in {400, 403}


def test_only_the_owner_sees_an_upload(tokens_sqlite: Server, new_name: str) -> None:
    browsers = {}
    for who in ("one", "two"):
        browser = Browser(tokens_sqlite.url, **HTML)
        token = token_of(tokens_sqlite, f"{new_name}-{who}", "read", "publish", namespaces=[f"{new_name}.*"])
        assert browser.sign_in(token).status_code == 303
        browsers[who] = browser
    page = send(browsers["one"], files_of(f"{new_name}.x")).headers["location"]
    hidden, unknown = browsers["two"].get(page), browsers["two"].get("/publish/blob:unknown")
    reader = Browser(tokens_sqlite.url, **HTML)
    reader.sign_in(token_of(tokens_sqlite, f"{new_name}-reader", "read"))

    assert browsers["one"].get(page).status_code == 200
    assert hidden.status_code == unknown.status_code == 404
    assert reader.get("/publish").status_code == 403
    assert browsers["two"].post(page, {**browsers["two"].fields("/publish"), "action": "publish"}).status_code == 404
    foreign = send(browsers["one"], files_of("other.namespace")).headers["location"]
    assert press(browsers["one"], foreign, "publish").status_code in {400, 403}


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("javascript", [True, False], ids=["javascript", "no-javascript"])
async def test_a_user_chooses_a_folder_and_publishes_it(
    sqlite_server: Server, open_page: OpenPage, new_name: str, tmp_path: Path, javascript: bool
) -> None:
    more = {f"resources/{number}.txt": "x" for number in range(250)} if javascript else {}
    for path, text in files_of(new_name, **more).items():
        (tmp_path / "it" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "it" / path).write_text(text)
    page = await open_page(sqlite_server, "/publish", javascript=javascript)
    await page.get_by_label("A folder").set_input_files(tmp_path / "it")
    await page.get_by_role("button", name="Check the skill").click()
    await page.get_by_role("button", name="Publish 1.0.0").click()
    await page.wait_for_url(f"**/s/{new_name}@1.0.0")
    found = sqlite_server.rpc("describe_skill", name=new_name, detail="full")["skill"]["files"]

    assert len(found) == 3 + len(more)


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_a_dropped_folder_is_read_completely(sqlite_server: Server, open_page: OpenPage, new_name: str) -> None:
    files = files_of(new_name, **{f"resources/{number}.txt": "x" for number in range(250)})
    page = await open_page(sqlite_server, "/publish")
    await page.evaluate(
        """files => {
          const file = (name, text) => ({isFile: true, name, file: done => done(new File([text], name))});
          const folder = (name, entries) => ({isFile: false, name, createReader: () => {
            let rest = entries.slice();
            return {readEntries: done => done(rest.splice(0, 100))};
          }});
          const tree = {};
          for (const [path, text] of Object.entries(files)) {
            const [first, second] = path.split("/");
            if (second) (tree[first] ??= []).push(file(second, text)); else tree[first] = text;
          }
          const entries = Object.entries(tree).map(([name, one]) =>
            typeof one === "string" ? file(name, one) : folder(name, one));
          const drop = new Event("drop", {bubbles: true, cancelable: true});
          drop.dataTransfer = {items: [{webkitGetAsEntry: () => folder("it", entries)}]};
          document.querySelector("[data-drop]").dispatchEvent(drop);
        }""",
        files,
    )
    await page.get_by_role("button", name="Publish 1.0.0").wait_for()

    assert await page.get_by_text("253 files").count() == 1


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_the_pages_have_no_fault(sqlite_server: Server, open_page: OpenPage, new_name: str) -> None:
    browser = Browser(sqlite_server.url, **HTML)
    press(browser, send(browser, files_of(new_name)).headers["location"], "publish")
    bad = {**files_of(f"{new_name}.Bad", "1.1.0"), "code/main.py": "def main(args:\n"}
    paths = ["/publish"]
    for files in (files_of(new_name, "1.1.0"), {**files_of(new_name), "SKILL.md": "# y\n"}, bad, {"SKILL.md": "# x\n"}):
        paths.append(send(browser, files).headers["location"])
    page = await open_page(sqlite_server, "/publish")
    for path in paths:
        assert await faults(page, path, small_gaps) == []


async def small_gaps(page: Page) -> list[str]:
    """Return the distances under 8 px between a text or code and what is below it."""
    gaps: list[str] = await page.evaluate(
        """() => [...document.querySelectorAll('.lead + *, .code + *, .row + .help, .findings p + .code')].map(below =>
          [below.getBoundingClientRect().top - below.previousElementSibling.getBoundingClientRect().bottom, below])
          .filter(([gap]) => gap < 8).map(([gap, below]) => `${gap} px above ${below.innerText.slice(0, 40)}`)"""
    )
    return gaps
