"""Access control: each role calls each method and each endpoint over HTTP, on both databases."""

from __future__ import annotations

import itertools
from typing import Any

import httpx
import pytest

from skillery.methods.table import METHODS
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, RpcError, Server, manifest, skill_files
from tests.support.people import Caller, Who

NOT_AUTHENTICATED, NOT_ALLOWED, NOT_FOUND, INTERNAL_ERROR = -32001, -32002, -32003, -32603
NAMESPACE = "sales"
ROLES: dict[str, list[str]] = {
    "reader": ["--scope", "read"],
    "runner": ["--scope", "run"],
    "agent": ["--scope", "read,run,publish", "--namespace", f"{NAMESPACE}.*", "--agent"],
    "publisher": ["--scope", "publish", "--namespace", f"{NAMESPACE}.*"],
    "reviewer": ["--scope", "review"],
    "prometheus": ["--scope", "metrics", "--agent"],
    "auditor": ["--scope", "audit"],
    "provisioner": ["--scope", "accounts", "--agent"],
    "admin": ["--scope", "admin"],
}
SCOPES = {
    "reader": {"read"},
    "runner": {"run"},
    "agent": {"read", "run", "publish"},
    "publisher": {"publish"},
    "reviewer": {"review"},
    "prometheus": {"metrics"},
    "auditor": {"audit"},
    "provisioner": {"accounts"},
    "admin": {"read", "run", "publish", "review", "metrics", "audit", "accounts", "admin"},
}
FOR_AUDITORS = {"list_runs", "compare_runs", "get_run", "read_run_log", "get_run_statement", "get_usage"}
"""The methods that need `read`, or `audit`."""
_numbers = itertools.count()


def _skill() -> dict[str, Any]:
    name = f"{NAMESPACE}.made{next(_numbers)}"
    return {"manifest": manifest(name), "skill_md": f"# {name}\n", "files": skill_files()}


@pytest.fixture(scope="session")
def tokens(tokens_server: Server) -> dict[str, str]:
    return {role: create_token(tokens_server, role, *options)["token"] for role, options in ROLES.items()}


def create_token(server: Server, name: str, *options: str) -> Any:
    """Create a token with the command line, in the home of a running server."""
    arguments = ("token", "create", "--name", name, *options, "--home", str(server.home), "--json")
    made = skillery(*arguments, SKILLERY_DATABASE=server.database)
    assert made.code == 0, made.out + made.err
    return made.json


def code_of(rpc: Rpc, method: str, **params: Any) -> int | None:
    try:
        rpc(method, **params)
    except RpcError as failed:
        code: int = failed.error["code"]
        return code
    return None


@pytest.mark.parametrize("role", ROLES)
def test_methods_require_their_scope(role: str, tokens_server: Server, tokens: dict[str, str]) -> None:
    """The scope is checked before the params, so calls without params suffice."""
    rpc, wrong = Rpc(tokens_server.url, tokens[role]), {}
    for name, method in METHODS.items():
        error = rpc.send(name, {}).get("error", {"code": None})
        is_allowed = method.needs is None or method.needs in SCOPES[role]
        is_allowed = is_allowed or (role == "auditor" and name in FOR_AUDITORS)
        if is_allowed:
            is_expected = error["code"] not in {NOT_ALLOWED, INTERNAL_ERROR}
        else:
            is_expected = is_refusal(error, str(method.needs))
        if not is_expected:
            wrong[name] = error

    assert wrong == {}


def is_refusal(error: dict[str, Any], scope: str) -> bool:
    """Return whether the error says that the token does not have the scope."""
    if error["code"] != NOT_ALLOWED:
        return False
    data = error["data"]
    return (data["type"], data["scope"]) == ("not_allowed", scope) and scope in data["hint"]


def test_no_method_works_without_a_token(tokens_server: Server) -> None:
    rpc, wrong = Rpc(tokens_server.url), {}
    for method in METHODS:
        response = rpc.http.post("/rpc", json={"jsonrpc": "2.0", "id": 1, "method": method, "params": {}})
        envelope = {"jsonrpc": "2.0", "id": None}
        if not is_without_token(response) or not envelope.items() <= response.json().items():
            wrong[method] = (response.status_code, response.text)

    assert wrong == {}


