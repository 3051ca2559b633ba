"""The TOML to write for a problem of a manifest."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import msgspec

from skillery.formats.problems import Problem
from skillery.formats.toml_lines import MOST_CHARACTERS, ancestors, line_of, lines_of

SKILL_TOML = "skill.toml"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_RUNTIME = '[runtime]\nentrypoint = "code/main.py"'
_LIMITS = {"memory_mb": 512, "processes": 64, "cpus": 1.0, "disk_mb": 256, "timeout_ms": 60000}
_FORMS: tuple[tuple[str, str], ...] = (
    (r"name", 'name = "team.my-skill"'),
    (r"version", 'version = "0.1.0"'),
    (r"description", 'description = "What the skill does."'),
    (r"kind", 'kind = "action"'),
    (r"tags", 'tags = ["csv", "report"]'),
    (r"runtime(\.entrypoint)?", _RUNTIME),
    (r"runtime\.language", 'language = "python"'),
    (r"runtime\.export", 'export = "main"'),
    (r"runtime\.dependencies", 'dependencies = ["pandas>=2,<3"]'),
    (r"runtime\.requires-python", 'requires-python = ">=3.11"'),
    (r"runtime\.limits", "[runtime.limits]\nmemory_mb = 512"),
    (r"inputs", '[inputs]\nname = { type = "string", required = true }'),
    (r"inputs\..+\.type", 'type = "string"'),
    (r"inputs\..+\.description", 'description = "What the caller passes."'),
    (r"inputs\..+\.enum", 'enum = ["small", "large"]'),
    (r"inputs\..+\.required", "required = true"),
    (r"permissions", '[permissions]\nnetwork = ["https://api.example.com"]'),
    (r"permissions\.network", 'network = ["https://api.example.com"]'),
    (r"permissions\.secrets", 'secrets = ["API_KEY"]'),
    (
        r"tool_examples(\.tool)?",
        '[[tool_examples]]\ntool = "count_words"\nargs = { text = "a b" }\nexpect = { words = 2 }',
    ),
    (r"examples\.name", 'name = "a greeting"'),
    (r"examples\.args", 'args = { name = "Ada" }'),
    (r"examples\.blobs", 'blobs = { sheet = "resources/sheet.csv" }'),
    (r"examples\.input_blobs", 'input_blobs = ["resources/sheet.csv"]'),
    (r"examples\.expect_error", 'expect_error = "ValueError"'),
    (r"examples\.needs_permissions", "needs_permissions = true"),
    (r"examples(\..+)?", '[[examples]]\nargs = { name = "Ada" }\nexpect = { greeting = "Hello, Ada!" }'),
)
_COMPILED = [(re.compile(pattern), toml) for pattern, toml in _FORMS]


def with_toml(problems: Iterable[Problem], skill_toml: str | None) -> list[Problem]:
    """Return the problems of a manifest, each with an example of correct TOML for its key, if there is one.

    If `skill_toml` is given, the problems also get their line numbers, unless the text is too long to be searched.
    """
    given = list(problems)
    has_lines = skill_toml is not None and len(skill_toml) <= MOST_CHARACTERS
    paths = {one.path or "" for one in given}
    lines = lines_of(skill_toml, ancestors(paths)) if has_lines and skill_toml else None
    return [_completed(one, lines, skill_toml is not None) for one in given]


def _completed(problem: Problem, lines: dict[str, int] | None, is_given: bool) -> Problem:
    path = problem.path or ""
    line = problem.line or (line_of(lines, path) if lines is not None else None)
    file = SKILL_TOML if is_given else problem.file
    return msgspec.structs.replace(problem, toml=problem.toml or toml_for(path), file=file, line=line)


def toml_for(path: str) -> str | None:
    """Return an example of correct TOML for the key at `path`, or None if there is no example."""
    if found := re.fullmatch(r"runtime\.limits\.(\w+)", path):
        return f"{found[1]} = {_LIMITS[found[1]]}" if found[1] in _LIMITS else None
    without_items = re.sub(r"\[\d+\]", "", path)
    if without_items.startswith("tool_examples.") and without_items != "tool_examples.tool":
        without_items = without_items.removeprefix("tool_")
    for pattern, toml in _COMPILED:
        if pattern.fullmatch(without_items):
            return toml
    if found := re.fullmatch(r"inputs\.([^.]+)", without_items):
        return f'{key(found[1])} = {{ type = "string" }}'
    return None


def key(text: str) -> str:
    """Return a key of TOML, quoted if needed."""
    return text if _BARE_KEY.fullmatch(text) else json.dumps(text, ensure_ascii=False)
