"""Trusted publishing: trust rules, `POST /auth/exchange`, the tokens of CI jobs, and the provenance of versions."""

from __future__ import annotations

import base64
import itertools
import json
import re
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import OctKey

from oidc_here import OidcProvider, new_key, shared_provider
from tests import conftest
from tests.cli.test_cli import skillery
from tests.conftest import ASKS_FOR_TOKENS, IMPORT_CHECK, Rpc, Server, StartShared, manifest, skill_files
from tests.docs.test_shell_blocks import blocks_of, run_as_user
from tests.support.browser import Browser
from tests.support.chromium import OpenPage, check_axe, overflow
from tests.support.processes import eventually, free_port

start_server, postgres = conftest.start_server, conftest.postgres
migrated_postgres_database, shared_server = conftest.migrated_postgres_database, conftest.shared_server

AUDIENCE = "https://skills.example.org"
DAYS = 864_000
"""Seconds. The suite may reach a test hours after its parameters were made."""
NO_NAMES = dict.fromkeys(("repository", "repository_id", "owner_id", "workflow"))
TRUST = {"SKILLERY_PUBLIC_URL": AUDIENCE, "SKILLERY_TRUST_ALLOW_PRIVATE": "127.0.0.0/8"}
_numbers = itertools.count(1)


@pytest.fixture
def provider(pytestconfig: pytest.Config) -> OidcProvider:
    return shared_provider(pytestconfig)


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, shared_server: StartShared) -> Server:
    return shared_server("trust", request.param, **ASKS_FOR_TOKENS, **TRUST)


@pytest.fixture
def sqlite(shared_server: StartShared) -> Server:
    return shared_server("trust", "sqlite", **ASKS_FOR_TOKENS, **TRUST)


class Forge:
    """A CI service with one repository, and a rule of the server that trusts it."""

    def __init__(self, server: Server, provider: OidcProvider, **rule: Any) -> None:
        self.server, self.provider, self.number = server, provider, next(_numbers)
        self.repository, self.space = f"acme/repo{self.number}", f"space{self.number}x{uuid.uuid4().hex[:6]}"
        self.admin = admin_of(server)
        self.rule = self.add(**rule)

    def add(self, **more: Any) -> Any:
        asked = {
            "target": f"{self.space}.*",
            "provider": "github",
            "issuer": self.provider.issuer,
            "repository": self.repository,
            "repository_id": str(1000 + self.number),
            "owner_id": "77",
            "workflow": "release.yml",
        }
        return self.admin("add_trust_rule", **asked | more)

    def token(self, header: Any = None, key: Any = None, **claims: Any) -> str:
        """Return a token of a job of the repository, as GitHub signs it, unless the arguments say otherwise."""
        job = {
            "aud": AUDIENCE,
            "sub": f"repo:{self.repository}:ref:refs/heads/main",
            "jti": str(uuid.uuid4()),
            "repository": self.repository,
            "repository_id": str(1000 + self.number),
            "repository_owner_id": "77",
            "workflow_ref": f"{self.repository}/.github/workflows/release.yml@refs/heads/main",
            "ref": "refs/heads/main",
            "sha": "5e1f" * 10,
            "run_id": "4711",
            "event_name": "push",
        }
        return self.provider.sign({"typ": "JWT", **(header or {})}, key, **job | claims)

    def exchange(self, token: str, target: str = "") -> httpx.Response:
        return self.server.rpc.http.post("/auth/exchange", json={"token": token, "target": target})

    def granted(self, token: str = "", target: str = "") -> Any:
        answer = self.exchange(token or self.token(), target)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refusal(self, token: str, target: str = "") -> str:
        answer = self.exchange(token, target)
        assert answer.status_code == 401, answer.text
        assert answer.headers["www-authenticate"]
        message: str = answer.json()["error"]["message"]
        return message


def admin_of(server: Server) -> Rpc:
    name = f"admin{uuid.uuid4().hex}"
    arguments = ("token", "create", "--name", name, "--scope", "admin", "--home", str(server.home), "--json")
    made = skillery(*arguments, SKILLERY_DATABASE=server.database)
    assert made.code == 0, made.out + made.err
    return Rpc(server.url, made.json["token"])


def token_of(rpc: Rpc) -> str:
    token: str = rpc.http.headers["authorization"].partition(" ")[2]
    return token


def skill(name: str, version: str = "1.0.0") -> dict[str, Any]:
    return {"manifest": manifest(name, version), "skill_md": f"# {name}\n", "files": skill_files()}


