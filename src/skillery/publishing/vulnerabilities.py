"""Known vulnerabilities of locked packages: findings before a publication, and later checks of stored versions.

The source is an OSV archive in a folder (`scan.osv_dir`). Nothing is downloaded.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import sqlite3
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection, select

from skillery.backends import Finding, Publication, Storage
from skillery.database import Database
from skillery.database.tables import skill_versions, skills
from skillery.errors import SkilleryError
from skillery.formats.check_results import VULNERABILITY
from skillery.formats.npm import NPM_LOCK, npm_lock_in
from skillery.formats.requirements import LOCK, InvalidLock, read_lock
from skillery.formats.script_blocks import script_locks
from skillery.formats.semver import Version
from skillery.formats.version_spec import Exact
from skillery.formats.wording import printable
from skillery.identity.access import BUNDLER
from skillery.publishing.methods import RECHECKED, Rechecks
from skillery.publishing.osv_index import MALICIOUS, Entry, Package, Report, command, find_entries, state_of
from skillery.registry.resolution import resolve
from skillery.skills.files import files_of, read_file
from skillery.versions.checks import checks_of

log = logging.getLogger(__name__)
AT_ONCE = 100
"""The number of versions that one transaction reads."""
PAUSE = 4
"""The checks of stored versions pause this many times as long as they work."""
BROKEN = (sqlite3.Error, msgspec.DecodeError)
"""The errors of an index that cannot be read."""


def locks_in(manifest: Mapping[str, Any], paths: Collection[str]) -> list[str]:
    """Return the paths of the locks of a version, which has the files `paths`."""
    declares = (manifest.get("runtime") or {}).get("dependencies")
    return [path for path in ([LOCK] * bool(declares) + [NPM_LOCK, *script_locks(paths)]) if path in paths]


def packages_in(path: str, content: bytes) -> list[Package]:
    """Return the packages of a lock. A file that cannot be read as a lock is an ordinary file."""
    if path == NPM_LOCK:
        lock = npm_lock_in({path: content})
        pins = [package.pin for package in lock.packages] if lock is not None else []
        return list({Package("npm", pin.name, pin.version) for pin in pins})
    with suppress(InvalidLock):
        return [Package("PyPI", pin.name, pin.version) for pin in read_lock(content)]
    return []


def finding_of(path: str, package: Package, entry: Entry, fixed: str) -> Finding:
    """Return the finding about a package of the lock `path`. A malicious package refuses the version."""
    names = f"{entry.id} ({', '.join(entry.aliases[:3])})" if entry.aliases else entry.id
    fixed = f"; fixed in {printable(fixed, 60)}" if fixed else ""
    text = f"{package.name} {package.version} has the known vulnerability {names}{': ' * bool(entry.summary)}"
    is_malicious = entry.id.startswith(MALICIOUS)
    rule, message = f"{VULNERABILITY}{entry.id}", f"{text}{entry.summary}{fixed}"
    return Finding(rule, message, "error" if is_malicious else "warning", path)


class Vulnerabilities:
    """The index of the archive in `osv_dir`, which is in `home`. With an `osv_dir` of "", there are no findings."""

    def __init__(self, osv_dir: str, home: Path) -> None:
        self.archive = Path(osv_dir).expanduser().absolute() if osv_dir else None
        self._home = home / "osv"
        self._index, self._report = self._home / "index.sqlite", self._home / "report.json"

    @property
    def report(self) -> Report | None:
        """The result of the last reading of the archive, or None."""
        try:
            return msgspec.json.decode(self._report.read_bytes(), type=Report)
        except (OSError, msgspec.DecodeError):
            return None

    def date(self) -> str:
        """Return the date of the archive whose index is used, or "" without an index."""
        report = self.report if self.archive is not None and self._index.exists() else None
        return report.newest if report is not None else ""

    async def before_publish(self, publication: Publication) -> list[Finding]:
        """Return the findings about the locked packages of a version. A broken index does not prevent publishing."""
        files = {file.path: file.content for file in publication.files}
        locks = {path: files[path] for path in locks_in(publication.manifest, files)}
        try:
            return await asyncio.to_thread(self.findings, locks) if locks else []
        except BROKEN as error:
            log.error("the index of the OSV archive is broken: %s", error)
            return []

    def findings(self, locks: Mapping[str, bytes]) -> list[Finding]:
        """Return the findings about locks by path. Without an index, there are none. Blocking. Raise an error of BROKEN
        if the index cannot be read.
        """
        if self.archive is None or not self._index.exists():
            return []
        return [
            finding_of(path, *affected)
            for path, content in locks.items()
            for affected in find_entries(self._index, packages_in(path, content))
        ]

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """Context manager: whether this process may write the index. Processes of one home take turns."""
        self._home.mkdir(mode=0o700, exist_ok=True)
        with (self._home / "lock").open("wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
            else:
                yield True

    async def refresh(self) -> str:
        """Read the archive if it has changed since the last reading. Return its state, or "" if there is no index.

        If the archive cannot be read, the index of the former one stays in use.
        """
        assert self.archive is not None
        state, newest = await asyncio.to_thread(state_of, self.archive)
        report = self.report
        if report is None or report.state != state or not (report.failure or self._index.exists()):
            former, report = report or Report(), await self._make_index(self.archive)
            if report.failure:
                report = msgspec.structs.replace(former, state=state, failure=report.failure)
            else:
                report = msgspec.structs.replace(report, state=state, newest=newest)
            self._report.write_bytes(msgspec.json.encode(report))
            for problem in report.problems:
                log.warning("a record of the OSV archive is left out: %s", problem)
            if report.failure:
                log.error("the OSV archive %s cannot be read: %s", self.archive, report.failure)
        return state if self._index.exists() else ""

    def remove_index(self) -> None:
        self._index.unlink(missing_ok=True)

    async def _make_index(self, archive: Path) -> Report:
        partial_index = self._home / "index.partial"
        process = await asyncio.create_subprocess_exec(
            *command(archive, partial_index), env={}, stdin=DEVNULL, stdout=PIPE, start_new_session=True
        )
        try:
            answer, _ = await process.communicate()
        finally:
            with suppress(ProcessLookupError):
                process.kill()
        try:
            report = msgspec.json.decode(answer, type=Report)
        except msgspec.DecodeError:
            return Report(failure=f"its reader ended with {process.returncode}")
        if not report.failure:
            partial_index.replace(self._index)
        return report


# -- Checks of stored versions -----------------------------------------------------------------------------------------


class VulnerabilityChecks:
    """Reads the archive when it changes, and checks each stored version again if its findings change."""

    def __init__(
        self, database: Database, storage: Storage, vulnerabilities: Vulnerabilities, rechecks: Rechecks, seconds: float
    ) -> None:
        self._database = database
        self._vulnerabilities = vulnerabilities
        self._rechecks = rechecks
        self._seconds = seconds
        self._read = partial(_read_outdated, storage=storage, vulnerabilities=vulnerabilities)
        self._task: asyncio.Task[None] | None = None
        self._state, self._last = "", 0
        """The state of the archive, and the last version that was compared with it."""

    def start(self) -> None:
        if self._vulnerabilities.archive is not None:
            self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        while True:
            try:
                with self._vulnerabilities.turn() as is_own:
                    if is_own:
                        await self._check()
            except BROKEN as error:
                log.error("the index of the OSV archive is broken, and will be made again: %s", error)
                self._vulnerabilities.remove_index()
            except Exception:
                log.exception("the check for known vulnerabilities failed and will be repeated")
            await asyncio.sleep(self._seconds)

    async def _check(self) -> None:
        """Compare all versions with a new archive, and otherwise only new versions, which an earlier archive may have
        checked.
        """
        state = await self._vulnerabilities.refresh()
        if state != self._state:
            self._state, self._last = state, 0
        while state:
            began = time.monotonic()
            work = partial(self._read, after=self._last)
            last, outdated = await asyncio.to_thread(self._database.read_now, work)
            if last is None:
                return
            for name, version in outdated:
                try:
                    await self._rechecks.recheck_version(BUNDLER, name, Version.parse(version), RECHECKED)
                except SkilleryError as error:
                    log.warning("%s@%s cannot be checked again: %s", name, version, error.message)
            self._last = last
            await asyncio.sleep(PAUSE * (time.monotonic() - began))


def _read_outdated(
    connection: Connection, storage: Storage, vulnerabilities: Vulnerabilities, after: int
) -> tuple[int | None, list[tuple[str, str]]]:
    """Return the id of the last compared version behind `after`, or None, and the versions whose findings change."""
    columns = skill_versions.c
    rows = connection.execute(
        select(columns.id, skills.c.name, columns.version, columns.checks_json, columns.manifest_json)
        .join(skills, skills.c.id == columns.skill_id)
        .where(columns.id > after, columns.status.in_(RECHECKED))
        .order_by(columns.id)
        .limit(AT_ONCE)
    ).all()
    outdated = []
    for row in rows:
        known = checks_of(row.checks_json).findings
        stored = {(each.rule, each.file) for each in known if each.rule.startswith(VULNERABILITY)}
        locks = locks_in(msgspec.json.decode(row.manifest_json), {file.path for file in files_of(connection, row.id)})
        if not locks and not stored:
            continue
        try:
            version = resolve(connection, BUNDLER, row.name, Exact(Version.parse(row.version)), manages=True)
            contents = {path: read_file(connection, storage, version, path) for path in locks}
        except SkilleryError as error:
            log.warning("the locks of %s@%s cannot be read: %s", row.name, row.version, error.message)
            continue
        if stored != {(each.rule, each.file) for each in vulnerabilities.findings(contents)}:
            outdated.append((row.name, row.version))
    return rows[-1].id if rows else None, outdated
