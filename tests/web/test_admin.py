"""Pages of administrators: hidden from others, tokens shown once, grants, the audit trail, and recent sign-ins."""

from __future__ import annotations

import html
import json
import re
import sqlite3
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from skillery.identity.tokens import SCOPES
from skillery.methods.table import METHODS
from skillery.web.admin_now import MANY_REFUSALS
from tests.cli.test_cli import skillery
from tests.conftest import ASKS_FOR_TOKENS, Rpc, Server, manifest, publisher
from tests.support.browser import Browser, token_of
from tests.support.chromium import OpenPage, faults, layout_shift, squeezed
from tests.support.processes import eventually

HTML = {"accept": "text/html"}
GRUMPY = """
from skillery import hookimpl

@hookimpl
def after_publish(publication):
    raise RuntimeError("no")
"""
READ_ONLY = ["/admin", "/admin/quotas", "/admin/plugins"]
CHANGED = [f"/admin/{page}" for page in ("tokens", "secrets", "storage", "environments", "webhooks", "audit")]
PAGES = [*READ_ONLY, *CHANGED]


def browser_of(server: Server, name: str, *scopes: str) -> Browser:
    browser = Browser(server.url, **HTML)
    assert browser.sign_in(token_of(server, name, *scopes)).status_code == 303
    return browser


def same(answer: httpx.Response) -> str:
    """Return a page without its random parts and its own address."""
    text = re.sub(r'nonce="[^"]*"|value="[^"]*"|<code>[^<]*</code>', "", answer.text)
    return re.sub(r"/(admin[a-z/]*|unknown)", "", text)


@pytest.mark.full(after=1)
def test_admins_see_all_pages_and_others_none(tokens_server: Server, new_name: str) -> None:
    admin = browser_of(tokens_server, f"{new_name}-admin", "admin")
    other = browser_of(tokens_server, new_name, "read", "run", "publish", "review")
    unknown = other.get("/unknown")
    form = other.fields("/account")
    for path in PAGES:
        assert admin.get(path).status_code == 200, path
        hidden = other.get(path)
        assert hidden.status_code == 404
        assert same(hidden) == same(unknown)
        if path in CHANGED:
            assert other.post(path, {**form, "action": "create", "name": "x", "scope": "admin"}).status_code == 404
    assert 'href="/admin"' not in other.get("/").text


@pytest.mark.full
def test_auditors_see_the_audit_trail_and_all_runs_and_change_nothing(tokens_server: Server, new_name: str) -> None:
    auditor = browser_of(tokens_server, f"{new_name}-auditor", "audit")
    runner = Rpc(tokens_server.url, token_of(tokens_server, new_name, "run"))
    run_id = runner("run_code", language="python", code="def main(args):\n    return 1\n")["run_id"]

    trail = auditor.get("/admin/audit")
    checked = auditor.post("/admin/audit", auditor.fields("/admin/audit"))

    assert set(re.findall(r'href="(/admin[a-z/]*)"', trail.text)) == {"/admin/audit"}
    assert "intact</span>" in checked.text
    assert new_name in auditor.get(f"/runs?identity={new_name}").text
    run = auditor.get(f"/runs/{run_id}")
    assert (run.status_code, "Cancel" in run.text) == (200, False)
    assert auditor.post(f"/runs/{run_id}", {**auditor.fields("/account"), "action": "cancel"}).status_code == 403
    assert {auditor.get(path).status_code for path in PAGES if path != "/admin/audit"} == {404}


def test_a_token_is_shown_once_and_revoked(tokens_server: Server, new_name: str) -> None:
    admin = browser_of(tokens_server, f"{new_name}-admin", "admin")
    form = {**admin.fields("/admin/tokens"), "action": "create", "name": new_name, "scope": "read", "expires": "1d"}
    made = admin.post("/admin/tokens", form)
    token = re.search(r"sky_[A-Za-z0-9_-]+", made.text)
    assert token is not None
    assert made.headers["cache-control"] == "private, no-store"
    assert token[0] not in admin.get("/admin/tokens").text
    assert token[0] not in str(admin.http.cookies)
    user = Browser(tokens_server.url, **HTML)
    assert user.sign_in(token[0]).status_code == 303
    assert user.get("/account").status_code == 200
    number = re.search(rf"{new_name}</bdi>.*?<code>([^<]+)</code>", admin.get("/admin/tokens").text, re.S)
    assert number is not None
    gone = admin.post("/admin/tokens", {**admin.fields("/account"), "action": "revoke", "id": number[1]})

    assert gone.status_code == 303
    assert "is revoked" in admin.get("/admin/tokens").text
    assert user.get("/account").headers["location"].startswith("/login")


