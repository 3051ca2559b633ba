"""Access control: each role calls each method and each endpoint over HTTP, on both databases."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import httpx
import pytest

from skillery.methods.table import METHODS
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, RpcError, Server, manifest, skill_files

NOT_AUTHENTICATED, NOT_ALLOWED, NOT_FOUND, INVALID_PARAMS = -32001, -32002, -32003, -32602
NAMESPACE = "sales"
ROLES: dict[str, list[str]] = {
    "reader": ["--scope", "read"],
    "runner": ["--scope", "run"],
    "agent": ["--scope", "read,run,publish", "--namespace", f"{NAMESPACE}.*", "--agent"],
    "publisher": ["--scope", "publish", "--namespace", f"{NAMESPACE}.*"],
    "reviewer": ["--scope", "review"],
    "admin": ["--scope", "admin"],
}
SCOPES = {
    "reader": {"read"},
    "runner": {"run"},
    "agent": {"read", "run", "publish"},
    "publisher": {"publish"},
    "reviewer": {"review"},
    "admin": {"read", "run", "publish", "review", "admin"},
}
VERSION = {"name": f"{NAMESPACE}.none", "version": "1.0.0"}
_numbers = itertools.count()


class Cell(NamedTuple):
    """One method, the scope that it needs, and params for a call that needs no other data."""

    scope: str
    params: Callable[[], dict[str, Any]]
    answer: int | None = None
    """Error code of the call for callers with the scope. None means that the call returns a result."""


def _skill(version: str = "1.0.0") -> dict[str, Any]:
    name = f"{NAMESPACE}.made{next(_numbers)}"
    return {"manifest": manifest(name, version), "skill_md": f"# {name}\n", "files": skill_files()}


CELLS: dict[str, Cell] = {
    "list_skills": Cell("read", dict),
    "describe_skill": Cell("read", lambda: {"name": "text.csv.profile"}),
    "read_skill_file": Cell("read", lambda: {"name": "text.csv.profile", "path": "SKILL.md"}),
    "execute_skill": Cell("run", lambda: {"name": "no.such.skill"}, NOT_FOUND),
    "run_code": Cell("run", lambda: {"language": "python", "code": "1", "mount_skills": ["no.such"]}, NOT_FOUND),
    "create_blob": Cell("run", lambda: {"content": "x", "kind": "text/plain"}),
    "read_blob": Cell("read", lambda: {"blob_id": "blob:none"}, NOT_FOUND),
    "load_skills_protocol_guide": Cell("read", dict),
    "create_skill": Cell("publish", _skill),
    "check_skill": Cell("publish", _skill),
    "develop_skill": Cell("publish", lambda: _skill("1.0.0-dev.1")),
    "keep_development": Cell("publish", lambda: {"names": ["no.such"]}),
    "end_development": Cell("publish", lambda: {"names": ["no.such"]}),
    "submit_version": Cell("publish", lambda: VERSION, NOT_FOUND),
    "approve_version": Cell("review", lambda: VERSION, NOT_FOUND),
    "reject_version": Cell("review", lambda: VERSION | {"reason": "x"}, NOT_FOUND),
    "yank_version": Cell("publish", lambda: VERSION | {"reason": "x"}, NOT_FOUND),
    "purge_version": Cell("admin", lambda: VERSION | {"reason": "x"}, NOT_FOUND),
    "unyank_version": Cell("publish", lambda: VERSION, NOT_FOUND),
    "deprecate_skill": Cell("publish", lambda: {"name": f"{NAMESPACE}.none", "message": "x"}, NOT_FOUND),
    "undeprecate_skill": Cell("publish", lambda: {"name": f"{NAMESPACE}.none"}, NOT_FOUND),
    "set_visibility": Cell("publish", lambda: {"name": f"{NAMESPACE}.none", "visibility": "private"}, NOT_FOUND),
    "list_versions": Cell("read", lambda: {"status": "in_review"}),
    "diff_versions": Cell("read", lambda: {"name": "text.csv.profile", "from_version": "1.0.0"}),
    "get_run": Cell("read", lambda: {"run_id": "run_none"}, NOT_FOUND),
    "read_run_log": Cell("read", lambda: {"run_id": "run_none"}, NOT_FOUND),
    "list_runs": Cell("read", dict),
    "cancel_run": Cell("run", lambda: {"run_id": "run_none"}, NOT_FOUND),
    "set_label": Cell("publish", lambda: VERSION | {"label": "stable"}, NOT_FOUND),
    "rollback_label": Cell("publish", lambda: {"name": f"{NAMESPACE}.none", "label": "stable"}, NOT_FOUND),
    "remove_label": Cell("publish", lambda: {"name": f"{NAMESPACE}.none", "label": "stable"}, NOT_FOUND),
    "list_labels": Cell("read", lambda: {"name": "text.csv.profile"}),
    "resolve_skills": Cell("read", lambda: {"skills": ["text.csv.profile@^1"]}),
    "verify_lock": Cell("read", lambda: {"lock": [VERSION | {"digest": "none"}]}),
    "search_skills": Cell("read", lambda: {"query": "csv"}),
    "waive_finding": Cell("review", lambda: {"name": f"{NAMESPACE}.none", "rule": "x", "reason": "x"}),
    "recheck_version": Cell("review", lambda: VERSION, NOT_FOUND),
    "list_waivers": Cell("review", dict),
    "revoke_waiver": Cell("review", lambda: {"id": "waiver_none"}, NOT_FOUND),
    "list_tools": Cell("read", dict),
    "call_tool": Cell("run", lambda: {"name": "no_such_tool"}, NOT_FOUND),
    "define_tool": Cell("run", lambda: {"name": "own_tool", "description": "x", "code": "return 1"}),
    "remove_tool": Cell("run", lambda: {"name": "no_such_tool"}, NOT_FOUND),
    "list_environments": Cell("run", dict),
    "describe_environment": Cell("run", lambda: {"name": "none"}, NOT_FOUND),
    "rebuild_environment": Cell("admin", lambda: {"name": "none"}, NOT_FOUND),
    "delete_blob": Cell("run", lambda: {"blob_id": "blob:none"}, NOT_FOUND),
    "create_workspace": Cell("run", dict),
    "list_workspaces": Cell("read", dict),
    "describe_workspace": Cell("read", lambda: {"workspace": "ws_none"}, NOT_FOUND),
    "read_workspace_file": Cell("read", lambda: {"workspace": "ws_none", "path": "a"}, NOT_FOUND),
    "reset_workspace": Cell("run", lambda: {"workspace": "ws_none", "snapshot": "sha256:none"}, NOT_FOUND),
    "delete_workspace": Cell("run", lambda: {"workspace": "ws_none"}, NOT_FOUND),
    "list_skill_usage": Cell("read", dict),
    "get_usage": Cell("read", dict),
    "collect_garbage": Cell("admin", lambda: {"dry_run": True}),
    "create_token": Cell("admin", lambda: {"name": f"made{next(_numbers)}", "scopes": ["read"], "expires": "1h"}),
    "list_tokens": Cell("admin", dict),
    "revoke_token": Cell("admin", lambda: {"id": "none"}, NOT_FOUND),
    "revoke_identity": Cell("admin", lambda: {"name": "nobody-at-all"}, NOT_FOUND),
    "list_audit": Cell("admin", dict),
    "add_webhook": Cell("admin", lambda: {"url": "http://127.0.0.1/"}, INVALID_PARAMS),
    "list_webhooks": Cell("admin", dict),
    "test_webhook": Cell("admin", lambda: {"id": "whk_none"}, NOT_FOUND),
    "remove_webhook": Cell("admin", lambda: {"id": "whk_none"}, NOT_FOUND),
    "add_trust_rule": Cell("publish", lambda: {"target": "*", "provider": "oidc"}, INVALID_PARAMS),
    "list_trust_rules": Cell("publish", dict),
    "remove_trust_rule": Cell("publish", lambda: {"id": "trust_none"}, NOT_FOUND),
    "list_dead_letters": Cell("admin", lambda: {"id": "whk_none"}, NOT_FOUND),
}


def test_every_method_has_its_row() -> None:
    assert set(CELLS) == set(METHODS)


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
def test_a_role_may_call_what_its_scopes_say(role: str, tokens_server: Server, tokens: dict[str, str]) -> None:
    rpc, wrong = Rpc(tokens_server.url, tokens[role]), {}
    for method, cell in CELLS.items():
        reply = rpc.send(method, cell.params())
        error: dict[str, Any] = reply.get("error", {"code": None})
        is_allowed = cell.scope in SCOPES[role]
        if not (error["code"] == cell.answer if is_allowed else is_refusal(error, cell.scope)):
            wrong[method] = reply

    assert wrong == {}


def is_refusal(error: dict[str, Any], scope: str) -> bool:
    """Return whether the error says that the token does not have the scope."""
    if error["code"] != NOT_ALLOWED:
        return False
    data = error["data"]
    return (data["type"], data["scope"]) == ("not_allowed", scope) and scope in data["hint"]


def test_no_method_works_without_a_token(tokens_server: Server) -> None:
    rpc, wrong = Rpc(tokens_server.url), {}
    for method, cell in CELLS.items():
        call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": cell.params()}
        response = rpc.http.post("/rpc", json=call)
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
    ("GET", "/metrics", "admin", 200),
    ("POST", "/blobs", "run", 201),
    ("POST", "/import", "publish", 400),
    ("GET", "/blobs/blob:none", "read", 404),
    ("HEAD", "/blobs/blob:none", "read", 404),
    ("GET", "/skills/none/1.0.0.tar.gz", "read", 404),
    ("HEAD", "/skills/skills.protocol.guide/latest.zip", "read", 200),
    ("GET", "/skills/skills.protocol.guide/latest/SKILL.md", "read", 200),
    ("GET", "/.well-known/agent-skills/index.json", "read", 200),
    ("GET", "/marketplace.json", "read", 200),
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
