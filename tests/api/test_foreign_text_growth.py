"""Every entrance for foreign text costs the server at most linear processor time, whatever the text looks like.

A new method and a new function of `skillery.formats` join by themselves. A new endpoint with a body joins with an entry
in BODIES, another parser with one in PARSERS.
"""

from __future__ import annotations

import gzip
import importlib
import json
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from inspect import Parameter, isfunction, signature
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from skillery import formats
from skillery.environments import uv_errors
from skillery.errors import SkilleryError
from skillery.formats import lenient_skill_md, script_blocks, texts, toml_lines, version_spec
from skillery.formats import skill_md as skill_md_parser
from skillery.formats.bundle import BundleFile
from skillery.formats.repairs import Repairs
from skillery.formats.requirements import Tiers
from skillery.git import requests as git_requests
from skillery.git.requests import MalformedRequest
from skillery.methods.table import METHODS
from skillery.proof.dsse import ProofError
from skillery.runs import hints
from skillery.web import differences, display, run_log
from skillery.web.views import shown, tables, trees
from skillery.web.views.parts import File
from skillery.web.views.shown import ToShow
from tests.conftest import Server, manifest
from tests.support.archives import skill_md, tarred
from tests.support.growth import check_growth, spent, spent_here

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
    check_growth(lambda text: spent(server.process.pid, lambda: send(server, text)))


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


def compared(text: str) -> object:
    """Compare two results with a text, a table and values of the text."""
    sides = []
    for end in ("", " x"):
        content = f"{text}{end}".encode()
        files = [
            File("blob:1", "a.txt", "", len(content), content, end),
            File("blob:2", "a.csv", "", 9, b"a,b\n1,2\n", end),
        ]
        output = msgspec.json.encode({"a": text[:200] + end, "rows": [{"k": text, "v": end}, {"k": end, "v": text}]})
        sides.append(ToShow("/runs/run", output, len(output), files, args=output))
    return differences.compare_results(*sides)


PARSERS: dict[str, Callable[[str], object]] = {
    "ansi": run_log.parts_of,
    "compared results": compared,
    "csv": lambda text: tables.table_of_text(text, "csv"),
    "csv page": lambda text: shown_file("x.csv", text, where=text[:200], sort="a"),
    "diff": lambda text: texts.unified_diff(f"{text}\n" * 2, f"x{text}\n" * 2),
    "diff page": lambda text: page_of(f"a\n{text}", f"b\n{text} x"),
    "diff page of lines": lambda text: page_of("\n".join(halves(text)), text),
    "git v0": lambda text: git_requests.parse_v0(text.encode()),
    "git v2": lambda text: git_requests.parse_v2(text.encode()),
    "heading": lambda text: skill_md_parser.parse_skill_md(f"# {text}\n{text}"),
    "html page": lambda text: shown_file("x.html", text),
    "json page": lambda text: shown_file("x.json", f'{{"a": "{text}", "b": [{text}]}}'),
    "jsonl page": lambda text: shown_file("x.jsonl", f'{{"a": "{text}"}}\n' * 2),
    "lenient skill_md": lambda text: lenient_skill_md.read_skill_md(frontmatter(text)),
    "missing program": hints.hint_on,
    "notebook page": lambda text: shown_file("x.ipynb", notebook(text)),
    "output": lambda text: trees.tree_of([text, {text: text}]),
    "python page": lambda text: shown_file("x.py", text),
    "script block": lambda text: script_blocks.required_python(script_block(len(text)).encode()),
    "svg page": lambda text: shown_file("x.svg", f"<svg viewBox='{text}'>"),
    "table": lambda text: shown_output([{"a": text, text: 1}] * 3),
    "text page": lambda text: shown_file("x.txt", text),
    "toml lines": lambda text: toml_lines.lines_of(text, {"runtime"}),
    "uv": uv_errors.cause_of,
    "uv yanked": lambda text: uv_errors.check_yanked(text, ()),
    "version spec": version_spec.parse_version_spec,
    "visible": display.visible,
    "words of a line": lambda text: differences.Marker().words(text, f"{text} x"),
}
FILLED: dict[str, object] = {
    "Callable[[str], object]": str,
    "Collection[str]": ("x",),
    "Iterable[BundleFile]": (BundleFile("SKILL.md", b"x"),),
    "Iterable[LeftOut]": (),
    "Iterable[str]": ("x",),
    "Language": "python",
    "Literal['javascript', 'bash']": "bash",
    "Sequence[Pin]": (),
    "Sequence[str]": ("x",),
    "Set[str]": {"x"},
    "Mapping[str, int]": {"x": 1},
    "Mapping[str, str]": {"x": "x"},
    "Repairs": Repairs(),
    "Tiers": Tiers(),
    "bytes": b"x",
    "datetime": datetime(2026, 1, 1, tzinfo=UTC),
    "int": 10,
    "object": None,
    "str": "x",
    "str | None": None,
    "tuple[str, Iterable[str]]": ("x", ("x",)),
}
"""Values of further params of the functions in `skillery.formats`, by type."""
NOT_JOINED = {
    "file_schemas.schema_of_file": "it gets one of three names of files",
    "repairs.read_yaml": "`lenient skill_md` calls it with its record of repairs",
    "defined_tools.python_handler": "a compile worker calls it",
    "graders.grade_here": "the author of the text calls it; a server calls `grade` in a worker",
    "python_source.located": "it gets a fault, not a text",
    "imports.missing_target": "it gets an import that was found, not a text",
    "names.grantees_of": "it gets a valid skill name, whose length is limited",
}


