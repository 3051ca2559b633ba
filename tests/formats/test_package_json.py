"""JavaScript of a bundle contains its modules: a package.json whose dependencies are missing is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillery.formats.package_json import check_dependencies
from tests.conftest import Rpc
from tests.importing.test_importing import sent
from tests.support.archives import skill_md, zipped

TOOL = {"name": "t", "description": "Does.", "script": "tools/t.mjs", "parameters": {}}
PACKAGE = (
    '{\n  "name": "x",\n  "devDependencies": {"esbuild": "1"},\n  "dependencies": {\n    "left-pad": "^1"\n  }\n}\n'
)


def bundle(name: str, files: dict[str, str], tools: bool = True) -> dict[str, Any]:
    made = {"name": name, "version": "1.0.0", "description": "x"}
    given = files | ({"tools.json": json.dumps([TOOL])} if tools else {})
    return {"manifest": made, "skill_md": "# A\n", "files": [{"path": p, "content": c} for p, c in given.items()]}


HANDLER = {"tools/t.mjs": "export default () => 1"}


@pytest.mark.parametrize(
    ("files", "tools", "place"),
    [
        (HANDLER | {"package.json": PACKAGE}, True, ("package.json", 5)),
        (HANDLER | {"tools/package.json": PACKAGE}, True, ("tools/package.json", 5)),
        ({"scripts/a.js": "1", "package.json": PACKAGE}, False, ("package.json", 5)),
        ({"a.mjs": "1", "package.json": '{"dependencies":{"x":"1"}}'}, False, ("package.json", 1)),
    ],
)
@pytest.mark.parametrize("method", ["create_skill", "check_skill"])
def test_unbundled_dependencies_are_refused_with_a_hint(
    sqlite_rpc: Rpc, new_name: str, files: dict[str, str], tools: bool, place: tuple[str, int], method: str
) -> None:
    error = sqlite_rpc.error(method, **bundle(new_name, files, tools))

    assert (error["code"], error["data"]["type"]) == (-32602, "invalid_bundle")
    assert (error["data"]["file"], error["data"]["line"]) == place
    assert "esbuild" in error["data"]["hint"]
    assert "has dependencies that are not in the bundle" in error["message"]


@pytest.mark.parametrize(
    ("files", "tools"),
    [
        (HANDLER | {"package.json": '{"devDependencies": {"esbuild": "1"}, "dependencies": {}}'}, True),
        (HANDLER | {"package.json": '{"peerDependencies": {"a": "1"}, "optionalDependencies": {"b": "1"}}'}, True),
        (HANDLER | {"tools/package.json": "{}", "package.json": PACKAGE}, True),
        ({"assets/app/main.js": "1", "assets/app/package.json": PACKAGE}, False),
        ({"package.json": PACKAGE, "scripts/a.py": "1"}, False),
        (HANDLER | {"package.json": PACKAGE, "node_modules/left-pad/index.js": "1"}, True),
    ],
)
def test_bundled_or_unused_dependencies_are_accepted(
    sqlite_rpc: Rpc, new_name: str, files: dict[str, str], tools: bool
) -> None:
    assert sqlite_rpc("check_skill", **bundle(new_name, files, tools))["ok"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{\n,}", "package.json:2: it is not JSON"),
        ("[]", "package.json is not an object"),
        ('{"dependencies": []}', "'dependencies' is not an object"),
        ("[" * 100_000, "package.json"),
    ],
)
def test_a_package_json_that_is_none_is_a_warning(sqlite_rpc: Rpc, new_name: str, content: str, words: str) -> None:
    checked = sqlite_rpc("check_skill", **bundle(new_name, HANDLER | {"package.json": content}))

    assert any(words in warning for warning in checked["warnings"])


def test_an_import_is_warned_and_not_refused(rpc: Rpc, new_name: str) -> None:
    files = {"SKILL.md": skill_md(new_name), "scripts/a.mjs": "import 'left-pad'", "package.json": PACKAGE}

    [skill] = sent(rpc, zipped({f"{new_name}/{path}": text for path, text in files.items()}))["skills"]

    assert skill["outcome"] == "published"
    [warning] = rpc("describe_skill", name=new_name)["skill"]["warnings"]
    assert warning == "package.json:5: package.json has dependencies that are not in the bundle: 'left-pad'"


def test_javascript_finds_the_modules_that_its_bundle_brings(sqlite_rpc: Rpc, new_name: str) -> None:
    handler = """
    import { createRequire } from "node:module";
    import { beside } from "./lib/beside.mjs";
    import pad, { named } from "left-pad";
    import scoped from "@acme/scoped";
    const require = createRequire(import.meta.url);
    export default () => [beside, pad, named, scoped, require("old")];
    """
    files = {
        "tools/t.mjs": handler,
        "tools/lib/beside.mjs": "export const beside = 'beside'",
        "package.json": '{"dependencies": {"left-pad": "1", "@acme/scoped": "1", "old": "1"}}',
        "node_modules/left-pad/package.json": '{"name": "left-pad", "type": "module", "exports": "./main.js"}',
        "node_modules/left-pad/main.js": "export default 'pad'; export const named = 'named'",
        "node_modules/@acme/scoped/package.json": '{"name": "@acme/scoped", "main": "index.js"}',
        "node_modules/@acme/scoped/index.js": "module.exports = 'scoped'",
        "node_modules/old/index.js": "module.exports = 'old'",
    }
    sqlite_rpc("create_skill", **bundle(new_name, files))

    answer = sqlite_rpc("call_tool", name="t", skill=new_name, args={})

    assert answer["result"] == ["beside", "pad", "named", "scoped", "old"]


def test_a_script_finds_the_modules_that_its_bundle_brings(sqlite_rpc: Rpc, new_name: str) -> None:
    files = {
        "scripts/a.js": "const { x } = require('mine'); console.log(x)",
        "node_modules/mine/index.js": "module.exports = { x: 42 }",
    }
    sqlite_rpc("create_skill", **bundle(new_name, files, tools=False))

    assert sqlite_rpc("execute_skill", name=new_name, script="scripts/a.js")["output"]["stdout"] == "42\n"


@given(
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.text(max_size=5) | st.integers(),
        lambda inner: st.dictionaries(st.sampled_from(["dependencies", "a", "b/c", '"']), inner, max_size=3),
    ).map(lambda value: json.dumps(value, indent=1).encode())
)
def test_any_package_json_is_looked_at(content: bytes) -> None:
    found = check_dependencies({"package.json": content, "a.js": b""}, {"a.js"})

    assert all(problem.line and problem.line <= content.count(b"\n") + 1 for problem in found.missing)
