"""The packages that the files of a foreign skill need. Invalid entries are skipped.

The sources are `# /// script` blocks of Python files (PEP 723) and requirements.txt. No function raises an error for
such a file: each skipped entry is noted as a repair.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import NamedTuple

import msgspec
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from skillery.errors import InvalidManifest
from skillery.formats.repairs import Repairs
from skillery.formats.requirements import LONGEST, MOST, python_problem, requirement_problem
from skillery.formats.skill_toml import read_toml
from skillery.formats.wording import printable, quoted

REQUIREMENTS = ("requirements.txt", "scripts/requirements.txt")
MOST_BYTES = 512 * 1024
"""The maximum number of bytes of a file that is read for requirements."""
MOST_BLOCK = 16 * 1024
"""The maximum number of characters of a block in a Python file."""
MOST_SCRIPTS = 100
"""The maximum number of Python files in which blocks are searched."""
MOST_ASKED = 1000
"""A skill with this many requirements gets no packages. Several requirements may name the same package."""
LEFT_OUT = "left_out_requirement"
NO_PACKAGES = "no_packages"
FORM = "expected a name with versions, as in 'pandas>=2,<3'"

_BEGIN, _END = "# /// script", "# ///"
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_COMMENT = re.compile(r"(?:^|\s)#.*")
_LINE_ENDS = re.compile(r"\r\n|\r|\n")
_RELATIVE = re.compile(r" \(line \d+\)")
_OPTION = re.compile(r"-{1,2}[A-Za-z][A-Za-z-]*")
_BEHIND = re.compile(r"\s--?[A-Za-z]\S*.*")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/|[./~]|[A-Za-z]:\\|.*\.(?:whl|zip|tar\.gz)$")


class Needs(NamedTuple):
    """The packages and the Python versions that a skill needs, in the form of skill.toml.

    `dependencies` are sorted by name. `requires_python` is "" if any Python version is suitable.
    """

    dependencies: tuple[str, ...] = ()
    requires_python: str = ""

    def runtime(self) -> dict[str, object]:
        """Return the needs as the table `[runtime]` of a manifest, or {} if the skill needs nothing."""
        table: dict[str, object] = {}
        if self.dependencies:
            table["dependencies"] = list(self.dependencies)
        if self.requires_python:
            table["requires-python"] = self.requires_python
        return table


class _Found(NamedTuple):
    """A requirement as a file writes it, and where: path and line."""

    file: str
    line: int
    text: str


def read_needs(files: Mapping[str, bytes], repairs: Repairs) -> Needs:
    """Return the needs of all files of a skill together. `files` maps paths to contents. Skipped entries go to
    `repairs`.
    """
    request: list[_Found] = []
    pythons: list[str] = []
    scripts = [path for path in sorted(files) if path.endswith(".py") and b"/// script" in files[path]]
    if len(scripts) > MOST_SCRIPTS:
        message = f"{len(scripts)} Python files have a block '# /// script'; only the first {MOST_SCRIPTS} are read"
        repairs.note(LEFT_OUT, message)
    for path in (path for path in REQUIREMENTS if path in files):
        request += islice(_of_requirements(path, files[path], repairs), MOST_ASKED)
    for path in scripts[:MOST_SCRIPTS]:
        request += _of_script(path, files[path], pythons, repairs)
    dependencies: tuple[str, ...] = ()
    if len(request) < MOST_ASKED:
        dependencies = tuple(_merge_requirements(_checked(request, repairs), repairs))
    if len(request) >= MOST_ASKED or len(dependencies) > MOST:
        many = len(dependencies) or len(request)
        message = f"the skill asks for {many} packages, at most {MOST} are allowed: its scripts run without packages"
        repairs.note(NO_PACKAGES, message, file=request[0].file)
        dependencies = ()
    python = str(SpecifierSet(",".join(dict.fromkeys(pythons))))
    if len(python) > LONGEST:
        repairs.note(LEFT_OUT, "the requires-python values of its files are too long together; they are left out")
        python = ""
    return Needs(dependencies, python)


# -- requirements.txt ----------------------------------------------------------------------------------------------


def _of_requirements(path: str, content: bytes, repairs: Repairs) -> Iterator[_Found]:
    """Yield the requirements in a requirements.txt. Options, addresses and paths are left out with a repair."""
    text = _text(path, content, repairs)
    for number, line in _logical_lines(text or ""):
        option = _OPTION.match(line)
        if option is not None:
            repairs.note(LEFT_OUT, f"the line with {option[0]} is left out; {FORM}", number, path)
        elif _ADDRESS.match(line):
            message = "an address or a path is left out: packages only come from the server's index"
            repairs.note(LEFT_OUT, message, number, path)
        else:
            yield _Found(path, number, _BEHIND.sub("", line).strip())


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    r"""Yield logical lines without comments, each with the number of its first line. A `\` at the end continues a
    line, as in pip.
    """
    began, lines = 0, list[str]()
    for number, line in enumerate(_LINE_ENDS.split(text), 1):
        began = began if lines else number
        if line.lstrip().startswith("#"):
            continue  # also within a continued line
        if line.endswith("\\"):
            lines.append(line[:-1])
            continue
        logical_line = _COMMENT.sub("", "".join([*lines, line])).strip()
        lines = []
        if logical_line:
            yield began, logical_line
    logical_line = _COMMENT.sub("", "".join(lines)).strip()
    if logical_line:
        yield began, logical_line


def _text(path: str, content: bytes, repairs: Repairs) -> str | None:
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


# -- install lines of SKILL.md -------------------------------------------------------------------------------------

_INSTALL = re.compile(r"\b(?:pip3?|uv) (?:pip )?(?:install|add) ([^\n`;&|#]{1,1000})")
_WORD = re.compile(r"\"([^\"]*)\"|'([^']*)'|(\S+)")


