"""Both helpers make the same system calls: the one in C, and the machine code that it replaces.

A tracer (strace) records pid 1 of a run, from its first call until its end as `init`. Numbers of descriptors that the
zygote received, addresses, pids and uids are normalised. Then each step is made to fail, and both helpers must name it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import eventually

TESTS = Path(__file__).parents[1]
SERVER = (sys.executable, "-m", "tests.support.oracle_server")
AS_ORDINARY_USER = (sys.executable, str(TESTS / "support" / "ordinary_user.py"))
HELPERS = ("hex", "c")
USUAL: dict[str, Any] = {
    "memory_mb": 256,
    "affinity": [],
    "port": None,
    "preloaded": False,
    "landlock": True,
    "user": False,
}
FAIL = "error=EPERM"
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can trace a zygote"),
    pytest.mark.skipif(shutil.which("strace") is None, reason="this machine has no strace"),
]
ORDERS: dict[str, dict[str, Any]] = {
    "default": {},
    "network": {"port": 3128},
    "little memory": {"memory_mb": 8},
    "bound processors": {"affinity": sorted(os.sched_getaffinity(0))[:1]},
    "ordinary user": {"user": True},
    "preloaded": {"preloaded": True},
    "without Landlock": {"landlock": False},
    "without procfs": {"inject": f"mount:{FAIL}:when=4"},
}
ENDED = re.compile(r"\+\+\+ (exited|killed)")
FIRST = re.compile(r"dup3\(\d+, 204, O_CLOEXEC\)")


def traced(helper: str, order: dict[str, Any], folder: Path) -> tuple[list[str], list[Any]]:
    """Serve the order. Return the calls of pid 1, and how the run ended."""
    order = USUAL | order
    inject, is_user = order.pop("inject", None), order.pop("user")
    folder.mkdir()
    strace = [
        "strace",
        "-ff",
        "-v",
        "-s",
        "200",
        "-o",
        str(folder / "calls"),
        *(["--inject", inject] if inject else []),
    ]
    # The zygote asks for the version of Landlock before its first order, so the tracer starts the server then.
    whole = [*strace, "--inject", "landlock_create_ruleset:error=ENOSYS"] if not order["landlock"] else []
    command = [*whole, *(AS_ORDINARY_USER if is_user else ()), *SERVER, json.dumps(order)]
    environment = {**os.environ, "CELLBLOCK_HELPER": helper}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=TESTS.parent
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        zygote = server.stdout.readline().strip()
        attached = attach(strace, zygote) if not whole else None
        server.stdin.write("go\n")
        server.stdin.flush()
        ending = server.stdout.readline()
        if attached is not None:
            eventually(lambda: any(lines[-1:] and ENDED.match(lines[-1]) for lines in starting_with(FIRST, folder)))
            attached.send_signal(signal.SIGINT)
            attached.communicate()
        server.communicate()
    [first] = starting_with(FIRST, folder)
    return [normalised(line) for line in first], json.loads(ending)


def starting_with(first: re.Pattern[str], folder: Path) -> list[list[str]]:
    """Return the calls of each process whose first call matches."""
    calls = [path.read_text().splitlines() for path in folder.iterdir()]
    return [lines for lines in calls if lines and first.match(lines[0])]


def attach(strace: list[str], pid: str) -> subprocess.Popen[str]:
    tracer = subprocess.Popen([*strace, "-p", pid], stderr=subprocess.PIPE, text=True)
    assert tracer.stderr is not None
    assert "attached" in tracer.stderr.readline()
    return tracer


def normalised(line: str) -> str:
    line = re.sub(r" +", " ", line)  # the results are aligned
    line = re.sub(r"0x[0-9a-f]{6,}", "ADDRESS", line)
    line = re.sub(r"^(dup3|write)\((?!204)(?:\d\d+|[3-9])(?=, (?:[0-3], 0|204, O_CLOEXEC|\"0\"))", r"\1(RECEIVED", line)
    line = re.sub(r"\b1000 \d+ 1\b", "1000 UID 1", line)
    line = re.sub(r"(si_pid|si_uid|si_utime|si_stime)=\d+", r"\1=N", line)
    return re.sub(r"^(clone\(.*) = \d+$", r"\1 = PID", line)


@pytest.mark.parametrize("name", ORDERS)
def test_pid_1_makes_the_same_calls_with_both_helpers(name: str, tmp_path: Path) -> None:
    found = {helper: traced(helper, ORDERS[name], tmp_path / helper) for helper in HELPERS}
    assert "\n".join(found["c"][0]) == "\n".join(found["hex"][0])
    assert found["c"][1] == found["hex"][1]
    calls, ending = found["c"]
    assert ending[0] == "ended", ending
    assert calls[-2:] == ["exit_group(0) = ?", "+++ exited with 0 +++"]
    assert any(line.startswith('execve("/run/skillery/init"') for line in calls)


# Each call is one that the zygote of an ordinary user does not make for a run with a network list. Left out are
# the first call, which has no socket yet to report on, and the calls after the last step of the lockdown: then the
# filter kills a process whose call the tracer replaces.
NETWORK = {"user": True, "port": 3128, "affinity": sorted(os.sched_getaffinity(0))[:1]}
FAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "write:when=1": ("cgroup: EPERM", {"port": 3128}),
    "unshare:when=1": ("unshare: EPERM", NETWORK),
    "dup3:when=5": ("descriptors: EPERM", NETWORK),
    "close_range:when=2": ("close_range: EPERM", NETWORK),
    "prctl:when=1": ("dumpable: EPERM", NETWORK),
    "openat:when=1": ("write setgroups: EPERM", NETWORK),
    "write:when=2": ("write uid_map: EPERM", NETWORK),
    "write:when=3": ("write gid_map: EPERM", NETWORK),
    "openat:when=4": ("mounts: EPERM", NETWORK),
    "setresgid:when=1": ("gid: EPERM", NETWORK),
    "setresuid:when=1": ("uid: EPERM", NETWORK),
    "mount:when=1": ("mount tmpfs /workspace: EPERM", NETWORK),
    "mount:when=2": ("mount tmpfs /tmp: EPERM", NETWORK),
    "mount:when=3": ("mount tmpfs /dev/shm: EPERM", NETWORK),
    "mount:when=4+": ("mount tmpfs /proc: EPERM", NETWORK),
    "chdir:when=1": ("chdir: EPERM", NETWORK),
    "sched_setaffinity:when=1": ("affinity: EPERM", NETWORK),
    "socket:when=1": ("the way to the network: EPERM", NETWORK),
    "ioctl:when=1": ("the way to the network: EPERM", NETWORK),
    "bind:when=1": ("the way to the network: EPERM", NETWORK),
    "listen:when=1": ("the way to the network: EPERM", NETWORK),
    "prctl:when=2": ("securebits: EPERM", NETWORK),
    "prctl:when=3": ("ambient capabilities: EPERM", NETWORK),
    "prctl:when=4": ("bounding set: EPERM", NETWORK),
    "landlock_create_ruleset:when=1": ("landlock: EPERM", NETWORK),
    "openat:when=5": ("open: EPERM", NETWORK),
    "landlock_add_rule:when=1": ("landlock rule: EPERM", NETWORK),
    "prlimit64:when=1": ("limits: EPERM", NETWORK),
    "capset:when=1": ("capset: EPERM", NETWORK),
    "landlock_restrict_self:when=1": ("landlock_restrict_self: EPERM", NETWORK),
    "seccomp:when=1": ("seccomp: EPERM", NETWORK),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("helper", HELPERS)
def test_failed_step_has_the_same_name_with_both_helpers(helper: str, fault: str, tmp_path: Path) -> None:
    call, _, when = fault.partition(":")
    expected, order = FAULTS[fault]
    _, ending = traced(helper, order | {"inject": f"{call}:{FAIL}:{when}"}, tmp_path / "calls")
    assert ending[0] == "failed"
    assert ending[2] == expected
