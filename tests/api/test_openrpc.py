"""The OpenRPC document is valid and complete, and the server answers as the document says."""

from __future__ import annotations

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
from tests.conftest import Rpc, Server
from tests.support.results import validate

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


# -- the document ------------------------------------------------------------


@pytest.mark.full
def test_the_document_is_valid_and_equal_over_rpc_and_http(sqlite_rpc: Rpc) -> None:
    discovered = sqlite_rpc("rpc.discover")
    fetched = sqlite_rpc.http.get("/openrpc.json").json()

    meta_validator().validate(discovered)
    meta_validator().validate(fetched)
    assert fetched.pop("servers") == [{"name": "this server", "url": f"{sqlite_rpc.url}/rpc"}]
    assert fetched == discovered == json.loads(encode(document()))


def test_the_meta_schema_rejects_an_invalid_document() -> None:
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


def test_every_reference_resolves_and_every_schema_is_valid() -> None:
    text = json.dumps(document())
    components = document()["components"]
    for name in text.split('"#/components/schemas/')[1:]:
        assert name.split('"')[0] in components["schemas"]
    for name in text.split('"#/components/errors/')[1:]:
        assert name.split('"')[0] in components["errors"]
    for schema in components["schemas"].values():
        jsonschema.Draft7Validator.check_schema(schema)


def test_params_are_documented_as_decoded_not_as_tools_print_them() -> None:
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
def test_documented_params_return_a_result_or_a_known_error(scope: str, fuzzed_server: Server) -> None:
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
            validate(name, reply["result"])
            return
        error = reply["error"]
        assert error["code"] in CODES or error["data"]["type"] in {"unavailable", "storage_full"}, error
        assert error["message"]
        assert error["data"]["type"]

    answers()
