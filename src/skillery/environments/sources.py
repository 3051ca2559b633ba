"""Sources of packages, the rules that allow or deny packages, and the choice of the package for an imported module."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec
from packaging.utils import canonicalize_name

from skillery.backends import Finding
from skillery.environments.definitions import base_python, this_python
from skillery.formats.import_names import Providers
from skillery.formats.network import parse_network_pattern
from skillery.formats.requirements import normalised

RULE = "environments"
FILE_HOSTS = {
    "https://pypi.org": "https://files.pythonhosted.org",
    "https://test.pypi.org": "https://test-files.pythonhosted.org",
}
"""File hosts of well-known indexes."""
EVERY = "*"


def latest_upload(exclude_newer: str) -> str:
    """Return the date or time after which uploads are ignored. `exclude_newer` is that of the settings: a date, a time,
    or a duration up to now, such as "7 days".
    """
    count, _, unit = exclude_newer.partition(" ")
    if not unit:
        return exclude_newer
    days = int(count) * (7 if unit.startswith("week") else 1)
    return f"{datetime.now(UTC) - timedelta(days=days):%Y-%m-%dT%H:%M:%SZ}"


def is_older(exclude_newer: str, cut_off: str) -> bool:
    """Return whether the setting excludes all uploads after a date."""
    return bool(exclude_newer) and latest_upload(exclude_newer)[: len(cut_off)] <= cut_off


class NpmSources(msgspec.Struct, frozen=True):
    """The sources of npm packages in the settings. `allowed` and `denied` have names or patterns."""

    registry: str = ""
    """Address of the registry. If it is "", there are no npm packages, except those of `store`."""
    token: str = ""
    """Token for the registry. It is never shown."""
    store: Path | None = None
    """Folder of `.tgz` files. If set, no file is fetched from the registry."""
    file_hosts: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    exclude_newer: str = ""

    @property
    def are_there(self) -> bool:
        return bool(self.registry or self.store)

    @property
    def network(self) -> tuple[str, ...]:
        return (origin_of(self.registry), *self.file_hosts) if self.registry else ()

    def environment(self) -> dict[str, str]:
        """Return the environment variables of jobs. Arguments would be visible to all users."""
        return {"NPM_REGISTRY": self.registry, **({"NPM_TOKEN": self.token} if self.token else {})}

    def refused(self, packages: Iterable[str]) -> Iterator[Finding]:
        """Yield a finding for each package that the settings refuse."""
        for name in packages:
            if any(fnmatchcase(name, pattern) for pattern in self.denied):
                yield Finding(RULE, f"the npm package {name} is denied here (the setting packages.npm_denied)")
            elif self.allowed and not any(fnmatchcase(name, pattern) for pattern in self.allowed):
                yield Finding(RULE, f"the npm package {name} is not in the setting packages.npm_allowed")

    def before(self, cut_off: str) -> NpmSources:
        """Return the sources without versions of a later date."""
        if not cut_off or is_older(self.exclude_newer, cut_off):
            return self
        return msgspec.structs.replace(self, exclude_newer=cut_off)

    def key(self, requirements: Sequence[str], inferred: Collection[str], guide: Mapping[str, str]) -> str:
        """Return the key of a lock: a hash of the requirements, the names of inferred ones, versions of a guide, and
        the sources.
        """
        request = ["npm", sorted(requirements), sorted(inferred), sorted(guide.items()), self.registry]
        request.append(self.exclude_newer)
        return hashlib.sha256(msgspec.json.encode(request)).hexdigest()


class PackageSources(msgspec.Struct, frozen=True):
    """The sources in the settings. `allowed` and `denied` have normalised names or patterns."""

    indexes: tuple[str, ...] = ()
    """Addresses of indexes. They may contain credentials, so they are never shown. A package comes from the first index
    that has it.
    """
    wheelhouse: Path | None = None
    """Folder of wheels. If set, no index is used."""
    exclude_newer: str = ""
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    file_hosts: tuple[str, ...] = ()
    """Hosts of the files of an index if they differ from the index, as patterns of `Job.network`."""
    from_source: tuple[str, ...] = ()
    """Packages that are built from source. EVERY means all packages without a wheel."""
    npm: NpmSources = NpmSources()
    python: str = ""
    """The version of another Python than that of the server, such as "3.13", for which packages are chosen, or ""."""

    @property
    def network(self) -> tuple[str, ...]:
        """Return the hosts that locking and downloading may connect to."""
        if self.wheelhouse:
            return ()
        origins = [origin_of(address) for address in self.indexes]
        known = [FILE_HOSTS[origin] for origin in origins if origin in FILE_HOSTS]
        return tuple(dict.fromkeys([*origins, *known, *self.file_hosts]))

    def kinds(self) -> list[str]:
        """Return the arguments of uv that choose between wheels and source archives."""
        if EVERY in self.from_source and not self.python:
            return []
        built = () if self.python else self.from_source
        return ["--only-binary", ":all:", *(part for name in built for part in ("--no-binary", name))]

    def interpreter(self) -> list[str]:
        """Return the arguments of uv that choose the Python."""
        return ["--python", base_python(), *(("--python-version", self.python) if self.python else ())]

    def is_built(self, package: str) -> bool:
        return EVERY in self.from_source or package in self.from_source

    @property
    def are_there(self) -> bool:
        return bool(self.indexes or self.wheelhouse)

    def cut_off(self) -> list[str]:
        """Return the arguments of uv for the setting exclude_newer. They have an effect only when uv locks."""
        return ["--exclude-newer", latest_upload(self.exclude_newer)] if self.exclude_newer else []

    def before(self, cut_off: str) -> PackageSources:
        """Return the sources without uploads after a date, if the indexes state when files were uploaded."""
        if not cut_off or self.wheelhouse or is_older(self.exclude_newer, cut_off):
            return self
        return msgspec.structs.replace(self, exclude_newer=cut_off)

    def environment(self) -> dict[str, str]:
        """Return the environment variables of uv with the addresses of the indexes.

        Arguments would be visible to all users, and addresses may contain credentials.
        """
        if self.wheelhouse or not self.indexes:
            return {}
        *first, last = self.indexes
        return {"UV_DEFAULT_INDEX": last, **({"UV_INDEX": " ".join(first)} if first else {})}

    def refused(self, packages: Iterable[str]) -> Iterator[Finding]:
        """Yield a finding for each package that the settings refuse."""
        for name in packages:
            if any(fnmatchcase(name, pattern) for pattern in self.denied):
                yield Finding(RULE, f"the package {name} is denied here (the setting packages.denied)")
            elif self.allowed and not any(fnmatchcase(name, pattern) for pattern in self.allowed):
                yield Finding(RULE, f"the package {name} is not in the setting packages.allowed")

    def key(self, requirements: Iterable[str]) -> str:
        """Return the key of a lock: a hash of the requirements, the sources and the platform."""
        request = [
            normalised(requirements),
            this_python(),
            self.indexes,
            str(self.wheelhouse),
            self.exclude_newer,
            self.from_source,
            *filter(None, [self.python]),
        ]
        return hashlib.sha256(msgspec.json.encode(request)).hexdigest()


def origin_of(address: str) -> str:
    """Return scheme, host and port of an index, in the form of `Job.network`."""
    split = urlsplit(address)
    return f"{split.scheme}://{split.netloc.rpartition('@')[2]}".lower()


def has_login(address: str) -> bool:
    return "@" in urlsplit(address).netloc


def address_problem(address: str) -> str | None:
    """Return why the sandbox cannot use an address, as a clause after the address, or None if it can."""
    network = parse_network_pattern(origin_of(address))
    if not isinstance(network, str):
        return None
    if "IP address" in network:
        return "names an IP address; give the host a name, for instance in /etc/hosts, and use that name"
    return network


# -- The choice of the package that provides an imported module. If it is uncertain, the result is a reason -----------


class Choice(NamedTuple):
    """The chosen package. If it is "", `reason` is a clause that continues a message about the import."""

    package: str
    reason: str = ""


def offered_by(sources: PackageSources) -> frozenset[str] | None:
    """Return the packages in the wheelhouse; None without a wheelhouse. Blocking."""
    if sources.wheelhouse is None:
        return None
    return frozenset(_package_of(path) for path in sources.wheelhouse.glob("*.whl"))


def choose(sources: PackageSources, offered: frozenset[str] | None, providers: Providers) -> Choice:
    """Return the choice among the packages that provide a module. `offered` is the result of `offered_by`.

    A package of an index is never chosen only because it has the name of the module. Otherwise a skill with a missing
    module would get a package from any owner of that name. A wheelhouse and `packages.allowed` are lists of the admin,
    so a name in them is trusted.
    """
    if not sources.are_there:
        return Choice("", "no packages are available (the settings packages.index_urls and packages.wheelhouse)")
    refused = {name: _refusal(sources, name) for name in providers.packages}
    fit = [name for name in providers.packages if not refused[name] and (offered is None or name in offered)]
    if not fit:
        reason = next((reason for reason in refused.values() if reason), "")
        return Choice("", reason or f"the wheelhouse of this server has no wheel of {providers}")
    is_vouched = offered is not None or bool(sources.allowed)
    if providers.how == "ambiguous" and not (is_vouched and len(fit) == 1):
        return Choice("", f"it is ambiguous: {providers} provide it")
    if providers.how == "guessed" and not is_vouched:
        return Choice("", "no package is known to provide it")
    return Choice(fit[0])


def _refusal(sources: PackageSources, package: str) -> str:
    return next((finding.message for finding in sources.refused([package])), "")


def _package_of(wheel: Path) -> str:
    return canonicalize_name(wheel.name.partition("-")[0])
