"""Calls that must not get foreign text in the server process, found in the source (docs/design/decisions/pages.md)."""

from __future__ import annotations

import ast
import re
import re._constants as sre  # type: ignore[import-not-found]
import re._parser as sre_parser  # type: ignore[import-not-found]
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cellblock.host.plan import HERE

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "skillery"
REFUSED = ("csv.Sniffer", "tarfile.open", "difflib")
PERMITTED_CALLS = {
    ("authoring/results.py", "difflib"): "an author's own expected and actual values, in a command",
    ("cli/client_settings.py", "difflib"): "the user's own settings, in a command",
    ("cli/offline.py", "tarfile.open"): "writes an archive",
    ("client/tool_calls.py", "difflib"): "names of the client's own tools, in its process",
    ("cli/work_dir.py", "tarfile.open"): "writes an archive; reads it only in a sandbox",
    ("environments/in_sandbox/npm.py", "tarfile.open"): "unpacks an npm package, only in a sandbox",
}
PERMITTED_PATTERNS = {
    ("environments/uv_errors.py", "_CAUSE"): "ends at the end of the text, so that it never fails",
    ("trust/rules.py", "_FILE"): "an admin's rule, matched as a whole",
    ("trust/rules.py", "_REPOSITORY"): "an admin's rule, matched as a whole",
    ("web/run_log.py", "_SEQUENCE"): "ends at the end of a line, so that it never fails",
}
PARSERS_OF_PAGES = ("csv", "json.loads", "difflib")
RENDERING_PROCESS = ("web/views/", "web/rendering.py", "web/differences.py")
"""Modules of pages whose functions run in the rendering process."""
OUTSIDE_THE_SERVER = (
    "authoring/",
    "cli/",
    "testing/",
    "environments/in_sandbox/",
    "jobs/in_sandbox/",
    "publishing/in_sandbox/",
)
"""Folders whose code runs in commands of the text's owner, or inside a sandbox."""
UNBOUNDED = 1000
"""A repeat with at least this upper limit counts as unbounded."""
CHARACTERS = frozenset(range(0x180))
"""The characters that the check distinguishes. Higher ones count as the last of these."""
ALL_VERBS = {"match", "fullmatch", "search", "sub", "subn", "findall", "finditer", "split"}
NEWLINE = 10
SEARCHES = {"search", "sub", "subn", "findall", "finditer", "split"}
REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT)


class Pattern(NamedTuple):
    file: str
    line: int
    name: str
    text: str | bytes
    flags: int


# -- calls -------------------------------------------------------------------------------------------------------------


@cache
def sources() -> list[tuple[str, ast.Module]]:
    files = [(path, SOURCE) for path in sorted(SOURCE.rglob("*.py"))]
    files.append((HERE / "egress/policy.py", HERE))  # reads `permissions.network`
    return [(path.relative_to(root).as_posix(), ast.parse(path.read_text("utf-8"))) for path, root in files]


def refused_calls(tree: ast.Module, refused_names: Sequence[str] = REFUSED) -> Iterator[str]:
    for node in ast.walk(tree):
        names: Iterable[str] = ()
        if isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names = [f"{node.value.id}.{node.attr}"]
        yield from {refused for refused in refused_names for name in names if name == refused}


@pytest.mark.full
def test_source_calls_nothing_with_superlinear_cost_for_foreign_text() -> None:
    found = {(file, name) for file, tree in sources() for name in refused_calls(tree)}
    assert found == PERMITTED_CALLS.keys()


def test_pages_parse_foreign_text_only_in_the_rendering_process() -> None:
    calls = {
        (file, name)
        for file, tree in sources()
        if file.startswith("web/") and not file.startswith(RENDERING_PROCESS)
        for name in refused_calls(tree, PARSERS_OF_PAGES)
    }
    assert calls == set()


# -- regular expressions -----------------------------------------------------------------------------------------------


def patterns(file: str, tree: ast.Module) -> Iterator[Pattern]:
    """Yield the patterns of a module whose text is constant."""
    constants = {
        node.targets[0].id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
    }
    names = {id(value): name for name, value in constants.items()}
    for node in ast.walk(tree):
        function = node.func if isinstance(node, ast.Call) else None
        if not (isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)):
            continue
        assert isinstance(node, ast.Call)
        if function.value.id == "re" and function.attr in {"compile", "match", "fullmatch", *SEARCHES} and node.args:
            text = constant(node.args[0], constants)
            if text is not None:
                given = [one for one in (*node.args[1:], *(one.value for one in node.keywords)) if is_flags(one)]
                flags = eval(ast.unparse(given[0]), {"re": re}) if given else 0
                name = names.get(id(node), "") if function.attr == "compile" else f"re.{function.attr}"
                yield Pattern(file, node.lineno, name, text, int(flags))


