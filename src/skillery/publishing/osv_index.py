"""The index of an OSV archive: its records (https://ossf.github.io/osv-schema) by package of PyPI and npm.

A process of its own reads the archive, which is foreign text (`main`). The server reads only the index.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import resource
import sqlite3
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from skillery.errors import SkilleryError
from skillery.formats import semver
from skillery.formats.wording import one_line, printable

ECOSYSTEMS = ("PyPI", "npm")
LIMITS = {resource.RLIMIT_AS: 2 << 30, resource.RLIMIT_CPU: 1800, resource.RLIMIT_FSIZE: 4 << 30}
MOST_RECORD, MOST_SUMMARY, MOST_ALIASES, MOST_PROBLEMS = 8 << 20, 200, 20, 20
MALICIOUS = "MAL-"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")
_START = "import sys; sys.path[:] = sys.argv[3:]; from skillery.publishing.osv_index import main; main(*sys.argv[1:3])"


class Package(NamedTuple):
    """A locked package of an ecosystem."""

    ecosystem: str
    name: str
    version: str


class Report(msgspec.Struct, frozen=True):
    """The result of reading an archive in the state `state`. With a `failure`, the other facts are those of the former
    archive, whose index stays in use.
    """

    state: str = ""
    newest: str = ""
    """The date of the newest file."""
    packages: dict[str, int] = {}
    """The number of affected packages, by ecosystem."""
    problems: tuple[str, ...] = ()
    """Records that were left out, with the reason, at most MOST_PROBLEMS."""
    failure: str = ""


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Affected versions from `start` up to `end`. "" means no limit."""

    start: str
    end: str
    has_end: bool
    """Whether `end` itself is affected. If not, `end` is the version with the fix."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A record about one package."""

    id: str
    aliases: list[str]
    summary: str
    spans: list[Span]


# -- Records of OSV. Other members are left out ------------------------------------------------------------------------


class _Range(msgspec.Struct):
    type: str
    events: list[dict[str, str]]


class _Affected(msgspec.Struct):
    package: dict[str, str] = {}
    ranges: list[_Range] | None = None
    versions: list[str] | None = None


class _Record(msgspec.Struct):
    id: str
    summary: str | None = None
    aliases: list[str] | None = None
    withdrawn: str | None = None
    affected: list[_Affected] | None = None


def entries_of(content: bytes) -> Iterator[tuple[str, Entry]]:
    """Yield the entries of a record by `ecosystem/name`. Raise ValueError if the record is not valid."""
    record = msgspec.json.decode(content, type=_Record)
    if not _ID.fullmatch(record.id):
        raise ValueError("its id is not valid")
    aliases = [alias for alias in record.aliases or () if _ID.fullmatch(alias)][:MOST_ALIASES]
    summary = one_line(record.summary or "", MOST_SUMMARY)
    for affected in (record.affected or ()) if not record.withdrawn else ():
        ecosystem, name = affected.package.get("ecosystem", ""), affected.package.get("name", "")
        if ecosystem not in ECOSYSTEMS:
            continue
        name = canonicalize_name(name) if ecosystem == "PyPI" else name
        ranges = [each for each in affected.ranges or () if each.type in ("SEMVER", "ECOSYSTEM")]
        spans = [span for each in ranges for span in _spans(ecosystem, each.events)]
        listed = [version for version in affected.versions or () if _key(ecosystem, version)]
        others = [version for version in listed if not any(_covers(ecosystem, span, version) for span in spans)]
        spans += [Span(version, version, has_end=True) for version in others]
        yield f"{ecosystem}/{name}", Entry(record.id, aliases, summary, spans)


_ORDER = {"fixed": 0, "limit": 0, "introduced": 1, "last_affected": 2}


def _spans(ecosystem: str, events: Iterable[Mapping[str, str]]) -> Iterator[Span]:
    """Yield the affected versions of a range, as the schema evaluates its events."""
    changes = [(kind, version) for event in events for kind, version in event.items() if version != "*"]

    def place(change: tuple[str, str]) -> tuple[Any, ...]:
        kind, version = change
        if kind not in _ORDER or (version != "0" and _key(ecosystem, version) is None):
            raise ValueError(f"its event {kind[:40]!r} {version[:40]!r} cannot be read")
        # The version "0" is before all others.
        return (version != "0", _key(ecosystem, version) if version != "0" else 0, _ORDER[kind])

    start: str | None = None
    for kind, version in sorted(changes, key=place):
        if kind == "introduced" and start is None:
            start = version if version != "0" else ""
        elif kind != "introduced" and start is not None:
            yield Span(start, version, kind == "last_affected")
            start = None
    if start is not None:
        yield Span(start, "", has_end=False)


@lru_cache(4096)
def _key(ecosystem: str, version: str) -> Version | bytes | None:
    """Return a version in a form that sorts, or None if it is not a version of the ecosystem."""
    try:
        return Version(version[:256]) if ecosystem == "PyPI" else semver.Version.parse(version).precedence
    except (InvalidVersion, SkilleryError):
        return None


