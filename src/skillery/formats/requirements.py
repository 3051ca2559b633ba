"""Package requirements of a skill, and the lock of packages with their exact versions.

Formats: PEP 508, PEP 440, and lock lines `name==version --hash=…`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Annotated, Literal, NamedTuple

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from skillery.formats.wording import printable, quoted

LOCK = "requirements.lock"
"""The file of a bundle with the lock of packages. In a skill without dependencies, a file with this name is an
ordinary file.
"""
MOST = 100
LONGEST = 300
MOST_LOCK_BYTES = 4 * 1024 * 1024
MOST_LINE = 256 * 1024
"""The maximum number of characters of a locked package with all its hashes, and of one line of a lock."""
DEPENDENCIES, REQUIRES_PYTHON = "runtime.dependencies", "runtime.requires-python"
FORM = "expected a name with versions, as in 'pandas>=2,<3'"

_PIN = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?)==([A-Za-z0-9.+!_-]{1,128})((?: --hash=\S+)*)")
_HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_INFERRED = "# Inferred from imports: "
_INFERRED_BYTES = 16 * 1024


class Pin(NamedTuple):
    """One package of a lock: normalised name, exact version, and the permitted SHA-256 values of its files."""

    name: str
    version: str
    hashes: frozenset[str]


class InvalidLock(ValueError):
    """Raised for a lock of packages that cannot be read. The message is a clause after "the lock". `line` counts
    from 1.
    """

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


def requirement_problem(text: str) -> str | None:
    """Return the problem of a dependency, or None if it is valid. The problem is a clause after "which"."""
    if "\\" in text or not text.isprintable():
        # An escape in a marker's value would become a separate line when the requirement is parsed again.
        return f"has a backslash, or a character that is not printable; {FORM}"
    try:
        requirement = Requirement(text)
    except RecursionError:
        return f"has a marker that is nested too deep; {FORM}"
    except InvalidRequirement as error:
        reason = printable(str(error).partition("\n")[0], 120)
        return f"is not a requirement ({reason}); {FORM}"
    if requirement.url is not None:
        return f"names an address: packages only come from the server's index; {FORM}"
    return None


def python_problem(text: str) -> str | None:
    """Return the problem of a `requires-python` text as a clause after "which", or None if the text is valid."""
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        return "is not a set of versions; expected one such as '>=3.11'"
    return None


def fits_python(requires: str, version: str) -> bool:
    """Return whether a Python version satisfies a `requires-python` text."""
    return SpecifierSet(requires).contains(version, prereleases=True)


def package_of(requirement: str) -> str:
    """Return the normalised package name of a dependency."""
    return canonicalize_name(Requirement(requirement).name)


def normalised(requirements: Iterable[str]) -> list[str]:
    """Return the requirements sorted, without duplicates, each in the notation of PEP 508. Package names keep their
    spelling.
    """
    return sorted({str(Requirement(requirement)) for requirement in requirements})


# -- locks ---------------------------------------------------------------------------------------------------------


def read_lock(content: bytes) -> tuple[Pin, ...]:
    """Return the packages of a lock, sorted by name.

    Raise InvalidLock if a line is not a package with a SHA-256 hash, or if the lock is too long, not UTF-8, or has a
    package twice. Options and addresses are refused, because they could change the source of the packages.
    """
    if len(content) > MOST_LOCK_BYTES:
        raise InvalidLock(f"has {len(content)} bytes, at most {MOST_LOCK_BYTES} are allowed")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise InvalidLock("is not UTF-8 text", content.count(b"\n", 0, error.start) + 1) from None
    pins: dict[str, Pin] = {}
    for number, line in _logical_lines(text):
        pin = _pin(line, number)
        if pin.name in pins:
            raise InvalidLock(f"pins {pin.name} twice", number)
        pins[pin.name] = pin
    return tuple(pins[name] for name in sorted(pins))


def _logical_lines(text: str) -> Iterable[tuple[int, str]]:
    """Yield (number of its first line, text) for each logical line, without comments. A backslash at the end continues
    a line.

    Raise InvalidLock if a logical line is too long.
    """
    began, size, parts = 0, 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        size = size + len(line) if parts else len(line)
        if size > MOST_LINE:
            raise InvalidLock(f"has a line of more than {MOST_LINE} characters", number)
        text_of_line = re.sub(r"(?:^|\s)#.*", "", line).strip()
        began = began if parts else number
        parts.append(text_of_line.removesuffix("\\").strip())
        if text_of_line.endswith("\\"):
            continue
        if any(parts):
            yield began, " ".join(part for part in parts if part)
        parts = []
    if any(parts):
        yield began, " ".join(part for part in parts if part)


def _pin(line: str, number: int) -> Pin:
    """Return the package of a logical line. Raise InvalidLock if the line has no exact version or no SHA-256."""
    match = _PIN.fullmatch(line)
    if match is None:
        raise InvalidLock(
            f"has {quoted(printable(line, 80))}, which is not of the form 'name==version --hash=sha256:…'", number
        )
    hashes = _HASH.findall(match[3])
    if not hashes or len(hashes) != match[3].count("--hash="):
        raise InvalidLock(f"pins {match[1]} without a hash, or with one that is not SHA-256", number)
    try:
        version = str(Version(match[2]))
    except InvalidVersion:
        raise InvalidLock(f"pins {match[1]} at {quoted(match[2])}, which is not a version", number) from None
    return Pin(canonicalize_name(match[1]), version, frozenset(hashes))


def mark_inferred(lock: bytes, packages: Iterable[str]) -> bytes:
    """Return the lock with a first line that lists the packages that the skill imports and does not declare."""
    return f"{_INFERRED}{', '.join(packages)}\n".encode() + lock


def inferred_in(lock: bytes) -> tuple[str, ...]:
    """Return the packages that `mark_inferred` listed in the lock, or () if the lock has no such line."""
    line = lock[:_INFERRED_BYTES].partition(b"\n")[0].decode("utf-8", "replace")
    if not line.startswith(_INFERRED):
        return ()
    names = (name.strip() for name in line.removeprefix(_INFERRED).split(","))
    return tuple(canonicalize_name(name) for name in names if _NAME.fullmatch(name))[:MOST]


# -- packages that are left out ------------------------------------------------------------------------------------

LeftOutReason = Literal[
    "unknown_package", "no_wheel", "conflict", "too_large", "denied", "needs_python", "build_failed", "unavailable"
]
_LEFT_OUT = "# Left out: "


class LeftOut(msgspec.Struct, frozen=True):
    """A package that a skill imports and that its runs do not have."""

    name: str
    tier: Literal["declared", "inferred", "optional"]
    reason: LeftOutReason
    detail: Annotated[str, msgspec.Meta(max_length=LONGEST)] = ""


def mark_left_out(lock: bytes, left_out: Iterable[LeftOut]) -> bytes:
    """Return the lock with a first line for each package that is left out."""
    return b"".join(_LEFT_OUT.encode() + msgspec.json.encode(entry) + b"\n" for entry in left_out) + lock


def left_out_in(lock: bytes) -> tuple[LeftOut, ...]:
    """Return the packages that `mark_left_out` listed in the lock."""
    head = takewhile(lambda line: line.startswith(b"#"), lock.splitlines()[: MOST + 2])
    return tuple(entry for line in head if (entry := _left_out(line.decode("utf-8", "replace"))) is not None)


def _left_out(line: str) -> LeftOut | None:
    try:
        return msgspec.json.decode(line.removeprefix(_LEFT_OUT), type=LeftOut) if line.startswith(_LEFT_OUT) else None
    except msgspec.DecodeError:  # the lock is a file of the bundle, so an author may write any text
        return None


_TIERS = "# Tiers: "
_BELOW = re.compile(r"\s+#\s+(?:via\b\s*)?([A-Za-z0-9][A-Za-z0-9._-]*)?")


class Tiers(msgspec.Struct, frozen=True):
    """The requirements of a lock with inferred packages: the declared ones, and those of optional imports."""

    declared: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


def mark_tiers(lock: bytes, tiers: Tiers) -> bytes:
    return _TIERS.encode() + msgspec.json.encode(tiers) + b"\n" + lock


def tiers_in(lock: bytes) -> Tiers | None:
    """Return the tiers that `mark_tiers` has stored, or None if the lock has none."""
    head = takewhile(lambda line: line.startswith(b"#"), lock.splitlines()[: MOST + 2])
    text = next((line.removeprefix(_TIERS.encode()) for line in head if line.startswith(_TIERS.encode())), None)
    try:
        return msgspec.json.decode(text, type=Tiers) if text is not None else None
    except msgspec.DecodeError:
        return None


def needed_by(lock: bytes) -> dict[str, set[str]]:
    """Return for each package of an annotated lock the packages that need it. Requirements have no such entry."""
    package, needs = "", dict[str, set[str]]()
    for line in lock.decode("utf-8", "replace").splitlines():
        if line[:1].isalnum():
            package = canonicalize_name(line.partition("==")[0])
        elif package and (match := _BELOW.fullmatch(line)) and match[1]:
            needs.setdefault(package, set()).add(canonicalize_name(match[1]))
    return needs


_SIZES = b"# Sizes: "


def mark_sizes(lock: bytes, sizes: Mapping[str, int]) -> bytes:
    """Return the lock with a first line that has the bytes of the file of each package."""
    return _SIZES + msgspec.json.encode(sizes, order="sorted") + b"\n" + lock if sizes else lock


def sizes_in(lock: bytes) -> dict[str, int]:
    """Return the sizes that `mark_sizes` has stored, or {} if the lock has none."""
    head = takewhile(lambda line: line.startswith(b"#"), lock.splitlines()[: MOST + 2])
    text = next((line.removeprefix(_SIZES) for line in head if line.startswith(_SIZES)), b"{}")
    try:
        return msgspec.json.decode(text, type=dict[str, int])
    except msgspec.DecodeError:
        return {}


class Rest(NamedTuple):
    """The packages of a lock after some requirements are left out."""

    pins: tuple[Pin, ...]
    left_out: tuple[str, ...]


def without(lock: bytes, pins: Sequence[Pin], package: str) -> Rest | None:
    """Leave out the inferred requirements that need `package`, with all packages that no other requirement needs.

    If `package` is "", leave out the optional requirements, or else all inferred ones. Return None if a declared
    requirement needs the package, or if there is nothing to leave out.
    """
    tiers, needs = tiers_in(lock), needed_by(lock)
    there = {pin.name for pin in pins}
    inferred = there.intersection(inferred_in(lock)).difference(tiers.declared if tiers is not None else ())
    if tiers is None or not inferred:
        return None
    roots = there.intersection(tiers.declared) | inferred
    cause = {package} if package else inferred.intersection(tiers.optional) or inferred
    left_out = roots & (above(cause, needs) if package else cause)
    if not left_out or not left_out <= inferred:
        return None
    kept = tuple(pin for pin in pins if above({pin.name}, needs) & (roots - left_out))
    return Rest(kept, tuple(sorted(left_out)))


def above(packages: Iterable[str], needs: Mapping[str, set[str]]) -> set[str]:
    """Return the packages, and all packages that need them."""
    above, waiting = set[str](), list(packages)
    while waiting:
        package = waiting.pop()
        if package not in above:
            above.add(package)
            waiting += needs.get(package, ())
    return above


def why_unfit(pins: Sequence[Pin], requirements: Iterable[str]) -> str | None:
    """Return the reason why a lock does not fit the requirements, as a clause, or None if it fits.

    Indirect dependencies are not checked: only a resolver can determine them.
    """
    versions = {pin.name: pin.version for pin in pins}
    for text in requirements:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        if name not in versions:
            return f"does not pin {name}, which the manifest declares"
        if not requirement.specifier.contains(versions[name], prereleases=True):
            return f"pins {name} at {versions[name]}, and the manifest declares '{text}'"
    return None


def clash(locks: Mapping[str, Sequence[Pin]]) -> tuple[str, str, str, str, str] | None:
    """Return the first package that has different versions in two locks, or None. `locks` maps an owner to the packages
    of its lock.

    The tuple is: package, first owner, its version, second owner, its version.
    """
    first_owners: dict[str, tuple[str, str]] = {}
    for owner, pins in locks.items():
        for pin in pins:
            other, version = first_owners.setdefault(pin.name, (owner, pin.version))
            if version != pin.version:
                return pin.name, other, version, owner, pin.version
    return None
