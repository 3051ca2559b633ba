"""The OpenRPC document is valid and complete, and the server answers as the document says."""

from __future__ import annotations

import copy
import json
import os
import string
import traceback
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from referencing import Registry
from referencing.jsonschema import DRAFT7

from skillery.client_source.openrpc import CALLABLE, SYSTEM, document
from skillery.methods.errors import encode
from skillery.methods.table import METHODS
from tests.conftest import Rpc, Server, manifest, skill_files

META = json.loads((Path(__file__).parents[1] / "support" / "data" / "openrpc-meta-schema.json").read_text("utf-8"))
EXAMPLES = int(os.environ.get("SKILLERY_FUZZ_EXAMPLES", "4"))
CODES = {-32600, -32601, -32602, *range(-32007, -32000)}
RECURSIVE = "https://meta.json-schema.tools"


@cache
def meta_validator() -> jsonschema.Draft7Validator:
    """Return a validator whose `JSONSchemaObject` is the schema of draft 7, which the meta schema refers to by that
    name.
    """
    draft7 = jsonschema.Draft7Validator.META_SCHEMA
    theirs = draft7 | {"definitions": draft7["definitions"] | {"JSONSchemaObject": draft7}}
    resources = [(uri, DRAFT7.create_resource(theirs)) for uri in (RECURSIVE, f"{RECURSIVE}/")]
    registry: Registry[Any] = Registry().with_resources(resources)
    return jsonschema.Draft7Validator(META, registry=registry, format_checker=jsonschema.FormatChecker())


@cache
def strict() -> dict[str, Any]:
    """Return the document with `additionalProperties: false` in every schema with properties."""
    found = copy.deepcopy(document())
    for schema in found["components"]["schemas"].values():
        if schema.get("type") == "object" and "properties" in schema:
            schema["additionalProperties"] = False
    return found


def check_answer(method: str, answer: Any) -> None:
    one = next(one for one in strict()["methods"] if one["name"] == method)
    schema = {"allOf": [one["result"]["schema"]], "components": strict()["components"]}
    jsonschema.Draft7Validator(schema).validate(answer)


# -- the document ------------------------------------------------------------


@pytest.mark.full
def test_it_is_valid_by_the_meta_schema_and_the_same_by_both_ways(sqlite_rpc: Rpc) -> None:
    discovered = sqlite_rpc("rpc.discover")
    fetched = sqlite_rpc.http.get("/openrpc.json").json()

    meta_validator().validate(discovered)
    meta_validator().validate(fetched)
    assert fetched.pop("servers") == [{"name": "this server", "url": f"{sqlite_rpc.url}/rpc"}]
    assert fetched == discovered == json.loads(encode(document()))


def test_the_meta_schema_is_one_that_refuses() -> None:
    broken = document() | {"methods": [{"name": "x", "params": [{"name": "y"}]}]}

    assert not meta_validator().is_valid(broken)


def test_every_method_is_documented_with_its_params_its_result_and_its_scope() -> None:
    shown = {
        method["name"]: (
            {param["name"] for param in method["params"]},
            method["paramStructure"],
            method["tags"],
            method["result"]["schema"],
            bool(method["summary"]),
        )
        for method in document()["methods"]
    }
    expected = {
        name: (
            set(method.params.__struct_encode_fields__),
            "by-name",
            [{"name": method.needs or "any token"}],
            {"$ref": f"#/components/schemas/{method.result.__name__}"},
            True,
        )
        for name, method in CALLABLE.items()
    }
    assert shown == expected


def test_every_reference_leads_somewhere_and_every_schema_is_one() -> None:
    text = json.dumps(document())
    components = document()["components"]
    for name in text.split('"#/components/schemas/')[1:]:
        assert name.split('"')[0] in components["schemas"]
    for name in text.split('"#/components/errors/')[1:]:
        assert name.split('"')[0] in components["errors"]
    for schema in components["schemas"].values():
        jsonschema.Draft7Validator.check_schema(schema)


def test_params_are_documented_as_they_are_decoded_and_not_as_tools_print_them() -> None:
    def param(method: str, name: str) -> Any:
        one = next(one for one in document()["methods"] if one["name"] == method)
        return next(param["schema"] for param in one["params"] if param["name"] == name)

    assert param("run_code", "language")["enum"] == ["bash", "javascript", "python"]
    assert param("list_skills", "limit") == {"type": "integer", "minimum": 1, "maximum": 1000, "default": 50}
    assert param("create_blob", "ttl")["minimum"] == 1


