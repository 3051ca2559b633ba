"""The schemas of skill files agree with the readers of these files."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from skillery.errors import InvalidManifest
from skillery.formats.file_schemas import FILES, schema_of_file
from skillery.formats.manifest import parse_manifest
from skillery.formats.skill_md import parse_skill_md
from skillery.formats.tools import read_tools
from tests.cli.test_cli import skillery
from tests.conftest import Rpc
from tests.formats.test_manifest import FULL, LEAST

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(path.parent for place in ("skills", "examples") for path in ROOT.glob(f"{place}/**/skill.toml"))


def problems(name: str, value: object) -> list[str]:
    return [error.message for error in Draft202012Validator(schema_of_file(name)).iter_errors(value)]


def test_schemas_are_valid() -> None:
    for name in FILES:
        Draft202012Validator.check_schema(schema_of_file(name))


def test_files_of_this_repository_fit_their_schemas() -> None:
    assert FOLDERS
    for folder in FOLDERS:
        assert problems("skill.toml", tomllib.loads((folder / "skill.toml").read_text())) == [], folder
        frontmatter = parse_skill_md((folder / "SKILL.md").read_text()).typed
        assert problems("frontmatter", frontmatter) == [], folder
        if (folder / "tools.json").exists():
            assert problems("tools.json", json.loads((folder / "tools.json").read_text())) == [], folder


def test_the_schema_of_skill_toml_knows_exactly_the_keys_of_its_reader() -> None:
    schema = schema_of_file("skill.toml")
    tables = {
        "": "SkillToml",
        "runtime": "RuntimeTable",
        "permissions": "PermissionsTable",
        "requires": "RequiresTable",
    }
    for table, struct in tables.items():
        for key in schema["$defs"][struct]["properties"]:
            given = {**LEAST, table: {key: 1}} if table else {**LEAST, key: 1}
            assert not any("unknown" in text for text in said(given)), (table, key)
        unknown = {**LEAST, "runtime": {"entrypoint": "a.py"}, table: {"entrypoint": "a.py", "colour": 1}}
        assert any("unknown" in text for text in said(unknown if table else {**LEAST, "colour": 1})), table


def said(manifest: dict[str, Any]) -> tuple[str, ...]:
    """Return the warnings about a manifest, or its problems."""
    try:
        return parse_manifest(manifest).warnings
    except InvalidManifest as error:
        return tuple(problem["message"] for problem in error.data["problems"])


@pytest.mark.parametrize(
    "change",
    [
        {"name": "A b"},
        {"version": "1"},
        {"description": ""},
        {"kind": "acton"},
        {"tags": "x"},
        {"tags": [""]},
        {"runtime": {"language": "ruby", "entrypoint": "a.py"}},
        {"runtime": {"entrypoint": "main.txt"}},
        {"runtime": {"entrypoint": "main.py", "limits": {"memory_mb": -1}}},
        {"runtime": {"entrypoint": "main.py", "limits": {"timeout_ms": 3_600_001}}},
        {"inputs": {"a": {"type": "string", "required": 1}}},
        {"inputs": {"a": {"enum": []}}},
        {"permissions": {"secrets": ["A-B"]}},
        {"permissions": {"network": "https://x.com"}},
        {"examples": [{"args": 1}]},
    ],
)
def test_manifest_schema_refuses_invalid_values(change: dict[str, Any]) -> None:
    assert problems("skill.toml", FULL) == []
    assert problems("skill.toml", LEAST | change)


@pytest.mark.parametrize(
    "tools",
    [
        {},
        [{"name": "A", "description": "x"}],
        [{"name": "a"}],
        [{"name": "a", "description": "x", "parameters": {"b": {"type": "integer", "description": "x"}}}],
        [{"name": "a", "description": "x", "parameters": {"b": {"type": "string"}}}],
    ],
)
def test_tools_schema_and_reader_refuse_the_same_tools(tools: object) -> None:
    assert problems("tools.json", tools)
    assert read_tools(json.dumps(tools).encode(), frozenset()).problems


def test_schemas_are_printed_served_and_named_by_new_skills(sqlite_rpc: Rpc, tmp_path: Path) -> None:
    for name in FILES:
        served = sqlite_rpc.http.get(f"/schemas/{name}.json", headers={"authorization": ""})
        assert served.json() == json.loads(skillery("schema", name).out) == schema_of_file(name)
    skillery("new", str(tmp_path / "greet"))
    first, _, _ = (tmp_path / "greet" / "skill.toml").read_text().partition("\n")
    assert json.loads((tmp_path / "greet" / first.removeprefix("#:schema ")).read_text()) == schema_of_file(
        "skill.toml"
    )
    assert "SkillToml" in sqlite_rpc.http.get("/openrpc.json").json()["components"]["schemas"]
