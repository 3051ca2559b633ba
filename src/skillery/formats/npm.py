"""The npm packages of a skill: what its JavaScript and TypeScript files need, and the lock of these packages.

The sources of needs are package.json, `runtime.npm` in skill.toml, install lines of SKILL.md, and imports. The first
source of a package decides its range. All patterns are linear, and all inputs are bounded.
"""

from __future__ import annotations

import base64
import binascii
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import Annotated, Literal, NamedTuple

import msgspec

from skillery.formats import package_json
from skillery.formats.import_names import npm_names
from skillery.formats.package_json import MODULES, folders_above
from skillery.formats.paths import path_problem
from skillery.formats.requirements import MOST_LOCK_BYTES, InvalidLock, LeftOut, Pin
from skillery.formats.wording import printable, quoted

NPM = "runtime.npm"
MOST = 100
LONGEST = 300
LONGEST_NAME = 214
"""The maximum length of a package name (the documentation of package.json)."""
MOST_FILES, MOST_BYTES = 1_000, 512 * 1024
MOST_IN_FILE = 1_000
FORM = "expected a name with versions, as in 'docx@^9'"
SOURCES = (".js", ".mjs", ".cjs", ".ts", ".mts", ".cts")
MATERIAL = frozenset({"assets", "templates", "examples", "fixtures", MODULES})
"""Folders whose files no run executes."""

_NAME = re.compile(r"(?:@[A-Za-z0-9~-][A-Za-z0-9._~-]*/)?[A-Za-z0-9~-][A-Za-z0-9._~-]*")
_RANGE = re.compile(r"[A-Za-z0-9 .*^~<>=|+-]+")
_QUOTED = re.compile(
    r"\b(?:from|import|require)[ \t\n]{0,8}\(?[ \t\n]{0,8}(?:\"([^\"\n]{1,300})\"|'([^'\n]{1,300})')"
    # The end of a statement: in a sentence, such as "moved from 'a' to 'b'", other words follow.
    r"(?=[ \t\r\n]{0,8}(?:[;,)]|$|//|/\*|with\b|assert\b)|[ \t]{0,8}[\r\n])",
    re.ASCII,
)
_INSTALL = re.compile(r"\b(?:npm (?:install|i|add)|(?:pnpm|yarn|bun) add) ([^\n`;&|#]{1,1000})", re.ASCII)
_WORD = re.compile(r"\"([^\"]{0,300})\"|'([^']{0,300})'|([^ \t\"']{1,300})")


class NpmNeeds(NamedTuple):
    """The packages that a bundle needs, as `NAME@RANGE`, sorted. No package is in two of these tuples."""

    declared: tuple[str, ...] = ()
    """Packages in skill.toml."""
    of_files: tuple[str, ...] = ()
    """Packages that a package.json declares for a file that imports packages."""
    inferred: tuple[str, ...] = ()
    """Packages of install lines in SKILL.md and of imports, if their names are known."""
    left_out: tuple[LeftOut, ...] = ()
    """Packages that are not installed: package.json has no range for them, or there are too many."""
    guide: Mapping[str, str] = {}
    """Versions in package-lock.json, of direct and indirect packages."""

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(sorted((*self.declared, *self.of_files, *self.inferred)))


def is_name(text: str) -> bool:
    return len(text) <= LONGEST_NAME and _NAME.fullmatch(text) is not None


def split(requirement: str) -> tuple[str, str]:
    """Return the name and the range of a requirement. The range "*" means any version."""
    at = requirement.find("@", 1)
    return (requirement[:at], requirement[at + 1 :].strip() or "*") if at > 0 else (requirement, "*")


def requirement_problem(text: str) -> str | None:
    """Return the problem of a requirement, or None if it is valid. The problem is a clause after "which"."""
    name, versions = split(text)
    if not is_name(name):
        return f"is not the name of an npm package; {FORM}"
    if not _RANGE.fullmatch(versions):
        return f"names no range of versions: packages only come from the server's registry; {FORM}"
    return None


