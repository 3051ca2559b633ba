"""A container with the files of this machine, started by runc or crun, with the restrictions of packaging/."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).parents[2]
USER, FIRST_ID = 1000, 200_000
Kind = Literal["unmasked", "masked", "user namespace"]
"""How the container sees /proc: whole, or as engines show it; or whole, in a user namespace (Kubernetes: hostUsers)."""
# What Docker and Podman hide, or show read-only.
MASKED = ("acpi", "asound", "kcore", "keys", "latency_stats", "scsi", "timer_list")
READ_ONLY = ("bus", "fs", "irq", "sys", "sysrq-trigger")
FLAGS = ["nosuid", "noexec", "nodev"]
WRITABLE = ["nosuid", "nodev", "mode=1777"]


def engine() -> str | None:
    """Return the path of a program that starts containers by the OCI runtime specification, or None."""
    return shutil.which(str(ROOT / ".tools/bin/runc"))


def mount(target: str, kind: str, options: Sequence[str], source: str | None = None) -> dict[str, Any]:
    return {"destination": target, "type": kind, "source": source or kind, "options": list(options)}


def configuration(command: Sequence[str], profile: Path, kind: Kind) -> dict[str, Any]:
    """Return config.json of a container: an ordinary user without capabilities, in new namespaces."""
    kinds = ["pid", "network", "ipc", "uts", "mount", *(["user"] if kind == "user namespace" else [])]
    ids = [{"containerID": 0, "hostID": FIRST_ID, "size": 65_536}] if kind == "user namespace" else []
    masked = kind == "masked"
    shown = [Path("/usr"), Path("/etc"), ROOT, Path(sys.prefix), Path(sys.base_prefix).resolve()]
    bound = [mount(str(path), "bind", ["rbind", "ro"], str(path)) for path in dict.fromkeys(shown)]
    capabilities: dict[str, list[str]] = {name: [] for name in ("bounding", "effective", "permitted")}
    environment = {"HOME": "/home", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin"}
    return {
        "ociVersion": "1.0.2",
        "root": {"path": "rootfs"},
        "hostname": "container",
        "process": {
            "user": {"uid": USER, "gid": USER},
            "args": list(command),
            "env": [f"{name}={value}" for name, value in environment.items()],
            "cwd": str(ROOT),
            "capabilities": capabilities,
            "noNewPrivileges": True,
        },
        "mounts": [
            mount("/proc", "proc", FLAGS),
            mount("/dev", "tmpfs", ["nosuid", "strictatime", "mode=755"]),
            mount("/dev/pts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]),
            mount("/dev/shm", "tmpfs", ["nosuid", "noexec", "nodev", "mode=1777"]),
            mount("/sys", "sysfs", [*FLAGS, "ro"]),
            mount("/tmp", "tmpfs", WRITABLE),
            mount("/home", "tmpfs", WRITABLE),
            *bound,
        ],
        "linux": {
            "namespaces": [{"type": name} for name in kinds],
            "uidMappings": ids,
            "gidMappings": ids,
            "maskedPaths": [f"/proc/{name}" for name in MASKED] if masked else [],
            "readonlyPaths": [f"/proc/{name}" for name in READ_ONLY] if masked else [],
            "seccomp": json.loads(profile.read_text("utf-8")),
        },
    }


def run(command: Sequence[str], profile: Path, kind: Kind = "unmasked") -> subprocess.CompletedProcess[str]:
    """Run a command in a new container. Pid 1 is bash, which reaps processes whose parents have ended."""
    program = engine()
    assert program is not None
    whole = ("bash", "-c", '"$@"; exit $?', "bash", *command)
    with tempfile.TemporaryDirectory(prefix="container-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "config.json").write_text(json.dumps(configuration(whole, profile, kind)))
        make_root(folder / "rootfs", FIRST_ID if kind == "user namespace" else 0)
        started = (program, "--root", str(folder / "state"), "run", "--bundle", name, folder.name)
        return subprocess.run(started, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def make_root(root: Path, owner: int) -> None:
    """Make the folders and links of a root in which /usr will be mounted."""
    for folder in (root, root / "tmp", root / "home"):
        folder.mkdir()
        os.chown(folder, owner, owner)
    for name in ("tmp", "home"):
        (root / name).chmod(0o1777)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