def test_only_json_rpc_itself_has_names_under_its_prefix() -> None:
    assert not [name for name in METHODS if name.startswith("rpc.")]
    assert all(name.startswith("rpc.") for name in SYSTEM)


def test_any_token_will_do_and_none_will_not(tokens_server: Server) -> None:
    from tests.api.test_access import create_token

    runner = Rpc(tokens_server.url, create_token(tokens_server, "who_discovers", "--scope", "run")["token"])

    assert runner("rpc.discover")["openrpc"] == "1.3.2"
    assert runner.http.get("/openrpc.json").status_code == 200
    assert runner.http.get("/v1/openapi.json").status_code == 200
    assert tokens_server.rpc.http.get("/openrpc.json").status_code == 401


# -- responses -------------------------------------------------------------------


@pytest.mark.smoke
@pytest.mark.full(after=1)
def test_what_the_server_answers_is_what_the_document_says(rpc: Rpc, new_name: str) -> None:
    """Call nearly every method. A response with a field that the document does not name fails the test."""
    name, second = f"{new_name}.one", {"name": f"{new_name}.one", "version": "1.1.0"}
    told: set[str] = set()

    def call(method: str, **params: Any) -> Any:
        answer = rpc(method, **params)
        check_answer(method, answer)
        told.add(method)
        return answer

    made = {"manifest": manifest(name), "skill_md": f"# {name}\n", "files": skill_files()}
    call("check_skill", **made)
    call("develop_skill", **(made | {"manifest": manifest(name, "1.0.0-dev.1")}))
    call("keep_development", names=[name])
    call("end_development", names=[name])
    call("create_skill", **made)
    call("create_skill", **(made | {"manifest": manifest(name, "1.1.0", examples=[{"name": "x", "args": {}}])}))
    for detail in ("names", "summary"):
        call("list_skills", namespace=new_name, detail=detail)
    for detail in ("manifest", "summary", "full"):
        call("describe_skill", name=name, detail=detail)
    call("read_skill_file", name=name, path="code/main.py")
    call("search_skills", query=new_name)
    call("list_versions", name=name)
    call("diff_versions", name=name, from_version="1.0.0")
    call("load_skills_protocol_guide")
    run = call("execute_skill", name=name, args={"x": 1})
    call("run_code", language="python", code="def main(args):\n    print('x' * 4000)\n    return 'y' * 5000\n")
    call("run_code", language="python", code="def main(args):\n    raise ValueError('no')\n")
    call("get_run", run_id=run["run_id"])
    call("read_run_log", run_id=run["run_id"])
    call("list_runs")
    call("define_tool", name="shout", description="Shouts.", language="python", code="return 'HEY'")
    call("list_tools")
    call("call_tool", name="shout", args={})
    call("remove_tool", name="shout")
    blob = call("create_blob", content="a", kind="text/plain", ttl=3600)
    call("read_blob", blob_id=blob["blob_id"])
    call("get_usage")
    call("delete_blob", blob_id=blob["blob_id"])
    call("set_label", name=name, label="stable", version="1.0.0")
    call("set_label", name=name, label="stable", version="1.1.0")
    call("rollback_label", name=name, label="stable")
    call("remove_label", name=name, label="stable")
    call("list_labels", name=name)
    call("list_skill_usage")
    lock = call("resolve_skills", skills=[name])["lock"]
    call("verify_lock", lock=lock)
    call("deprecate_skill", name=name, message="Old.")
    call("describe_skill", name=name)
    call("undeprecate_skill", name=name)
    call("yank_version", **second, reason="It leaks.")
    call("describe_skill", **second)
    call("verify_lock", lock=lock)
    call("unyank_version", **second)
    call("purge_version", **second, reason="It leaks.")
    call("set_visibility", name=name, visibility="private")
    waiver = call("waive_finding", name=name, rule="x.y", reason="It is meant so.", until="9d")
    call("list_waivers", name=name)
    call("revoke_waiver", id=waiver["id"])
    call("recheck_version", name=name, version="1.0.0")
    workspace = call("create_workspace", name=new_name)["id"]
    call("run_code", language="python", code="def main(args): open('a', 'w')", workspace=workspace)
    call("list_workspaces")
    snapshots = call("describe_workspace", workspace=workspace)["snapshots"]
    call("read_workspace_file", workspace=workspace, path="a")
    call("reset_workspace", workspace=workspace, snapshot=snapshots[-1]["snapshot"])
    call("delete_workspace", workspace=workspace)
    call("list_audit", subject=name)
    call("list_environments", installed=True)
    call("collect_garbage", dry_run=True)
    token = call("create_token", name=f"{new_name}x", scopes=["read"], expires="1h")
    call("list_tokens")
    call("revoke_token", id=token["id"])
    call("revoke_identity", name=f"{new_name}x")
    webhook = call("add_webhook", url="http://localhost:9/", skills=[f"{new_name}.none"])
    call("list_webhooks")
    call("test_webhook", id=webhook["id"])
    call("list_dead_letters", id=webhook["id"])
    call("remove_webhook", id=webhook["id"])
    numbers = {"repository_id": "1", "owner_id": "2"}
    rule = call(
        "add_trust_rule",
        target=f"{new_name}.none",
        provider="github",
        repository="acme/x",
        workflow="release.yml",
        **numbers,
    )
    call("list_trust_rules")
    call("remove_trust_rule", id=rule["id"])
    call("rpc.discover")

    elsewhere = {"describe_environment", "rebuild_environment"}
    assert set(CALLABLE) - told == {"submit_version", "approve_version", "reject_version", "cancel_run", *elsewhere}