@pytest.mark.full
def test_versions_published_by_ci_jobs_show_their_provenance(provider: OidcProvider, server: Server) -> None:
    forge = Forge(server, provider)

    got = forge.granted()
    created = Rpc(server.url, got["token"])("create_skill", **skill(f"{forge.space}.greet"))

    assert got["target"] == f"{forge.space}.*"
    assert got["identity"] == f"ci:{provider.issuer.partition('://')[2]}:{forge.repository}"
    assert created["status"] == "in_review"
    described = forge.admin("describe_skill", name=f"{forge.space}.greet", version="1.0.0")["skill"]
    page = skillery("describe", f"{forge.space}.greet@1.0.0", "--url", server.url, SKILLERY_TOKEN=token_of(forge.admin))
    assert f"commit: {'5e1f' * 10}" in page.out
    [listed] = forge.admin("list_versions", name=f"{forge.space}.greet")["versions"]
    assert described["provenance"] == listed["provenance"] == got["provenance"]
    assert described["provenance"] == {
        "issuer": provider.issuer,
        "subject": f"repo:{forge.repository}:ref:refs/heads/main",
        "repository": forge.repository,
        "repository_id": str(1000 + forge.number),
        "owner_id": "77",
        "workflow": f"{forge.repository}/.github/workflows/release.yml@refs/heads/main",
        "ref": "refs/heads/main",
        "commit": "5e1f" * 10,
        "environment": "",
        "run": "4711",
    }
    assert listed["publisher"] == {"name": got["identity"], "kind": "agent"}
    asked = {"name": f"{forge.space}.greet", "from_version": "1.0.0", "to_version": "1.0.0"}
    assert forge.admin("diff_versions", **asked)["new"]["provenance"] == got["provenance"]
    diff = skillery(
        "diff", *[f"{forge.space}.greet@1.0.0"] * 2, "--url", server.url, SKILLERY_TOKEN=token_of(forge.admin)
    )
    assert f"was published by the CI job {forge.repository} refs/heads/main {'5e1f' * 10}" in diff.out


@pytest.mark.full
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("width", [1280, 390])
async def test_the_page_shows_the_job_as_text(
    provider: OidcProvider, sqlite: Server, open_page: OpenPage, width: int
) -> None:
    """The repository decides most claims, so they may attack the page."""
    forge, image = Forge(sqlite, provider, kind="person"), "<img src=x onerror=window.__pwned=1>"
    claims = {"sha": image + "c" * 1000, "environment": 'production"><script>window.__pwned=1</script>\u202e'}
    got = forge.granted(forge.token(**claims))
    Rpc(sqlite.url, got["token"])("create_skill", **skill(f"{forge.space}.greet"))

    page = await open_page(sqlite, f"/s/{forge.space}.greet", token=token_of(forge.admin), width=width)
    row = page.locator("dt", has_text="Built by").locator("+ dd")
    shown = await row.inner_text()

    workflow = f"{forge.repository}/.github/workflows/release.yml@refs/heads/main"
    lines = [f"repository {forge.repository}", f"workflow {workflow}", "ref refs/heads/main", "run 4711"]
    assert set(lines) <= set(shown.split("\n")), shown
    assert "subject" not in shown
    assert f"environment {claims['environment'][:-1]}U+202E" in shown
    commit = shown.partition("commit ")[2].partition("\n")[0]
    assert commit.startswith(f"{image}ccc")
    assert len(commit) == 121
    assert await row.locator("img, script").count() == 0
    assert await page.evaluate("window.__pwned") is None
    assert await overflow(page) == []
    assert await check_axe(page) == []


@pytest.mark.full
def test_the_page_names_the_subject_of_a_job_without_a_repository(provider: OidcProvider, sqlite: Server) -> None:
    admin, forge = admin_of(sqlite), Forge(sqlite, provider)
    name = f"{forge.space}.robot"
    rule = {"target": name, "provider": "oidc", "issuer": provider.issuer, "kind": "person"}
    admin("add_trust_rule", **rule, claims={"sub": "robot", "tenant": "7"})
    # The target, because other tests trust the same robot on this server.
    got = forge.granted(provider.sign({"typ": "JWT"}, aud=AUDIENCE, sub="robot", tenant=7), name)
    Rpc(sqlite.url, got["token"])("create_skill", **skill(name))
    browser = Browser(sqlite.url, accept="text/html")
    browser.sign_in(token_of(admin))

    row = re.search(r"<dt>Built by</dt><dd>(.*?)</dd>", browser.get(f"/s/{name}").text)
    assert row is not None
    assert re.sub("<br>", "\n", row[1]).count("\n") == 2
    assert re.sub("<[^>]*>", "", row[1].replace("<br>", "\n")) == f"subject robot\nissuer {provider.issuer}\n"


def test_a_rule_for_people_publishes_at_once(provider: OidcProvider, sqlite: Server) -> None:
    forge = Forge(sqlite, provider, kind="person")

    created = Rpc(sqlite.url, forge.granted()["token"])("create_skill", **skill(f"{forge.space}.greet"))

    assert created["status"] == "published"