def is_flags(node: ast.expr) -> bool:
    return ast.unparse(node).startswith("re.") and not isinstance(node, ast.Call)


def constant(node: ast.expr, constants: dict[str, ast.expr]) -> Any:
    """Return the value of an expression of literals and constants of the module, or None."""
    match node:
        case ast.Constant(value=str() | bytes() as value):
            return value
        case ast.Name(id=name) if name in constants:
            return constant(constants[name], constants)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            parts = [constant(left, constants), constant(right, constants)]
            return None if None in parts or type(parts[0]) is not type(parts[1]) else parts[0] + parts[1]
        case ast.JoinedStr(values=values):
            texts = [constant(one.value if isinstance(one, ast.FormattedValue) else one, constants) for one in values]
            return None if any(not isinstance(one, str) for one in texts) else "".join(texts)
    return None


class Open(NamedTuple):
    """A repeat that may still give characters back, or the start of a search, which may be at every character."""

    taken: frozenset[int]
    between: tuple[frozenset[int], ...] = ()
    """The characters of the items between the repeat and the next one."""

    def overlaps(self, taken: frozenset[int]) -> bool:
        return bool(self.taken & taken) and all(one & taken for one in self.between)


class Checking:
    """Walks over a parsed pattern, with the repeats that are open at each item."""

    def __init__(self, dot_is_all: bool) -> None:
        self.is_slow = False
        self._dot = CHARACTERS if dot_is_all else CHARACTERS - {NEWLINE}

    def walk(self, items: list[Any], open_: list[Open], can_fail: bool) -> list[Open]:
        for number, (kind, value) in enumerate(items):
            later = can_fail or any(is_required(one) for one in items[number + 1 :])
            if kind in REPEATS:
                open_ = self.repeat(value, open_, later)
            elif kind is sre.SUBPATTERN:
                open_ = self.walk(list(value[3]), open_, later)
            elif kind is sre.BRANCH:
                open_ = [one for branch in value[1] for one in self.walk(list(branch), open_, later)]
            elif kind in (sre.ASSERT, sre.ASSERT_NOT):
                self.walk(list(value[1]), [], True)
            elif kind in (sre.ATOMIC_GROUP, sre.POSSESSIVE_REPEAT):
                inner = list(value if kind is sre.ATOMIC_GROUP else value[2])
                self.walk(inner, [], True)
                open_ = [one for one in open_ if kind is sre.POSSESSIVE_REPEAT and value[0] == 0]
            elif kind is sre.AT and value is sre.AT_BEGINNING:
                open_ = [one._replace(between=(*one.between, frozenset({NEWLINE}))) for one in open_]
            elif (taken := self.characters(kind, value)) is not None:
                open_ = [one._replace(between=(*one.between, taken)) for one in open_ if one.taken & taken]
        return open_

    def repeat(self, value: Any, open_: list[Open], can_fail: bool) -> list[Open]:
        least, most, inner = value
        items = list(inner)
        if most < UNBOUNDED:
            after = self.walk(items, open_, can_fail)
            return [*open_, *after] if least == 0 else after
        if is_simple(items):
            taken = self.occurring(items)
            self.is_slow = self.is_slow or (can_fail and any(one.overlaps(taken) for one in open_))
            return [*(one for one in open_ if least == 0 or one.taken & taken), Open(taken)]
        # A repeat of repeats: each turn follows another one.
        after = self.walk(items, open_, can_fail)
        return [*open_, *self.walk(items, after, can_fail)]

    def occurring(self, items: list[Any]) -> frozenset[int]:
        """Return all characters that can occur in a match of the items."""
        found: frozenset[int] = frozenset()
        for kind, value in items:
            match kind:
                case sre.SUBPATTERN:
                    found |= self.occurring(list(value[3]))
                case sre.BRANCH:
                    found = found.union(*(self.occurring(list(one)) for one in value[1]))
                case sre.MAX_REPEAT | sre.MIN_REPEAT | sre.POSSESSIVE_REPEAT:
                    found |= self.occurring(list(value[2]))
                case sre.ATOMIC_GROUP:
                    found |= self.occurring(list(value))
                case sre.GROUPREF:
                    return CHARACTERS
                case _:
                    found |= self.characters(kind, value) or frozenset()
        return found

    def characters(self, kind: Any, value: Any) -> frozenset[int] | None:
        """Return the characters that one item matches, or None if it matches none."""
        last = len(CHARACTERS) - 1
        match kind:
            case sre.LITERAL:
                return frozenset({min(value, last)})
            case sre.NOT_LITERAL:
                return CHARACTERS - {value}
            case sre.ANY:
                return self._dot
            case sre.RANGE:
                return frozenset(one for one in CHARACTERS if value[0] <= one <= value[1]) | frozenset(
                    {last} if value[1] > last else ()
                )
            case sre.CATEGORY:
                return frozenset(one for one in CHARACTERS if CATEGORIES[value](chr(one)))
            case sre.IN:
                parts = [self.characters(*one) or frozenset() for one in value if one[0] is not sre.NEGATE]
                found = frozenset[int]().union(*parts)
                return CHARACTERS - found if value[0][0] is sre.NEGATE else found
        return None


