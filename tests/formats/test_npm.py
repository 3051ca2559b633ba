"""The npm packages of a bundle: package.json, skill.toml, install lines of SKILL.md, and imports."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillery.errors import InvalidManifest
from skillery.formats.import_names import is_widely_used, npm_names
from skillery.formats.manifest import parse_manifest
from skillery.formats.npm import (
    MOST,
    NpmNeeds,
    imported_packages,
    is_name,
    read_npm_needs,
    requirement_problem,
    split,
)

IMPORTS = """
import fs from "node:fs"; import path from 'path'
import * as docx from "docx";
import type { A } from "@acme/types/deep.js"
export { b } from './own.js'; export * from "#internal";
const x = require('pptxgenjs'), y = await import("sharp/lib"); import "/abs"; import "@/alias/x";
import { Database } from "bun:sqlite";
"""


def needs(files: dict[str, str], *declared: str, infers: bool = False) -> Any:
    contents = {path: text.encode() for path, text in files.items()}
    return read_npm_needs(contents, declared, is_widely_used, infers=infers)


def package(**dependencies: str) -> str:
    return json.dumps({"name": "own", "dependencies": dependencies})


def test_imports_of_packages_are_read_from_every_form() -> None:
    assert sorted(imported_packages(IMPORTS)) == ["@acme/types", "docx", "pptxgenjs", "sharp"]


def test_the_nearest_package_json_of_an_importing_file_declares_packages() -> None:
    files = {
        "scripts/a.mjs": "import 'docx'",
        "scripts/package.json": package(docx="^9", left="1.x"),
        "package.json": package(axios="*"),
        "assets/b.js": "import 'react'",
        "assets/package.json": package(react="1"),
        "web/plain.js": "console.log(1)",
        "web/package.json": package(vue="3"),
    }
    assert needs(files) == NpmNeeds(of_files=("docx@^9", "left@1.x"))


class Counted(dict[str, bytes]):
    """Files that count how often each is read."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(files)
        self.reads = Counter[str]()

    def __getitem__(self, path: str) -> bytes:
        self.reads[path] += 1
        return super().__getitem__(path)


def test_a_package_json_is_read_once_for_all_files_below_it() -> None:
    sources = {f"{number}.js": b"import 'docx'" for number in range(50)}
    files = Counted({**sources, "package.json": package(docx="^9").encode()})
    assert read_npm_needs(files, (), lambda _: False, infers=False).of_files == ("docx@^9",)
    assert files.reads["package.json"] == 1


def test_skill_toml_comes_first_and_the_bundle_contains_the_rest() -> None:
    files = {
        "a.js": "require('docx'); require('sharp')",
        "package.json": package(docx="^8", sharp="*", here="1"),
        "node_modules/here/index.js": "",
        "node_modules/@scope/sharp/index.js": "",
    }
    assert needs(files, "docx@^9") == NpmNeeds(("docx@^9",), ("sharp@*",))


def test_inferred_packages_need_a_known_name_and_an_import() -> None:
    text = "Run `npm install -g docx@9.1 pptxgenjs-evil` or ```\nbun add 'sharp'\n```"
    files = {"SKILL.md": text, "a.ts": "import x from 'axios'; import y from 'unheard-of'; import 'own'"}
    files["package.json"] = json.dumps({"name": "own"})
    assert needs(files) == NpmNeeds()
    assert needs(files, infers=True).inferred == ("axios", "docx@9.1", "sharp")
    assert needs({"SKILL.md": text}, infers=True).inferred == ()


@pytest.mark.parametrize(
    "text",
    ["docx", "docx@^9", "@acme/x@>=1 <2 || 3.x", "JSONStream@1.2.3-beta.1+b", "x@latest", "x@1 - 2"],
)
def test_a_requirement_has_a_name_and_a_range(text: str) -> None:
    assert requirement_problem(text) is None


@pytest.mark.parametrize(
    "text",
    ["", "@acme", "../x", ".x@1", "x@git+https://h/x", "x@file:../y", "x@npm:y@1", "x@a/b", "x y", f"{'x' * 215}@1"],
)
def test_addresses_aliases_and_paths_are_no_requirements(text: str) -> None:
    assert requirement_problem(text) is not None


def test_a_damaged_package_json_declares_nothing() -> None:
    for content in ("", "[1]", '{"dependencies": [1]}', '{"dependencies": {"x": 1, "y": "git://h/y"}}', "[" * 100_000):
        assert needs({"a.js": "import 'x'", "package.json": content})[:3] == ((), (), ()), content[:20]


def test_the_manifest_checks_npm_packages() -> None:
    raw = {"name": "a.b", "version": "1.0.0", "description": "It.", "runtime": {"npm": ["docx@^9"]}}
    manifest = parse_manifest(raw, has_tools=True)
    assert manifest.runtime is not None
    assert manifest.runtime.npm == ("docx@^9",)
    for wrong in (["x@file:y"], [1], ["x"] * (MOST + 1), "docx"):
        with pytest.raises(InvalidManifest, match="npm"):
            parse_manifest(raw | {"runtime": {"npm": wrong}}, has_tools=True)


def test_all_known_packages_have_valid_npm_names() -> None:
    packages, modules, scopes = (npm_names()[kind] for kind in ("packages", "modules", "scopes"))
    assert len(packages) > 8000
    assert all(is_name(name) and "/" not in name for name in packages)
    assert all(is_name(f"{scope}/x") for scope in scopes)
    assert not packages & modules


@pytest.mark.parametrize(
    ("package", "is_used"),
    [("docx", True), ("ts-morph", True), ("@aws-sdk/any-client", True), ("@nobody-has/x", False), ("docs-kx", False)],
)
def test_inferred_packages_are_widely_used_by_name_or_scope(package: str, is_used: bool) -> None:
    assert is_widely_used(package) == is_used


def test_sentences_import_no_package() -> None:
    text = """throw Error("moved from 'color' to 'chalk'"); log("is from 'ms'"); import a from 'axios'
    let b = require("ws").x  // taken from 'glob' (MIT)
    import c from 'mime' with {type: 'json'}; import d from 'yaml'"""
    assert imported_packages(text) == {"axios", "ws", "mime", "yaml"}


WORDS = st.sampled_from(
    ["import", "from", "require(", "'", '"', "docx", "@a/b", "npm i ", "\n", " ", "`", "{", "}", ":", "dependencies"]
)
TEXTS = st.one_of(st.text(max_size=60), st.lists(WORDS, max_size=40).map("".join))


@pytest.mark.full
@given(TEXTS, TEXTS, TEXTS, st.booleans())
def test_any_files_give_valid_requirements_once(source: str, readme: str, content: str, infers: bool) -> None:
    files = {"a.mjs": source, "SKILL.md": readme, "package.json": content}
    found = needs({path: text.encode("utf-8", "replace").decode() for path, text in files.items()}, infers=infers)
    assert all(requirement_problem(text) is None for text in found.all)
    names = [split(text)[0] for text in found.all]
    assert len(names) == len(set(names))


def test_packages_above_the_limit_are_left_out_by_name() -> None:
    dependencies = {f"p{number:03}": "1" for number in range(102)}
    of_files = needs({"a.js": "require('p000')", "package.json": package(**dependencies)})
    assert len(of_files.of_files) == 100
    assert [(entry.name, entry.tier) for entry in of_files.left_out] == [("p100", "declared"), ("p101", "declared")]
    assert of_files.left_out[0].detail == "at most 100 packages of package.json are locked"
