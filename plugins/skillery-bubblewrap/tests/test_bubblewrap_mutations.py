"""Mutation tests: each step of the lockdown is removed in turn, and a case must fail.

The steps are in the launcher, in bwrap's arguments and in the prologue.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

import test_bubblewrap_contract
import test_bubblewrap_lockdown
from bubblewrap_changed import Edit, changed_copy, use_changed
from bubblewrap_here import make
from skillery.errors import SandboxUnavailable
from skillery.testing.sandbox import Trial
from tests.sandbox import test_sandbox_lockdown
from tests.sandbox.test_mutations import MUTATED_SECONDS, attempt, failed_attempts
from tests.support import processes

COMMAND, LAUNCHER, PROLOGUE = "package/command.py", "package/inside/launcher.py", "package/inside/prologue.py"
LOCKDOWN, LOCKING = "inside/lockdown.py", "package/inside/locking.py"
SUITES = (
    test_bubblewrap_lockdown.TestLockdown,
    test_bubblewrap_contract.TestBubblewrap,
    test_bubblewrap_contract.TestBubblewrapFunctions,
    test_sandbox_lockdown.TestLockdown,
)
pytestmark = pytest.mark.full
only_as_root = pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's server does not have these steps")
BLIND: Edit = (PROLOGUE, "        if wrong:\n", "        if False:\n")
OWN = "test_every_namespace_is_the_runs_own"
ONE_USER = "test_code_runs_as_single_user_and_group"
RIGHTS = "test_no_capability_is_left_and_none_can_be_gained"
LIMITS = "test_each_process_has_limits_of_its_own"
READ_ONLY = "test_each_place_of_the_host_is_read_only"
SERVERS_USER = "test_no_process_is_the_servers_user"
SIZES = "test_many_files_hold_no_more_than_their_folder"
FILES = "test_a_folder_holds_only_so_many_files"
UNNAMED: Edit = (COMMAND, ', "--hostname", "sandbox"', "")
EACH = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net", "--unshare-cgroup")


class Mutation(msgspec.Struct, frozen=True):
    """With these edits, `case` fails.

    If `refused` is set, no run passes its set-up, and the error contains these words.
    """

    edits: tuple[Edit, ...]
    case: str = ""
    refused: str = ""
    seen_inside: str = ""
    """The words of the prologue's self-check, if it detects the mutation."""


def one(file: str, old: str, new: str, case: str = "", **more: str) -> Mutation:
    return msgspec.convert({"edits": ((file, old, new),), "case": case, **more}, Mutation)


def shared(name: str, case: str = OWN, **more: str) -> Mutation:
    """Share one namespace with the host. All others stay separate."""
    rest = ", ".join(f'"{flag}"' for flag in EACH if flag != f"--unshare-{name}")
    return one(COMMAND, '"--unshare-all", "--unshare-user"', rest, case, **more)


def limit(name: str, value: str) -> Mutation:
    return one(LOCKING, f"        resource.RLIMIT_{name}: {value},\n", "", LIMITS)


def size(folder: str, name: str, example: str) -> Mutation:
    """Remove the size in bwrap's arguments and in the prologue, because both set it."""
    first: Edit = (COMMAND, f'"{name}"', '"address_bytes"')
    second: Edit = (PROLOGUE, f'limits["{name}"]', 'limits["address_bytes"]')
    return Mutation((first, second), f"{SIZES}[{folder}-{example}]")


