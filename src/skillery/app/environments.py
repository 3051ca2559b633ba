"""Build the locks and environments of packages from the settings."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from packaging.utils import canonicalize_name

from skillery.app.home import Home
from skillery.backends import Sandbox
from skillery.context.queue import Queue
from skillery.database import Database
from skillery.environments import Builder, Environments, Jobs, Locks, PackageSources, address_problem, has_login
from skillery.errors import StartupError
from skillery.settings import Settings

LOCKS_AT_ONCE, BUILD_JOBS_AT_ONCE = 2, 3
UNBOUNDED = 1 << 40
"""A limit that is never reached. The request that waits for a lock of packages already counts against limits of
requests.
"""


class PackageServices(NamedTuple):
    """The parts for packages of skills: locks of packages, and environments."""

    locks: Locks
    environments: Environments


def packages_of(settings: Settings, home: Home, database: Database, sandbox: Sandbox) -> PackageServices:
    """Build the parts for packages of skills.

    Raise StartupError if the wheelhouse is not a folder, the address of an index or file host is not valid, or packages
    are built from source with an index that needs credentials.
    """
    asked, folder, sources = settings.packages, home.path / "environments", _sources(settings)
    locking = Jobs(sandbox, sources, LOCKS_AT_ONCE)
    turns = Queue(LOCKS_AT_ONCE, UNBOUNDED, UNBOUNDED)
    locks = Locks(database, locking, sources, asked.lock_seconds, timedelta(hours=asked.reuse_hours), turns)
    builder = Builder(folder, Jobs(sandbox, sources, BUILD_JOBS_AT_ONCE), sources, asked.build_seconds, asked.max_mb)
    return PackageServices(locks, Environments(folder, database, builder, home.server_id, asked.total_mb))


def _sources(settings: Settings) -> PackageSources:
    asked = settings.packages
    wheelhouse = Path(asked.wheelhouse).expanduser().absolute() if asked.wheelhouse else None
    if wheelhouse is not None and not wheelhouse.is_dir():
        raise StartupError(f"setting 'packages.wheelhouse' is '{asked.wheelhouse}', which is not a folder")
    file_hosts = tuple(host if "://" in host else f"https://{host}" for host in asked.file_hosts)
    _check_addresses("index_urls", asked.index_urls)
    _check_addresses("file_hosts", file_hosts)
    from_source = tuple(name if name == "*" else canonicalize_name(name) for name in asked.build_from_source)
    if from_source and any(has_login(address) for address in asked.index_urls):
        raise StartupError(
            "setting 'packages.build_from_source' is set, but 'packages.index_urls' contains credentials, which "
            "the code of a built package could read: use an index without credentials for builds"
        )
    return PackageSources(
        asked.index_urls,
        wheelhouse,
        asked.exclude_newer,
        _patterns(asked.allowed),
        _patterns(asked.denied),
        file_hosts,
        from_source,
    )


def _check_addresses(setting: str, addresses: tuple[str, ...]) -> None:
    """Raise StartupError if an address of the setting is not valid.

    The message gives the position of the address in the list, not its text, because the text may contain credentials.
    """
    for number, address in enumerate(addresses, 1):
        problem = address_problem(address)
        if problem is not None:
            raise StartupError(f"setting 'packages.{setting}': address {number} {problem}")


def _patterns(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.lower().replace("_", "-").replace(".", "-") for name in names)
