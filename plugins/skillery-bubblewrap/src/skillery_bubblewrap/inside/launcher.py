"""The process that becomes `bwrap`.

The launcher joins the cgroups of the run. If the server is root, the launcher also mounts the files of the run for
another uid, and becomes that uid. Its order is one JSON object in a descriptor, without code and args.

Usage: `python launcher.py PARENT_OF_CELL DESCRIPTOR`
"""

# ruff: noqa: PTH102, PTH112 - importing pathlib costs every run milliseconds
from __future__ import annotations

import json
import os
import signal
import sys

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from typing import Any

    from cellblock.parts import idmap, kernel, root
else:
    sys.path.append(sys.argv[1])
    from inside import idmap, kernel, root


def join_groups(group_files: list[int]) -> None:
    """Join the cgroups before the exec, so that the memory of bwrap counts, and its cgroup namespace starts there."""
    for file in group_files:
        os.write(file, b"0")
        os.close(file)


def lay_out(stage: str, binds: list[dict[str, Any]], uid: int) -> None:
    """Mount each source below `stage`, in a private mount namespace.

    So bwrap needs no access to parent folders that only root may enter. Files that only root may read are mapped to the
    uid of the run.
    """
    kernel.unshare(kernel.NEWNS)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    size = f"mode=0755,size=1m,nr_inodes={len(binds) + 16}"
    kernel.mount("stage", stage, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, size)
    namespace = idmap.user_namespace(uid) if any(bind["closed"] for bind in binds) else -1
    for bind in binds:
        if os.path.isdir(bind["source"]):
            os.mkdir(bind["place"], 0o755)
        else:
            os.close(os.open(bind["place"], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444))
        if bind["closed"]:
            idmap.bind(bind["source"], bind["place"], root.FROZEN, namespace)
        else:
            kernel.mount(bind["source"], bind["place"], None, kernel.MS_BIND | kernel.MS_REC)
    if namespace >= 0:
        os.close(namespace)


def become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def start(order: dict[str, Any]) -> None:
    """Become bwrap. Return only if the server has ended before."""
    join_groups(order["group_files"])
    program = os.open(order["program"], os.O_RDONLY)
    if order["affinity"]:
        os.sched_setaffinity(0, order["affinity"])
    if order["uid"] is not None:
        lay_out(order["stage"], order["binds"], order["uid"])
        become(order["uid"])
    kernel.prctl("parent death signal", kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == order["parent"]:
        os.execve(program, order["command"], {})  # noqa: S606 - no shell


def main(descriptor: int) -> None:
    with os.fdopen(descriptor) as file:
        order = json.load(file)
    try:
        start(order)
    except kernel.SetupError as error:
        message = str(error)
    except OSError as error:  # without the path of the host
        message = f"set-up: {os.strerror(error.errno or 0)}"
    else:
        message = "set-up: the server has ended"
    os.write(order["status"], json.dumps({"message": message}).encode() + b"\n")


if __name__ == "__main__":
    main(int(sys.argv[2]))
    os._exit(1)