def is_without_token(response: httpx.Response) -> bool:
    """Return whether the response says that the request has no token."""
    if (response.status_code, response.headers.get("www-authenticate")) != (401, "Bearer"):
        return False
    error = response.json()["error"]
    kind = (error["code"], error["data"]["type"])
    return kind == (NOT_AUTHENTICATED, "not_authenticated") and "token" in error["data"]["hint"]


# verb, path, the needed scope (None: any token, "nobody": no token), the status for authorised callers
ENDPOINTS = [
    ("GET", "/healthz", "nobody", 200),
    ("GET", "/readyz", "nobody", 200),
    ("POST", "/auth/exchange", "nobody", 415),
    ("GET", "/tools?format=mcp", None, 200),
    ("GET", "/prompt", None, 200),
    ("GET", "/openrpc.json", None, 200),
    ("GET", "/v1/openapi.json", None, 200),
    ("GET", "/v1/skills", "read", 200),
    ("POST", "/v1/skills", "publish", 415),
    ("GET", "/v1/skills/text.csv.profile", "read", 200),
    ("DELETE", "/v1/skills/sales.none", "publish", 404),
    ("GET", "/v1/skills/text.csv.profile/content", "read", 200),
    ("GET", "/v1/skills/text.csv.profile/versions", "read", 200),
    ("POST", "/v1/skills/text.csv.profile/versions", "publish", 415),
    ("HEAD", "/v1/skills/text.csv.profile/versions/latest", "read", 200),
    ("DELETE", "/v1/skills/sales.none/versions/1.0.0", "publish", 404),
    ("GET", "/v1/skills/text.csv.profile/versions/latest/content", "read", 200),
    ("GET", "/metrics", "metrics", 200),
    ("POST", "/blobs", "run", 201),
    ("POST", "/import", "publish", 400),
    ("GET", "/blobs/blob:none", "read", 404),
    ("HEAD", "/blobs/blob:none", "read", 404),
    ("GET", "/skills/none/1.0.0.tar.gz", "read", 404),
    ("HEAD", "/skills/skills.protocol.guide/latest.zip", "read", 200),
    ("GET", "/skills/skills.protocol.guide/latest/SKILL.md", "read", 200),
    ("GET", "/.well-known/agent-skills/index.json", "read", 200),
    ("GET", "/marketplace.json", "read", 200),
    ("GET", "/advisories.json", "read", 200),
    ("GET", "/.well-known/skills/skills-protocol-guide/SKILL.md", "read", 200),
    ("GET", "/n/skills/.well-known/skills/index.json", "read", 200),
    ("GET", "/n/skills/.well-known/agent-skills/none/SKILL.md", "read", 404),
]


@pytest.mark.parametrize("role", ["anonymous", *ROLES])
def test_endpoints_require_their_scope(role: str, tokens_server: Server, tokens: dict[str, str]) -> None:
    rpc, wrong = Rpc(tokens_server.url, tokens.get(role)), {}
    for verb, path, scope, status in ENDPOINTS:
        response = rpc.http.request(verb, path, content=b"x" if verb == "POST" else None)
        if scope == "nobody" or (role != "anonymous" and (scope is None or scope in SCOPES[role])):
            is_right = response.status_code == status
        elif role == "anonymous":
            is_right = response.status_code == 401 and (verb == "HEAD" or is_without_token(response))
        else:
            is_right = response.status_code == 403 and (
                verb == "HEAD" or response.json()["error"]["code"] == NOT_ALLOWED
            )
        if not is_right:
            wrong[f"{verb} {path}"] = (response.status_code, response.text[:500])

    assert wrong == {}


def test_auditors_read_runs_and_usage_of_all_and_change_nothing(org: Server, new_name: str) -> None:
    """Also with the scope `run`, an auditor stops no run of another identity, and reads no blob of it."""
    ann = Caller(org.url, Who(f"{new_name}-ann", "read run"))
    eve = Caller(org.url, Who(f"{new_name}-eve", "audit run"))
    code = "import runtime\ndef run(args):\n    print('x' * 5000)\n    return runtime.blobs.write_text('data')"
    run = ann("run_code", language="python", code=code, entrypoint="run")
    run_id, name = run["run_id"], f"{new_name}-ann"

    assert [row["run_id"] for row in eve("list_runs", identity=name)["runs"]] == [run_id]
    assert eve("get_run", run_id=run_id)["identity"]["name"] == name
    assert "x" * 5000 in eve("read_run_log", run_id=run_id)["text"]
    assert eve("get_usage", identity=name, namespace="sales")["runs_per_minute"]["used"] == 1
    assert eve.error("cancel_run", run_id=run_id)["code"] == NOT_FOUND
    assert eve.error("read_blob", blob_id=run["output_blobs"][0])["code"] == NOT_ALLOWED
    assert ann.error("list_runs", identity=f"{new_name}-eve")["data"]["scope"] == "audit"