def test_a_wrong_token_form_keeps_its_input(tokens_sqlite: Server, new_name: str) -> None:
    admin = browser_of(tokens_sqlite, f"{new_name}-admin", "admin")
    form = {**admin.fields("/admin/tokens"), "action": "create", "name": new_name, "expires": "soon"}
    no_scope = admin.post("/admin/tokens", form)
    no_time = admin.post("/admin/tokens", {**form, "scope": "read"})

    assert (no_scope.status_code, no_time.status_code) == (400, 400)
    assert f'value="{new_name}"' in no_scope.text
    assert 'aria-describedby="scopes-problem"' in no_scope.text
    assert '<a href="#expires">' in no_time.text
    assert 'aria-describedby="expires-help expires-problem" aria-invalid="true"' in no_time.text
    assert 'name="scope" value="read" checked' in no_time.text


@pytest.mark.parametrize(
    ("path", "title", "fields"),
    [
        ("/admin/tokens", "People and tokens", {"action": "revoke", "id": "unknown"}),
        ("/admin/webhooks", "Webhooks", {"action": "remove", "id": "whk_0"}),
        ("/admin/environments", "Environments", {"name": "unknown"}),
        ("/review/waivers", "Waivers", {"id": "unknown"}),
    ],
)
def test_a_refused_change_shows_its_page_with_the_reason(
    tokens_sqlite: Server, new_name: str, path: str, title: str, fields: dict[str, str]
) -> None:
    admin = browser_of(tokens_sqlite, f"{new_name}-admin", "admin", "review")
    answer = admin.post(path, {**admin.fields("/account"), **fields})

    assert 400 <= answer.status_code < 500
    assert "This did not work. Nothing was changed." in answer.text
    assert f"<h1>{title}</h1>" in answer.text


def test_secrets_are_granted_and_never_shown(tokens_server: Server, new_name: str) -> None:
    admin = browser_of(tokens_server, f"{new_name}-admin", "admin")
    form = {**admin.fields("/account"), "secret": "SHOP_TOKEN", "grantee": f"{new_name}.*"}

    assert admin.post("/admin/secrets", {**form, "action": "grant"}).status_code == 303
    assert f"{new_name}.*" in admin.get("/admin/secrets").text
    assert admin.post("/admin/secrets", {**form, "action": "revoke"}).status_code == 303
    assert f">{new_name}.*<" not in admin.get("/admin/secrets").text
    for secret, grantee, field in (("<b>", "a.b", "secret"), ("LD_PRELOAD", "a.b", "secret"), ("X", "A b", "grantee")):
        refused = admin.post("/admin/secrets", {**form, "secret": secret, "grantee": grantee, "action": "grant"})
        assert refused.status_code == 400
        assert f'aria-describedby="{field}-problem" aria-invalid="true"' in refused.text


def test_the_audit_trail_has_filters(tokens_server: Server, new_name: str) -> None:
    admin = browser_of(tokens_server, f"{new_name}-admin", "admin")
    form = {**admin.fields("/account"), "secret": "X_TOKEN", "grantee": f"{new_name}.*", "action": "grant"}
    admin.post("/admin/secrets", form)

    assert "grant_secret" in admin.get(f"/admin/audit?identity={new_name}-admin&outcome=done&since=24h").text
    assert "No entry matches" in admin.get(f"/admin/audit?identity={new_name}-nobody").text
    assert 'role="alert"' in admin.get("/admin/audit?since=never&outcome=odd").text
    selected = admin.get(f"/admin/audit?identity={new_name}-admin&action=grant_secret").text
    assert "<option selected>grant_secret</option>" in selected
    # Actions of the trail that are no methods can be selected, too.
    assert "<option>login</option>" in selected
    assert "<option selected>no_such_action</option>" in admin.get("/admin/audit?action=no_such_action").text