def read_npm_needs(
    files: Mapping[str, bytes], declared: Sequence[str], is_known: Callable[[str], bool], *, infers: bool
) -> NpmNeeds:
    """Return the needs of a bundle. `files` maps paths to contents, and `declared` is `runtime.npm`.

    Packages of folders `node_modules` in the bundle are not needed. With `infers`, packages that are only imported or
    in install lines are needed if `is_known` accepts their names: anyone can register a name.
    """
    imported = {path: names for path, names in _imports(files) if names}
    ranges = {split(text)[0]: text for text in declared}
    of_files, elsewhere, guide = dict[str, str](), set[str](), dict[str, str]()
    for declaring in dict.fromkeys(nearest for path in imported for nearest in _nearest(files, path)):
        lock_path = f"{declaring.removesuffix(package_json.FILE)}{package_json.LOCK_FILE}"
        guide = _versions(files.get(lock_path, b"")) | guide
        for name, versions in package_json.dependency_ranges(files[declaring]).items():
            if name not in ranges and requirement_problem(f"{name}@{versions}") is None:
                of_files.setdefault(name, f"{name}@{versions}")
            elif name not in ranges:
                elsewhere.add(name)
    inferred, unusual = dict[str, str](), frozenset[str]()
    if infers and imported:
        own = elsewhere | {
            name for path in files if path.endswith(package_json.FILE) for name in package_json.own_name(files[path])
        }
        names, stated = frozenset[str]().union(*imported.values()), [*_stated(files.get("SKILL.md", b""))]
        for text in (*stated, *sorted(names)):
            name = split(text)[0]
            if name not in ranges and name not in of_files and name not in own and is_known(name):
                inferred.setdefault(name, text)
        unusual = names.intersection(split(text)[0] for text in stated).difference(ranges, of_files, own, inferred)
    contained = _contained(files)
    first, second, third = (
        tuple(sorted(text for name, text in table.items() if name not in contained))
        for table in (ranges, of_files, inferred)
    )
    left_out = [
        *_left_out(sorted(elsewhere.difference(contained, of_files)), "declared", "package.json has no range of npm"),
        *_left_out(second[MOST:], "declared", f"at most {MOST} packages of package.json are locked"),
        *_left_out(
            sorted(unusual - contained),
            "inferred",
            "it is not widely used: declare it, or let an admin add it to packages.npm_allowed",
        ),
        *_left_out(third[MOST:], "inferred", f"at most {MOST} inferred packages are locked"),
    ]
    return NpmNeeds(first, second[:MOST], third[:MOST], tuple(left_out), guide)


def _versions(lock: bytes) -> dict[str, str]:
    """Return the versions in a package-lock.json."""
    versions = package_json.locked_versions(lock) if lock else {}
    valid = ((name, text) for name, text in versions.items() if is_name(name) and _VERSION.fullmatch(text))
    return dict(islice(valid, MOST_PACKAGES))


def _left_out(requirements: Sequence[str], tier: Literal["declared", "inferred"], detail: str) -> Iterator[LeftOut]:
    """Yield an entry for each requirement, up to MOST. The last entry says how many others there are."""
    more = len(requirements) - MOST
    for number, text in enumerate(requirements[:MOST], 1):
        others = f" (and {more} more)" if number == MOST and more > 0 else ""
        yield LeftOut(printable(split(text)[0], 80), tier, "unavailable", f"{detail}{others}")


def _nearest(files: Mapping[str, bytes], path: str) -> Iterator[str]:
    """Yield the path of the nearest package.json above a file, if there is one."""
    places = (f"{folder}{package_json.FILE}" for folder in folders_above(path))
    yield from islice((place for place in places if place in files), 1)


def _contained(files: Iterable[str]) -> frozenset[str]:
    """Return the packages in folders `node_modules` of the bundle."""
    names = (path.rpartition(f"{MODULES}/")[2].split("/") for path in files if f"{MODULES}/" in path)
    return frozenset("/".join(parts[: 2 if parts[0].startswith("@") else 1]) for parts in names)


