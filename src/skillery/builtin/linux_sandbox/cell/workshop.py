"""The zygote's neighbour, who still sees the host's files: it mounts what a run is given, and hands the mounts over
as descriptors. No run is ever forked from it, so what it has read of one run no other can find in its memory."""

# ruff: noqa: PTH102, PTH103, PTH106 - importing pathlib would cost every start milliseconds; the paths are our own
from __future__ import annotations

import os
import signal

from . import idmap, kernel, root
from .link import Link

TYPE_CHECKING = False  # importing `typing` for this costs every start milliseconds
if TYPE_CHECKING:
    from typing import Any

GIVEN = "/given"
KEPT = 64


def leave_room() -> None:
    """A root of our own with a place to mount on; the host's is at root.OLD."""
    root.turn_away()
    for folder in (GIVEN, "/proc"):
        os.mkdir(folder, 0o755)
    root.bind("/proc", "/proc", root.QUIET | kernel.ATTR_NOEXEC)


def add(entries: list[dict[str, Any]], uid: int) -> None:
    """Mount each source at its place below GIVEN, which is the working directory."""
    namespace = idmap.user_namespace(uid) if any(entry["closed"] for entry in entries) else -1
    for entry in entries:
        target = f"{entry['kind']}/{entry['name']}"
        os.makedirs(entry["kind"], 0o755, exist_ok=True)
        if entry["kind"] == "skills":
            os.mkdir(target, 0o755)
        else:
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444))
        if entry["closed"]:
            idmap.bind(root.OLD + entry["source"], target, root.FROZEN, namespace)
        else:
            root.bind(entry["source"], target)
    if namespace >= 0:
        os.close(namespace)


def trees() -> dict[str, int]:
    """Kind to a descriptor of a copy of the mounts below it, read-only."""
    found = {kind: kernel.clone_tree(kind) for kind in os.listdir(".")}  # noqa: PTH208 - as above
    for tree in found.values():
        kernel.freeze_tree(tree, root.FROZEN)
    return found


def identity(entries: list[dict[str, Any]]) -> tuple[object, ...] | None:
    """What the same mounts are known by; None for those that are made for one run alone."""
    if any(entry["closed"] or entry["kind"] != "skills" for entry in entries):
        return None
    found = [(entry["name"], entry["source"], os.stat(root.OLD + entry["source"])) for entry in entries]  # noqa: PTH116
    return tuple((name, source, seen.st_dev, seen.st_ino) for name, source, seen in found)


class Shelf:
    """The mounts of skills that were asked for lately: most runs are given what another was given before. A mount
    keeps its folder, so that a folder with the same number is the same one."""

    def __init__(self) -> None:
        self._places: dict[tuple[object, ...], str] = {}
        self._made = 0

    def open(self, uid: int, entries: list[dict[str, Any]]) -> tuple[dict[str, int], str | None]:
        """Descriptors by kind, and the place to clear away when they have been handed over."""
        known = identity(entries)
        place = self._places.pop(known, None) if known else None
        if place is None:
            place = self._make(uid, entries)
        os.chdir(place)
        found = trees()
        os.chdir("/")
        if known is None:
            return found, place
        self._places[known] = place  # the last one in is the last one out
        return found, self._places.pop(next(iter(self._places))) if len(self._places) > KEPT else None

    def _make(self, uid: int, entries: list[dict[str, Any]]) -> str:
        self._made += 1
        place = f"{GIVEN}/{self._made}"
        os.mkdir(place, 0o755)
        size = f"mode=0755,size=1m,nr_inodes={2 * len(entries) + 16}"
        kernel.mount("given", place, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, size)
        os.chdir(place)
        try:
            add(entries, uid)
        except (kernel.SetupError, OSError):
            self.clear(place)
            raise
        return place

    def clear(self, place: str) -> None:
        os.chdir("/")
        kernel.detach(place)
        os.rmdir(place)


def answer(link: Link, shelf: Shelf, number: int, uid: int, entries: list[dict[str, Any]]) -> None:
    try:
        found, rest = shelf.open(uid, entries)
    except kernel.SetupError as error:
        link.say(number=number, message=str(error))
        return
    except OSError as error:
        link.say(number=number, message=f"set-up: {os.strerror(error.errno or 0)}")
        return
    link.say(tuple(found.values()), number=number, kinds=list(found))
    for tree in found.values():
        os.close(tree)
    if rest is not None:
        shelf.clear(rest)


def serve(descriptor: int) -> None:
    """Until the server closes its end."""
    kernel.prctl("parent death signal", kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    link = Link(descriptor)
    try:
        leave_room()
    except kernel.SetupError as error:
        link.say(message=str(error))
        return
    link.say(ready=True)
    shelf = Shelf()
    entries: list[dict[str, Any]] = []
    while True:
        message, _ = link.hear()
        entries += message["entries"]
        if message["last"]:
            answer(link, shelf, message["number"], message["uid"], entries)
            entries = []