def test_the_token_publishes_its_target_and_does_nothing_else(provider: OidcProvider, sqlite: Server) -> None:
    forge = Forge(sqlite, provider)
    rpc = Rpc(sqlite.url, forge.granted(target=f"{forge.space}.greet")["token"])

    rpc("create_skill", **skill(f"{forge.space}.greet"))
    for other in (f"{forge.space}.other", f"{forge.space}.greet.more", "elsewhere.greet"):
        assert rpc.error("create_skill", **skill(other))["code"] == -32002
    assert rpc.error("list_skills")["data"]["scope"] == "read"
    assert rpc.error("list_tokens")["data"]["scope"] == "admin"
    assert rpc.error("add_trust_rule", target=f"{forge.space}.greet", provider="github")["code"] in {-32002, -32602}
    assert rpc.error("remove_trust_rule", id=forge.rule["id"])["code"] == -32003


@pytest.mark.full(after=1)
def test_the_token_signs_no_browser_in(provider: OidcProvider, server: Server) -> None:
    """The session would not record the provenance, and not know that a job may not manage rules."""
    forge = Forge(server, provider, kind="person")
    browser = Browser(server.url)

    page = browser.sign_in(forge.granted()["token"])

    assert page.status_code == 403
    assert "This is the token of a CI job" in page.text
    assert browser.who() is None


def test_the_token_ends_after_fifteen_minutes(provider: OidcProvider, server: Server) -> None:
    forge = Forge(server, provider)

    got = forge.granted()

    [row] = [one for one in forge.admin("list_tokens")["tokens"] if one["name"] == got["identity"]]
    made, ends = (datetime.fromisoformat(row[name]) for name in ("created_at", "expires_at"))
    assert ends - made == timedelta(minutes=15)
    assert row["scopes"] == ["publish"]


def test_a_token_is_exchanged_once(provider: OidcProvider, server: Server) -> None:
    forge = Forge(server, provider)
    token = forge.token()
    forge.granted(token)

    assert "was exchanged before" in forge.refusal(token)
    # A token without jti is known by its claims.
    without = forge.token(jti=None)
    forge.granted(without)
    assert "was exchanged before" in forge.refusal(without)


@pytest.mark.full
def test_a_token_is_exchanged_once_for_as_long_as_clocks_may_differ(
    provider: OidcProvider, start_server: Callable[..., Server]
) -> None:
    """A sweep must not forget an exchange while the verifier still accepts the token."""
    skew = {"SKILLERY_BACKENDS_VERIFIER_OIDC_SKEW_SECONDS": "300"}
    forge = Forge(start_server(env=ASKS_FOR_TOKENS | TRUST | skew), provider)
    now = int(time.time())
    token = forge.token(iat=now - 500, exp=now - 10)
    forge.granted(token)

    forge.admin("collect_garbage", dry_run=False)

    assert "was exchanged before" in forge.refusal(token)


@pytest.mark.full
@pytest.mark.postgres
def test_concurrent_exchanges_of_the_same_token_succeed_once(provider: OidcProvider, server: Server) -> None:
    forge = Forge(server, provider)
    token = forge.token()

    with ThreadPoolExecutor(8) as threads:
        answers = list(
            threads.map(
                lambda _: httpx.post(f"{server.url}/auth/exchange", json={"token": token}, timeout=300), range(16)
            )
        )

    assert sorted(one.status_code for one in answers) == [200] + [401] * 15


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"repository_id": "1"}, "no trust rule"),  # another owner has registered the name again
        ({"repository_owner_id": "1"}, "no trust rule"),
        ({"repository_owner_id": "771"}, "no trust rule"),  # begins like the id of the rule
        ({"repository": "evil/repo"}, "no trust rule"),
        ({"repository_id": None}, "no trust rule"),
        ({"workflow_ref": "acme/x/.github/workflows/test.yml@refs/heads/main"}, "no trust rule"),
        ({"event_name": "pull_request_target"}, "no trust rule"),
        ({"event_name": "workflow_run"}, "no trust rule"),
        ({"event_name": None}, "no trust rule"),
        ({"event_name": ["push"]}, "no trust rule"),
        ({"event_name": "pull_request", "ref": "refs/pull/7/merge"}, "no trust rule"),
        ({"ref": None}, "no trust rule"),
        ({"repository_id": ["1001"]}, "no trust rule"),
        ({"repository_id": 1001.0}, "no trust rule"),
        ({"aud": "https://other.example.org"}, "another audience"),
        ({"aud": [AUDIENCE, "https://other.example.org"]}, "other audiences too"),
        ({"aud": None}, "another audience"),
        ({"exp": 1}, "expired"),
        ({"exp": None}, "no time of expiry"),
        ({"iat": None}, "iat"),
        ({"iat": int(time.time()) - 7200}, "more than an hour ago"),
        ({"iat": int(time.time()) + DAYS, "exp": int(time.time()) + DAYS + 100}, "not valid yet"),
        ({"nbf": int(time.time()) + DAYS}, "not valid yet"),
        ({"iss": "https://evil.example.org"}, "no trust rule of this server is for the issuer"),
        ({"sub": None}, "no subject"),
        ({"cnf": {"jkt": "x"}}, "bound to a key"),
        ({"events": {}}, "reports an event"),
        ({"typ": "Bearer"}, "is an access token"),
        ({"token_use": "access"}, "is an access token"),
    ],
)
@pytest.mark.full(after=4)
def test_a_token_of_another_job_is_refused(changed: Any, why: str, provider: OidcProvider, sqlite: Server) -> None:
    forge = Forge(sqlite, provider)

    assert why in forge.refusal(forge.token(**changed))
    forge.granted()


