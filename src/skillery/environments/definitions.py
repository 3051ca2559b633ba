"""Definitions of named environments: packages for code, and for skills that declare none. An admin defines them."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from skillery.backends import Language
from skillery.errors import InvalidManifest, InvalidParams, StartupError
from skillery.formats.npm import requirement_problem as npm_problem
from skillery.formats.npm import split
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


def base_python() -> str:
    """Return the Python interpreter of runs, which is outside of all virtual environments."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def python_version() -> str:
    return platform.python_version()


def fits_this_python(requires: str) -> bool:
    return fits_python(requires, python_version())


def fitting_python(requires: str, pythons: Iterable[str]) -> str | None:
    """Return the version of the Python for a script: "" for that of this server if it fits, else the highest fitting
    one of `pythons`, such as "3.13". None means that no Python fits.
    """
    if not requires or fits_this_python(requires):
        return ""
    by_minor = sorted(pythons, key=lambda version: int(version.partition(".")[2]), reverse=True)
    # The patch version is not known: usually it is the newest one.
    return next((version for version in by_minor if fits_python(requires, f"{version}.99")), None)


def missing_python(requires: str) -> str:
    """Return why a script cannot have its Python, with the remedy."""
    own = ".".join(python_version().split(".")[:2])
    return f"needs Python {requires}, and this server has {own}; an admin installs it and lists it in pythons"


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
    npm: tuple[str, ...] = ()
    is_npm: bool = False
    """Whether `dependencies` are packages of npm."""

    @property
    def parts(self) -> tuple[Named, ...]:
        """This environment with its Python packages alone, and with its npm packages alone. Each part has a lock."""
        npm = msgspec.structs.replace(self, dependencies=self.npm, npm=(), preload=(), is_npm=True)
        return tuple(part for part in (msgspec.structs.replace(self, npm=()), npm) if part.dependencies)

    @property
    def id(self) -> str:
        """The name of the lock. It is not the name of another environment."""
        return f"{self.name} (npm)" if self.is_npm else self.name

    @property
    def key(self) -> str:
        """The key of the lock: a hash of the dependencies, in any order, and of the platform."""
        state = ["npm", sorted(self.dependencies)] if self.is_npm else [normalised(self.dependencies), this_python()]
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
        """The default environment of Python code."""
        return self._default("python")

    def _default(self, language: Language) -> Named | None:
        defaults = (_part_for(environment, language) for environment in self if environment.default)
        return next((environment for environment in defaults if environment), None)

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
        """Return the environment for code. "" selects none. None selects the default environment.

        Raise InvalidParams if the name is unknown, or if the environment has no packages for the language.
        """
        if name is None:
            return self._default(language)
        if not name:
            return None
        environment = self._named.get(name)
        if environment is None:
            message = f"the environment {quoted(name)} does not exist"
            raise InvalidParams(message, hint=self.near(name), param="environment", environments=list(self._named))
        part = _part_for(environment, language)
        if part is None:
            names = [_LANGUAGES[part.is_npm] for part in environment.parts]
            raise InvalidParams(
                f"the environment '{name}' has packages for {' and '.join(names)}, but the language of the code is "
                f"{language}",
                hint=f"Omit 'environment', or write the code in {' or '.join(names)}.",
                param="environment",
            )
        return part


_LANGUAGES = ("Python", "JavaScript")


def _part_for(environment: Named, language: Language) -> Named | None:
    """Return the part of an environment whose packages code in a language can import."""
    languages = {"python": False, "javascript": True}
    return next((part for part in environment.parts if languages.get(language) == part.is_npm), None)


def _check(environment: Named) -> None:
    setting = f"environments.{environment.name}"
    if not _NAME.fullmatch(environment.name):
        raise StartupError(
            f"setting 'environments' has {environment.name!r}: a name consists of lower-case letters, digits and inner "
            f"'-', starts with a letter, and has at most {LONGEST_NAME} characters"
        )
    if not environment.parts:
        raise StartupError(f"setting '{setting}.dependencies' is empty: write packages, such as ['numpy>=2,<3']")
    for part in environment.parts:
        problem_of = npm_problem if part.is_npm else requirement_problem
        for text in part.dependencies:
            problem = f"is longer than {LONGEST} characters" if len(text) > LONGEST else problem_of(text)
            if problem is not None:
                _refuse(f"{setting}.{'npm' if part.is_npm else 'dependencies'}", text, problem)
    for module in environment.preload:
        if not _MODULE.fullmatch(module) or len(module) > LONGEST:
            _refuse(f"{setting}.preload", module, "is not a module name; use a name such as 'numpy' or 'os.path'")
    for key in ("dependencies", "npm", "preload"):
        entries = getattr(environment, key)
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
    default, environments = defined.default, {environment.name: environment for environment in defined}
    names = [*environments, *([""] if default else [])]
    described = "Environment whose packages the code may import. " + " ".join(map(_described, defined))
    if default is not None:
        described += f" Without it Python has '{default.name}'; '' is none."
    more = {"default": default.name} if default else {}
    of_code = {"type": "string", "enum": names, **more, "description": described}
    # The code of a skill gets Python packages only.
    of_python = [name for name in names if not name or _part_for(environments[name], "python")]
    of_skill = {**of_code, "enum": of_python, "description": f"For a skill that declares no packages. {described}"}
    of_tools = {"run_code": {"environment": of_code}}
    return of_tools | ({"execute_skill": {"environment": of_skill}} if of_python else {})


def _described(environment: Named) -> str:
    lists = []
    for part in environment.parts:
        names = [split(text)[0] if part.is_npm else package_of(text) for text in part.dependencies]
        more = " and more" if len(names) > MOST_SHOWN else ""
        lists.append(f"{'for JavaScript ' if part.is_npm else ''}{', '.join(names[:MOST_SHOWN])}{more}")
    purpose = f": {environment.description.rstrip('.')}" if environment.description else ""
    return f"'{environment.name}' has {', and '.join(lists)}{purpose}."