def test_changes_need_a_recent_sign_in(tokens_sqlite: Server, new_name: str) -> None:
    token = token_of(tokens_sqlite, f"{new_name}-admin", "admin")
    admin = Browser(tokens_sqlite.url, **HTML)
    assert admin.sign_in(token).status_code == 303
    with sqlite3.connect(tokens_sqlite.home / "skillery.db", timeout=300) as database:
        changed = database.execute(
            "UPDATE web_sessions SET made_at = datetime(made_at, '-20 minutes') WHERE identity = ?",
            (f"{new_name}-admin",),
        )
        assert changed.rowcount == 1
    form = {**admin.fields("/account"), "action": "create", "name": new_name, "scope": "read"}
    answer = admin.post("/admin/tokens", form)

    assert answer.status_code == 403
    assert "needs a sign-in of the last 15 minutes" in answer.text
    assert f'<pre class="code wrap" tabindex="0" aria-label="name">{new_name}</pre>' in answer.text
    assert all(one["name"] != new_name for one in Rpc(tokens_sqlite.url, token)("list_tokens")["tokens"])
    kept = dict(re.findall(r'name="(kept|kept_for)" value="([^"]*)"', answer.text))
    kept["kept"] = kept["kept"].replace("&amp;", "&")
    signed_in = admin.post("/login", {**admin.fields("/account"), "token": token, **kept})
    assert "Nothing was sent yet" in signed_in.text
    assert admin.post("/admin/tokens", {**form, **admin.fields("/account")}).status_code == 200


def test_a_value_of_a_secret_is_on_no_page(tokens_server: Server, new_name: str) -> None:
    admin = browser_of(tokens_server, f"{new_name}-admin", "admin")
    name, value = f"{new_name.upper()}_TOKEN", f"value-of-{new_name}"
    command = ("secret", "set", name, "--value-from-stdin", "--home", str(tokens_server.home))
    assert skillery(*command, stdin=value.encode(), SKILLERY_DATABASE=tokens_server.database).code == 0
    form = {**admin.fields("/account"), "secret": name, "grantee": f"{new_name}.*", "action": "grant"}
    pages = [admin.get("/admin/secrets"), admin.post("/admin/secrets", form), *map(admin.get, PAGES)]

    assert f"<code>{name}" in pages[0].text.replace('<bdi class="foreign">', "")
    assert all(value not in page.text for page in pages)


def test_a_secret_value_is_set_and_never_shown(tokens_server: Server, new_name: str) -> None:
    admin = browser_of(tokens_server, f"{new_name}-admin", "admin")
    name, value = f"{new_name.upper()}_TOKEN", f"value-of-{new_name}"
    form = {**admin.fields("/admin/secrets"), "action": "set", "secret": name, "value_of_secret": value}
    wrong = [
        admin.post("/admin/secrets", {**form, **change}) for change in ({"secret": "<b>"}, {"value_of_secret": ""})
    ]
    outdated = admin.post("/admin/secrets", {**form, "form_token": "x"})
    done = admin.post("/admin/secrets", form)

    assert [page.status_code for page in (*wrong, outdated, done)] == [400, 400, 403, 303]
    assert 'aria-describedby="value-help value_of_secret-problem" aria-invalid="true"' in wrong[1].text
    pages = [*wrong, outdated, *map(admin.get, PAGES)]
    assert all(value not in page.text for page in pages)
    assert name in pages[3 + PAGES.index("/admin/secrets")].text
    entries = Rpc(tokens_server.url, token_of(tokens_server, new_name, "admin"))("list_audit", subject=name)["entries"]
    assert [(entry["action"], entry["after"]) for entry in entries] == [("set_secret", {"has_value": True})]


def test_a_webhook_is_added_with_its_secret_shown_once_and_removed(tokens_server: Server, new_name: str) -> None:
    admin = browser_of(tokens_server, f"{new_name}-admin", "admin")
    form = {**admin.fields("/admin/webhooks"), "action": "add", "skills": f"{new_name}.*"}
    wrong = admin.post("/admin/webhooks", {**form, "url": "https://1.1.1.1/"})
    added = admin.post("/admin/webhooks", {**form, "url": f"http://localhost:9/{new_name}", "event": "published"})
    secret = re.search(r'id="secret" tabindex="0">([^<]+)<', added.text)
    assert secret is not None
    listed = admin.get("/admin/webhooks").text
    number = re.search(rf"localhost:9/{new_name}.*?Remove (whk_[0-9a-f]+)", listed, re.S)
    assert number is not None
    removed = admin.post("/admin/webhooks", {**admin.fields("/admin/webhooks"), "action": "remove", "id": number[1]})

    assert (wrong.status_code, 'id="url-problem"' in wrong.text) == (400, True)
    assert secret[1] not in listed
    assert removed.status_code == 303
    assert number[1] not in admin.get("/admin/webhooks").text


