"""packaging/seccomp.json and packaging/apparmor fit the sources of the sandbox, and the sandbox works with them."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from cellblock.filter import calls
from tests.support import oci

ROOT = Path(__file__).parents[2]
PACKAGING, CELLBLOCK = ROOT / "packaging", ROOT / "packages/cellblock"
SECCOMP = PACKAGING / "seccomp.json"
APPARMOR = (PACKAGING / "apparmor").read_text("utf-8")
SOURCES = [*(CELLBLOCK / "native").glob("*.c"), *(CELLBLOCK / "src/cellblock/inside").glob("*.py")]
NOT_ORDINARY = {"mount", "mount_setattr", "move_mount", "open_tree", "pivot_root", "sethostname", "setns"}
NOT_ORDINARY |= {"umount2", "unshare"}
REASON = "neither runc nor crun is installed (Debian packages), or this user is not root"
needs_containers = pytest.mark.skipif(oci.engine() is None or os.geteuid() != 0, reason=REASON)
PROGRAMS = Path(sys.prefix) / "bin"
TRY = """
import ctypes, json, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def refusal(number):
    return ctypes.get_errno() if libc.syscall(number, 0, 0, 0, 0, 0) < 0 else 0
def refusal_of_family(number, kind):
    try: socket.socket(number, kind).close()
    except OSError as error: return error.errno
    return 0
algorithms = refusal_of_family(socket.AF_ALG, socket.SOCK_SEQPACKET)
print(json.dumps([*map(refusal, json.loads(sys.argv[1])), algorithms]))
"""


def entries() -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(SECCOMP.read_text("utf-8"))["syscalls"]
    return listed


def allowed() -> set[str]:
    return {name for entry in entries() if entry["action"] == "SCMP_ACT_ALLOW" for name in entry["names"]}


def names(*tables: str) -> set[str]:
    return {entry.partition(":")[0] for table in tables for entry in table.split()}


def test_seccomp_profile_is_that_of_the_sources() -> None:
    written = runpy.run_path(str(PACKAGING / "container_profiles.py"))

    assert json.loads(SECCOMP.read_text("utf-8")) == written["profile"](), "run python packaging/container_profiles.py"


def test_seccomp_profile_has_the_calls_of_runs_and_nine_more() -> None:
    of_runs = names(calls.ALLOWED, calls.BY_ARGUMENT, calls.ONLY_WITH_CGROUPS, calls.IGNORED, calls.UNSUPPORTED)

    assert allowed() - of_runs == NOT_ORDINARY
    assert of_runs <= allowed()
    refused = {name for entry in entries() if entry["action"] == "SCMP_ACT_ERRNO" for name in entry["names"]}
    assert refused == names(calls.FORBIDDEN) - NOT_ORDINARY


def test_apparmor_profile_allows_the_steps_of_the_sandbox() -> None:
    rules = set(re.findall(r"^  (?!deny|#|include)(.+),$", APPARMOR, re.MULTILINE))
    families = {entry["args"][0]["value"] for entry in entries() if entry["names"] == ["socket"]}

    assert {"userns", "mount", "umount", "pivot_root", "capability", "file"} <= rules
    named = {"unix": 1, "inet": 2, "inet6": 10, "netlink raw": 16}
    assert {rule for rule in rules if rule.startswith("network")} == {f"network {name}" for name in named}
    assert set(named.values()) == families


def test_apparmor_profile_denies_no_file_that_the_sandbox_writes() -> None:
    denied = re.findall(r"^  deny (\S+) ", APPARMOR, re.MULTILINE)
    source = "".join(path.read_text("utf-8") for path in SOURCES)
    written = set(re.findall(r"/proc/(?:sys|self)/[\w/]+", source)) | {"/sys/fs/cgroup/memory/tasks"}

    assert "/proc/sys/net/ipv4/tcp_rmem" in written
    patterns = [re.compile(in_regular_expressions(pattern)) for pattern in denied]
    assert any(pattern.fullmatch("/proc/sys/kernel/core_pattern") for pattern in patterns)
    assert [path for path in written for pattern in patterns if pattern.fullmatch(path)] == []


def in_regular_expressions(pattern: str) -> str:
    """Translate a pattern of AppArmor: alternatives in braces, and `**` for any path."""
    alternatives = re.sub(
        r"\{([^}]*)\}", lambda match: f"(?:{match[1].replace(',', '|')})", pattern.replace("@{PROC}", "/proc")
    )
    return alternatives.replace("**", ".*")


@pytest.mark.skipif(shutil.which("apparmor_parser") is None, reason="apparmor_parser is not installed")
def test_apparmor_parser_accepts_the_profile(tmp_path: Path) -> None:
    version = subprocess.run(["apparmor_parser", "--version"], capture_output=True, text=True, check=True).stdout
    lines = APPARMOR.splitlines(keepends=True)
    if int(re.findall(r"version (\d+)", version)[0]) < 4:  # older parsers know neither this ABI nor the rule
        lines = [line for line in lines if line.strip() not in {"abi <abi/4.0>,", "userns,"}]
    (tmp_path / "profile").write_text("".join(lines))
    command = ["apparmor_parser", "--skip-kernel-load", "--skip-cache", str(tmp_path / "profile")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


@needs_containers
@pytest.mark.full
def test_profile_refuses_calls_and_sockets_that_nothing_needs() -> None:
    forbidden = calls.numbers(calls.FORBIDDEN, platform.machine())
    numbers = [forbidden[name] for name in ("ptrace", "bpf", "keyctl", "perf_event_open", "add_key", "userfaultfd")]
    command = (str(PROGRAMS / "python"), "-c", TRY, json.dumps(numbers))

    done = oci.run(command, SECCOMP)

    assert json.loads(done.stdout) == [*[errno.EPERM] * len(numbers), errno.ENOSYS], done.stderr


@needs_containers
@pytest.mark.full
@pytest.mark.parametrize("kind", get_args(oci.Kind))
def test_doctor_in_a_container_finds_all_that_it_requires(kind: oci.Kind) -> None:
    command = (str(PROGRAMS / "cellblock"), "doctor", "--json")

    done = oci.run(command, SECCOMP, kind)

    assert done.stdout, done.stderr
    probes = {probe["name"]: probe for probe in json.loads(done.stdout)}
    assert [name for name, probe in probes.items() if probe["required"] and not probe["ok"]] == []
    optional = {name: probes[name]["ok"] for name in ("own /proc", "own servers")}
    assert optional == dict.fromkeys(optional, kind != "masked")


@needs_containers
@pytest.mark.full
@pytest.mark.long
def test_sandbox_passes_its_contract_in_a_container_with_the_profile() -> None:
    """The first example of each case is enough: the others make the same system calls."""
    suite = ("tests/sandbox/test_sandbox_linux.py", "-k", "TestLinuxSandbox")
    python = (str(PROGRAMS / "python"), "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "--full=none")

    done = oci.run((*python, *suite), SECCOMP)

    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