@pytest.mark.parametrize("path", ["", "/mcp"])
def test_without_an_issuer_there_is_no_metadata_about_tokens(path: str, tokens_sqlite: Server) -> None:
    """Clients that find metadata without a usable authorization server fail worse than clients that find none."""
    assert tokens_sqlite.rpc.http.get(f"/.well-known/oauth-protected-resource{path}").status_code == 404


@pytest.mark.parametrize("role", ["agent", "publisher"])
def test_create_skill_takes_a_grant_of_the_namespace(role: str, tokens_server: Server, tokens: dict[str, str]) -> None:
    rpc = Rpc(tokens_server.url, tokens[role])

    for name, grant in (("salesx.leads", "salesx.*"), ("sales", "*"), ("hr.pay.slips", "hr.pay.*")):
        error = rpc.error("create_skill", manifest=manifest(name), skill_md=f"# {name}\n", files=skill_files())
        assert error["code"] == NOT_ALLOWED
        assert error["data"]["grant"] == grant
        assert grant in error["data"]["hint"]
        assert f"'{NAMESPACE}.*'" in error["data"]["hint"]
    admin = Rpc(tokens_server.url, tokens["admin"])
    assert code_of(admin, "describe_skill", name="salesx.leads") == NOT_FOUND


def test_a_token_without_a_namespace_publishes_nothing(tokens_server: Server) -> None:
    rpc = Rpc(tokens_server.url, create_token(tokens_server, "nowhere", "--scope", "read,publish")["token"])

    assert code_of(rpc, "create_skill", **_skill()) == NOT_ALLOWED


def test_a_refused_publication_reveals_nothing_about_the_name(tokens_server: Server, tokens: dict[str, str]) -> None:
    admin, publisher = Rpc(tokens_server.url, tokens["admin"]), Rpc(tokens_server.url, tokens["publisher"])
    name = f"hr.secret{next(_numbers)}"
    asked = {"manifest": manifest(name), "skill_md": f"# {name}\n", "files": skill_files()}
    admin("create_skill", **asked)

    same = publisher.error("create_skill", **asked)
    other = publisher.error("create_skill", **asked | {"skill_md": "# Another\n"})
    absent = publisher.error("create_skill", **asked | {"manifest": manifest(f"{name}x")})

    assert {same["code"], other["code"], absent["code"]} == {NOT_ALLOWED}
    assert same == other
    assert absent["data"].keys() == same["data"].keys()


def test_a_blob_belongs_to_the_name_and_not_to_the_token(tokens_server: Server, tokens: dict[str, str]) -> None:
    first = create_token(tokens_server, "rotated", "--scope", "read,run")
    blob = Rpc(tokens_server.url, first["token"])("create_blob", content="kept", kind="text/plain")["blob_id"]
    second = create_token(tokens_server, "rotated", "--scope", "read")
    Rpc(tokens_server.url, tokens["admin"])("revoke_token", id=first["id"])

    assert Rpc(tokens_server.url, second["token"])("read_blob", blob_id=blob)["content"] == "kept"
    assert code_of(Rpc(tokens_server.url, tokens["reader"]), "read_blob", blob_id=blob) == NOT_FOUND
    assert Rpc(tokens_server.url, tokens["reader"]).http.get(f"/blobs/{blob}").status_code == 404


def test_a_call_in_a_batch_is_decided_by_itself(tokens_server: Server, tokens: dict[str, str]) -> None:
    calls = [
        {"jsonrpc": "2.0", "id": 1, "method": "list_skills"},
        {"jsonrpc": "2.0", "id": 2, "method": "create_blob", "params": {"content": "x", "kind": "text/plain"}},
    ]

    answers = Rpc(tokens_server.url, tokens["reader"]).http.post("/rpc", json=calls).json()

    assert "result" in answers[0]
    assert answers[1]["error"]["code"] == NOT_ALLOWED