def _imports(files: Mapping[str, bytes]) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the path of each source file that a run may execute, with the packages that it imports."""
    sources = (path for path in sorted(files) if path.endswith(SOURCES) and not MATERIAL.intersection(path.split("/")))
    for path in islice(sources, MOST_FILES):
        if len(files[path]) <= MOST_BYTES:
            yield path, imported_packages(files[path].decode("utf-8", "replace"))


def imported_packages(source: str) -> frozenset[str]:
    """Return the packages that a JavaScript or TypeScript file imports. Comments and strings count too."""
    return frozenset(_imported(source))


def _imported(source: str) -> Iterator[str]:
    for match in islice(_QUOTED.finditer(source), MOST_IN_FILE):
        specifier = match[1] or match[2]
        parts = specifier.split("/")
        name = "/".join(parts[:2]) if specifier.startswith("@") else parts[0]
        if (
            is_name(name)
            and name not in npm_names()["modules"]
            and ":" not in specifier
            and not specifier.startswith("@/")
        ):
            yield name


def _stated(skill_md: bytes) -> Iterator[str]:
    """Yield the requirements in the install lines of a SKILL.md."""
    text = skill_md[:MOST_BYTES].decode("utf-8", "replace")
    words = (word for line in _INSTALL.finditer(text) for word in _WORD.finditer(line[1]))
    for word in islice(words, MOST_IN_FILE):
        requirement = word[1] or word[2] or word[3] or ""
        if len(requirement) <= LONGEST and requirement_problem(requirement) is None:
            yield requirement


# -- The lock ----------------------------------------------------------------------------------------------------------
# The server writes it from the lock that npm makes (package-lock.json). It has one line for each package, sorted by
# path: the folder below `node_modules`, the exact version, and the hash of the file. It has no addresses.


NPM_LOCK = "npm.lock"
"""The file of a bundle with the lock of npm packages. A file of this name that is not a lock is an ordinary file."""
MOST_PACKAGES = 2_000
"""The maximum number of packages, and of their commands."""
LONGEST_PATH = 1_000
_HEAD = b'{"npm":1,'
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+-]{0,127}")
_COMMAND = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_ALGORITHM = "sha512-"
_MACHINES = {"x86_64": "x64", "aarch64": "arm64"}
_Words = tuple[Annotated[str, msgspec.Meta(max_length=20)], ...]


class NpmPackage(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A locked package. Another version of it may be locked at another path."""

    path: str
    """The folder below `node_modules`, such as `docx` or `docx/node_modules/jszip`."""
    version: str
    integrity: str
    """The hash of the file, such as `sha512-…` in base64."""
    name: str = ""
    """The name of the package, if it is not the last part of the path."""
    bin: dict[str, str] = {}
    """The commands of the package, with the files that Node.js executes."""
    os: _Words = ()
    cpu: _Words = ()
    libc: _Words = ()
    optional: bool = False
    script: bool = False
    """Whether the package has a script for its installation, which this server does not execute."""
    inferred: bool = False
    """Whether no declared package needs the package. If it cannot be installed, runs start without it."""

    @property
    def package(self) -> str:
        return self.name or self.path.rpartition(f"{MODULES}/")[2]

    @property
    def pin(self) -> Pin:
        digest = base64.b64decode(self.integrity.removeprefix(_ALGORITHM)).hex()
        return Pin(self.package, self.version, frozenset({f"sha512:{digest}"}))

    def fits_here(self) -> bool:
        """Return whether the package is for the system of this server."""
        return all(map(_permits, (self.os, self.cpu, self.libc), _here()))


class NpmLock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    npm: int
    requirements: tuple[str, ...]
    packages: tuple[NpmPackage, ...]
    left_out: tuple[LeftOut, ...] = ()
    """Packages that the skill needs and that could not be locked."""


@cache
def _here() -> tuple[str, str, str]:
    """Return the system, the processor and the C library of this server in the words of package.json."""
    # With musl, `libc_ver` reads the whole interpreter.
    libc = "glibc" if platform.libc_ver()[0] == "glibc" else "musl"
    return "linux", _MACHINES.get(platform.machine(), platform.machine()), libc