def is_slow(pattern: Pattern, verbs: set[str]) -> bool:
    """Return whether two unbounded repeats with common characters follow each other without a separator, and the match
    can fail behind them.
    """
    for verb in verbs:
        checking = Checking(bool(pattern.flags & re.DOTALL))
        start = [Open(CHARACTERS)] if verb in SEARCHES else []
        checking.walk(list(sre_parser.parse(pattern.text, pattern.flags)), start, verb == "fullmatch")
        if checking.is_slow:
            return True
    return False


def is_required(item: Any) -> bool:
    kind, value = item
    if kind in (*REPEATS, sre.POSSESSIVE_REPEAT):
        return bool(value[0] > 0)
    return not (kind is sre.SUBPATTERN and not any(map(is_required, value[3])))


def is_simple(items: list[Any]) -> bool:
    """Return whether the items contain no unbounded repeat."""
    for kind, value in items:
        if kind in REPEATS and (value[1] >= UNBOUNDED or not is_simple(list(value[2]))):
            return False
        if kind is sre.SUBPATTERN and not is_simple(list(value[3])):
            return False
        if kind is sre.BRANCH and not all(is_simple(list(one)) for one in value[1]):
            return False
    return True


CATEGORIES: dict[Any, Callable[[str], bool]] = {
    sre.CATEGORY_DIGIT: str.isdigit,
    sre.CATEGORY_NOT_DIGIT: lambda one: not one.isdigit(),
    sre.CATEGORY_SPACE: str.isspace,
    sre.CATEGORY_NOT_SPACE: lambda one: not one.isspace(),
    sre.CATEGORY_WORD: lambda one: one.isalnum() or one == "_",
    sre.CATEGORY_NOT_WORD: lambda one: not (one.isalnum() or one == "_"),
}


def uses_of_patterns() -> dict[str, dict[str, set[str]]]:
    """Return the methods that are called on each name of a pattern, by module."""
    found: dict[str, dict[str, set[str]]] = {}
    for file, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in ALL_VERBS and isinstance(node.value, ast.Name):
                found.setdefault(node.value.id, {}).setdefault(file, set()).add(node.attr)
    return found


def verbs_of(pattern: Pattern, uses: dict[str, dict[str, set[str]]]) -> set[str]:
    """Return the methods that are called on a pattern in its module, else in any module, else all methods."""
    if pattern.name.startswith("re."):
        return {pattern.name.removeprefix("re.")}
    by_file = uses.get(pattern.name, {})
    return by_file.get(pattern.file) or set().union(*by_file.values()) or ALL_VERBS


@pytest.mark.full
def test_patterns_over_foreign_text_have_no_adjacent_overlapping_repeats() -> None:
    uses = uses_of_patterns()
    slow = {
        (file, pattern.name): pattern
        for file, tree in sources()
        if not file.startswith(OUTSIDE_THE_SERVER)
        for pattern in patterns(file, tree)
        if is_slow(pattern, verbs_of(pattern, uses))
    }
    unknown = {place: pattern for place, pattern in slow.items() if place not in PERMITTED_PATTERNS}
    assert not unknown, "make the first repeat possessive (`++`, `*+`), or name a separator"
    assert PERMITTED_PATTERNS.keys() <= slow.keys(), "the permitted pattern is gone or fast"


@pytest.mark.parametrize(
    ("text", "verb", "slow"),
    [
        (r"import[ \t]+\(?[ \t]*(\w+)", "search", True),
        (r"import[ \t]++\(?[ \t]*+(\w+)", "search", False),
        (r"[a-z0-9]+(?:-[a-z0-9]+)*", "fullmatch", False),
        (r"(?:[a-z]+)*", "fullmatch", True),
        (r"\s+$", "search", True),
        (r"\s+", "sub", False),
        (r"\s*#", "match", False),
        (r".*,.*;", "match", True),
        (r"f[ ]+g", "search", False),
        (r" [ ]+g", "search", True),
        (r"(?:a|b)*c?b*!", "match", True),
    ],
)
def test_the_check_knows_slow_patterns(text: str, verb: str, slow: bool) -> None:
    assert is_slow(Pattern("", 0, "", text, 0), {verb}) is slow
