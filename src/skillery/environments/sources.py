"""Where packages come from, and which may come at all."""

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
"""Where indexes that everybody knows keep their files."""
EVERY = "*"


class Sources(msgspec.Struct, frozen=True):
    """As the settings have it; `allowed` and `denied` are normalised names or patterns of them."""

    indexes: tuple[str, ...] = ()
    """Addresses, possibly with a login in them: never shown. A package comes from the first that knows it."""
    wheelhouse: Path | None = None
    """A folder of wheels in place of every index."""
    exclude_newer: str = ""
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    file_hosts: tuple[str, ...] = ()
    """Where the indexes keep their files, as far as that is elsewhere: patterns of `Job.network`."""
    from_source: tuple[str, ...] = ()
    """Packages that are built, or EVERY: whatever has no wheel."""

    @property
    def network(self) -> tuple[str, ...]:
        """What may be reached to lock and to fetch."""
        if self.wheelhouse:
            return ()
        origins = [origin_of(address) for address in self.indexes]
        known = [FILE_HOSTS[origin] for origin in origins if origin in FILE_HOSTS]
        return tuple(dict.fromkeys([*origins, *known, *self.file_hosts]))

    def kinds(self) -> list[str]:
        """For uv: wheels, and where the settings say so what they are built from."""
        if EVERY in self.from_source:
            return []
        return ["--only-binary", ":all:", *(part for name in self.from_source for part in ("--no-binary", name))]

    def is_built(self, package: str) -> bool:
        return EVERY in self.from_source or package in self.from_source

    @property
    def are_there(self) -> bool:
        return bool(self.indexes or self.wheelhouse)

    def cut_off(self) -> list[str]:
        """When locking: what is locked stays there."""
        return ["--exclude-newer", self.exclude_newer] if self.exclude_newer else []

    def environment(self) -> dict[str, str]:
        """For uv; what may hold a login is no argument, which others could read."""
        if self.wheelhouse or not self.indexes:
            return {}
        *first, last = self.indexes
        return {"UV_DEFAULT_INDEX": last, **({"UV_INDEX": " ".join(first)} if first else {})}

    def refused(self, packages: Iterable[str]) -> Iterator[Finding]:
        """A finding for each package that may not come."""
        for name in packages:
            if any(fnmatchcase(name, pattern) for pattern in self.denied):
                yield Finding(RULE, f"the package {name} is denied here (the setting packages.denied)")
            elif self.allowed and not any(fnmatchcase(name, pattern) for pattern in self.allowed):
                yield Finding(RULE, f"the package {name} is not in the setting packages.allowed")

    def key(self, requirements: Iterable[str]) -> str:
        """What the same question is known by: the same requirements, of the same sources, for the same machine."""
        asked = [
            normalised(requirements),
            this_python(),
            self.indexes,
            str(self.wheelhouse),
            self.exclude_newer,
            self.from_source,
        ]
        return hashlib.sha256(msgspec.json.encode(asked)).hexdigest()


def origin_of(address: str) -> str:
    """Scheme, host and port of an index, as `Job.network` has them."""
    split = urlsplit(address)
    return f"{split.scheme}://{split.netloc.rpartition('@')[2]}".lower()


def has_login(address: str) -> bool:
    return "@" in urlsplit(address).netloc


def address_problem(address: str) -> str | None:
    """Why an index (or a host of files) cannot be reached from the sandbox, the end of a sentence about it; None where
    nothing stands against it."""
    found = parse_network_pattern(origin_of(address))
    if not isinstance(found, str):
        return None
    if "IP address" in found:
        return "names an IP address; give the host a name, for instance in /etc/hosts, and use that name"
    return found


def base_python() -> str:
    """The interpreter that runs have, past every virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def python_version() -> str:
    return platform.python_version()


def fits_this_python(requires: str) -> bool:
    return fits_python(requires, python_version())


def this_python() -> str:
    """For what a lock is good."""
    return f"Python {sys.version_info.major}.{sys.version_info.minor} on {sys.platform} {platform.machine()}"


def check_python(requires: str) -> None:
    """Raises InvalidManifest where the interpreter of this server is none of those that are asked for."""
    if requires and not fits_this_python(requires):
        message = f"{REQUIRES_PYTHON} is '{requires}', but this server runs Python {python_version()}"
        hint = "Widen the range, or publish on a server with another Python."
        raise_problems(InvalidManifest, [Problem(message, REQUIRES_PYTHON)], hint=hint)
