"""Figures of a run: the phases of its time, and what it used of its limits."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from skillery.method import or_none
from skillery.runs.results import RunRecord
from skillery.web.display import duration

WIDTH = 600
MEBIBYTE = 1 << 20
LIMITS = {
    "timeout_ms": "Time",
    "memory_mb": "Memory",
    "processes": "Processes",
    "disk_mb": "Files in /workspace",
    "cpus": "Processors",
    "tmp_mb": "Files in /tmp",
    "blobs_mb": "Blobs",
    "log_kb": "Log",
}
_UNITS = {"memory_mb": "MiB", "disk_mb": "MiB", "tmp_mb": "MiB", "blobs_mb": "MiB", "log_kb": "KiB"}
WEAKER = {
    "isolation": "This server runs code without isolation: the code can do what the server can do.",
    "memory_tree": "This host has no control group for memory, so the server checks the memory of a run less exactly.",
    "landlock": "The kernel of this host has no Landlock, so the paths of the run are protected less strictly.",
    "processes": "This host does not enforce the limit of processes.",
    "cpus": "This host does not enforce the limit of processors.",
    "disk": "This host does not enforce the size of the files of a run.",
    "disk_files": "This host does not enforce the number of files of a run.",
    "network": "This host does not enforce the network permissions of a run.",
}
"""Sentences for the values of `degraded`."""


class Stage(NamedTuple):
    """A phase of the time of a run, in the coordinates of the picture."""

    words: str
    ms: float
    x: float
    width: float


class Limit(NamedTuple):
    """A limit and the used part of it. `used` is "" if it is not measured, `share` is from 0 to 100."""

    words: str
    used: str
    allowed: str
    share: float


def stages_of(run: RunRecord) -> list[Stage]:
    """Return the phases of an ended run: queued, prepared, running, collected."""
    if not run.started_at or not run.finished_at or run.duration_ms is None:
        return []
    used, code = or_none(run.used), run.duration_ms
    around = max(0.0, (run.finished_at - run.started_at).total_seconds() * 1000 - code)
    prepared = used.prepared_ms if used else None
    parts = {"queued": used.queued_ms} if used and used.queued_ms else {}
    if prepared is None:
        parts |= {"running": code, "prepared and collected": around}
    else:
        parts |= {"prepared": min(prepared, around), "running": code, "collected": max(0.0, around - prepared)}
    whole = max(sum(parts.values()), 1.0)
    stages, x = [], 0.0
    for words, ms in parts.items():
        width = WIDTH * ms / whole
        stages.append(Stage(words, ms, round(x, 1), round(width, 1)))
        x += width
    return stages


def limits_of(run: RunRecord) -> list[Limit]:
    """Return the limits of a run as "used of allowed"."""
    limits = msgspec.json.decode(run.limits) or {}
    return [_limit(key, words, limits[key], _used(run, key)) for key, words in LIMITS.items() if key in limits]


def _used(run: RunRecord, key: str) -> float | None:
    """Return what a run has used, in the unit of the limit, or None if it is not measured."""
    used = or_none(run.used)
    if key == "timeout_ms":
        return run.duration_ms
    if used is None:
        return None
    if key == "processes":
        return used.processes
    size = {"memory_mb": used.memory_bytes, "disk_mb": used.disk_bytes}.get(key)
    return None if size is None else size / MEBIBYTE


def _limit(key: str, words: str, allowed: float, used: float | None) -> Limit:
    if key == "timeout_ms":
        shown = "" if used is None else duration(used)
        return Limit(words, shown, f"{allowed / 1000:g} s", _share(used, allowed))
    unit = _UNITS.get(key, "")
    if unit == "KiB" and allowed >= 1024 and used is None:
        allowed, unit = allowed / 1024, "MiB"
    shown = "" if used is None else f"{used:.3g}" if used < 1000 else f"{used:.0f}"
    if used and used < 1 and unit == "MiB":
        shown = f"{used * 1024:.0f} KiB"
    return Limit(words, shown, f"{allowed:g} {unit}".strip(), _share(used, allowed))


def _share(used: float | None, allowed: float) -> float:
    return 0.0 if used is None or not allowed else round(min(100.0, 100 * used / allowed), 1)