def test_entries_of_the_audit_trail_lead_to_skills_runs_and_identities(tokens_server: Server, new_name: str) -> None:
    token = token_of(tokens_server, new_name, "admin")
    publisher(Rpc(tokens_server.url, token))(f"{new_name}.greet")
    admin = Browser(tokens_server.url, **HTML)
    admin.sign_in(token)
    shown = admin.get(f"/admin/audit?subject={new_name}.greet").text

    assert f'<a href="/s/{new_name}.greet@1.0.0">' in shown
    assert f'<a href="/admin/audit?identity={new_name}">' in shown


@pytest.mark.full
def test_entries_about_namespaces_identities_and_secrets_lead_to_their_pages(
    tokens_server: Server, new_name: str
) -> None:
    token, leaver, secret = token_of(tokens_server, new_name, "admin"), f"{new_name}.leaver", f"{new_name.upper()}_KEY"
    rpc = Rpc(tokens_server.url, token)
    publisher(rpc)(f"{new_name}.lab.greet")
    rpc("set_namespace", namespace=f"{new_name}.lab", title="Laboratory")
    token_of(tokens_server, leaver, "read")
    rpc("revoke_identity", name=leaver)
    admin, auditor = Browser(tokens_server.url, **HTML), browser_of(tokens_server, f"{new_name}-auditor", "audit")
    admin.sign_in(token)
    form = {**admin.fields("/admin/secrets"), "action": "grant", "secret": secret, "grantee": f"{new_name}.*"}
    admin.post("/admin/secrets", form)
    subjects = {
        f"{new_name}.lab": f"/?ns={new_name}.lab",
        leaver: f"/admin/audit?identity={leaver}",
        secret: "/admin/secrets",
    }

    for subject, address in subjects.items():
        path = f"/admin/audit?subject={subject}"
        assert f'<a href="{address}"><bdi class="foreign">{subject}' in admin.get(path).text
        is_seen = f'<a href="{address}"><bdi class="foreign">{subject}' in auditor.get(path).text
        assert is_seen is not (subject == secret)


def test_entries_of_tokens_name_their_identity(tokens_server: Server, new_name: str) -> None:
    admin = browser_of(tokens_server, f"{new_name}-admin", "admin")
    form = {**admin.fields("/admin/tokens"), "action": "create", "name": new_name, "scope": "read", "expires": "1d"}
    assert admin.post("/admin/tokens", form).status_code == 200
    number = re.search(rf"{new_name}</bdi>.*?<code>([^<]+)</code>", admin.get("/admin/tokens").text, re.S)
    assert number is not None
    admin.post("/admin/tokens", {**admin.fields("/account"), "action": "revoke", "id": number[1]})
    shown = admin.get(f"/admin/audit?subject={number[1]}").text

    assert shown.count(f'<a href="/admin/audit?identity={new_name}">') == 2


def test_the_command_of_the_api_page_lists_skills(tokens_server: Server, new_name: str) -> None:
    token = token_of(tokens_server, new_name, "read")
    browser = Browser(tokens_server.url, **HTML)
    assert browser.sign_in(token).status_code == 303
    command = html.unescape(re.findall(r"<code>(curl .*?)</code>", browser.get("/api").text)[0])

    ended = subprocess.run(["/bin/sh", "-c", command.replace("TOKEN", token)], capture_output=True, check=True)
    assert "skills" in json.loads(ended.stdout)["result"]


def test_the_page_of_the_api_lists_all_methods(tokens_server: Server, new_name: str) -> None:
    user = browser_of(tokens_server, new_name, "read")
    shown = user.get("/api").text

    assert 'href="/api"' in user.get("/account").text
    assert all(f'id="{name}"' in shown for name in METHODS)
    assert "integer, 1 to 1000" in shown


def test_the_chain_of_the_audit_trail_is_checked(tokens_server: Server, new_name: str) -> None:
    admin = browser_of(tokens_server, f"{new_name}-admin", "admin")
    intact = admin.post("/admin/audit", admin.fields("/account"))
    head = re.search(r"The head is <code>(\d+:[0-9a-f]{64})</code>", intact.text)
    assert head is not None
    wrong = admin.post("/admin/audit", {**admin.fields("/account"), "head": head[1][:-1] + flipped(head[1])})
    unreadable = admin.post("/admin/audit", {**admin.fields("/account"), "head": "12"})

    assert "broken at entry" in wrong.text
    assert "was rewritten" in wrong.text
    assert (unreadable.status_code, 'aria-invalid="true"' in unreadable.text) == (400, True)