def test_attacks_on_the_signature_are_refused(provider: OidcProvider, sqlite: Server) -> None:
    """RFC 8725: none, HMAC with a public key, keys in the header, other types, strange headers."""
    forge = Forge(sqlite, provider)
    good = forge.token()
    head, body, signature = good.split(".")
    public = json.dumps(provider.keys[0].as_dict(private=False)).encode()
    foreign = new_key()
    attacks = {
        "none": f"{encoded({'alg': 'none', 'typ': 'JWT'})}.{body}.",
        "changed claims": f"{head}.{encoded(provider.claims(aud=AUDIENCE, sub='x'))}.{signature}",
        "hmac": jwt.encode({"alg": "HS256", "typ": "JWT"}, {"iss": provider.issuer}, OctKey.import_key(public)),
        "foreign key": forge.token(key=foreign),
        "foreign key with a known id": forge.token({"kid": provider.keys[0].kid}, foreign),
        "key in the header": forge.token({"jwk": foreign.as_dict(private=False)}, foreign),
        "address of keys in the header": forge.token({"jku": "http://127.0.0.1:1/keys"}, foreign),
        "critical extension": f"{encoded({'alg': 'ES256', 'typ': 'JWT', 'crit': ['x'], 'x': 1})}.{body}.{signature}",
        "access token": forge.token({"typ": "at+jwt"}),
        "logout token": forge.token({"typ": "logout+jwt"}),
        "encrypted": ".".join([head, body, signature, body, body]),
        "no token": "sky_x",
        "empty": "",
        "long": "a" * 20_000,
    }
    for name, token in attacks.items():
        answer = forge.exchange(token)
        assert answer.status_code == 401, (name, answer.text)
        assert signature not in answer.text
    forge.granted(good)


