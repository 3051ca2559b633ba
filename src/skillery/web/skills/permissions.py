"""What a version may do, in words: hosts, secrets, limits, workspaces, packages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from skillery.web.display import Language, duration, number


class MayDo(NamedTuple):
    runs_code: bool
    hosts: list[str]
    secrets: list[str]
    limits: str
    """The limits in words. "" means the usual limits of the server."""
    workspace: bool
    packages: int


def may_do(manifest: Mapping[str, Any], language: Language) -> MayDo:
    runtime = manifest.get("runtime") or {}
    permissions = manifest.get("permissions") or {}
    return MayDo(
        bool(runtime),
        permissions.get("network") or [],
        permissions.get("secrets") or [],
        _limits(runtime.get("limits") or {}, language),
        bool(runtime.get("workspace")),
        len(runtime.get("dependencies") or ()),
    )


def _limits(limits: Mapping[str, float], language: Language) -> str:
    words: dict[str, Callable[[float], str]] = {
        "memory_mb": lambda value: f"{number(value, language)} MiB of memory",
        "cpus": lambda value: _counted(value, "processor", "processors", language),
        "processes": lambda value: _counted(value, "process", "processes", language),
        "disk_mb": lambda value: f"{number(value, language)} MiB of disk",
        "timeout_ms": lambda value: duration(value, language),
    }
    return ", ".join(shown(limits[name]) for name, shown in words.items() if name in limits)


def _counted(value: float, one: str, many: str, language: Language) -> str:
    digits = 0 if value == int(value) else 1
    return f"{number(value, language, digits)} {one if value == 1 else many}"
