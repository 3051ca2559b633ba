"""The zygote's neighbour, who still sees the host's files: it mounts what a run is given, and hands the mounts over
as descriptors. No run is ever forked from it, so what it has read of one run no other can find in its memory."""

# ruff: noqa: PTH102, PTH103 - importing pathlib would cost every start milliseconds; the paths are our own
from __future__ import annotations

import os
import signal

from . import idmap, kernel, root
from .link import Link

TYPE_CHECKING = False  # importing `typing` for this costs every start milliseconds
if TYPE_CHECKING:
    from typing import Any

GIVEN = "/given"


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
    """Kind to a descriptor of the mounts below it, read-only."""
    found = {kind: kernel.clone_tree(kind) for kind in os.listdir(".")}  # noqa: PTH208 - as above
    for tree in found.values():
        kernel.freeze_tree(tree, root.FROZEN)
    return found


def answer(link: Link, number: int, uid: int, entries: list[dict[str, Any]]) -> None:
    size = f"mode=0755,size=1m,nr_inodes={len(entries) + 16}"
    kernel.mount("given", GIVEN, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, size)
    os.chdir(GIVEN)
    try:
        try:
            add(entries, uid)
            found = trees()
        except kernel.SetupError as error:
            link.say(number=number, message=str(error))
            return
        except OSError as error:
            link.say(number=number, message=f"set-up: {os.strerror(error.errno or 0)}")
            return
        link.say(tuple(found.values()), number=number, kinds=list(found))
        for tree in found.values():
            os.close(tree)
    finally:
        os.chdir("/")
        kernel.detach(GIVEN)


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
    entries: list[dict[str, Any]] = []
    while True:
        message, _ = link.hear()
        entries += message["entries"]
        if message["last"]:
            answer(link, message["number"], message["uid"], entries)
            entries = []