def encoded(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def test_a_refused_token_is_not_used_up(provider: OidcProvider, server: Server) -> None:
    forge = Forge(server, provider)
    token = forge.token()

    assert "lets the job" in forge.refusal(token, "elsewhere.skill")
    forge.granted(token)


def test_jobs_without_a_rule_do_not_wait_for_writers(provider: OidcProvider, sqlite: Server) -> None:
    forge = Forge(sqlite, provider)
    with closing(sqlite3.connect(sqlite.home / "skillery.db")) as writer:
        writer.execute("BEGIN IMMEDIATE")

        assert "no trust rule" in forge.refusal(forge.token(repository_id="1"))


def test_removing_a_rule_ends_its_tokens(provider: OidcProvider, server: Server) -> None:
    forge = Forge(server, provider)
    rpc = Rpc(server.url, forge.granted()["token"])
    rpc("create_skill", **skill(f"{forge.space}.greet"))

    removed = forge.admin("remove_trust_rule", id=forge.rule["id"])

    assert removed == {"id": forge.rule["id"], "target": f"{forge.space}.*", "ended": 1}
    assert rpc.http.post("/rpc", json={}).status_code == 401
    assert forge.exchange(forge.token()).status_code == 401
    assert forge.admin.error("remove_trust_rule", id=forge.rule["id"])["code"] == -32003


def test_ref_and_environment_limit_the_jobs(provider: OidcProvider, sqlite: Server) -> None:
    forge = Forge(sqlite, provider, ref="refs/tags/v*", environment="release")

    forge.refusal(forge.token(ref="refs/tags/v1"))
    forge.refusal(forge.token(environment="release"))
    forge.refusal(forge.token(ref="refs/tags/w1", environment="release"))
    forge.refusal(forge.token(ref="refs/tags/v1", environment="Release"))
    got = forge.granted(forge.token(ref="refs/tags/v1", environment="release"))
    assert got["provenance"]["environment"] == "release"


def test_several_rules_need_a_target(provider: OidcProvider, sqlite: Server) -> None:
    forge = Forge(sqlite, provider)
    forge.add(target=f"{forge.space}b.one")

    assert "several trust rules match" in forge.refusal(forge.token())
    assert forge.granted(target=f"{forge.space}b.one")["target"] == f"{forge.space}b.one"
    assert forge.granted(target=f"{forge.space}.lab.*")["target"] == f"{forge.space}.lab.*"


def test_gitlab_jobs_publish(provider: OidcProvider, sqlite: Server) -> None:
    forge = Forge(sqlite, provider)
    name, host = f"group/sub/project{forge.number}", provider.issuer.partition("://")[2]
    forge.add(target=f"{forge.space}.lab", provider="gitlab", repository=name, workflow=None, ref="refs/heads/main")
    job: dict[str, Any] = {
        "aud": AUDIENCE,
        "jti": str(uuid.uuid4()),
        "sub": f"project_path:{name}:ref_type:branch:ref:main",
        "project_path": name,
        "project_id": str(1000 + forge.number),
        "namespace_id": "77",
        "ci_config_ref_uri": f"{host}/{name}//.gitlab-ci.yml@refs/heads/main",
        "ref": "main",
        "ref_path": "refs/heads/main",
        "sha": "c0de",
        "pipeline_id": "8",
        "pipeline_source": "push",
    }
    jwt_header = {"typ": "JWT"}

    forge.refusal(provider.sign(jwt_header, **job | {"pipeline_source": "merge_request_event"}))
    forge.refusal(provider.sign(jwt_header, **job | {"ci_config_ref_uri": f"{host}/{name}//other.yml@refs/heads/main"}))
    got = forge.granted(provider.sign(jwt_header, **job))

    assert got["identity"] == f"ci:{host}:{name}"
    assert (got["provenance"]["commit"], got["provenance"]["run"]) == ("c0de", "8")


def test_another_issuer_needs_claims(provider: OidcProvider, sqlite: Server) -> None:
    admin = admin_of(sqlite)
    forge = Forge(sqlite, provider)
    rule = {"target": f"{forge.space}.any", "provider": "oidc", "issuer": provider.issuer}

    assert "needs a claim" in admin.error("add_trust_rule", **rule)["message"]
    assert "needs a claim" in admin.error("add_trust_rule", **rule, claims={"ref": "*"})["message"]
    assert "cannot have the value" in admin.error("add_trust_rule", **rule, claims={"sub": "*"})["message"]
    admin("add_trust_rule", **rule, claims={"sub": "robot", "tenant": "7"})
    token = provider.sign({"typ": "JWT"}, aud=AUDIENCE, sub="robot", tenant=7)
    # The target, because other tests trust the same robot on this server.
    assert forge.granted(token, rule["target"])["provenance"]["subject"] == "robot"


def issuer_below(provider: OidcProvider, path: str) -> tuple[str, dict[str, Any]]:
    """Return another issuer of the same host, with the keys of the provider, and the answer with its metadata."""
    issuer = f"{provider.issuer}/{path}"
    body = json.dumps({"issuer": issuer, "jwks_uri": f"{provider.issuer}/jwks"})
    return issuer, {f"/{path}/.well-known/openid-configuration": {"body": body}}


def test_jobs_of_two_issuers_on_the_same_host_have_different_names(provider: OidcProvider, sqlite: Server) -> None:
    forge = Forge(sqlite, provider)
    issuer, answer = issuer_below(provider, "realms/second")
    provider.control(answers=answer)
    names = []
    for number, one in enumerate((provider.issuer, issuer)):
        forge.add(target=f"{forge.space}.n{number}", provider="oidc", issuer=one, claims={"sub": "robot"}, **NO_NAMES)
        token = provider.sign({"typ": "JWT"}, aud=AUDIENCE, sub="robot", iss=one)
        names.append(forge.granted(token)["identity"])

    hosts = [one.partition("://")[2] for one in (provider.issuer, issuer)]
    assert names == [f"ci:{host}:robot" for host in hosts]


@pytest.mark.full
def test_a_slow_issuer_does_not_stop_the_jobs_of_others(
    provider: OidcProvider, start_server: Callable[..., Server]
) -> None:
    slow, answer = issuer_below(provider, "slow")
    provider.control(answers=answer)
    often = {"SKILLERY_BACKENDS_VERIFIER_OIDC_KEYS_SECONDS": "0.001"}
    forge = Forge(start_server(env=ASKS_FOR_TOKENS | TRUST | often), provider)
    forge.add(provider="oidc", issuer=slow, claims={"sub": "robot"}, **NO_NAMES)
    [address] = answer
    provider.control(answers={address: {"drips": True}})
    token = provider.sign({"typ": "JWT"}, aud=AUDIENCE, sub="robot", iss=slow)

    with ThreadPoolExecutor(80) as threads:
        sent = [threads.submit(forge.exchange, token) for _ in range(80)]
        eventually(lambda: sum(one.done() for one in sent) >= 8)  # the server refuses what is over its limits
        assert forge.granted()["rule"] == forge.rule["id"]
        assert {one.result().status_code for one in sent} <= {200, 401, 503}


def test_owners_of_a_namespace_manage_its_rules(provider: OidcProvider, server: Server) -> None:
    forge = Forge(server, provider)
    created = forge.admin(
        "create_token", name=f"ann{forge.number}{forge.space}", scopes=["publish"], namespaces=[f"{forge.space}.*"]
    )
    ann = Rpc(server.url, created["token"])
    rule = {
        "provider": "github",
        "repository": "acme/x",
        "repository_id": "1",
        "owner_id": "2",
        "workflow": "release.yml",
    }

    added = ann("add_trust_rule", target=f"{forge.space}.one", **rule)
    assert [one["id"] for one in ann("list_trust_rules")["rules"]] == [forge.rule["id"], added["id"]]
    assert ann.error("add_trust_rule", target="others.*", **rule)["code"] == -32002
    foreign = ann.error("add_trust_rule", target=f"{forge.space}.one", **rule, issuer=provider.issuer)
    assert "only an admin may trust the issuer" in foreign["message"]
    assert ann("remove_trust_rule", id=added["id"])["ended"] == 0

    other = forge.admin("create_token", name=f"bob{forge.space}", scopes=["publish"], namespaces=["others.*"])
    bob = Rpc(server.url, other["token"])
    assert bob("list_trust_rules")["rules"] == []
    assert bob.error("remove_trust_rule", id=forge.rule["id"])["code"] == -32003
    robot = forge.admin(
        "create_token", name=f"bot{forge.space}", scopes=["publish"], namespaces=[f"{forge.space}.*"], kind="agent"
    )
    assert (
        Rpc(server.url, robot["token"]).error("add_trust_rule", target=f"{forge.space}.one", **rule)["code"] == -32002
    )


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"target": "*"}, None),
        ({"repository": ""}, "repository"),
        ({"repository_id": ""}, "repository_id"),
        ({"repository_id": "acme"}, "repository_id"),
        ({"owner_id": ""}, "owner_id"),
        ({"workflow": ""}, "workflow"),
        ({"workflow": "release.yml@refs/heads/x"}, "workflow"),
        ({"ref": "main"}, "ref"),
        ({"ref": "*"}, "ref"),
        ({"issuer": "ftp://x"}, "issuer"),
        ({"issuer": "https://[::1"}, "issuer"),
        ({"issuer": "https://x:99999"}, "issuer"),
        ({"issuer": "http://127.0.0.1:1"}, "issuer"),
        ({"issuer": "http://169.254.169.254"}, "issuer"),
        ({"issuer": "https://10.0.0.1"}, "issuer"),
        ({"claims": {"repository": "x"}}, "claims"),
    ],
)
@pytest.mark.full(after=4)
def test_a_rule_that_is_not_valid_is_refused(
    changed: Any, param: str | None, provider: OidcProvider, sqlite: Server
) -> None:
    forge = Forge(sqlite, provider)

    with pytest.raises(conftest.RpcError) as caught:
        forge.add(**changed)

    assert caught.value.error["code"] == -32602
    assert caught.value.error["data"].get("param") == param


