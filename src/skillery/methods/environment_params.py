"""The params of the methods for environments, and the parameter `environment` of tools."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from skillery.environments.definitions import Defined, Named
from skillery.formats.requirements import package_of
from skillery.method import Cursor, PageLimit, Params, about

MOST_SHOWN = 20
"""Packages of an environment that the description of a tool lists. list_environments returns all of them."""
Subject = Annotated[str, Meta(min_length=1, max_length=100)]


class ListEnvironments(Params, frozen=True, kw_only=True):
    """List the named environments, with the packages that the code of run_code may import."""

    installed: Annotated[bool, about("List all installed locks instead (for admins)", default=False)] = False
    limit: PageLimit = 50
    cursor: Cursor = ""


class DescribeEnvironment(Params, frozen=True, kw_only=True):
    """Return one environment, and the versions that use its lock of packages."""

    name: Annotated[Subject, about("Name of an environment, or the SHA-256 of a lock")]


class RebuildEnvironment(Params, frozen=True, kw_only=True):
    """Lock a named environment again and install the new lock. For the SHA-256 of a lock, reinstall that lock."""

    name: Annotated[Subject, about("Name of an environment, or the SHA-256 of a lock")]


def shown_properties(defined: Defined) -> dict[str, dict[str, Any]]:
    """Return the parameter `environment` of each tool that has it, by the name of the tool. {} if the server has no
    named environments.
    """
    if not len(defined):
        return {}
    default = defined.default
    names = [*(one.name for one in defined), *([""] if default else [])]
    described = "Environment whose Python packages the code may import. " + " ".join(map(_described, defined))
    if default is not None:
        described += f" Without it Python has '{default.name}'; '' is none."
    more = {"default": default.name} if default else {}
    of_code = {"type": "string", "enum": names, **more, "description": described}
    of_skill = {**of_code, "description": f"For a skill that declares no packages. {described}"}
    return {"run_code": {"environment": of_code}, "execute_skill": {"environment": of_skill}}


def _described(one: Named) -> str:
    packages = [package_of(dependency) for dependency in one.dependencies]
    more = " and more" if len(packages) > MOST_SHOWN else ""
    purpose = f": {one.description.rstrip('.')}" if one.description else ""
    return f"'{one.name}' has {', '.join(packages[:MOST_SHOWN])}{more}{purpose}."
