"""The OpenAPI document describes every route, and every route behaves as described (Schemathesis)."""

from __future__ import annotations

import os
from functools import cache
from random import Random
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from tests.conftest import Rpc, Server

EXAMPLES = int(os.environ.get("SKILLERY_FUZZ_EXAMPLES", "4"))
RESERVED = {
    "/rpc",
    "/blobs",
    "/import",
    "/metrics",
    "/skills",
    "/tools",
    "/openrpc.json",
    "/healthz",
    "/readyz",
    "/.well-known",
    "/n",
    "/v1",
}
KNOWN = {
    "name": ["text.csv.profile", "text-csv-profile"],
    "skill_id": ["text.csv.profile"],
    "namespace": ["text"],
    "archive": ["latest.zip", "1.x.tar.gz"],
    "version": ["latest"],
    "path": ["SKILL.md", "code/main.py"],
}
"""Values that exist on every server. Generated values never match them by chance."""
HOLDS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
    not_a_server_error,
]


@cache
def schema_at(url: str) -> Any:
    return schemathesis.openapi.from_url(f"{url}/v1/openapi.json")


def operations(schema: Any) -> list[Any]:
    return [found.ok() for found in schema.get_all_operations()]


@pytest.mark.full
def test_the_document_is_valid_openapi(sqlite_server: Server) -> None:
    document = sqlite_server.rpc.http.get("/v1/openapi.json").json()

    assert document["openapi"].startswith("3.1")
    schema_at(sqlite_server.url).validate()


def test_every_endpoint_is_documented(sqlite_rpc: Rpc) -> None:
    """`route()` in app/routes.py requires operations for each route. This test lists routes that must be in the
    document.
    """
    document = sqlite_rpc.http.get("/v1/openapi.json").json()

    assert {"/" + path.split("/")[1] for path in document["paths"]} >= RESERVED
    for path, item in document["paths"].items():
        for method, operation in item.items():
            assert operation["summary"], path
            assert operation["responses"], path
            tried = sqlite_rpc.http.request(method, path.replace("{", "").replace("}", ""), content=b"{}")
            assert tried.status_code != 405, path
    ids = [one["operationId"] for item in document["paths"].values() for one in item.values()]
    assert len(ids) == len(set(ids))


@pytest.mark.full
@pytest.mark.parametrize("mode", GenerationMode)
def test_endpoints_respond_as_documented_to_any_request(mode: GenerationMode, fuzzed_server: Server) -> None:
    """Call every operation with valid values and with invalid ones."""
    for operation in operations(schema_at(fuzzed_server.url)):

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=EXAMPLES < 100,
            database=None,
        )
        @given(operation.as_strategy(generation_mode=mode), st.booleans(), st.randoms())
        def answers(case: Case[Any], known: bool, chosen: Random) -> None:
            for name in KNOWN.keys() & case.path_parameters.keys() if known else ():
                case.path_parameters[name] = chosen.choice(KNOWN[name])
            case.call_and_validate(checks=HOLDS, timeout=120)

        if mode is GenerationMode.POSITIVE or operation.query or operation.headers or operation.body:
            answers()