# -- fuzz ------------------------------------------------------------

WORDS = st.sampled_from(
    ["text.csv.profile", "1.0.0", "latest", "stable", "blob:none", "run_none", "*", "90d", "SKILL.md", ""]
)
TEXT = st.one_of(WORDS, st.text(max_size=40), st.text(string.printable, max_size=40))
JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)
TOO_DEAR = {"collect_garbage"}
"""Methods that are too expensive to fuzz: a hundred concurrent calls only wait for each other."""


def values_of(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for values that a schema of the document accepts."""
    if "$ref" in schema:
        return values_of(document()["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema.get("type"):
        case "string":
            least, most = schema.get("minLength", 0), schema.get("maxLength", 10_000)
            return TEXT.filter(lambda text: least <= len(text) <= most)
        case "integer":
            return st.integers(schema.get("minimum"), schema.get("maximum"))
        case "boolean":
            return st.booleans()
        case "array":
            return st.lists(values_of(schema["items"]), max_size=3)
        case "object" if "properties" in schema and not schema.get("additionalProperties", True):
            needed = set(schema.get("required", ()))
            kinds = {key: values_of(value) for key, value in schema["properties"].items()}
            return st.fixed_dictionaries(
                {key: kinds[key] for key in needed},
                optional={key: kinds[key] for key in kinds.keys() - needed},
            )
        case "object":
            return st.dictionaries(TEXT, JSON_VALUES, max_size=4)
    return JSON_VALUES


def calls_of(one: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for params: mostly valid ones, sometimes invalid or unknown ones."""
    kinds = {param["name"]: values_of(param["schema"]) for param in one["params"]}
    needed = {param["name"] for param in one["params"] if param["required"]}
    good = st.fixed_dictionaries(
        {key: kinds[key] for key in needed}, optional={key: kinds[key] for key in kinds.keys() - needed}
    )
    odd = st.dictionaries(st.one_of(st.sampled_from(sorted(kinds)), TEXT) if kinds else TEXT, JSON_VALUES, max_size=3)
    return st.one_of(good, good, st.tuples(good, odd).map(lambda both: both[0] | both[1]))


@pytest.mark.parametrize("scope", sorted({method.needs or "" for method in CALLABLE.values()}))
@pytest.mark.full(after=1)
def test_params_of_the_document_are_answered_with_a_result_or_a_known_error(scope: str, fuzzed_server: Server) -> None:
    wrong = {}
    for method in document()["methods"]:
        name = method["name"]
        if name in TOO_DEAR or (CALLABLE[name].needs or "") != scope:
            continue
        try:
            fuzz(method, fuzzed_server)
        except Exception as error:  # hypothesis notes the params in the exception
            wrong[name] = "".join(traceback.format_exception_only(error))

    assert wrong == {}


def fuzz(method: dict[str, Any], server: Server) -> None:
    """Call a method of the document with generated params."""
    name = method["name"]

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=EXAMPLES < 100,
        report_multiple_bugs=False,
    )
    @given(calls_of(method))
    def answers(params: dict[str, Any]) -> None:
        reply = server.rpc.send(name, params)
        if "result" in reply:
            check_answer(name, reply["result"])
            return
        error = reply["error"]
        assert error["code"] in CODES or error["data"]["type"] in {"unavailable", "storage_full"}, error
        assert error["message"]
        assert error["data"]["type"]

    answers()