def shown_file(name: str, text: str, where: str = "", sort: str = "") -> object:
    """Show a file on a page of its own."""
    content = text.encode()
    file = File("blob:1", name, "", len(content), content)
    return shown.show_parts(
        ToShow("/runs/run", b"null", 4, [file], part=name, wanted=tables.Wanted(where=where, sort=sort))
    )


def notebook(text: str) -> str:
    """Return a notebook with the text as Markdown, as code and in the outputs of the code."""
    outputs = [{"output_type": "stream", "text": text}, {"output_type": "display_data", "data": {"text/html": text}}]
    cells = [{"cell_type": "markdown", "source": text}, {"cell_type": "code", "source": text, "outputs": outputs}]
    return json.dumps({"nbformat": 4, "cells": cells})


def shown_output(value: object) -> object:
    output = msgspec.json.encode(value)
    return shown.show_parts(ToShow("/runs/run", output, len(output), []))


def page_of(old: str, new: str) -> object:
    return differences.Marker().hunks(texts.unified_diff(old, new) or "", f"# {new}")


def script_block(size: int) -> str:
    """Return a Python file whose block has many lines and many requirements."""
    blanks, requirements = "#\n" * (size // 8), '# "a",\n' * (size // 16)
    return f"# /// script\n{blanks}# dependencies = [\n{requirements}# ]\n# ///\n"


def halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


def functions_of_formats() -> Iterator[tuple[str, Callable[[str], object]]]:
    """Yield each public function of `skillery.formats` whose first param is a text, with its name."""
    for found in pkgutil.iter_modules(formats.__path__):
        module = importlib.import_module(f"{formats.__name__}.{found.name}")
        for name, function in vars(module).items():
            if isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_"):
                params = [one for one in signature(function).parameters.values() if one.default is Parameter.empty]
                if params and params[0].annotation in {"str", "bytes"}:
                    yield f"{found.name}.{name}", with_text(function, params)


def with_text(function: Callable[..., object], params: list[Parameter]) -> Callable[[str], object]:
    """Return the function of its first param. A further param whose type is not in FILLED raises KeyError."""
    is_bytes = params[0].annotation == "bytes"

    def call(text: str) -> object:
        further = {one.name: FILLED[one.annotation] for one in params[1:]}
        positional = [further.pop(one.name) for one in params[1:] if one.kind is not Parameter.KEYWORD_ONLY]
        return function(text.encode() if is_bytes else text, *positional, **further)

    return call


def check_parser(parse: Callable[[str], object]) -> None:
    def parsed(text: str) -> None:
        with suppress(SkilleryError, ProofError, MalformedRequest, ValueError, RecursionError):  # it may be refused
            parse(text)

    check_growth(lambda text: spent_here(partial(parsed, text)))


@pytest.mark.full
@pytest.mark.parametrize("parser", PARSERS)
def test_parsers_cost_linear_time_in_their_text(parser: str) -> None:
    check_parser(PARSERS[parser])


@pytest.mark.full
def test_functions_of_formats_cost_linear_time_in_their_text() -> None:
    joined = dict(functions_of_formats())
    assert set(NOT_JOINED) <= set(joined)
    failed = {}
    for name in joined.keys() - NOT_JOINED.keys():
        try:
            check_parser(joined[name])
        except AssertionError as error:
            failed[name] = str(error).partition("\n")[0]
    assert failed == {}
