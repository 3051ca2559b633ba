"""The language of a skill: of its code, or `markdown` for a skill without code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

SkillLanguage = Literal["python", "javascript", "bash", "markdown"]
LANGUAGES: tuple[SkillLanguage, ...] = ("python", "javascript", "bash", "markdown")
_ENDINGS: dict[str, SkillLanguage] = {".py": "python", ".js": "javascript", ".mjs": "javascript", ".sh": "bash"}


def language_of(runtime: dict[str, Any] | None, paths: Iterable[str]) -> SkillLanguage:
    """Return the language of a skill with this `[runtime]` table and these paths of files.

    An entrypoint is Python. Without an entrypoint, the language is that of most scripts. If two languages have the same
    number of scripts, the first of LANGUAGES wins. A skill without scripts is `markdown`.
    """
    if runtime and runtime.get("entrypoint"):
        return "python"
    scripts = Counter(_ENDINGS[ending] for path in paths if (ending := _ending(path)) in _ENDINGS)
    return max(LANGUAGES, key=lambda language: scripts[language]) if scripts else "markdown"


def is_source(path: str) -> bool:
    """Return whether a file has an ending of a language that runs have."""
    return _ending(path) in _ENDINGS


def _ending(path: str) -> str:
    return path[path.rfind(".") :].lower()