def entries_of(forge: Forge, issuer: str) -> list[dict[str, Any]]:
    """Return the refused exchanges of this repository. A background task writes them."""

    def mine() -> list[dict[str, Any]]:
        refused = forge.admin("list_audit", action="exchange_token", outcome="refused", identity=issuer)["entries"]
        return [one for one in refused if forge.repository in str(one["after"])]

    return eventually(mine)


@pytest.mark.full
def test_the_audit_trail_records_token_exchanges_and_refusal_reasons(
    provider: OidcProvider, start_server: Callable[..., Server]
) -> None:
    forge = Forge(start_server(env=ASKS_FOR_TOKENS | TRUST), provider)
    got, token = forge.granted(), forge.token(repository_id="13")
    forge.refusal(token)

    [done] = forge.admin("list_audit", action="exchange_token", identity=got["identity"])["entries"]
    assert done["subject"] == f"{forge.space}.*"
    assert done["after"]["rule"] == forge.rule["id"]
    assert done["after"]["provenance"] == got["provenance"]
    assert got["token"] not in str(done)
    issuer = f"ci:{provider.issuer.partition('://')[2]}"
    refused = entries_of(forge, issuer)
    [mine] = [one["after"]["reason"] for one in refused]
    assert f"{forge.rule['id']}: the claim 'repository_id' is '13', not '{1000 + forge.number}'" in mine
    assert token not in str(refused)
    [used] = [one for one in forge.admin("list_trust_rules")["rules"] if one["id"] == forge.rule["id"]]
    assert used["last_used_at"]