MUTATIONS: dict[str, Mutation] = {
    # -- the launcher
    "an empty environment": one(
        LAUNCHER,
        'order["command"], {})',
        'order["command"], dict(os.environ))',
        "test_no_process_is_started_with_a_variable",
    ),
    "the cgroups": one(
        LAUNCHER,
        '        os.write(file, b"0")\n',
        "",
        "test_every_process_is_in_the_groups_of_its_run",
    ),
    "groups of the server": one(
        LAUNCHER, "    os.setgroups([])\n", "", "test_no_group_of_the_server_is_left_to_any_process"
    ),
    "the gid": one(LAUNCHER, "    os.setresgid(uid, uid, uid)\n", "", SERVERS_USER),
    "the uid": one(LAUNCHER, "    os.setresuid(uid, uid, uid)\n", "", SERVERS_USER),
    # -- bwrap's arguments
    "the pid namespace": shared("pid", "", refused="Operation not permitted"),
    "the ipc namespace": shared("ipc"),
    "the uts namespace": Mutation((*shared("uts").edits, UNNAMED), OWN),
    "the net namespace": shared("net", "", refused="Operation not permitted"),
    "the cgroup namespace": shared("cgroup"),
    "a session of its own": one(COMMAND, ', "--new-session"', "", "test_pid_1_has_a_session_of_its_own"),
    "the uid inside": one(COMMAND, '"--uid", "1000"', '"--uid", "1"', ONE_USER, seen_inside="uids"),
    "the gid inside": one(COMMAND, '"--gid", "1000"', '"--gid", "1"', ONE_USER, seen_inside="gids"),
    "a name of its own": one(COMMAND, ', "--hostname", "sandbox"', "", "test_the_machine_has_another_name_inside"),
    "a filter for pid 1": one(
        COMMAND,
        ', "--seccomp", str(numbers.filter)]',
        "]",
        "test_pid_1_and_the_code_are_held_by_filters",
    ),
    "the rights of pid 1": one(
        COMMAND,
        '"CAP_NET_ADMIN", "CAP_SETPCAP")',
        '"CAP_NET_ADMIN")',
        refused="securebits",
    ),
    "a read-only /usr": one(COMMAND, '("--ro-bind", "/usr", "/usr")', '("--bind", "/usr", "/usr")', READ_ONLY),
    "read-only skills": one(
        COMMAND, '("--ro-bind", sources.path(skill.folder', '("--bind", sources.path(skill.folder', READ_ONLY
    ),
    "read-only blobs": one(
        COMMAND, '("--ro-bind", sources.path(blob.path', '("--bind", sources.path(blob.path', READ_ONLY
    ),
    "a read-only runtime": one(
        COMMAND,
        '["--ro-bind", sources.path(source, "the runtime")',
        '["--bind", sources.path(source, "the runtime")',
        READ_ONLY,
    ),
    "a read-only root": one(COMMAND, '"--remount-ro", "/", "--chdir"', '"--chdir"', READ_ONLY),
    "hidden packages": one(COMMAND, "    options += fixed.packages\n", "", "test_no_installed_package_is_there"),
    "harmless devices": one(
        COMMAND,
        "    for name in root.DEVICES:\n",
        '    for name in (*root.DEVICES, "tty"):\n',
        "test_root_dev_and_run_contain_only_allowed_entries",
    ),
    "the size of /workspace": size("/workspace", "disk_bytes", "8"),
    "the size of /tmp": size("/tmp", "tmp_bytes", "4"),
    "the size of /dev/shm": size("/dev/shm", "shm_bytes", "64"),
    # -- the prologue, and the shared modules that it uses
    "the files of /workspace": one(PROLOGUE, 'limits["disk_files"] + 1', "0", f"{FILES}[/workspace-100]"),
    "the files of /tmp": one(PROLOGUE, 'limits["tmp_bytes"], 4096', 'limits["tmp_bytes"], 0', f"{FILES}[/tmp-4096]"),
    "the files of /dev/shm": one(
        PROLOGUE, 'limits["shm_bytes"], 1024', 'limits["shm_bytes"], 0', f"{FILES}[/dev/shm-1024]"
    ),
    "what proc shows": one(PROLOGUE, '"hidepid=2,subset=pid"', '""', "test_other_processes_are_not_seen"),
    "hidepid": one(PROLOGUE, '"hidepid=2,subset=pid"', '"subset=pid"', "test_other_processes_are_not_seen"),
    "an umask": one(PROLOGUE, "os.umask(0o022)", "os.umask(0)", "test_the_code_is_unprivileged"),
    "no loopback": one(
        PROLOGUE,
        "        take_lo_down()\n",
        "        pass\n",
        "test_its_loopback_is_down_and_has_no_address",
    ),
    "the bounding set": one(
        LOCKDOWN,
        'kernel.prctl("bounding set", kernel.PR_CAPBSET_DROP, capability)',
        "break",
        RIGHTS,
        seen_inside="CapBnd",
    ),
    "securebits": one(
        LOCKDOWN,
        'kernel.prctl("securebits", kernel.PR_SET_SECUREBITS, SECUREBITS)',
        "pass",
        "test_code_runs_with_locked_securebits",
    ),
    "capset": one(
        LOCKING, "    lockdown.keep_capabilities(0)\n    kernel.prctl", "    kernel.prctl", RIGHTS, seen_inside="CapEff"
    ),
    "descriptors": one(
        LOCKING,
        "kernel.close_others({*keep, ruleset} if ruleset >= 0 else keep)",
        "pass",
        "test_only_the_streams_and_the_channel_are_open",
        seen_inside="descriptors",
    ),
    "Landlock": one(
        LOCKING,
        "landlock.enforce(ruleset)",
        "kernel.close_others({0, 1, 2, 3})",
        "test_code_cannot_write_its_proc_files",
    ),
    "seccomp": one(LOCKING, "    lockdown.load_filter(program)\n", "", "test_pid_1_and_the_code_are_held_by_filters"),
    "the limit on core dumps": limit("CORE", "1"),
    "the limit on processes": limit("NPROC", 'limits["processes"] + 1'),
    "the limit on descriptors": limit("NOFILE", 'limits["descriptors"]'),
    "the limit on the size of files": limit("FSIZE", 'limits["file_bytes"]'),
    "the limit on locked memory": limit("MEMLOCK", "0"),
    "the limit on message queues": limit("MSGQUEUE", "0"),
    "the limit on address space": limit("AS", 'limits["address_bytes"]'),
    "the limit on waiting signals": limit("SIGPENDING", "1024"),
    "the limit on the stack": limit("STACK", "8 << 20"),
    "the limit on processor time": one(PROLOGUE, '        lockdown.set_cpu_time(job["cpu_seconds"])\n', "", LIMITS),
}
"""Some steps have no mutation, because bwrap or another step has the same effect alone.

These are bwrap's --unshare-user (an ordinary uid cannot make a namespace otherwise), --cap-drop, --clearenv (its
environment is empty), no_new_privs of the prologue (bwrap sets it), limits of priority (no process here has any), and
the end with the server (a run ended even without --die-with-parent and the launcher's parent death signal). Folder
sizes are set twice, and both are removed together.
"""


