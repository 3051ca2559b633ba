"""The packages that the files of a foreign skill need. Invalid entries are skipped.

The sources are `# /// script` blocks of Python files (PEP 723) and requirements.txt. No function raises an error for
such a file: each skipped entry is noted as a repair.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import NamedTuple

import msgspec
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from skillery.formats.repairs import Repairs
from skillery.formats.requirements import LONGEST, MOST, requirement_problem
from skillery.formats.script_blocks import LEFT_OUT, LINE_ENDS, Block, Requested, decoded_text, read_blocks
from skillery.formats.wording import printable, quoted

REQUIREMENTS = ("requirements.txt", "scripts/requirements.txt")
MOST_SCRIPTS = 100
"""The maximum number of Python files in which blocks are searched."""
MOST_ASKED = 1000
"""A skill with this many requirements gets no packages. Several requirements may name the same package."""
NO_PACKAGES = "no_packages"
FORM = "expected a name with versions, as in 'pandas>=2,<3'"

_COMMENT = re.compile(r"(?:^|\s)#.*")
_OPTION = re.compile(r"-{1,2}[A-Za-z][A-Za-z-]*")
_BEHIND = re.compile(r"\s--?[A-Za-z]\S*.*")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/|[./~]|[A-Za-z]:\\|.*\.(?:whl|zip|tar\.gz)$")


class Needs(NamedTuple):
    """The packages and the Python versions that a skill needs, in the form of skill.toml.

    `dependencies` are sorted by name. `requires_python` is "" if any Python version is suitable.
    """

    dependencies: tuple[str, ...] = ()
    requires_python: str = ""
    scripts: tuple[tuple[str, Needs], ...] = ()
    """The needs of each Python file with a block `# /// script`, by path. They are part of the needs of the skill."""

    def runtime(self) -> dict[str, object]:
        """Return the needs as the table `[runtime]` of a manifest, or {} if the skill needs nothing."""
        table: dict[str, object] = {}
        if self.dependencies:
            table["dependencies"] = list(self.dependencies)
        if self.requires_python:
            table["requires-python"] = self.requires_python
        return table


def read_needs(files: Mapping[str, bytes], repairs: Repairs, separate: Collection[str] = ()) -> Needs:
    """Return the needs of all files of a skill together, without the Python files `separate`. `files` maps paths to
    contents. Skipped entries go to `repairs`.
    """
    paths = [path for path in sorted(files) if path.endswith(".py") and b"/// script" in files[path]]
    if len(paths) > MOST_SCRIPTS:
        message = f"{len(paths)} Python files have a block '# /// script'; only the first {MOST_SCRIPTS} are read"
        repairs.note(LEFT_OUT, message)
    request: list[Requested] = []
    for path in (path for path in REQUIREMENTS if path in files):
        request += islice(_of_requirements(path, files[path], repairs), MOST_ASKED)
    blocks = read_blocks(files, paths[:MOST_SCRIPTS], repairs)
    scripts = tuple((path, _needs([block], [], Repairs())) for path, block in blocks.items())
    rest = [block for path, block in blocks.items() if path not in separate]
    return _needs(rest, request, repairs)._replace(scripts=scripts)


def _needs(blocks: Sequence[Block], request: list[Requested], repairs: Repairs) -> Needs:
    """Return the needs of blocks and of further requirements together."""
    request = [*request, *(requirement for block in blocks for requirement in block.requirements)]
    dependencies: tuple[str, ...] = ()
    if len(request) < MOST_ASKED:
        dependencies = tuple(_merge_requirements(_checked(request, repairs), repairs))
    if len(request) >= MOST_ASKED or len(dependencies) > MOST:
        many = len(dependencies) or len(request)
        message = f"the skill asks for {many} packages, at most {MOST} are allowed: its scripts run without packages"
        repairs.note(NO_PACKAGES, message, file=request[0].file)
        dependencies = ()
    python = str(SpecifierSet(",".join(dict.fromkeys(block.requires_python for block in blocks))))
    if len(python) > LONGEST:
        repairs.note(LEFT_OUT, "the requires-python values of its files are too long together; they are left out")
        python = ""
    return Needs(dependencies, python)


# -- requirements.txt ----------------------------------------------------------------------------------------------


def _of_requirements(path: str, content: bytes, repairs: Repairs) -> Iterator[Requested]:
    """Yield the requirements in a requirements.txt. Options, addresses and paths are left out with a repair."""
    text = decoded_text(path, content, repairs)
    for number, line in _logical_lines(text or ""):
        option = _OPTION.match(line)
        if option is not None:
            repairs.note(LEFT_OUT, f"the line with {option[0]} is left out; {FORM}", number, path)
        elif _ADDRESS.match(line):
            message = "an address or a path is left out: packages only come from the server's index"
            repairs.note(LEFT_OUT, message, number, path)
        else:
            yield Requested(path, number, _BEHIND.sub("", line).strip())


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    r"""Yield logical lines without comments, each with the number of its first line. A `\` at the end continues a
    line, as in pip.
    """
    began, lines = 0, list[str]()
    for number, line in enumerate(LINE_ENDS.split(text), 1):
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


# -- install lines of SKILL.md -------------------------------------------------------------------------------------

MOST_OF_COMMAND = 1000
"""The maximum number of characters of an install command. Longer lines are skipped."""

_FENCE = re.compile(r"[\s>*+\d.)-]*+(`{3,}+(?!.*`)|~{3,}+)")
_INLINE = re.compile(r"(?<!`)`++([^`\s][^`]*+)`")
_COMMAND = re.compile(r"(?:\"[^\"]*\"|'[^']*'|[^;&|])++")
_INSTALL = re.compile(
    r"(?:[$>!%] ?)?(?:sudo |RUN )?(?:[\w.~/-]{0,80}/)?(?:py(?:thon)?[\d.]{0,5} -m )?(?:pip[\d.]{0,5}|uv)(?: pip)? "
    r"(?:install|add) "
)
_WORD = re.compile(r"\"([^\"]*)\"|'([^']*)'|(\S+)")
# pip accepts an option that is shortened (`--ind`), grouped (`-Ui`), or joined to its value (`-ihttps://…`).
_OTHER_INDEX = re.compile(r"-[A-Zhnqv]*[if]|--(?:ind|ext|fi|default-i|no-ind|trust|config-f)")
_INDEX_SETTING = re.compile(r"(?:PIP|UV)_[A-Z_]{0,20}(?:INDEX|LINKS|CONFIG)|pip3? config|pip\.(?:conf|ini)|uv\.toml")
_FLAG = re.compile(
    r"-[IUnqv]+|--(?:break-system-packages|dev|force-reinstall|ignore-installed|no-build-isolation|no-cache|no-cache-dir|"
    r"no-deps|no-input|pre|prefer-binary|quiet|system|upgrade|user|verbose)"
)


def stated_requirements(skill_md: str) -> dict[str, str]:
    """Return the requirements in the pip and uv lines of a SKILL.md that have extras or bounds, by package."""
    requirements = _installed(skill_md)
    return {name: str(value) for name, value in requirements.items() if value.extras or value.specifier}


def installed_packages(skill_md: str) -> frozenset[str]:
    """Return the names of the packages in the pip and uv lines of a SKILL.md."""
    return frozenset(_installed(skill_md))


def _installed(skill_md: str) -> dict[str, Requirement]:
    """Return the requirements in the pip and uv lines of a SKILL.md, by package.

    Several lines for a package add their extras, as long as the requirement is not too long. The first bound counts.
    """
    requirements: dict[str, Requirement] = {}
    for requirement in islice(_requirements(skill_md), MOST_ASKED):
        if requirement is None:
            continue
        requirement.name = canonicalize_name(requirement.name)
        earlier = requirements.get(requirement.name)
        if earlier is not None:
            requirement.extras |= earlier.extras
            requirement.specifier = earlier.specifier or requirement.specifier
            requirement.marker = earlier.marker
        if len(str(requirement)) <= LONGEST:
            requirements[requirement.name] = requirement
    return requirements


def _requirements(skill_md: str) -> Iterator[Requirement | None]:
    """Yield the requirements of each install command. None is the first invalid word: the rest of the command may be
    prose.
    """
    # A setting of another index concerns all commands. A name of that index may belong to anybody on the server's own.
    codes = () if _INDEX_SETTING.search(skill_md) else _codes(skill_md)
    for _, line in (line for code in codes for line in _logical_lines(code)):
        commands = _COMMAND.findall(line) if len(line) <= MOST_OF_COMMAND else ()
        for install, command in ((_INSTALL.match(command.strip()), command.strip()) for command in commands):
            for word in _install_words(command[install.end() :]) if install else ():
                is_valid = len(word) <= LONGEST and not requirement_problem(word)
                yield Requirement(word) if is_valid else None
                if not is_valid:
                    break


def _install_words(arguments: str) -> Iterator[str]:
    """Yield the arguments of an install command without options and their values. A command that names another index
    has none.
    """
    words = [word[1] or word[2] or word[3] or "" for word in _WORD.finditer(arguments)]
    if any(map(_OTHER_INDEX.match, words)):
        return
    is_value = False
    for word in words:
        if word.startswith("-"):
            is_value = "=" not in word and not _FLAG.fullmatch(word)
        elif is_value:
            is_value = False
        else:
            yield word


def _codes(text: str) -> Iterator[str]:
    """Yield the fenced blocks and the inline code of a Markdown text. An unclosed block ends with the text."""
    fence, block = "", list[str]()
    for line in LINE_ENDS.split(text):
        stripped = line.strip(" \t>")
        if fence:
            if stripped.startswith(fence) and not stripped.strip(fence[0]):
                yield "\n".join(block)
                fence, block = "", []
            else:
                block.append(line)
        elif opening := _FENCE.match(line):
            fence = opening[1]
        else:
            yield from _INLINE.findall(line)
    yield "\n".join(block)


def inferred_requirement(package: str, stated: Mapping[str, str]) -> str:
    """Return the requirement of an inferred package: as stated, and with its usual extras if no extras are stated."""
    requirement = Requirement(stated.get(package, package))
    requirement.extras = requirement.extras or set(_usual_extras().get(package, ()))
    return str(requirement)


@cache
def _usual_extras() -> dict[str, list[str]]:
    return msgspec.json.decode((files(__package__) / "package_extras.json").read_bytes(), type=dict[str, list[str]])


# -- together ------------------------------------------------------------------------------------------------------


def _checked(request: Iterable[Requested], repairs: Repairs) -> Iterator[Requirement]:
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
