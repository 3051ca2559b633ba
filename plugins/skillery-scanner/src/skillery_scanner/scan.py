"""The scan of a skill with all rules. The work is bounded by the number of bytes, matches and decoded texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from skillery_scanner.catalog import File, Match, Skill
from skillery_scanner.rules.encoded import encoded_text
from skillery_scanner.rules.formats import formats
from skillery_scanner.rules.hidden import hidden_text
from skillery_scanner.rules.instructions import instructions
from skillery_scanner.rules.names import lookalike_name
from skillery_scanner.rules.permissions import Uses, permissions
from skillery_scanner.rules.python_code import PythonCode
from skillery_scanner.rules.secrets import secrets
from skillery_scanner.rules.shell import commands
from skillery_scanner.texts import excerpt

MOST_TEXT = 512 * 1024
"""Bytes of a file that the rules for texts search."""
MOST_TOGETHER = 2 * 1024 * 1024
"""Bytes of all files that the rules for texts search."""
MOST_OF_RULE = 5
"""Matches of one rule in one file that are kept."""
_SCRIPTS = frozenset({".sh", ".bash", ".zsh", ".js", ".mjs", ".cjs", ".ts", ".ps1", ".rb", ".pl", ".php"})
_FOLLOWED = frozenset({".py", ".md", *_SCRIPTS})
"""Suffixes of files that run or instruct: a hostile part could be in the part that is not searched."""
_INSTRUCTING = frozenset({".md", ".txt", ".mdx", ".rst", ".html", ".yaml", ".yml", ".json", ".toml", ""})
"""Suffixes of files that are searched for instructions."""


def scan(skill: Skill) -> list[Match]:
    """Return the matches of all rules."""
    uses = Uses()
    matches = list(lookalike_name(skill))
    matches += _instructions_in_manifest(skill)
    bytes_left = MOST_TOGETHER
    for file in skill.files:
        matches += formats(file.path, file.content)
        text = _text(file)
        if text is None:
            if _is_followed(file) or _suffix(file.path) in _INSTRUCTING - {""}:
                matches.append(Match(_unread(file), file.path, None, "binary content, or text that is not UTF-8"))
            continue
        if len(text) > min(MOST_TEXT, bytes_left):
            matches.append(Match(_unread(file), file.path, None, f"{len(text)} characters"))
        text = text[: max(0, min(MOST_TEXT, bytes_left))]
        bytes_left -= len(text)
        matches += _few(_in_text(file.path, text))
        matches += _few(_in_code(file.path, text, uses))
    matches += permissions(skill, uses)
    return list(dict.fromkeys(matches))


def _suffix(path: str) -> str:
    return PurePosixPath(path).suffix.lower()


def _unread(file: File) -> str:
    """Return the rule for a file that is not searched completely."""
    return "unscanned-code" if _is_followed(file) else "partly-read"


def _is_followed(file: File) -> bool:
    return _suffix(file.path) in _FOLLOWED or file.content.startswith(b"#!")


def _text(file: File) -> str | None:
    """Return the content of a text file, or None for other files."""
    if b"\0" in file.content[:8_192]:
        return None
    return file.content.decode("utf-8", "replace")


def _in_text(path: str, text: str) -> Iterator[Match]:
    yield from secrets(path, text)
    yield from hidden_text(path, text)
    yield from commands(path, text)
    yield from encoded_text(path, text)
    if _suffix(path) in _INSTRUCTING:
        yield from instructions(path, text)


def _in_code(path: str, text: str, uses: Uses) -> Iterator[Match]:
    suffix = _suffix(path)
    if suffix == ".py" or (text.startswith("#!") and "python" in text[:80].split("\n", maxsplit=1)[0]):
        yield from _in_python(path, text, uses)
    elif suffix in _SCRIPTS or text.startswith("#!"):
        uses.add_script(path, text)


def _in_python(path: str, text: str, uses: Uses) -> Iterator[Match]:
    """Yield the matches in a Python file, and add its uses of hosts and secrets to `uses`."""
    try:
        code = PythonCode(path, text)
    except (SyntaxError, ValueError) as error:
        yield Match("partly-read", path, getattr(error, "lineno", None), excerpt(f"not Python: {error}"))
        uses.add_script(path, text)
        return
    except (RecursionError, MemoryError):
        yield Match("unscanned-code", path, None, "the code is nested too deeply")
        return
    uses.add_python(code, text)
    yield from code.matches()


def _instructions_in_manifest(skill: Skill) -> Iterator[Match]:
    """Search the description, which every agent reads."""
    description = skill.manifest.get("description")
    if isinstance(description, str):
        yield from instructions("skill.toml", description[:4_000])
        yield from hidden_text("skill.toml", description[:4_000])


def _few(matches: Iterator[Match]) -> Iterator[Match]:
    counts: dict[str, int] = {}
    for match in matches:
        counts[match.rule] = counts.get(match.rule, 0) + 1
        if counts[match.rule] <= MOST_OF_RULE:
            yield match