def stated_requirements(skill_md: str) -> dict[str, str]:
    """Return the requirements in the pip and uv lines of a SKILL.md that have extras or bounds, by package.

    Several lines for a package add their extras. The first bound counts.
    """
    requirements: dict[str, Requirement] = {}
    words = (word for line in _INSTALL.finditer(skill_md) for word in _WORD.finditer(line[1]))
    for word in islice(words, MOST_ASKED):
        text = word[1] or word[2] or word[3] or ""
        if text.startswith("-") or len(text) > LONGEST or requirement_problem(text):
            continue
        requirement = Requirement(text)
        requirement.name = canonicalize_name(requirement.name)
        combined = requirements.setdefault(requirement.name, requirement)
        combined.extras |= requirement.extras
        combined.specifier = combined.specifier or requirement.specifier
    return {name: str(value) for name, value in requirements.items() if value.extras or value.specifier}


def inferred_requirement(package: str, stated: Mapping[str, str]) -> str:
    """Return the requirement of an inferred package: as stated, and with its usual extras if no extras are stated."""
    requirement = Requirement(stated.get(package, package))
    requirement.extras = requirement.extras or set(_usual_extras().get(package, ()))
    return str(requirement)


@cache
def _usual_extras() -> dict[str, list[str]]:
    return msgspec.json.decode((files(__package__) / "package_extras.json").read_bytes(), type=dict[str, list[str]])


# -- PEP 723 -------------------------------------------------------------------------------------------------------


def _of_script(path: str, content: bytes, pythons: list[str], repairs: Repairs) -> Iterator[_Found]:
    """Yield the requirements in the `# /// script` block of a Python file. Its `requires-python` is
    added to `pythons`.
    """
    text = _text(path, content, repairs)
    block = _block(path, text or "", repairs)
    if block is None:
        return
    began, lines = block
    if sum(map(len, lines)) > MOST_BLOCK:
        repairs.note(
            LEFT_OUT, f"the block '# /// script' has over {MOST_BLOCK} characters; it is left out", began, path
        )
        return
    try:
        table = read_toml("\n".join(lines).encode(), "the block '# /// script'")
    except InvalidManifest as error:
        line = began + error.data["line"] if "line" in error.data else began
        message = _RELATIVE.sub("", error.message).rstrip(".")
        repairs.note(LEFT_OUT, f"{message}; it is left out", line, path)
        return

    def line_of(text: str) -> int:
        return began + next((number for number, line in enumerate(lines, 1) if text in line), 0)

    python = table.get("requires-python")
    if python is not None:
        problem = _wrong_python(python)
        if problem:
            repairs.note(LEFT_OUT, f"requires-python {problem}; it is left out", line_of("requires-python"), path)
        else:
            pythons.append(str(python))
    values = table.get("dependencies", [])
    if not isinstance(values, list):
        message = "dependencies of '# /// script' are not a list; they are left out"
        repairs.note(LEFT_OUT, message, line_of("dependencies"), path)
        return
    for value in values:
        if isinstance(value, str):
            yield _Found(path, line_of(value), value.strip())
        else:
            message = "an entry of dependencies is not a string; it is left out"
            repairs.note(LEFT_OUT, message, line_of("dependencies"), path)


def _wrong_python(python: object) -> str | None:
    """Return why a `requires-python` is not valid, as a clause, or None."""
    if not isinstance(python, str) or len(python) > LONGEST:
        return "is not a short string"
    return python_problem(python)


def _block(path: str, text: str, repairs: Repairs) -> tuple[int, list[str]] | None:
    """Return the line number of the block's first line, and the lines in the block without `#`.

    Return None if there is no block, or if the file has several blocks or an unclosed one.
    """
    blocks: list[tuple[int, list[str]]] = []
    lines = _LINE_ENDS.split(text)
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


# -- together ------------------------------------------------------------------------------------------------------


def _checked(request: Iterable[_Found], repairs: Repairs) -> Iterator[Requirement]:
    for entry in request:
        problem = requirement_problem(entry.text) if len(entry.text) <= LONGEST else "is too long for a requirement"
        if problem:
            message = f"{quoted(printable(_without_address(entry.text), 80))} {problem}; it is left out"
            repairs.note(LEFT_OUT, message, entry.line, entry.file)
        else:
            yield Requirement(entry.text)


def _without_address(text: str) -> str:
    """Return the requirement without its URL, because the URL may contain a password."""
    return text.partition("@")[0].strip() + " @ …" if "://" in text else text


def _merge_requirements(requirements: Iterable[Requirement], repairs: Repairs) -> Iterator[str]:
    """Yield one requirement for each pair of package and marker, sorted, with all the version
    specifiers of the pair.
    """
    merged: dict[tuple[str, str], Requirement] = {}
    for requirement in requirements:
        requirement.name = canonicalize_name(requirement.name)
        combined = merged.setdefault((requirement.name, str(requirement.marker or "")), requirement)
        combined.extras |= requirement.extras
        combined.specifier &= requirement.specifier
    for key in sorted(merged):
        text = str(merged[key])
        if len(text) <= LONGEST:
            yield text
        else:
            repairs.note(
                LEFT_OUT, f"the requirements of its files for {quoted(key[0])} are too long together; they are left out"
            )
