"""The queries behind list_environments and describe_environment, for environments on this server and on others."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec
from sqlalchemy import Connection, select

from skillery.backends import Identity, PackageMount, Storage
from skillery.contents.store import open_content
from skillery.database import Database, in_utc
from skillery.database.registry import Registry
from skillery.database.tables import environments, skill_files
from skillery.environments.definitions import Defined, Named
from skillery.environments.named import (
    NamedEnvironments,
    NamedLock,
    Rebuild,
    content_of_lock,
    find_rebuilds,
    names_of_lock,
    pins_of,
)
from skillery.environments.store import IS_LOCK, Environments
from skillery.errors import ContentMissing, EnvironmentNotFound, NotAllowed
from skillery.formats.requirements import InvalidLock
from skillery.formats.wording import quoted
from skillery.identity import access
from skillery.registry.cursors import make_cursor, read_cursor
from skillery.versions.versions import versions_with_lock

MOST_VERSIONS = 100
_LOCK = re.compile(r"[0-9a-f]{64}")
State = Literal["pending", "building", "ready", "failed"]


class LockedPackage(msgspec.Struct, frozen=True):
    name: str
    version: str


class ShownLock(msgspec.Struct, frozen=True):
    sha256: str
    packages: list[LockedPackage] | None
    """The locked packages. None in lists of installed locks."""


class ShownProgress(msgspec.Struct, frozen=True):
    step: str
    done: int
    total: int


class OnServer(msgspec.Struct, frozen=True):
    """State of an environment on one server."""

    state: Literal["building", "ready", "failed"]
    message: str
    size_bytes: int
    changed_at: datetime | None
    here: bool
    """Whether this is the server that answers the request."""
    progress: ShownProgress | None = None
    """The progress of the build. None if no build is running."""


class ShownRebuild(msgspec.Struct, frozen=True):
    """The last rebuild that was requested."""

    state: Literal["running", "done", "failed"]
    message: str
    by: str
    began_at: datetime | None
    ended_at: datetime | None


class WarmProcess(msgspec.Struct, frozen=True):
    """A process that imports the modules of `preload` ahead of runs."""

    state: Literal["starting", "ready", "failed"]
    memory_mb: float
    message: str


class NpmPart(msgspec.Struct, frozen=True):
    """The npm packages of a named environment, for JavaScript."""

    dependencies: list[str]
    state: State
    message: str
    lock: ShownLock | None


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """An environment of packages for runs. Environments without a name belong to skills."""

    name: str | None
    description: str = ""
    default: bool = False
    dependencies: list[str] = []
    preload: list[str] = []
    npm: NpmPart | None = None
    state: State
    message: str = ""
    progress: ShownProgress | None = None
    lock: ShownLock | None
    size_bytes: int | None = None
    servers: list[OnServer] = []
    rebuild: ShownRebuild | None = None
    warm: WarmProcess | None = None


class WithLock(msgspec.Struct, frozen=True):
    """A version that uses the environment."""

    name: str
    version: str
    status: str


class DescribedEnvironment(Environment, frozen=True, kw_only=True):
    used_at: datetime | None
    versions: list[WithLock]


class EnvironmentPage(msgspec.Struct, frozen=True):
    environments: list[Environment]
    next_cursor: str | None


class Locked(NamedTuple):
    """A lock of a version, and its packages if this server has installed them."""

    content: bytes
    mount: PackageMount | None = None


class EnvironmentQueries:
    """Answers queries about environments from the database and the state of this server."""

    def __init__(
        self, database: Database, registry: Registry, installed: Environments, named: NamedEnvironments, server: str
    ) -> None:
        self._database = database
        self._storage = registry.storage
        self._cursor_key = registry.cursor_key
        self._installed = installed
        self._named = named
        self._server = server

    def locked(self, sha256: str) -> Locked | None:
        """Return the lock with a digest, and its packages if this server has installed them. Return None for an
        ordinary file. Blocking.
        """
        content = content_of(self._database, self._storage, sha256)
        return Locked(content, self._installed.find(sha256)) if content is not None else None

    async def named(self) -> EnvironmentPage:
        """Return all named environments in the order of the settings."""
        # Rebuilds are read first, so that a finished rebuild is shown with the lock that it created.
        subjects = [environment.name for environment in self._named.defined]
        rebuilds = await self._database.read(partial(find_rebuilds, subjects=subjects))
        shown = [
            await self._named_environment(environment, rebuilds.get(environment.name))
            for environment in self._named.defined
        ]
        return EnvironmentPage(shown, None)

    async def _named_environment(self, environment: Named, rebuild: Rebuild | None) -> Environment:
        """Return a named environment, with the state of its Python packages, or without them, of its npm packages."""
        locks = [(part, await self._named.read(part)) for part in environment.parts]
        digests = [lock.sha256 for _, lock in locks if lock]
        states = await self._database.read(partial(_states_of, digests=digests, server=self._server))
        parts = [
            self._of_named(part, lock, states.get(lock.sha256, []) if lock else [], rebuild) for part, lock in locks
        ]
        first, last = parts[0], parts[-1]
        npm = NpmPart(list(environment.npm), last.state, last.message, last.lock) if environment.npm else None
        return msgspec.structs.replace(first, dependencies=list(environment.dependencies), npm=npm)

    async def installed(self, identity: Identity, limit: int, cursor: str) -> EnvironmentPage:
        """Return a page of all locks that servers have installed or tried to install.

        Raise NotAllowed if the caller is not an admin, InvalidCursor for a foreign cursor.
        """
        if not access.is_admin(identity):
            raise NotAllowed("only admins can list installed environments", hint="Omit 'installed'.", scope="admin")
        bound_to = ("list_environments", "installed")
        after = read_cursor(self._cursor_key, bound_to, cursor, 1)[0] if cursor else ""
        return await self._database.read(partial(self._page, bound_to=bound_to, after=after, limit=limit))

    async def describe(self, identity: Identity, subject: str) -> DescribedEnvironment:
        """Return one environment, found by its name or by the SHA-256 of its lock.

        Raise EnvironmentNotFound if it does not exist. For callers who are not admins, a lock exists only if they see
        a version with it.
        """
        environment = self._named.defined.get(subject)
        if environment is None and not _LOCK.fullmatch(subject):
            raise environment_not_found(subject, self._named.defined)
        rebuilds = await self._database.read(partial(find_rebuilds, subjects=[subject]))
        lock = await self._named.read(environment.parts[0]) if environment else None
        sha256 = lock.sha256 if lock else subject
        content = lock.content if lock else None
        with_lock = partial(versions_with_lock, identity=identity, sha256=sha256, limit=MOST_VERSIONS)
        versions = await self._database.read(with_lock) if identity.scopes & {"read", "admin"} else []
        if environment is None:
            content = await asyncio.to_thread(content_of, self._database, self._storage, subject)
            if content is None or not (versions or access.is_admin(identity)):
                raise environment_not_found(subject, self._named.defined)
        states = await self._database.read(partial(_states_of, digests=[sha256], server=self._server))
        of_lock = states.get(sha256, []) if content else []
        if environment is not None:
            shown = await self._named_environment(environment, rebuilds.get(subject))
        else:
            shown = self._of_lock(sha256, None, of_lock, rebuilds.get(subject), _packages(content or b""))
        return DescribedEnvironment(
            **msgspec.structs.asdict(shown),
            used_at=await asyncio.to_thread(self._used_at, sha256),
            versions=[WithLock(**version) for version in versions],
        )

    def _used_at(self, sha256: str) -> datetime | None:
        return next(
            (environment.used_at for environment in self._installed.installed() if environment.lock == sha256), None
        )

    def _page(self, connection: Connection, bound_to: tuple[str, ...], after: str, limit: int) -> EnvironmentPage:
        locks = select(environments.c.lock_sha256).where(environments.c.lock_sha256 > after).distinct()
        digests = list(connection.scalars(locks.order_by(environments.c.lock_sha256).limit(limit + 1)))
        page = digests[:limit]
        rebuilds = find_rebuilds(connection, page)
        states = _states_of(connection, page, self._server)
        names = names_of_lock(connection, page)
        shown = [
            self._of_lock(digest, names.get(digest), states.get(digest, []), rebuilds.get(digest), None)
            for digest in page
        ]
        more = make_cursor(self._cursor_key, bound_to, (page[-1],)) if len(digests) > limit else None
        return EnvironmentPage(shown, more)

    def _of_named(
        self, environment: Named, lock: NamedLock | None, servers: Sequence[OnServer], rebuild: Rebuild | None
    ) -> Environment:
        if lock is None:
            shown = self._unlocked(environment)
        else:
            shown = self._of_lock(lock.sha256, environment.name, servers, rebuild, _packages(lock.content))
        return msgspec.structs.replace(
            shown,
            description=environment.description,
            default=environment.default,
            dependencies=list(environment.dependencies),
            preload=list(environment.preload),
            rebuild=ShownRebuild(*rebuild) if rebuild else None,
        )

    def _unlocked(self, environment: Named) -> Environment:
        if self._named.is_locking(environment.id):
            return Environment(
                name=environment.name, state="building", progress=ShownProgress("locking", 0, 1), lock=None
            )
        failure = self._named.failure(environment.id)
        if failure is not None:
            return Environment(name=environment.name, state="failed", message=failure.message, lock=None)
        return Environment(name=environment.name, state="pending", lock=None)

    def _of_lock(
        self,
        sha256: str,
        name: str | None,
        servers: Sequence[OnServer],
        rebuild: Rebuild | None,
        packages: list[LockedPackage] | None,
    ) -> Environment:
        here = next((server for server in servers if server.here), None)
        return Environment(
            name=name,
            # An environment without packages is always ready.
            state=here.state if here else "ready" if packages == [] else "pending",
            message=here.message if here else "",
            progress=here.progress if here else None,
            lock=ShownLock(sha256, packages),
            size_bytes=next((server.size_bytes for server in servers if server.state == "ready"), None),
            servers=list(servers),
            rebuild=ShownRebuild(*rebuild) if rebuild else None,
        )


def content_of(database: Database, storage: Storage, sha256: str) -> bytes | None:
    """Return the lock with a digest, or None if neither a version nor a named environment has it. Blocking."""
    if not _LOCK.fullmatch(sha256):
        return None

    def read(connection: Connection) -> bytes | None:
        named = content_of_lock(connection, sha256)
        is_lock = select(skill_files.c.version_id).where(skill_files.c.sha256 == sha256, IS_LOCK)
        if named is not None or connection.execute(is_lock.limit(1)).first() is None:
            return named
        with open_content(connection, storage, sha256) as stream:
            return stream.read()

    try:
        content = database.read_now(read)
        return content if content is not None and pins_of(content) else None
    except (ContentMissing, InvalidLock):
        return None


def environment_not_found(subject: str, defined: Defined) -> EnvironmentNotFound:
    shown = quoted(subject)
    description = f"the lock {shown}" if _LOCK.fullmatch(subject) else f"the environment {shown}"
    return EnvironmentNotFound(f"{description} does not exist", hint=defined.near(subject), name=subject[:80])


def _states_of(connection: Connection, digests: Iterable[str], server: str) -> dict[str, list[OnServer]]:
    """Return the states of each lock on all servers, this server first."""
    wanted = select(environments).where(environments.c.lock_sha256.in_(list(digests)))
    states: dict[str, list[OnServer]] = {}
    for row in connection.execute(wanted.order_by(environments.c.server != server, environments.c.server)):
        changed_at, here = in_utc(row.changed_at), row.server == server
        progress = _progress(row._mapping) if row.state == "building" else None
        state = OnServer(row.state, row.message, row.size_bytes, changed_at, here, progress)
        states.setdefault(row.lock_sha256, []).append(state)
    return states


def _packages(content: bytes) -> list[LockedPackage]:
    return [LockedPackage(pin.name, pin.version) for pin in pins_of(content)]


def _progress(row: Mapping[Any, Any]) -> ShownProgress | None:
    return ShownProgress(row["step"], row["done"], row["total"]) if row.get("step") else None
