"""Blocks `# /// script` of Python files (PEP 723), and the locks of scripts with packages of their own.

No function raises an error for an invalid block: each skipped entry is noted as a repair.
"""

from __future__ import annotations

import codecs
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import NamedTuple

from skillery.errors import InvalidManifest
from skillery.formats.repairs import Repairs
from skillery.formats.requirements import LONGEST, python_problem
from skillery.formats.skill_toml import read_toml
from skillery.formats.wording import quoted

MOST_BYTES = 512 * 1024
"""The maximum number of bytes of a file that is read for requirements."""
MOST_BLOCK = 16 * 1024
"""The maximum number of characters of a block in a Python file."""
LEFT_OUT = "left_out_requirement"
LINE_ENDS = re.compile(r"\r\n|\r|\n")
LOCKS, LOCK_ENDING = "locks/", ".lock"
"""The lock of `scripts/x.py` is `locks/scripts/x.py.lock`."""

_BEGIN, _END = "# /// script", "# ///"
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_RELATIVE = re.compile(r" \(line \d+\)")
_HEAD = re.compile(rb"# Locked for Python (3\.\d{1,3}), which the script needs\b")


class Requested(NamedTuple):
    """A requirement as a file writes it, and where: path and line."""

    file: str
    line: int
    text: str


class Block(NamedTuple):
    """The requirements in a block, not checked yet, and its `requires-python`: "" if any Python version is suitable."""

    requirements: tuple[Requested, ...] = ()
    requires_python: str = ""


# -- the locks of scripts ------------------------------------------------------------------------------------------


def lock_path(script: str) -> str:
    """Return the path of the lock of a script."""
    return f"{LOCKS}{script}{LOCK_ENDING}"


def script_locks(files: Collection[str]) -> Iterator[str]:
    """Yield the paths in `files` that are locks of scripts in `files`."""
    return (path for path in map(lock_path, files) if path in files)


def with_python(lock: bytes, python: str) -> bytes:
    """Return a lock with the version of another Python than that of the server as its first line."""
    return f"# Locked for Python {python}, which the script needs.\n".encode() + lock


def python_of(lock: bytes) -> str:
    """Return the version that `with_python` has stored, such as "3.13", or "" for the Python of the server."""
    match = _HEAD.match(lock)
    return match[1].decode() if match else ""


# -- blocks --------------------------------------------------------------------------------------------------------


def read_blocks(files: Mapping[str, bytes], paths: Iterable[str], repairs: Repairs) -> dict[str, Block]:
    """Return the blocks of the Python files `paths`, without files that have no block."""
    blocks = {path: _read_block(path, files[path], repairs) for path in paths}
    return {path: block for path, block in blocks.items() if block is not None}


def required_python(content: bytes) -> str:
    """Return the `requires-python` of a Python file, or "" if it has none that is valid."""
    block = _read_block("", content, Repairs()) if _BEGIN.encode() in content else None
    return block.requires_python if block is not None else ""


def decoded_text(path: str, content: bytes, repairs: Repairs) -> str | None:
    """Return the text, or None if the content is too long or cannot be decoded."""
    if len(content) > MOST_BYTES:
        message = f"has {len(content)} bytes; requirements are read from files of at most {MOST_BYTES}"
        repairs.note(LEFT_OUT, message, file=path)
        return None
    bom, encoding = next(((bom, name) for bom, name in _BOMS if content.startswith(bom)), (b"", "utf-8"))
    try:
        text = content[len(bom) :].decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        repairs.note(LEFT_OUT, "is neither UTF-8 nor UTF-16 text; its requirements are not read", line, path)
        return None
    return text


def _read_block(path: str, content: bytes, repairs: Repairs) -> Block | None:
    """Return the block of a Python file, or None if it has none that can be read."""
    text = decoded_text(path, content, repairs)
    block = _lines(path, text or "", repairs)
    if block is None:
        return None
    began, lines = block
    source = "\n".join(lines)
    if len(source) > MOST_BLOCK:
        repairs.note(
            LEFT_OUT, f"the block '# /// script' has over {MOST_BLOCK} characters; it is left out", began, path
        )
        return None
    try:
        table = read_toml(source.encode(), "the block '# /// script'")
    except InvalidManifest as error:
        line = began + error.data["line"] if "line" in error.data else began
        message = _RELATIVE.sub("", error.message).rstrip(".")
        repairs.note(LEFT_OUT, f"{message}; it is left out", line, path)
        return None

    starts = list(accumulate((len(line) + 1 for line in lines), initial=0))

    def line_of(text: str) -> int:
        place = source.find(text)
        return began + (bisect_right(starts, place) if place >= 0 else 0)

    python = table.get("requires-python")
    problem = _wrong_python(python) if python is not None else None
    if problem:
        repairs.note(LEFT_OUT, f"requires-python {problem}; it is left out", line_of("requires-python"), path)
    requires_python = "" if problem or python is None else str(python)
    values = table.get("dependencies", [])
    if not isinstance(values, list):
        message = "dependencies of '# /// script' are not a list; they are left out"
        repairs.note(LEFT_OUT, message, line_of("dependencies"), path)
        values = []
    if not all(isinstance(value, str) for value in values):
        message = "an entry of dependencies is not a string; it is left out"
        repairs.note(LEFT_OUT, message, line_of("dependencies"), path)
    texts = [value for value in values if isinstance(value, str)]
    return Block(tuple(Requested(path, line_of(text), text.strip()) for text in texts), requires_python)


def _wrong_python(python: object) -> str | None:
    """Return why a `requires-python` is not valid, as a clause, or None."""
    if not isinstance(python, str) or len(python) > LONGEST:
        return "is not a short string"
    return python_problem(python)


def _lines(path: str, text: str, repairs: Repairs) -> tuple[int, list[str]] | None:
    """Return the line number of the block's first line, and the lines in the block without `#`.

    Return None if there is no block, or if the file has several blocks or an unclosed one.
    """
    blocks: list[tuple[int, list[str]]] = []
    lines = LINE_ENDS.split(text)
    number = 0
    while number < len(lines):
        if lines[number].rstrip() != _BEGIN:
            number += 1
            continue
        end = number + 1
        while end < len(lines) and (lines[end].rstrip() == "#" or lines[end].startswith("# ")):
            end += 1
        # The last closing line counts: another one may be part of a comment in the block.
        closing = next((at for at in range(end - 1, number, -1) if lines[at].rstrip() == _END), None)
        if closing is None:
            repairs.note(
                LEFT_OUT, f"{quoted(_BEGIN)} is never closed by {quoted(_END)}; it is left out", number + 1, path
            )
            return None
        blocks.append((number + 1, [line[2:] for line in lines[number + 1 : closing]]))
        number = end
    if len(blocks) > 1:
        repairs.note(LEFT_OUT, f"{quoted(_BEGIN)} occurs twice; both blocks are left out", blocks[1][0], path)
        return None
    return blocks[0] if blocks else None
