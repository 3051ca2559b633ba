"""Pid 1 of a run makes exactly the recorded system calls, in their order, and names each step that fails.

A tracer (strace) records pid 1 of a run, from its first call until its end as `init`. Numbers of descriptors that the
zygote received, addresses, pids and uids are normalised. `oracle.txt` has all calls of the first order, the differences
of the other orders from it, and the message for each call that the tracer makes fail. The former helper, which was
written in machine code, made these calls: the lists were recorded from it.

If a step is changed on purpose, `SKILLERY_RECORD=1 pytest tests/sandbox/test_oracle.py` records the calls again.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cellblock.inside import kernel
from tests.support.processes import eventually

TESTS = Path(__file__).parents[1]
SERVER = (sys.executable, "-m", "tests.support.oracle_server")
AS_ORDINARY_USER = (sys.executable, str(TESTS / "support" / "ordinary_user.py"))
RECORD = Path(__file__).with_name("oracle.txt")
USUAL: dict[str, Any] = {
    "memory_mb": 256,
    "affinity": [],
    "port": None,
    "sockets": "PAIRS",
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
    "network": {"port": 3128, "sockets": "CLIENTS"},
    "program": {"sockets": "LOOPBACK"},
    "program with network": {"port": 3128, "sockets": "LOOPBACK"},
    "little memory": {"memory_mb": 8},
    "bound processors": {"affinity": sorted(os.sched_getaffinity(0))[:1]},
    "ordinary user": {"user": True},
    "preloaded": {"preloaded": True},
    "without Landlock": {"landlock": False},
    "without procfs": {"inject": f"mount:{FAIL}:when=4"},
}
ENDED = re.compile(r"\+\+\+ (exited|killed)")
FIRST = re.compile(r"dup3\(\d+, 204, O_CLOEXEC\)")


class Server:
    """A server with one zygote. `strace` is the command of the tracer that starts it, or nothing."""

    def __init__(self, strace: Sequence[str], order: dict[str, Any]) -> None:
        user = AS_ORDINARY_USER if order["user"] else ()
        self.process = subprocess.Popen(
            [*strace, *user, *SERVER, json.dumps({name: order[name] for name in ("preloaded", "landlock")})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=TESTS.parent,
        )
        self.zygote = self.read()

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def serve(self, order: dict[str, Any]) -> list[Any]:
        """Return how the run ended."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        ending: list[Any] = json.loads(self.read())
        return ending

    def close(self) -> None:
        self.process.communicate()


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[tuple[bool, bool], Server]]:
    """Yield the running servers by user and preloading. A tracer attaches to their zygotes for each order."""
    started: dict[tuple[bool, bool], Server] = {}
    yield started
    for server in started.values():
        server.close()


Traced = Callable[[dict[str, Any]], tuple[list[str], list[Any]]]


@pytest.fixture
def traced(servers: dict[tuple[bool, bool], Server], tmp_path: Path) -> Traced:
    """Return a function that serves an order, and returns the calls of pid 1 and how the run ended."""

    def traced(order: dict[str, Any]) -> tuple[list[str], list[Any]]:
        order = USUAL | order
        inject = ("--inject", order["inject"]) if "inject" in order else ()
        strace = ["strace", "-ff", "-v", "-s", "200", "-o", str(tmp_path / "calls"), *inject]
        if not order["landlock"]:
            # The zygote asks for the version of Landlock before its first order, so the tracer starts the server.
            server = Server([*strace, "--inject", "landlock_create_ruleset:error=ENOSYS"], order)
            ending = server.serve(order)
            server.close()
        else:
            kind = (order["user"], order["preloaded"])
            if kind not in servers:
                servers[kind] = Server((), order)
            attached = attach(strace, servers[kind].zygote)
            ending = servers[kind].serve(order)
            eventually(lambda: any(lines[-1:] and ENDED.match(lines[-1]) for lines in starting_with(FIRST, tmp_path)))
            attached.send_signal(signal.SIGINT)
            attached.communicate()
        [first] = starting_with(FIRST, tmp_path)
        calls = [normalised(line) for line in first]
        # Cgroups and capabilities are as many as this machine has: equal calls one after another count once.
        return [line for line, before in zip(calls, ["", *calls], strict=False) if line != before], ending

    return traced


