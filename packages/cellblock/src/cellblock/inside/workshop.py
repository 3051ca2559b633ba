"""The workshop: the process next to the zygote that still sees the files of the host.

The workshop mounts files of the host in the mount namespace of a run, before any code runs in that namespace.
No run is ever forked from the workshop, so no run can find data of another run in its memory.
"""

# ruff: noqa: PTH102, PTH106 - importing pathlib costs every start milliseconds; the paths are our own
from __future__ import annotations

import json
import os
import signal

from . import idmap, kernel, root
from .link import NUMBER, Link

TYPE_CHECKING = False  # importing `typing` for this costs every start milliseconds
if TYPE_CHECKING:
    from typing import Any

MountPoint = tuple[str, tuple[str, ...]]
"""A folder, and the mount points of runs whose entries are mounted in it."""

GIVEN = "/given"
KEPT = 64
BOTH = 3
"""Mount namespaces in a request to show a cell the workspace of another: of both cells and of the workshop."""


def leave_room() -> None:
    """Enter a private root with a mount point. The root of the host is at root.OLD."""
    root.enter_new_root()
    for folder in (GIVEN, "/proc"):
        os.mkdir(folder, 0o755)
    root.bind("/proc", "/proc", root.QUIET | kernel.ATTR_NOEXEC)


def add(entries: list[dict[str, Any]], uid: int) -> None:
    """Mount each source at its path below the working directory, a new folder for these mounts."""
    namespace = idmap.user_namespace(uid) if any(entry["closed"] for entry in entries) else -1
    for entry in entries:
        target = f"{entry['point']}/{entry['name']}"
        if entry["is_folder"]:
            os.mkdir(target, 0o755)
        else:
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444))
        if entry["closed"]:
            idmap.bind(root.OLD + entry["source"], target, root.FROZEN, namespace)
        else:
            root.bind(entry["source"], target)
    if namespace >= 0:
        os.close(namespace)


def copy(place: MountPoint) -> dict[str, int]:
    """Return a descriptor of a copy of the mounts, for each mount point."""
    trees: dict[str, int] = {}
    try:
        for point in place[1]:
            trees[point] = kernel.clone_tree(f"{place[0]}/{point}")
    except kernel.SetupError:
        close(trees)
        raise
    return trees


def close(trees: dict[str, int]) -> None:
    """Close the descriptors in `trees`, which were not mounted."""
    for tree in trees.values():
        os.close(tree)


def identity(entries: list[dict[str, Any]]) -> tuple[object, ...] | None:
    """Return a key for mounts that later runs can share: of open folders. Return None for other mounts."""
    if any(entry["closed"] or not entry["is_folder"] for entry in entries):
        return None
    # The workshop does not import pathlib.
    sources = [(entry, os.stat(root.OLD + entry["source"])) for entry in entries]  # noqa: PTH116
    return tuple((entry["point"], entry["name"], entry["source"], seen.st_dev, seen.st_ino) for entry, seen in sources)


class Shelf:
    """The mounts of recently requested folders. Most runs need the same mounts as an earlier run.

    A mount keeps its folder in existence, so a folder with the same inode number is the same folder.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[object, ...], MountPoint] = {}
        self._made = 0

    def open(self, uid: int, entries: list[dict[str, Any]]) -> tuple[dict[str, int], MountPoint | None]:
        """Return descriptors by mount point, and a folder to clear after they were mounted, or None.

        The folder has mounts that no other run can share, or, if the shelf is full, the least recently used mounts.
        """
        known = identity(entries)
        place = self._places.pop(known, None) if known else None
        if place is None:
            place = self._make(uid, entries)
        try:
            trees = copy(place)
        except kernel.SetupError:
            self.clear(place)
            raise
        if known is None:
            return trees, place
        self._places[known] = place  # least recently used first
        return trees, self._places.pop(next(iter(self._places))) if len(self._places) > KEPT else None

    def _make(self, uid: int, entries: list[dict[str, Any]]) -> MountPoint:
        self._made += 1
        folder = f"{GIVEN}/{self._made}"
        points = tuple(dict.fromkeys(entry["point"] for entry in entries))
        os.mkdir(folder, 0o755)
        size = f"mode=0755,size=1m,nr_inodes={2 * len(entries) + 16}"
        kernel.mount("given", folder, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, size)
        os.chdir(folder)
        try:
            for point in points:
                os.mkdir(point, 0o755)
            add(entries, uid)
            os.chdir("/")
            kernel.set_mount_attributes(folder, root.FROZEN, recursive=True)
        except (kernel.SetupError, OSError):
            self.clear((folder, points))
            raise
        return folder, points

    def clear(self, place: MountPoint) -> None:
        os.chdir("/")
        kernel.detach(place[0])
        os.rmdir(place[0])


def hand_over(trees: dict[str, int], mounts: int, own: int) -> None:
    """Mount each tree at its path in the mount namespace `mounts`, then return to the namespace `own`.

    The descriptors of mounted trees are removed from `trees`.
    """
    kernel.set_namespace(mounts, kernel.NEWNS)
    try:
        for point in tuple(trees):
            kernel.attach_tree(trees[point], f"/{point}")
            del trees[point]
    finally:
        kernel.set_namespace(own, kernel.NEWNS)


def give(shelf: Shelf, uid: int, entries: list[dict[str, Any]], ends: tuple[int, int]) -> None:
    """Mount the entries for a run. Afterwards, also after an error, close all mounts that no other run will use."""
    trees, rest = shelf.open(uid, entries)
    try:
        hand_over(trees, *ends)
    finally:
        close(trees)
        if rest is not None:
            shelf.clear(rest)


def show_workspace(of: int, to: int, own: int) -> None:
    """Mount the workspace of the namespace `of` over that of `to`: the files of a run whose processes have ended."""
    try:
        kernel.set_namespace(of, kernel.NEWNS)
        tree = kernel.clone_tree("/workspace")
        kernel.set_tree_attributes(tree, root.QUIET | kernel.ATTR_NOEXEC)
        kernel.set_namespace(to, kernel.NEWNS)
        kernel.attach_tree(tree, "/workspace")
    finally:
        kernel.set_namespace(own, kernel.NEWNS)


def answer(shelf: Shelf, uid: int, entries: list[dict[str, Any]], ends: tuple[int, ...]) -> str:
    """Serve a request. Return an empty text, or what failed.

    `ends` are the namespaces of the run, of another cell if its workspace is shown, and ours.
    """
    try:
        if len(ends) == BOTH:
            show_workspace(*ends)
        else:
            give(shelf, uid, entries, (ends[0], ends[1]))
    except kernel.SetupError as error:
        return str(error)
    except OSError as error:
        return f"set-up: {os.strerror(error.errno or 0)}"
    return ""


def serve(descriptor: int) -> None:
    """Serve requests until the server closes its end of the socket."""
    kernel.prctl("parent death signal", kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    link = Link(descriptor)
    try:
        leave_room()
        own = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except kernel.SetupError as error:
        link.say(message=str(error))
        return
    link.say(ready=True)
    shelf = Shelf()
    entries: list[dict[str, Any]] = []
    while True:
        content, descriptors = link.receive()
        message = json.loads(content[NUMBER.size :])
        entries += message["entries"]
        if descriptors:  # the last piece carries the run's mount namespace
            failed = answer(shelf, message["uid"], entries, (*descriptors, own))
            link.send(content[: NUMBER.size] + failed.encode())
            for namespace in descriptors:
                os.close(namespace)
            entries = []