def flipped(head: str) -> str:
    return "0" if head[-1] != "0" else "1"


@pytest.mark.postgres  # the statement about quotas is another one there
def test_quotas_plugins_and_sizes_are_shown(tokens_server: Server, new_name: str) -> None:
    token = token_of(tokens_server, new_name, "admin")
    Rpc(tokens_server.url, token)("create_blob", content="x" * 2000, kind="text/plain")
    # The page shows only the largest namespaces.
    files = [{"path": "resources/large.txt", "content": "x" * 5_000_000}]
    made = manifest(f"{new_name}.large", kind="instruction")
    Rpc(tokens_server.url, token)("create_skill", manifest=made, skill_md="# Large\n", files=files)
    admin = Browser(tokens_server.url, **HTML)
    admin.sign_in(token)

    quotas = admin.get("/admin/quotas").text
    assert f"{new_name}.*" in quotas
    mine = admin.get(f"/admin/quotas?identity={new_name}").text
    assert "2.0\xa0kB" in mine
    plugins = admin.get("/admin/plugins").text
    assert "tokens-authenticator" in plugins
    assert '<span class="tag ok">works</span>' in plugins
    assert "fails</span>" not in plugins
    storage = admin.get("/admin/storage").text
    assert ("Postgres " if tokens_server.database else "SQLite ") in storage
    assert "Contents in the storage" in storage
    assert ">0, 0\xa0B<" not in admin.get("/admin/storage?garbage=shown").text, "steps without garbage are hidden"


@pytest.mark.full
def test_old_and_unused_tokens_are_named_on_the_page_and_by_doctor(tokens_sqlite: Server, new_name: str) -> None:
    admin = browser_of(tokens_sqlite, f"{new_name}-admin", "admin")
    days = {"old": (366, 1), "both": (366, 91), "never": (91, None), "young": (89, None), "recent": (364, 89)}
    for name in (*days, "ended"):
        token_of(tokens_sqlite, f"{new_name}-{name}", "read")

    def doctor() -> str:
        return skillery("doctor", "--home", str(tokens_sqlite.home), SKILLERY_AUTH="tokens").out

    before = doctor()
    with sqlite3.connect(tokens_sqlite.home / "skillery.db", timeout=300) as database:
        for name, (created, used) in (days | {"ended": (366, 91)}).items():
            times = [datetime.now(UTC) - timedelta(days=age) if age else None for age in (created, used)]
            values = [time and time.strftime("%Y-%m-%d %H:%M:%S.%f") for time in times]
            change = "UPDATE tokens SET created_at = ?, last_used_at = ? WHERE name = ?"
            database.execute(change, (*values, f"{new_name}-{name}"))
        database.execute("UPDATE tokens SET revoked_at = created_at WHERE name = ?", (f"{new_name}-ended",))

    page = admin.get("/admin/tokens").text
    for name, remarks in {
        "old": ["older than a year"],
        "both": ["older than a year", "unused for 90 days"],
        "never": ["unused for 90 days"],
        "young": [],
        "recent": [],
        "ended": [],
    }.items():
        [row] = re.findall(rf"<tr[^>]*>(?:(?!</tr>).)*{new_name}-{name}</bdi>.*?</tr>", page, re.S)
        tags = re.findall(r'<span class="tag">([^<]+)<', row)
        assert [tag for tag in tags if tag != "without an end"] == remarks
    assert "older than a year" not in before
    assert "2 older than a year, 2 unused for 90 days" in doctor()
    assert re.search("Live tokens to look at: [^.]*2 older than a year, 2 unused for 90 days", page)