def _permits(words: _Words, word: str) -> bool:
    """Return whether a list of package.json permits a system. `!win32` excludes one."""
    chosen = [other for other in words if not other.startswith("!")]
    return f"!{word}" not in words and (not chosen or word in chosen or "any" in chosen)


def is_npm_lock(content: bytes) -> bool:
    """Return whether a file begins like a lock of npm packages."""
    return content.startswith(_HEAD)


def read_npm_lock(content: bytes) -> NpmLock:
    """Return the lock. Raise InvalidLock if it is not a valid one."""
    if len(content) > MOST_LOCK_BYTES:
        raise InvalidLock(f"has {len(content)} bytes, at most {MOST_LOCK_BYTES} are allowed")
    try:
        lock = msgspec.json.decode(content, type=NpmLock)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidLock(f"cannot be read ({printable(str(error), 100)})") from None
    check_npm_lock(lock)
    return lock


def npm_lock_in(files: Mapping[str, bytes]) -> NpmLock | None:
    """Return the lock among the files of a bundle, or None if there is no valid one."""
    content = files.get(NPM_LOCK, b"")
    with suppress(InvalidLock):
        return read_npm_lock(content) if is_npm_lock(content) else None
    return None


def check_npm_lock(lock: NpmLock) -> None:
    """Raise InvalidLock if an entry is not valid, or if a requirement has no package."""
    commands = sum(len(package.bin) for package in lock.packages)
    if max(len(lock.packages), commands) > MOST_PACKAGES or len(lock.requirements) + len(lock.left_out) > 6 * MOST:
        raise InvalidLock(f"has more than {MOST_PACKAGES} packages or commands, or {6 * MOST} requirements")
    if any(len(entry.name) > LONGEST_NAME for entry in lock.left_out):
        raise InvalidLock(f"leaves out a package whose name is longer than {LONGEST_NAME} characters")
    paths = {package.path for package in lock.packages}
    if len(paths) < len(lock.packages):
        raise InvalidLock("has a path twice")
    for package in lock.packages:
        if problem := _problem(package):
            raise InvalidLock(f"has {quoted(printable(package.path, 80))}, {problem}")
    for requirement in lock.requirements:
        if len(requirement) > LONGEST or requirement_problem(requirement) or split(requirement)[0] not in paths:
            raise InvalidLock(f"has no package for {quoted(printable(requirement, 80))}")


def _problem(package: NpmPackage) -> str:
    """Return why an entry is not valid, as a clause, or ""."""
    if len(package.path) > LONGEST_PATH or not all(map(is_name, package.path.split(f"/{MODULES}/"))):
        return "which is not the path of a package"
    if not is_name(package.package) or not _VERSION.fullmatch(package.version):
        return "whose name or version is not valid"
    try:
        digest = base64.b64decode(package.integrity.removeprefix(_ALGORITHM), validate=True)
    except (binascii.Error, ValueError):
        digest = b""
    if not package.integrity.startswith(_ALGORITHM) or len(digest) != 64:
        return "whose hash is not of SHA-512"
    if any(not _COMMAND.fullmatch(name) or path_problem(file) for name, file in package.bin.items()):
        return "whose commands are not files of the package"
    return ""


def write_npm_lock(
    requirements: Iterable[str], packages: Iterable[NpmPackage], left_out: Sequence[LeftOut] = ()
) -> bytes:
    """Return the content of `npm.lock`: one line for each package, sorted by path."""
    ordered = sorted(packages, key=lambda package: package.path)
    lines = b",\n".join(map(msgspec.json.encode, ordered))
    return b'%s\n"requirements":%s,%s\n"packages":[\n%s\n]}\n' % (
        _HEAD,
        msgspec.json.encode(sorted(requirements)),
        b'\n"left_out":%s,' % msgspec.json.encode(left_out) if left_out else b"",
        lines,
    )
