"""Sources of packages, and the rules that allow or deny packages."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from skillery.backends import Finding
from skillery.errors import InvalidManifest
from skillery.formats.network import parse_network_pattern
from skillery.formats.problems import Problem, raise_problems
from skillery.formats.requirements import REQUIRES_PYTHON, fits_python, normalised

RULE = "environments"
FILE_HOSTS = {
    "https://pypi.org": "https://files.pythonhosted.org",
    "https://test.pypi.org": "https://test-files.pythonhosted.org",
}
"""File hosts of well-known indexes."""
EVERY = "*"


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
        if EVERY in self.from_source:
            return []
        return ["--only-binary", ":all:", *(part for name in self.from_source for part in ("--no-binary", name))]

    def is_built(self, package: str) -> bool:
        return EVERY in self.from_source or package in self.from_source

    @property
    def are_there(self) -> bool:
        return bool(self.indexes or self.wheelhouse)

    def cut_off(self) -> list[str]:
        """Return the arguments of uv for the setting exclude_newer. They have an effect only when uv locks."""
        return ["--exclude-newer", self.exclude_newer] if self.exclude_newer else []

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
        ]
        return hashlib.sha256(msgspec.json.encode(request)).hexdigest()


def origin_of(address: str) -> str:
    """Return scheme, host and port of an index, in the form of `Job.network`."""
    split = urlsplit(address)
    return f"{split.scheme}://{split.netloc.rpartition('@')[2]}".lower()


def has_login(address: str) -> bool:
    return "@" in urlsplit(address).netloc


def address_problem(address: str) -> str | None:
    """Return why the sandbox cannot use an address, as a clause after the address; None if it can."""
    network = parse_network_pattern(origin_of(address))
    if not isinstance(network, str):
        return None
    if "IP address" in network:
        return "names an IP address; give the host a name, for instance in /etc/hosts, and use that name"
    return network


def base_python() -> str:
    """Return the Python interpreter of runs, which is outside of all virtual environments."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def python_version() -> str:
    return platform.python_version()


def fits_this_python(requires: str) -> bool:
    return fits_python(requires, python_version())


def this_python() -> str:
    """Return the platform for which locks of this server are valid."""
    return f"Python {sys.version_info.major}.{sys.version_info.minor} on {sys.platform} {platform.machine()}"


def check_python(requires: str) -> None:
    """Raise InvalidManifest if the interpreter of this server does not satisfy `requires`."""
    if requires and not fits_this_python(requires):
        message = f"{REQUIRES_PYTHON} is '{requires}', but this server runs Python {python_version()}"
        hint = "Widen the range, or publish on a server with another Python."
        raise_problems(InvalidManifest, [Problem(message, REQUIRES_PYTHON)], hint=hint)