def change(folder: Path, monkeypatch: pytest.MonkeyPatch, *edits: Edit) -> None:
    changed = changed_copy(folder, edits)
    use_changed(changed, monkeypatch.setattr)
    monkeypatch.setenv("SKILLERY_TEST_CHANGED", str(changed))  # for servers that a case starts
    if edits != (BLIND,):
        monkeypatch.setattr(processes, "PATIENCE_SECONDS", MUTATED_SECONDS)


@only_as_root
@pytest.mark.parametrize("name", MUTATIONS)
async def test_a_step_that_is_missing_is_noticed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case must detect the missing step, so the self-check of the prologue is switched off too."""
    mutation = MUTATIONS[name]
    change(tmp_path, monkeypatch, BLIND, *mutation.edits)
    sandbox = make(tmp_path)
    try:
        if mutation.refused:
            with pytest.raises(SandboxUnavailable, match=mutation.refused):
                await sandbox.start()
            return
        await sandbox.start()
        await Trial(sandbox, tmp_path).is_well()  # runs still work, so a failure below comes from the case
        with pytest.raises((AssertionError, pytest.fail.Exception, TimeoutError)):
            await attempt(mutation.case, sandbox, tmp_path, SUITES)
    finally:
        await sandbox.close()


@only_as_root
@pytest.mark.parametrize("name", [name for name, mutation in MUTATIONS.items() if mutation.seen_inside])
async def test_a_step_that_is_missing_stops_the_run_before_any_code(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(tmp_path, monkeypatch, *MUTATIONS[name].edits)
    sandbox = make(tmp_path)
    try:
        with pytest.raises(SandboxUnavailable, match=rf"posture: .*{MUTATIONS[name].seen_inside}"):
            await sandbox.start()
    finally:
        await sandbox.close()


@only_as_root
async def test_without_a_change_each_of_these_cases_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cases pass with the copy and without the self-check, so they fail only because of the missing step."""
    change(tmp_path, monkeypatch, BLIND)
    sandbox = make(tmp_path)
    await sandbox.start()
    try:
        assert await failed_attempts(MUTATIONS.values(), sandbox, tmp_path, SUITES) == {}
    finally:
        await sandbox.close()