@pytest.mark.full
def test_failures_count_like_failed_logins(provider: OidcProvider, start_server: Callable[..., Server]) -> None:
    server = start_server(
        env={"SKILLERY_AUTH": "tokens", **TRUST, "SKILLERY_BACKENDS_AUTHENTICATOR_TOKENS_FAILURES_PER_MINUTE": "3"}
    )
    forge = Forge(server, provider)

    statuses = [forge.exchange("x.y.z").status_code for _ in range(5)]

    assert statuses == [401, 401, 401, 429, 429]
    assert Rpc(server.url, "sky_wrong").http.post("/rpc", json={}).status_code == 429
    forge.granted()
    refused = {"action": "exchange_token", "outcome": "refused"}
    [entry, *_] = eventually(lambda: forge.admin("list_audit", **refused)["entries"])
    assert "the header of the token cannot be read" in entry["after"]["reason"]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"token": 1}', b'{"token": "x", "more": 1}', b'{"token": "x", "target": "A B"}']
)
def test_a_request_that_is_not_valid_is_refused(body: bytes, provider: OidcProvider, sqlite: Server) -> None:
    answer = sqlite.rpc.http.post("/auth/exchange", content=body, headers={"content-type": "application/json"})

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == -32602


@pytest.mark.full
def test_without_its_address_the_server_exchanges_nothing(start_server: Callable[..., Server]) -> None:
    server = start_server(env={"SKILLERY_AUTH": "tokens"})

    answer = server.rpc.http.post("/auth/exchange", json={"token": "x"})

    assert answer.status_code == 409
    assert "public_url" in answer.json()["error"]["data"]["hint"]


@pytest.mark.full
def test_an_issuer_on_this_machine_needs_the_setting(
    provider: OidcProvider, start_server: Callable[..., Server]
) -> None:
    server = start_server(env={"SKILLERY_AUTH": "tokens", "SKILLERY_PUBLIC_URL": AUDIENCE})
    rule = {"target": "a.*", "provider": "oidc", "claims": {"sub": "x"}}

    for issuer in (provider.issuer, provider.issuer.replace("127.0.0.1", "localhost"), "http://[::1]:80"):
        error = admin_of(server).error("add_trust_rule", **rule, issuer=issuer)
        assert error["code"] == -32602
        assert "is not a public address" in error["message"] or "http is permitted" in error["message"]
    assert provider.control() == {}


@pytest.mark.parametrize(
    "answer",
    [
        {"status": 302},
        {"status": 500},
        {"body": "no json"},
        {"body": "[]"},
        {"body": json.dumps({"issuer": "https://evil.example.org", "jwks_uri": "https://evil.example.org/keys"})},
        {"body": " " * 600_000},
        {"drips": True},
    ],
)
@pytest.mark.full(after=3)
def test_an_issuer_without_usable_documents_is_refused(answer: Any, provider: OidcProvider, sqlite: Server) -> None:
    admin = admin_of(sqlite)
    provider.control(answers={"/.well-known/openid-configuration": answer})
    rule = {"target": "a.*", "provider": "oidc", "claims": {"sub": "x"}, "issuer": provider.issuer}

    error = admin.error("add_trust_rule", **rule)

    assert (error["code"], error["data"]["param"]) == (-32602, "issuer")


def test_a_compressed_document_is_not_unpacked(provider: OidcProvider, sqlite: Server) -> None:
    """The limit of a document would not limit what it becomes."""
    issuer, answer = issuer_below(provider, "packed")
    [path] = answer
    provider.control(answers={path: answer[path] | {"gzip": True}})
    rule = {"target": "a.*", "provider": "oidc", "claims": {"sub": "x"}, "issuer": issuer}

    assert "does not answer with a JSON object" in admin_of(sqlite).error("add_trust_rule", **rule)["message"]


def test_keys_at_a_private_address_are_not_read(provider: OidcProvider, sqlite: Server) -> None:
    admin = admin_of(sqlite)
    for address in ("http://169.254.169.254/keys", "https://10.0.0.1/keys", "file:///etc/passwd"):
        body = json.dumps({"issuer": provider.issuer, "jwks_uri": address})
        provider.control(answers={"/.well-known/openid-configuration": {"body": body}})
        rule = {"target": "a.*", "provider": "oidc", "claims": {"sub": "x"}, "issuer": provider.issuer}

        assert admin.error("add_trust_rule", **rule)["code"] == -32602


@pytest.mark.full
def test_jobs_are_served_while_keys_change(provider: OidcProvider, start_server: Callable[..., Server]) -> None:
    env = {"SKILLERY_AUTH": "tokens", **TRUST}
    forge = Forge(start_server(env=env), provider)
    forge.granted()

    before = provider.keys
    provider.rotate()
    try:
        assert forge.granted()["rule"] == forge.rule["id"]
    finally:
        provider.rotate(*before)  # the servers of other tests know these keys


