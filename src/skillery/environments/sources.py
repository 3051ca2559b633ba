"""Where packages come from, and which may come at all."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from skillery.backends import Finding
from skillery.errors import InvalidManifest
from skillery.formats.problems import Problem, raise_problems
from skillery.formats.requirements import REQUIRES_PYTHON, fits_python, normalised

RULE = "environments"


class Sources(msgspec.Struct, frozen=True):
    """As the settings have it; `allowed` and `denied` are normalised names or patterns of them."""

    indexes: tuple[str, ...] = ()
    """Addresses, possibly with a login in them: never shown. A package comes from the first that knows it."""
    wheelhouse: Path | None = None
    """A folder of wheels in place of every index."""
    exclude_newer: str = ""
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()

    @property
    def are_there(self) -> bool:
        return bool(self.indexes or self.wheelhouse)

    def places(self) -> list[str]:
        """For uv; what may hold a login is no argument, which others could read."""
        return ["--no-index", "--find-links", str(self.wheelhouse)] if self.wheelhouse else []

    def cut_off(self) -> list[str]:
        """When locking: what is locked stays there."""
        return ["--exclude-newer", self.exclude_newer] if self.exclude_newer else []

    def environment(self) -> dict[str, str]:
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
                yield Finding(RULE, f"the package {name} is not among those that the setting packages.allowed has")

    def key(self, requirements: Iterable[str]) -> str:
        """What the same question is known by: the same requirements, of the same sources, for the same machine."""
        asked = [normalised(requirements), this_python(), self.indexes, str(self.wheelhouse), self.exclude_newer]
        return hashlib.sha256(msgspec.json.encode(asked)).hexdigest()


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
        message = f"{REQUIRES_PYTHON} is '{requires}', and this server runs Python {python_version()}"
        hint = "Ask for a version that includes it, or publish on a server with another Python."
        raise_problems(InvalidManifest, [Problem(message, REQUIRES_PYTHON)], hint=hint)
