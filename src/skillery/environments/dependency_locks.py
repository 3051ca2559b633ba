"""Locks: exact versions and file hashes for the dependencies that a skill declares."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NoReturn, Protocol

import msgspec
from sqlalchemy import Connection, bindparam, delete, func, select
from sqlalchemy.dialects import postgresql, sqlite

from skillery.backends import FailureType, Finding, Storage
from skillery.contents.store import open_content
from skillery.database import Database, Statement
from skillery.database.tables import locks, skill_files, skill_versions, skills
from skillery.environments.definitions import this_python
from skillery.environments.downloads import file_arguments
from skillery.environments.jobs import JobFailed, Jobs
from skillery.environments.npm import check_npm_sources, resolve_npm
from skillery.environments.sources import Choice, NpmSources, PackageSources, choose, offered_by
from skillery.environments.uv_errors import check_yanked, foreign_hosts_error, locking_error, unresolvable, uv_error
from skillery.errors import (
    InvalidBundle,
    PackageIndexUnavailable,
    PackagesNotOffered,
    Refused,
    UnresolvableDependencies,
)
from skillery.formats.import_names import Providers
from skillery.formats.npm import NpmLock, read_npm_lock
from skillery.formats.requirements import LOCK, InvalidLock, Pin, mark_sizes, normalised, read_lock, why_unfit
from skillery.formats.script_blocks import with_python
from skillery.formats.semver import Version
from skillery.formats.wording import Problem, raise_problems

# -- Database rows of locks: of recent locks, which equal dependencies use again, and of the locks of versions ---------

_LOCK_OF_VERSION = Statement(
    select(skill_versions.c.digest, skill_files.c.sha256)
    .join(skills, skills.c.id == skill_versions.c.skill_id)
    .outerjoin(
        skill_files, (skill_files.c.version_id == skill_versions.c.id) & (skill_files.c.path == bindparam("path"))
    )
    .where(skills.c.name == bindparam("name"), skill_versions.c.precedence == bindparam("precedence"))
)


def find_lock(connection: Connection, key: str, made_after: datetime) -> bytes | None:
    content = connection.scalar(select(locks.c.content).where(locks.c.key == key, locks.c.made_at > made_after))
    return None if content is None else content.encode()


def keep_lock(connection: Connection, key: str, content: bytes, now: datetime) -> None:
    """Store a lock under its key. If several callers store the same key at the same time, the last lock stays."""
    new = {"content": content.decode(), "made_at": now}
    add = (sqlite if connection.dialect.name == "sqlite" else postgresql).insert(locks).values(key=key, **new)
    connection.execute(add.on_conflict_do_update(index_elements=["key"], set_=new))


def count_old_locks(connection: Connection, made_before: datetime) -> int:
    return connection.scalar(select(func.count()).select_from(locks).where(locks.c.made_at <= made_before)) or 0


def forget_locks(connection: Connection, made_before: datetime) -> int:
    return connection.execute(delete(locks).where(locks.c.made_at <= made_before)).rowcount


def lock_of_version(
    connection: Connection, storage: Storage, name: str, version: Version, path: str = LOCK
) -> tuple[str, bytes | None]:
    """Return the digest of a version and its lock, without checking who may see the version. Blocking.

    The digest is "" if the version does not exist. The lock is None if the version has no lock.
    """
    rows = _LOCK_OF_VERSION.rows(connection, name=name, precedence=version.precedence, path=path)
    if not rows:
        return "", None
    [(digest, sha256)] = rows
    if sha256 is None:
        return digest, None
    with open_content(connection, storage, sha256) as stream:
        return digest, stream.read()


_COMPILE = ("pip", "compile", "-", "--no-header", "--generate-hashes", "--no-emit-index-url")
_ANNOTATED = "annotated, sized"
"""Added to the key of a lock that says which package needs which, and their sizes."""


class UvResult(msgspec.Struct, frozen=True):
    code: int
    out: str
    err: str
    sizes: dict[str, int] = {}


class Turn(Protocol):
    def leave(self) -> None: ...


class Turns(Protocol):
    """The callers that wait for a lock. They take turns, however many locks each of them requests."""

    async def enter(self, caller: str, size: int) -> Turn: ...


NOT_LOCKED = "the dependencies could not be locked"


class Locks:
    """Creates and verifies locks for callers. The caller "" is the server itself."""

    def __init__(
        self,
        database: Database,
        jobs: Jobs,
        sources: PackageSources,
        seconds: float,
        reuse_for: timedelta,
        turns: Turns,
    ) -> None:
        """`seconds` limits one resolution. Within `reuse_for`, equal dependencies get the same lock."""
        self._turns = turns
        self._database = database
        self._jobs = jobs
        self._sources = sources
        self._seconds = seconds
        self._reuse_for = reuse_for

    async def make(
        self,
        requirements: Sequence[str],
        caller: str = "",
        *,
        force: bool = False,
        annotated: bool = False,
        cut_off: str = "",
        python: str = "",
    ) -> bytes:
        """Return the content of `requirements.lock`. With `force`, a stored lock is not reused. With `annotated`, the
        comments of the lock say which package needs which, and the sizes of their files. Packages that were uploaded
        after the date `cut_off` are used only if there is no lock without them. `python` is the version of another
        Python, or "".

        Raise UnresolvableDependencies, Refused (by the settings), PackagesNotOffered or Unavailable.
        """
        newest = msgspec.structs.replace(self._sources, python=python)
        make = partial(self._make, requirements=requirements, caller=caller, force=force, annotated=annotated)
        if (sources := newest.before(cut_off)) != newest:
            # No upload may be so old, or an index does not state its times.
            with contextlib.suppress(UnresolvableDependencies):
                return await make(sources)
        return await make(newest)

    async def _make(
        self, sources: PackageSources, requirements: Sequence[str], caller: str, *, force: bool, annotated: bool
    ) -> bytes:
        self._check_sources()
        key, now = sources.key(requirements), datetime.now(UTC)
        key = hashlib.sha256(f"{_ANNOTATED} {key}".encode()).hexdigest() if annotated else key
        made_after = now if force else now - self._reuse_for
        lock = await self._database.read(partial(find_lock, key=key, made_after=made_after))
        if lock is None:
            lock = _with_head(await self._resolve(requirements, caller, sources, annotated=annotated), sources.python)
            await self._database.write(partial(keep_lock, key=key, content=lock, now=now))
        self.check(read_lock(lock))
        return lock

    def check(self, pins: Sequence[Pin]) -> None:
        """Raise Refused if the settings do not permit one of the packages."""
        refuse_packages(list(self._sources.refused(pin.name for pin in pins)))

    async def make_npm(
        self,
        requirements: Sequence[str],
        caller: str = "",
        *,
        inferred: Collection[str] = (),
        guide: Mapping[str, str] = {},
        cut_off: str = "",
        force: bool = False,
    ) -> bytes:
        """Return the content of `npm.lock`. `inferred` are names that runs do not require. With `force`, a stored lock
        is not reused.

        If there is a lock with them, the versions in `guide` are used, and no versions after the date `cut_off`. Raise
        the errors of `make`.
        """
        check_npm_sources(self.npm, locks=True)
        sources = self.npm.before(cut_off)
        if guide or sources != self.npm:
            try:
                return await self._make_npm(sources, requirements, caller, inferred, guide, force=force)
            except UnresolvableDependencies as error:
                if error.data["reason"] == "unknown_package":
                    raise
        return await self._make_npm(self.npm, requirements, caller, inferred, {}, force=force)

    async def _make_npm(
        self,
        sources: NpmSources,
        requirements: Sequence[str],
        caller: str,
        inferred: Collection[str],
        guide: Mapping[str, str],
        *,
        force: bool,
    ) -> bytes:
        key, now = sources.key(requirements, inferred, guide), datetime.now(UTC)
        made_after = now if force else now - self._reuse_for
        lock = await self._database.read(partial(find_lock, key=key, made_after=made_after))
        if lock is None:
            turn = await self._turns.enter(caller, sum(map(len, requirements)))
            try:
                lock = await resolve_npm(self._jobs, sources, requirements, inferred, guide, self._seconds)
            finally:
                turn.leave()
            await self._database.write(partial(keep_lock, key=key, content=lock, now=now))
        self.check_npm(read_npm_lock(lock))
        return lock

    def check_npm(self, lock: NpmLock) -> None:
        check_npm(self.npm, lock)

    @property
    def npm(self) -> NpmSources:
        return self._sources.npm

    async def choose(self, modules: Sequence[Providers]) -> list[Choice]:
        """Return for each module the package to lock, or the reason why no package fits."""
        offered = await asyncio.to_thread(offered_by, self._sources)
        return [choose(self._sources, offered, module) for module in modules]

    async def verify(self, requirements: Sequence[str], lock: bytes, caller: str = "") -> None:
        """Verify a given lock. Raise the errors of `make`, and InvalidBundle.

        InvalidBundle means that the lock is malformed, does not pin a requirement, or allows files that the sources do
        not have.
        """
        try:
            pins = await asyncio.to_thread(read_lock, lock)
        except InvalidLock as error:
            _refuse(error.message, error.line)
        unfit = await asyncio.to_thread(why_unfit, pins, requirements)
        if unfit is not None:
            _refuse(unfit)
        self._check_sources()
        self.check(pins)
        wanted = [*requirements, *(f"{pin.name}=={pin.version}" for pin in pins)]
        try:
            resolved = await self._resolve(wanted, caller, self._sources)
        except UnresolvableDependencies as error:
            _refuse(
                f"cannot be installed here: {error.message.rstrip('.')}",
                reason=error.data["reason"],
                package=error.data["package"],
            )
        needed = {pin.name: pin for pin in read_lock(resolved)}
        missing = next((name for name in needed if name not in {pin.name for pin in pins}), None)
        if missing is not None:
            _refuse(f"does not pin {missing}, which other packages need")
        for pin in pins:
            unknown = pin.name in needed and pin.hashes - needed[pin.name].hashes
            if unknown:
                _refuse(f"pins {pin.name} {pin.version} to a file that is not in the package index of this server")

    async def _resolve(
        self, requirements: Sequence[str], caller: str, sources: PackageSources, *, annotated: bool = False
    ) -> bytes:
        comments = () if annotated else ("--no-annotate",)
        arguments = [*_COMPILE, *comments, *sources.kinds(), *sources.interpreter(), *sources.cut_off()]
        stdin = "".join(f"{requirement}\n" for requirement in await asyncio.to_thread(normalised, requirements))
        args = {"arguments": arguments, "stdin": stdin, "files": file_arguments(sources) if annotated else None}
        turn = await self._turns.enter(caller, len(stdin))
        try:
            answer = await self._jobs.run("lock", args, seconds=self._seconds)
        except JobFailed as stopped:
            raise (
                self._too_long() if stopped.kind == FailureType.TIMEOUT else locking_error(NOT_LOCKED, stopped)
            ) from None
        finally:
            turn.leave()
        ran = msgspec.convert(answer.result, UvResult)
        if ran.code != 0:
            raise foreign_hosts_error(answer.refused) if answer.refused else uv_error(ran.err, requirements, NOT_LOCKED)
        check_yanked(ran.err, requirements)
        try:
            read_lock(ran.out.encode())
        except InvalidLock as error:
            raise unresolvable(
                "unsatisfiable", "", requirements, f"the lock of the dependencies {error.message}"
            ) from None
        return mark_sizes(ran.out.encode(), ran.sizes)

    def _too_long(self) -> PackageIndexUnavailable:
        return PackageIndexUnavailable(
            f"{NOT_LOCKED} within {self._seconds:g} s",
            hint="Try again, or pin more packages; the limit is the setting packages.lock_seconds.",
        )

    def _check_sources(self) -> None:
        if not self._sources.are_there:
            raise PackagesNotOffered(
                "no packages are available: neither a package index nor a wheelhouse is configured",
                hint="Omit [runtime] dependencies. Or set packages.wheelhouse or packages.index_urls, for instance to "
                "https://pypi.org/simple: on a server, the admin does this.",
            )


def check_npm(sources: NpmSources, lock: NpmLock) -> None:
    """Raise PackagesNotOffered or Refused if the settings do not permit the packages of a lock of npm.

    Inferred packages need no source: runs start without them.
    """
    if not all(package.inferred for package in lock.packages):
        check_npm_sources(sources, locks=False)
    refuse_packages(list(sources.refused(package.package for package in lock.packages)))


def refuse_packages(findings: list[Finding]) -> None:
    """Raise Refused if there are findings about packages that the settings refuse."""
    if findings:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        raise Refused(
            f"{findings[0].message}{more}",
            hint="Remove the dependency, or ask the admin of the server; nothing was stored.",
            findings=findings,
        )


def _with_head(lock: bytes, python: str) -> bytes:
    head = f"# Locked for {this_python()}. Without this file a version is locked anew.\n"
    return with_python(lock, python) if python else head.encode() + lock


def _refuse(message: str, line: int | None = None, **data: str) -> NoReturn:
    try:
        raise_problems(
            InvalidBundle,
            [Problem(f"{LOCK} {message}", path=LOCK, file=LOCK, line=line)],
            hint=f"Omit {LOCK}: the dependencies are then locked when the version is published.",
        )
    except InvalidBundle as error:
        error.data |= data
        raise