class Actions(BaseHTTPRequestHandler):
    """The endpoint at which a job of GitHub Actions asks for its token."""

    sign: Callable[[str], str]

    def do_GET(self) -> None:
        assert self.headers["authorization"] == "Bearer secret-of-the-job"
        audience = httpx.URL(self.path).params["audience"]
        body = json.dumps({"value": type(self).sign(audience)}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def actions() -> Iterator[str]:
    service = ThreadingHTTPServer(("127.0.0.1", 0), Actions)
    thread = threading.Thread(target=service.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{service.server_port}/token?api-version=2.0"
    service.shutdown()
    thread.join()
    service.server_close()


@pytest.mark.smoke
def test_a_ci_job_publishes_with_the_command_line(
    provider: OidcProvider, start_server: Callable[..., Server], actions: str, tmp_path: Path
) -> None:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    server = start_server("--port", str(port), env={"SKILLERY_AUTH": "tokens", **TRUST, "SKILLERY_PUBLIC_URL": address})
    forge = Forge(server, provider)
    Actions.sign = lambda audience: forge.token(aud=audience)
    folder = tmp_path / "greet"
    assert skillery("new", str(folder), "--name", f"{forge.space}.greet").code == 0
    command = ("publish", str(folder), "--trusted", "--url", address, "--json")
    job: dict[str, Any] = {
        "ACTIONS_ID_TOKEN_REQUEST_URL": actions,
        "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "secret-of-the-job",
    }

    published = skillery(*command, **job)
    assert published.code == 0, published.err
    assert json.loads(published.out)[0]["status"] == "in_review"
    assert "sky_" not in published.out + published.err

    gitlab = skillery(*command, SKILLERY_ID_TOKEN=forge.token(aud=address))
    assert gitlab.code == 0, gitlab.err
    wrong = skillery(*command, SKILLERY_ID_TOKEN=forge.token())
    assert wrong.code != 0
    assert "another audience" in wrong.out
    none = skillery(*command)
    assert none.code != 0
    assert "id-token: write" in none.out
    both = skillery(*command, "--token", "sky_x", **job)
    assert both.code == 2
    with_home = skillery("config", "show", "--home", str(tmp_path / "other"), SKILLERY_ID_TOKEN=forge.token())
    assert with_home.code == 0, with_home.err


def test_the_command_line_manages_rules(provider: OidcProvider, sqlite: Server) -> None:
    forge = Forge(sqlite, provider)
    at: dict[str, Any] = {"SKILLERY_TOKEN": token_of(forge.admin)}
    options = ("--repository-id", "5", "--owner-id", "6", "--workflow", "release.yml", "--claim", "actor_id=9")

    added = skillery("trust", "add", f"{forge.space}.cli", "--github", "acme/x", *options, "--url", sqlite.url, **at)
    assert added.code == 0, added.err
    rule_id = added.out.strip()
    assert "workflow_ref = acme/x/.github/workflows/release.yml@refs/*" in added.err
    listed = skillery("trust", "list", "--url", sqlite.url, **at)
    assert rule_id in listed.out
    assert "actor_id=9" in listed.out
    removed = skillery("trust", "rm", rule_id, "--url", sqlite.url, **at)
    assert removed.code == 0
    assert "is removed, and 0 tokens ended" in removed.out


@pytest.mark.full
@pytest.mark.long
def test_the_story_of_an_author_signs_releases_and_installs_offline(
    provider: OidcProvider, start_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = start_server(env={**IMPORT_CHECK, **ASKS_FOR_TOKENS, **TRUST})
    host = provider.issuer.partition("://")[2]
    job: dict[str, Any] = {
        "aud": AUDIENCE,
        "project_path": "acme/skills",
        "project_id": "278964",
        "namespace_id": "9970",
        "ci_config_ref_uri": f"{host}/acme/skills//.gitlab-ci.yml@refs/tags/v0.2.0",
        "ref": "v0.2.0",
        "ref_path": "refs/tags/v0.2.0",
        "ref_type": "tag",
        "sha": "5e1f" * 10,
        "pipeline_source": "push",
    }
    script = "".join(blocks_of("docs/guide/proof.md", "The story of an author"))
    script = script.replace("https://gitlab.example.org", provider.issuer).replace(AUDIENCE, server.url)
    (tmp_path / "folder").mkdir()
    token = provider.sign({"typ": "JWT"}, **job, sub="project_path:acme/skills:ref_type:tag:ref:v0.2.0")
    printed = run_as_user(script, server, tmp_path / "folder", SKILLERY_ID_TOKEN=token)

    ci = f"ci:{host}:acme/skills"
    assert "  signed with sha256:" in printed
    assert re.search(r"^ok\tauthor\tada\tsha256:", printed, re.MULTILINE)
    assert re.search(r"^ok\tprovenance\t", printed, re.MULTILINE)
    assert f"signer changed from ada to {ci}" in printed
    assert "refused: exit code 1" in printed
    assert "skillery.lock: 1 skill is verified" in printed
    assert (tmp_path / "folder" / "skills" / "sales.report" / "SKILL.md").is_file()
    [locked] = json.loads((tmp_path / "folder" / "skillery.lock").read_text())["skills"]
    assert (locked["version"], locked["signer"]) == ("0.2.0", ci)