def starting_with(first: re.Pattern[str], folder: Path) -> list[list[str]]:
    """Return the calls of each process whose first call matches."""
    calls = [path.read_text().splitlines() for path in folder.glob("calls.*")]
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
    line = re.sub(r"(?<=/dev/null\", O_RDWR\) = )\d+", "LOWEST", line)
    line = re.sub(r"\b1000 \d+ 1\b", "1000 UID 1", line)
    line = re.sub(r"(?<=^sched_setaffinity\(0, 128, \[)\d+", "PROCESSOR", line)
    line = re.sub(r"PR_CAPBSET_DROP, \w+", "PR_CAPBSET_DROP, EACH", line)
    line = re.sub(r"\{len=\d+, filter=.*\}", "FILTER", line)
    line = re.sub(r'^read\(1, ".*", 128\)', "read(1, SIGNALS, 128)", line)
    line = re.sub(r"(?<=allowed_access=)[^,]+", lambda rights: hex(number_of(rights[0])), line)
    line = re.sub(r"\{handled_access_fs=.*\}", "RIGHTS", line)
    line = re.sub(r"(?<=landlock_add_rule\(4, )(0x2|LANDLOCK_RULE_NET_PORT)\b.*, 0\)", "PORT, 0)", line)
    return re.sub(r"^(clone\(.*) = \d+$", r"\1 = PID", line)


RIGHTS = [
    "EXECUTE",
    "WRITE_FILE",
    "READ_FILE",
    "READ_DIR",
    "REMOVE_DIR",
    "REMOVE_FILE",
    "MAKE_CHAR",
    "MAKE_DIR",
    "MAKE_REG",
    "MAKE_SOCK",
    "MAKE_FIFO",
    "MAKE_BLOCK",
    "MAKE_SYM",
    "REFER",
    "TRUNCATE",
    "IOCTL_DEV",
]


def number_of(rights: str) -> int:
    """Return rights of Landlock as a number. A tracer knows only the names of its time."""
    names = [part.removeprefix("LANDLOCK_ACCESS_FS_") for part in rights.split("|")]
    return sum(1 << RIGHTS.index(name) if name in RIGHTS else int(name, 16) for name in names)


def recorded() -> dict[str, str]:
    """Return the sections of the record by their titles."""
    sections = re.split(r"^== (.*)\n", RECORD.read_text(), flags=re.MULTILINE)
    return {title: text.rstrip("\n") for title, text in zip(sections[1::2], sections[2::2], strict=True)}


def described(name: str, calls: list[str], usual: list[str]) -> str:
    """Return the section of an order."""
    if name == "default":
        return "\n".join(calls)
    return "\n".join([*difflib.unified_diff(usual, calls, n=0, lineterm="")][2:])


@pytest.mark.skipif(kernel.landlock_version() < 6, reason="the record is of a kernel with Landlock 6")
@pytest.mark.parametrize("name", ORDERS)
def test_pid_1_makes_the_recorded_calls(name: str, traced: Traced) -> None:
    calls, ending = traced(ORDERS[name])
    sections = recorded()
    section = described(name, calls, sections.get("default", "").splitlines())
    if os.environ.get("SKILLERY_RECORD"):
        parts = (f"== {title}\n{text}\n" for title, text in (sections | {name: section}).items())
        RECORD.write_text("\n".join(parts))
    assert section == recorded()[name]
    assert ending == ["ended", 256, "", ""]
    assert calls[-2:] == ["exit_group(0) = ?", "+++ exited with 0 +++"]
    assert any(line.startswith('execve("/run/cellblock/init"') for line in calls)


@pytest.mark.parametrize("name", ["default", "ordinary user", "preloaded"])
def test_pid_1_is_traceable_only_until_it_has_met_the_server(name: str, traced: Traced) -> None:
    """The user namespace belongs to the uid of the run, so until then, a process of the host with this uid can trace
    pid 1, which may share the memory of the zygote.
    """
    calls, _ = traced(ORDERS[name])
    at = next(index for index, line in enumerate(calls) if "PR_SET_DUMPABLE, SUID_DUMP_DISABLE" in line)
    assert re.match(r"close\(4\)|read\(204", calls[at - 1])


# Each call is one that the zygote of an ordinary user does not make for a run with a network list. Left out are
# the first call, which has no socket yet to report on, and the calls after the last step of the lockdown: then the
# filter kills a process whose call the tracer replaces.
NETWORK = {"user": True, "port": 3128, "sockets": "LOOPBACK", "affinity": sorted(os.sched_getaffinity(0))[:1]}
FAULTS = dict(line.split(" ", 1) for line in recorded()["faults"].splitlines())


@pytest.mark.parametrize("fault", FAULTS)
def test_failed_step_is_named_as_recorded(fault: str, traced: Traced) -> None:
    call, _, when = fault.partition(":")
    # An ordinary user has no cgroups here.
    order = {"port": 3128} if FAULTS[fault].startswith("cgroup") else NETWORK
    _, ending = traced(order | {"inject": f"{call}:{FAIL}:{when}"})
    assert ending[0] == "failed"
    assert ending[2] == FAULTS[fault]


def test_run_fails_if_its_procfs_fails_unless_refused(traced: Traced) -> None:
    """The order "without procfs" has the other case: the kernel or a policy of the host refuses."""
    _, ending = traced(NETWORK | {"inject": "mount:error=ENOMEM:when=4"})
    assert ending[2] == "mount proc /proc: ENOMEM"
