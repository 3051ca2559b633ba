"""Definitions of named environments: packages for code, and for skills that declare none. An admin defines them."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import msgspec

from skillery.backends import Finding, Language
from skillery.errors import InvalidManifest, InvalidParams, StartupError
from skillery.formats.network import parse_network_pattern
from skillery.formats.requirements import (
    LONGEST,
    MOST,
    REQUIRES_PYTHON,
    fits_python,
    normalised,
    package_of,
    requirement_problem,
)
from skillery.formats.wording import Problem, nearest, quoted, raise_problems

# -- Sources of packages, and the rules that allow or deny packages ----------------------------------------------------


RULE = "environments"
FILE_HOSTS = {
    "https://pypi.org": "https://files.pythonhosted.org",
    "https://test.pypi.org": "https://test-files.pythonhosted.org",
}
"""File hosts of well-known indexes."""
EVERY = "*"


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

    def key(self, requirements: Sequence[str], inferred: Collection[str]) -> str:
        """Return the key of a lock: a hash of the requirements, the names of inferred ones, and the sources."""
        request = ["npm", sorted(requirements), sorted(inferred), self.registry, self.exclude_newer]
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

    def before(self, cut_off: str) -> PackageSources:
        """Return the sources without uploads after a date, if the indexes state when files were uploaded."""
        if not cut_off or self.wheelhouse or (self.exclude_newer and self.exclude_newer[: len(cut_off)] <= cut_off):
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


MOST_ENVIRONMENTS = 50
MOST_DESCRIPTION = 300
LONGEST_NAME = 40
"""The maximum length of a name. It is less than the length of a SHA-256, so no name can look like a lock."""
_NAME = re.compile(rf"[a-z](?:[a-z0-9-]{{0,{LONGEST_NAME - 2}}}[a-z0-9])?")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class Named(msgspec.Struct, frozen=True):
    """A checked definition of a named environment, from the settings."""

    name: str
    dependencies: tuple[str, ...]
    preload: tuple[str, ...] = ()
    description: str = ""
    default: bool = False

    @property
    def key(self) -> str:
        """The key of the lock: a hash of the dependencies, in any order, and of the platform."""
        state = [normalised(self.dependencies), this_python()]
        return hashlib.sha256(msgspec.json.encode(state)).hexdigest()


class Defined:
    """The definitions of all named environments. The constructor raises StartupError for an invalid definition."""

    def __init__(self, named: Sequence[Named] = ()) -> None:
        if len(named) > MOST_ENVIRONMENTS:
            raise StartupError(
                f"there are {len(named)} settings [environments.<name>], but at most {MOST_ENVIRONMENTS} are allowed"
            )
        for environment in named:
            _check(environment)
        defaults = [environment.name for environment in named if environment.default]
        if len(defaults) > 1:
            names = " and ".join(f"environments.{name}.default" for name in defaults[:2])
            raise StartupError(f"settings {names} are both true: at most one environment can be the default")
        self._named: Mapping[str, Named] = {environment.name: environment for environment in named}

    @property
    def default(self) -> Named | None:
        return next((environment for environment in self if environment.default), None)

    def __iter__(self) -> Iterator[Named]:
        return iter(self._named.values())

    def __len__(self) -> int:
        return len(self._named)

    def get(self, name: str) -> Named | None:
        return self._named.get(name)

    def near(self, name: str) -> str:
        """Return a hint for a name that does not exist."""
        if not self._named:
            return "This server has no named environments: omit 'environment'."
        near = nearest(name, self._named)
        suggestion = f" Did you mean '{near}'?" if near else ""
        there = ", ".join(f"'{defined}'" for defined in self._named)
        return f"Available: {there}.{suggestion}"

    def chosen(self, name: str | None, language: Language) -> Named | None:
        """Return the environment for code. "" selects none. None selects the default environment, for Python only.

        Raise InvalidParams if the name is unknown, or if the code is not Python.
        """
        if name is None:
            return self.default if language == "python" else None
        if not name:
            return None
        environment = self._named.get(name)
        if environment is None:
            message = f"the environment {quoted(name)} does not exist"
            raise InvalidParams(message, hint=self.near(name), param="environment", environments=list(self._named))
        if language != "python":
            raise InvalidParams(
                f"the environment '{name}' has packages for Python, but the language of the code is {language}",
                hint="Omit 'environment', or use Python.",
                param="environment",
            )
        return environment


def _check(environment: Named) -> None:
    setting = f"environments.{environment.name}"
    if not _NAME.fullmatch(environment.name):
        raise StartupError(
            f"setting 'environments' has {environment.name!r}: a name consists of lower-case letters, digits and inner "
            f"'-', starts with a letter, and has at most {LONGEST_NAME} characters"
        )
    if not environment.dependencies:
        raise StartupError(f"setting '{setting}.dependencies' is empty: write packages, such as ['numpy>=2,<3']")
    for text in environment.dependencies:
        problem = f"is longer than {LONGEST} characters" if len(text) > LONGEST else requirement_problem(text)
        if problem is not None:
            _refuse(f"{setting}.dependencies", text, problem)
    for module in environment.preload:
        if not _MODULE.fullmatch(module) or len(module) > LONGEST:
            _refuse(f"{setting}.preload", module, "is not a module name; use a name such as 'numpy' or 'os.path'")
    for key, entries in (("dependencies", environment.dependencies), ("preload", environment.preload)):
        if len(entries) > MOST:
            raise StartupError(f"setting '{setting}.{key}' has {len(entries)} entries, but at most {MOST} are allowed")
    if len(environment.description) > MOST_DESCRIPTION or not environment.description.isprintable():
        raise StartupError(
            f"setting '{setting}.description' is {environment.description[:60]!r}…: one line of at most "
            f"{MOST_DESCRIPTION} characters is allowed"
        )


def _refuse(setting: str, value: str, problem: str) -> NoReturn:
    raise StartupError(f"setting '{setting}' has {value[:LONGEST]!r}, which {problem}")


MOST_SHOWN = 20
"""Packages of an environment that the description of a tool lists. list_environments returns all of them."""


def shown_properties(defined: Defined) -> dict[str, dict[str, Any]]:
    """Return the parameter `environment` of each tool that has it, by the name of the tool. {} if the server has no
    named environments.
    """
    if not len(defined):
        return {}
    default = defined.default
    names = [*(environment.name for environment in defined), *([""] if default else [])]
    described = "Environment whose Python packages the code may import. " + " ".join(map(_described, defined))
    if default is not None:
        described += f" Without it Python has '{default.name}'; '' is none."
    more = {"default": default.name} if default else {}
    of_code = {"type": "string", "enum": names, **more, "description": described}
    of_skill = {**of_code, "description": f"For a skill that declares no packages. {described}"}
    return {"run_code": {"environment": of_code}, "execute_skill": {"environment": of_skill}}


def _described(environment: Named) -> str:
    packages = [package_of(dependency) for dependency in environment.dependencies]
    more = " and more" if len(packages) > MOST_SHOWN else ""
    purpose = f": {environment.description.rstrip('.')}" if environment.description else ""
    return f"'{environment.name}' has {', '.join(packages[:MOST_SHOWN])}{more}{purpose}."
