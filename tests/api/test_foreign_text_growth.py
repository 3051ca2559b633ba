"""Every entrance for foreign text costs the server at most linear processor time, whatever the text looks like.

A new method joins by itself. A new endpoint with a body joins with an entry in BODIES, a parser with one in PARSERS.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from skillery.environments import uv_errors
from skillery.errors import SkilleryError
from skillery.formats import (
    foreign_skill,
    lenient_skill_md,
    network,
    ranges,
    requirements,
    skill_toml,
    text_diffs,
    toml_lines,
    tools_json,
    version_spec,
    words,
)
from skillery.formats import skill_md as skill_md_parser
from skillery.git import requests as git_requests
from skillery.git.pkt_lines import MalformedRequest
from skillery.methods.table import METHODS
from skillery.runs import missing_programs
from skillery.web import differences, display
from skillery.web.runs import ansi
from tests.api.test_foreign_text import MOST_SECONDS, spent
from tests.conftest import Server, manifest
from tests.support.archives import skill_md, tarred

SIZE = 16_384
MOST_RATIO = 3.0
"""The most that twice the text may cost, as a multiple. Linear code costs 2, quadratic code 4."""
SHAPES: dict[str, Callable[[int], str]] = {
    "letters": lambda size: "a" * size,
    "blanks": lambda size: " " * size + "!",
    "quotes": lambda size: '1,"a",2\n' + '"' * size + "x",
    "digits": lambda size: "1" * size,
    "brackets": lambda size: "[" * size,
    "underscores": lambda size: "_" * size + "-",
    "tokens": lambda size: "a.b-" * (size // 4),
    "lines": lambda size: "\n" * size + "x",
    "imports": lambda size: f"# from skills import{' ' * size}!",
}
Send = Callable[[Server, str], object]


def call(server: Server, method: str, **params: Any) -> object:
    """Call a method. The text may be refused."""
    return server.rpc.http.post(
        "/rpc", json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    ).status_code


def post(server: Server, path: str, content: bytes, kind: str) -> object:
    return server.rpc.http.post(
        path, content=content, headers={"content-type": kind, "accept": "text/html"}
    ).status_code


def pushed(server: Server, text: str) -> object:
    line = f"deepen-not {text[:60_000]}".encode()
    body = b"0011command=fetch0001" + b"%04x" % (len(line) + 4) + line + b"0000"
    return post(server, "/git/_all.git/git-upload-pack", body, "application/x-git-upload-pack-request")


BODIES: dict[str, Send] = {
    "/blobs": lambda server, text: post(server, "/blobs", text.encode(), "text/csv"),
    "/git": pushed,
    "/import": lambda server, text: post(
        server, "/import?namespace=growth", tarred({"x/SKILL.md": skill_md("x", text)}), "application/x-tar"
    ),
    "/import names": lambda server, text: post(
        server, "/import?namespace=growth", tarred({"x/SKILL.md": f"---\nname: {text}\n---\n"}), "application/x-tar"
    ),
    "/import gzip": lambda server, text: post(
        server, "/import?namespace=growth", gzip.compress(text.encode()), "application/gzip"
    ),
    "/mcp": lambda server, text: post(server, "/mcp", text.encode(), "application/json"),
    "/rpc": lambda server, text: post(server, "/rpc", text.encode(), "application/json"),
    "skill_md": lambda server, text: call(
        server, "check_skill", manifest=manifest("growth.a", kind="instruction"), skill_md=text, files=[]
    ),
    "code": lambda server, text: call(
        server, "run_code", language="python", code=f"{text}\nfrom skills import x\ndef main(args): pass\n"
    ),
}


def texts_of(method: str) -> list[str]:
    """Return the params of a method that can be texts."""
    fields = msgspec.structs.fields(METHODS[method].params)
    return [field.encode_name for field in fields if is_text(inspect.type_info(field.type))]


def is_text(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.Metadata):
        return is_text(kind.type)
    if isinstance(kind, inspect.UnionType):
        return any(map(is_text, kind.types))
    return isinstance(kind, inspect.StrType)


def param(method: str, name: str) -> Send:
    """Return a function that calls a method with a text, and with short texts for the other required params."""
    fields = msgspec.structs.fields(METHODS[method].params)
    others = {field.encode_name: "growth.a" for field in fields if field.required and is_text_field(field)}
    return lambda server, text: call(server, method, **{**others, name: text})


def is_text_field(field: Any) -> bool:
    return is_text(inspect.type_info(field.type))


def check(server: Server, send: Send) -> None:
    """Fail if a shape costs more than MOST_SECONDS, or clearly more than twice as much for twice the text."""
    for shape, text in SHAPES.items():
        most = spent(server, lambda text=text: send(server, text(4 * SIZE)))  # type: ignore[misc]
        assert most <= MOST_SECONDS, f"{shape}: {most} s"
        if most > MOST_SECONDS / 2:  # below this, the clock of the kernel is too coarse for a ratio
            half = spent(server, lambda text=text: send(server, text(2 * SIZE)))  # type: ignore[misc]
            assert most <= MOST_RATIO * max(half, 0.02), f"{shape}: {half} s, {most} s for twice the text"


@pytest.mark.full
@pytest.mark.parametrize("entrance", BODIES)
def test_bodies_cost_linear_time_in_their_text(sqlite_server: Server, entrance: str) -> None:
    check(sqlite_server, BODIES[entrance])


@pytest.mark.full
@pytest.mark.parametrize("method", [name for name in METHODS if texts_of(name)])
def test_params_of_methods_cost_linear_time_in_their_text(sqlite_server: Server, method: str) -> None:
    for name in texts_of(method):
        check(sqlite_server, param(method, name))


def test_every_endpoint_with_a_body_is_in_the_table(sqlite_server: Server) -> None:
    paths = sqlite_server.rpc.http.get("/v1/openapi.json").json()["paths"]
    taking = {path for path, verbs in paths.items() for verb in verbs.values() if "requestBody" in verb}
    known = {f"/{name.split('/')[1].split(' ')[0]}" for name in BODIES if name.startswith("/")} - {"/git"}
    assert {f"/{path.split('/')[1]}" for path in taking} == known | OTHER_BODIES.keys()


OTHER_BODIES = {
    "/auth": "a token of a CI job, of limited length",
    "/login": "a form with a token, of limited length",
    "/logout": "a form with the token of the form",
    "/v1": "an archive, which the importer reads like one of /import, or a file of a workspace, which is stored",
}
"""Endpoints whose bodies are not in the table, with the reason."""


# -- parsers and renderers ---------------------------------------------------------------------------------------------


def frontmatter(text: str) -> bytes:
    return f"---\nname: a\ndescription: {text}\n{text}: x\n---\n{text}\n".encode()


PARSERS: dict[str, Callable[[str], object]] = {
    "ansi": ansi.parts_of,
    "diff": lambda text: text_diffs.unified_diff(f"{text}\n" * 2, f"x{text}\n" * 2),
    "foreign name": foreign_skill.registry_name,
    "git v0": lambda text: git_requests.parse_v0(text.encode()),
    "git v2": lambda text: git_requests.parse_v2(text.encode()),
    "heading": lambda text: skill_md_parser.parse_skill_md(f"# {text}\n{text}"),
    "lenient skill_md": lambda text: lenient_skill_md.read_skill_md(frontmatter(text)),
    "lock": lambda text: requirements.read_lock(f"{text}\n".encode()),
    "missing program": missing_programs.hint_on,
    "network": network.parse_network_pattern,
    "query": words.parse_query,
    "range": ranges.parse_range,
    "requirement": requirements.requirement_problem,
    "toml": lambda text: skill_toml.toml_manifest(text.encode()),
    "toml lines": lambda text: toml_lines.lines_of(text, {"runtime"}),
    "tools": lambda text: tools_json.read_tools(text.encode(), set()),
    "uv": uv_errors.cause_of,
    "uv yanked": lambda text: uv_errors.check_yanked(text, ()),
    "version spec": version_spec.parse_version_spec,
    "visible": display.visible,
    "words": words.words_of,
    "words of a line": lambda text: differences.words_of(text, f"{text} x"),
}


def parsed_seconds(parse: Callable[[str], object], text: str) -> float:
    """Return the least processor time of three calls. The text may be refused."""
    least = float("inf")
    for _ in range(3):
        before = time.thread_time()
        with suppress(SkilleryError, MalformedRequest, ValueError, RecursionError):
            parse(text)
        least = min(least, time.thread_time() - before)
    return least


@pytest.mark.full
@pytest.mark.parametrize("parser", PARSERS)
def test_parsers_cost_linear_time_in_their_text(parser: str) -> None:
    for shape, text in SHAPES.items():
        most = parsed_seconds(PARSERS[parser], text(4 * SIZE))
        assert most <= MOST_SECONDS, f"{shape}: {most} s"
        if most > 0.02:  # below this, the ratio is noise
            half = parsed_seconds(PARSERS[parser], text(2 * SIZE))
            assert most <= MOST_RATIO * half, f"{shape}: {half} s, {most} s for twice the text"