def _covers(ecosystem: str, span: Span, version: str) -> bool:
    key = _key(ecosystem, version)
    start, end = (_key(ecosystem, text) if text else None for text in (span.start, span.end))
    if key is None or (start is not None and key < start):  # type: ignore[operator]
        return False
    return end is None or key < end or (span.has_end and key == end)  # type: ignore[operator]


# -- The index ---------------------------------------------------------------------------------------------------------


def find_entries(index: Path, packages: Iterable[Package]) -> Iterator[tuple[Package, Entry, str]]:
    """Yield the records that affect the packages, each vulnerability once, with the version that has the fix, or "".
    Blocking. Raise sqlite3.Error if the index cannot be read.
    """
    with closing(sqlite3.connect(f"file:{quote(str(index))}?mode=ro&immutable=1", uri=True)) as connection:
        for package in packages:
            name, seen = f"{package.ecosystem}/{package.name}", set[str]()
            # A record about malware comes before its twins of other ids, which would only warn.
            rows = connection.execute(
                "SELECT entry FROM entries WHERE package = ? ORDER BY id NOT LIKE ?, id", (name, f"{MALICIOUS}%")
            )
            for entry in (msgspec.json.decode(row[0], type=Entry) for row in rows):
                spans = [span for span in entry.spans if _covers(package.ecosystem, span, package.version)]
                # PyPI has most vulnerabilities twice: under their ids of GitHub and of the Python Packaging Authority.
                names = {entry.id, *entry.aliases}
                if spans and not names & seen:
                    yield package, entry, "" if spans[0].has_end else spans[0].end
                    seen |= names


def files_of_archive(folder: Path) -> list[Path]:
    """Return the JSON and zip files below a folder. Raise OSError if there are none, or the folder cannot be read."""
    os.scandir(folder).close()
    walked = (Path(base) / name for base, _, names in os.walk(folder) for name in names)
    files = sorted(path for path in walked if path.suffix in (".json", ".zip") and path.is_file())
    if not files:
        raise FileNotFoundError(errno.ENOENT, "there are no JSON and zip files", str(folder))
    return files


def state_of(archive: Path) -> tuple[str, str]:
    """Return a hash of the paths, sizes and times of the files, and the newest time. If the files cannot be read,
    return the reason, and "".
    """
    try:
        rows = [(str(path), path.stat()) for path in files_of_archive(archive)]
    except OSError as error:
        return str(error.strerror), ""
    newest = datetime.fromtimestamp(max(status.st_mtime for _, status in rows), UTC)
    facts = [(path, status.st_size, status.st_mtime_ns) for path, status in rows]
    state = hashlib.sha256(msgspec.json.encode(facts)).hexdigest()
    return state, newest.isoformat(timespec="seconds").replace("+00:00", "Z")


# -- The process that makes an index -----------------------------------------------------------------------------------


def command(folder: Path, index: Path) -> list[str]:
    """Return the command that makes the index, and writes `packages`, `problems` and `failure` of a Report as JSON."""
    return [sys.executable, "-I", "-c", _START, str(folder), str(index), *filter(None, sys.path)]


def main(folder: str, index: str) -> None:
    os.nice(5)
    for limit, value in LIMITS.items():
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
    problems, counts, failure = list[str](), dict[str, int](), ""
    try:
        counts = _make(Path(folder), Path(index), problems)
    except (OSError, sqlite3.Error, MemoryError) as error:
        failure = printable(f"{type(error).__name__}: {error}", 400)
    report = Report(packages=counts, problems=tuple(problems), failure=failure)
    sys.stdout.buffer.write(msgspec.json.encode(report))


def _make(folder: Path, index: Path, problems: list[str]) -> dict[str, int]:
    """Write the index of an archive. Return the number of packages by ecosystem."""
    index.unlink(missing_ok=True)
    with closing(sqlite3.connect(index, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("CREATE TABLE entries (package TEXT, id TEXT, entry BLOB)")
        connection.execute("BEGIN")
        for name, content in _contents(folder):
            try:
                rows = [(package, entry.id, msgspec.json.encode(entry)) for package, entry in entries_of(content)]
            except (ValueError, RecursionError) as error:
                problems += [printable(f"{name}: {error}", 300)] if len(problems) < MOST_PROBLEMS else []
            else:
                connection.executemany("INSERT INTO entries VALUES (?, ?, ?)", rows)
        connection.execute("CREATE INDEX by_package ON entries (package)")
        connection.execute("COMMIT")
        counted = "SELECT substr(package, 1, instr(package, '/') - 1), count(DISTINCT package) FROM entries GROUP BY 1"
        return dict(connection.execute(counted).fetchall())


def _contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each record. Raise an error if a file or an archive cannot be read."""
    for path in files_of_archive(folder):
        name = str(path.relative_to(folder))
        if path.suffix == ".json":
            with path.open("rb") as file:
                yield name, file.read(MOST_RECORD)
            continue
        try:
            with zipfile.ZipFile(path) as archive:
                for member in archive.infolist():
                    if member.filename.endswith(".json"):
                        with archive.open(member) as content:
                            yield f"{name}/{member.filename}", content.read(MOST_RECORD)
        except Exception as error:  # noqa: BLE001 - damaged archives raise errors of many kinds, which do not name the archive
            raise OSError(f"{name} cannot be read: {error}") from None
