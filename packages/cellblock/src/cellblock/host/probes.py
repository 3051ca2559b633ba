"""Probes of this host. Each probe uses the feature that it tests, and has a remedy."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from cellblock.filter import rules
from cellblock.filter.rules import Filters
from cellblock.host import groups
from cellblock.host.hierarchies import CONTROLLERS
from cellblock.host.plan import HERE, base_python, is_beneath, make_plan, prefixes
from cellblock.host.shares import Uids
from cellblock.inside import host_tests, kernel
from cellblock.values import Probe, Template

TRY = "import sys; sys.path.append('.'); from inside import host_tests; host_tests.main(sys.argv[1])"
LANDLOCK_FIX = (
    "use a kernel from 5.13 on with `landlock` among its security modules (boot with lsm=landlock,…), or set "
    "allow_degraded"
)
WATCHDOG_FIX = "make cgroups writable, use a kernel with CONFIG_PROC_CHILDREN, or set allow_degraded"
APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
MAX_USER_NAMESPACES = Path("/proc/sys/user/max_user_namespaces")
CONTAINER = (
    "in a container, allow it there (Docker: --security-opt with profiles for seccomp and apparmor that allow user "
    "namespaces and mounts, or with seccomp=unconfined and apparmor=unconfined)"
)
UNMASK = (
    "in a container, let it see the whole /proc (Docker: --security-opt systempaths=unconfined; Podman: --security-opt "
    "unmask=ALL)"
)
FIXES = {
    "uid mapping": "give the sandbox a range of uids that this user namespace has (`uids`)",
    "own /proc": "nothing has to be done: runs go without /proc; " + UNMASK,
    "own servers": f"make /proc/sys writable for this process; {UNMASK}; until then, programs have neither servers nor "
    "UNIX sockets with names",
    "landlock": LANDLOCK_FIX,
    "seccomp": "use a kernel with CONFIG_SECCOMP_FILTER",
}
OPTIONAL = {"own /proc", "own servers"}
OWN_FOLDERS = ("/tmp", "/workspace", "/packages", "/dev", "/proc", "/run")  # noqa: S108 - the sandbox's own
CGROUP_FIX = (
    "make cgroups writable for this process (systemd: Delegate=yes; root in a container: mount /sys/fs/cgroup "
    "read-write); until then, runs list a weaker memory limit in `degraded`"
)
WITHOUT_CGROUP = {
    "memory": "memory is held by RLIMIT_AS and a watchdog",
    "pids": "processes are held by RLIMIT_NPROC",
    "cpu": "CPU is held by binding a run to processors",
}


def namespace_fix() -> str:
    if APPARMOR.exists() and APPARMOR.read_text().strip() == "1":
        return f"AppArmor forbids user namespaces to ordinary users: sysctl -w {'.'.join(APPARMOR.parts[3:])}=0"
    if MAX_USER_NAMESPACES.exists() and MAX_USER_NAMESPACES.read_text().strip() == "0":
        return "sysctl -w user.max_user_namespaces=10000"
    return "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1 on old Debian); " + CONTAINER


def probe_plan(uid: int, template: Template = Template()) -> dict[str, Any]:  # noqa: B008 - frozen
    """Return a plan with the folders that runs of the template see."""
    machine = platform.machine()
    filters = rules.filters(machine, cgroups=False) if machine in rules.ARCHITECTURE else Filters((), b"")
    plan = make_plan(
        root=os.geteuid() == 0,
        filters=filters,
        cgroups=False,
        private=tuple(map(str, template.private)),
        node=template.node,
        pythons=template.pythons,
    )
    return plan | {"uid": uid}


def tried(name: str, plan: bytes) -> Probe:
    done = subprocess.run(
        [base_python(), "-I", "-S", "-B", "-c", TRY, name],
        cwd=HERE,
        env={},
        input=plan,
        capture_output=True,
        timeout=30,
        check=False,
    )
    ok = done.returncode == 0
    words = (done.stdout if ok else done.stderr + done.stdout).decode(errors="replace").split("\n")
    detail = next((line for line in words if line), f"ended with status {done.returncode}")
    fix = "" if ok else FIXES.get(name) or namespace_fix()
    return Probe(name, ok, detail, fix, required=name not in OPTIONAL)


def cgroup_probes() -> list[Probe]:
    available = groups.find()
    controllers = available.controllers if available else frozenset()
    if available:
        available.close()
    return [cgroup_probe(name, held=name in controllers) for name in CONTROLLERS]


def cgroup_probe(name: str, *, held: bool) -> Probe:
    if held:
        return Probe(f"cgroup {name}", True, "limits all processes of a run together", required=False)
    return Probe(f"cgroup {name}", False, WITHOUT_CGROUP[name], CGROUP_FIX, required=False)


def watchdog_possible() -> bool:
    """Return whether the kernel can list the children of a process (CONFIG_PROC_CHILDREN)."""
    return Path(f"/proc/self/task/{threading.get_native_id()}/children").exists()


def machine_probe() -> Probe:
    ok = sys.platform == "linux" and platform.machine() in rules.ARCHITECTURE
    fix = "" if ok else "use Linux on x86_64 or aarch64"
    if ok and not kernel.IS_BUILT:
        return Probe("machine", False, kernel.MISSING, kernel.REMEDY)
    return Probe("machine", ok, f"{sys.platform} on {platform.machine()}", fix)


def interpreter_probe() -> Probe:
    """Check that the interpreter is not in a folder that the sandbox replaces."""
    covered = [prefix for prefix in prefixes() if any(is_beneath(prefix, folder) for folder in OWN_FOLDERS)]
    fix = f"install Python elsewhere than beneath {', '.join(OWN_FOLDERS)}" if covered else ""
    return Probe("interpreter", not covered, ", ".join(covered or ["/usr", *prefixes()]), fix)


def host_probes(uids: Uids) -> list[Probe]:
    """Return all probes, each after the probes that it depends on. On an unsupported machine, return only its probe."""
    machine = machine_probe()
    if not machine.ok:
        return [machine]
    plan = json.dumps(probe_plan(uids.first)).encode()
    probes = [
        machine,
        interpreter_probe(),
        uids.probe(),
        *(tried(name, plan) for name in host_tests.TRIES),
        *cgroup_probes(),
    ]
    watchdog = watchdog_probe(held=next(probe.ok for probe in probes if probe.name == "cgroup memory"))
    return [*probes, watchdog] if watchdog is not None else probes


def watchdog_probe(*, held: bool) -> Probe | None:
    """Return the probe of the memory watchdog if it cannot work. It is required unless cgroups limit memory: `held`."""
    if watchdog_possible():
        return None
    return Probe("memory watchdog", False, "the processes of a run cannot be listed", WATCHDOG_FIX, required=not held)