@pytest.mark.full
def test_the_overview_shows_each_problem_with_its_remedy(
    start_server: Callable[..., Server], tmp_path: Path, new_name: str
) -> None:
    """A failing plugin, a used up quota, a version in review, and a storage that does not work."""
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "grumpy.py").write_text(GRUMPY, "utf-8")
    settings = {"SKILLERY_PLUGINS_FOLDER": str(plugins), "SKILLERY_QUOTAS_BLOBS": "1"}
    server = start_server(env={**ASKS_FOR_TOKENS, **settings})
    admin = browser_of(server, "admin", "admin")
    agent = Rpc(server.url, token_of(server, "bot", "publish", "run", namespaces=["shop.*"], is_agent=True))
    agent("create_blob", content="x", kind="text/plain")
    publisher(agent)("shop.greet")

    for _ in range(MANY_REFUSALS):
        agent.error("set_visibility", name="other.skill", visibility="public")

    shown = wait_for(admin, "The plugin grumpy has failed")
    cause = (
        f"{MANY_REFUSALS} requests were refused in the last 24 hours, {MANY_REFUSALS} of them not allowed, from bot."
    )
    assert cause in wait_for(admin, "requests were refused")
    assert "Not checked yet." in shown
    assert "None is known. Make one:" in shown
    assert "intact</span>" in admin.post("/admin/audit", admin.fields("/admin/audit")).text
    made = skillery("backup", "create", "--home", str(server.home), str(tmp_path / "backup"))
    assert made.code == 0, made.err
    checked = " ".join(re.sub("<[^>]+>", "", admin.get("/admin").text).split())
    assert "were intact, checked" in checked
    assert "The newest was made" in checked
    assert "Uses in 7 days" in checked
    assert "bot has used up its quota of blobs" in shown
    assert "One version waits for a review" in shown
    assert shown.index("used up its quota") < shown.index("waits for a review")
    assert "raised an error" in admin.get("/admin/plugins").text
    (server.home / "contents").rename(server.home / "elsewhere")
    (server.home / "contents").write_text("no folder", "utf-8")
    broken = wait_for(admin, "The storage does not work")
    assert broken.index("The storage does not work") < broken.index("used up its quota")
    assert "does not work</span>" in admin.get("/admin/storage").text


@pytest.mark.full
def test_the_overview_names_the_ended_token_of_refused_requests(start_server: Callable[..., Server]) -> None:
    server = start_server(home="home", env=ASKS_FOR_TOKENS)
    ended = token_of(server, "ci-nightly", "read")
    admin = Rpc(server.url, token_of(server, "ada", "admin"))
    [token_id] = [token["id"] for token in admin("list_tokens")["tokens"] if token["name"] == "ci-nightly"]
    admin("revoke_token", id=token_id)
    headers = {"authorization": f"Bearer {ended}"}
    for _ in range(MANY_REFUSALS + 2):
        assert httpx.get(f"{server.url}/v1/skills", headers=headers).status_code in {401, 429}
    httpx.get(f"{server.url}/v1/skills", headers={"authorization": "Bearer unknown"})
    assert server.stop() == 0  # a stop writes the counts of the minute

    server = start_server(home="home", env=ASKS_FOR_TOKENS)
    shown = browser_of(server, "ada", "admin").get("/admin").text
    count = MANY_REFUSALS + 2
    assert f"{count} of {count + 1} refused requests in the last 24 hours had the revoked token ci-nightly." in shown


def wait_for(browser: Browser, words: str) -> str:
    """Return the overview when it has these words. Checks are repeated after two seconds."""
    return eventually(lambda: words in (text := browser.get("/admin").text) and text)


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_the_pages_have_no_fault(tokens_sqlite: Server, open_page: OpenPage, new_name: str) -> None:
    token = token_of(tokens_sqlite, f"{new_name}-admin", "admin")
    long_name, namespaces = f"{new_name}-{'long' * 20}", [f"{'team' * 15}{number}.*" for number in range(9)]
    token_of(tokens_sqlite, long_name, *SCOPES, namespaces=namespaces, is_agent=True)
    page = await open_page(tokens_sqlite, "/account", token=token)
    for path in ["/account", "/api", *PAGES]:
        assert await faults(page, path, squeezed) == []

    await page.goto("/admin/tokens")
    heights = "boxes => boxes.map(box => box.getBoundingClientRect().height)"
    assert max(await page.locator("td code, td summary").evaluate_all(heights)) < 40, "no id has a second line"


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
async def test_nothing_moves_while_a_page_arrives_slowly(
    tokens_sqlite: Server, open_page: OpenPage, new_name: str
) -> None:
    token = token_of(tokens_sqlite, f"{new_name}-admin", "admin")
    page = await open_page(tokens_sqlite, "/account", token=token)
    browser = await page.context.new_cdp_session(page)
    bytes_per_second = {"downloadThroughput": 10_000, "uploadThroughput": 1 << 20}
    await browser.send("Network.emulateNetworkConditions", {"offline": False, "latency": 0, **bytes_per_second})
    for path in ["/account", *PAGES]:
        await page.goto(path)

        assert await layout_shift(page, digits=4) == 0, path
