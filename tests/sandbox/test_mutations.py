"""Mutation tests: each step of the lockdown is removed or moved in turn, and a case must fail.

The test copies the programs between the server and the code, changes one line of the copy, and starts the real backend
with it: unchanged, and without the self-check, so that the case itself must detect the missing step. A mutation fails
if its old text does not occur exactly once, so a rewritten step needs a new mutation.

SKILLERY_MUTATIONS=all (`make mutations`) runs the whole contract for each mutation and prints the failing cases.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest

from cellblock.host import zygotes
from skillery.backends import Place, Sandbox
from skillery.builtin.linux_sandbox import LinuxSandboxSettings, open_sandbox
from skillery.builtin.linux_sandbox.sandbox import LinuxSandbox
from skillery.errors import SandboxUnavailable
from skillery.testing.sandbox import Trial
from tests.sandbox import test_sandbox_linux, test_sandbox_lockdown
from tests.support import native, processes
from tests.support.processes import eventually, eventually_async

CELL = zygotes.HERE / "inside"
TESTS = Path(__file__).parents[1]
native_build = native.load()
EVERYTHING = os.environ.get("SKILLERY_MUTATIONS") == "all"
SUITES = (test_sandbox_lockdown.TestLockdown, test_sandbox_linux.TestLinuxSandbox)
pytestmark = pytest.mark.full
only_as_root = pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's server does not have these steps")


class Mutation(msgspec.Struct, frozen=True):
    """With `new` instead of `old` in `file` of the cell, `case` fails. A `[…]` after its name selects one example."""

    file: str
    old: str
    new: str
    case: str = ""
    refused: str = ""
    """Words of the error if no run passes its set-up without this step. Then there is no case."""
    seen_inside: str = ""
    """Words of the self-check, if it detects the mutation."""
    beside: str = ""
    """Another mutation that must be applied too, because either step alone has the same effect."""
    prepared: int = 0


BLIND = (
    Mutation("cell.c", "    if (wrong)\n        broken(wrong);\n", ""),
    Mutation("root.py", '    raise kernel.SetupError(f"posture: {deviation}")\n', "    return\n"),
)
"""Changes that switch off the self-check of a run, and that of the zygote."""
LIMITS = "test_each_process_has_limits_of_its_own"
MOUNTS = "test_each_mount_has_minimal_options"
OWN = "test_every_namespace_is_the_runs_own"
RIGHTS = "test_no_capability_is_left_and_none_can_be_gained"
FROM_OUTSIDE = "test_seen_from_the_host_every_process_of_a_run_is_locked"
RULES = "    long ruleset = run->landlock > 0 ? landlock_rules(run) : -1;\n    set_limits(run);\n"
SIZES = "test_many_files_hold_no_more_than_their_folder"
FILES = "test_a_folder_holds_only_so_many_files"


def limit(name: str, value: str) -> Mutation:
    return Mutation("cell.c", f"{{RLIMIT_{name}, {value}}},", "", LIMITS)


MUTATIONS: dict[str, Mutation] = {
    # -- the lockdown in cell.c, and lockdown.py
    "the bounding set": Mutation(
        "cell.c", 'PRCTL("bounding set", PR_CAPBSET_DROP, capability, 0)', "break", RIGHTS, seen_inside="capabilities"
    ),
    "securebits": Mutation(
        "cell.c", 'PRCTL("securebits", PR_SET_SECUREBITS, SECUREBITS, 0);', "", "test_code_runs_with_locked_securebits"
    ),
    "capset": Mutation("cell.c", 'MUST("capset", SYS_capset, header, none);', "", RIGHTS, seen_inside="capabilities"),
    "no new privileges": Mutation(
        "cell.c", 'PRCTL("no_new_privs", PR_SET_NO_NEW_PRIVS, 1, 0);', "", refused="landlock_restrict_self"
    ),
    "descriptors": Mutation(
        "cell.c",
        'MUST("close_range", SYS_close_range, CONTROL + 1, 0xFFFFFFFFL, 0);',
        'MUST("close_range", SYS_close_range, CONTROL + 1, SLOTS_FROM - 1, 0);',
        "test_only_the_streams_and_the_channel_are_open",
        seen_inside="descriptors",
    ),
    "the descriptor of pid 1": Mutation(
        "cell.c",
        "    CLOSE(CONTROL);\n",
        "",
        "test_only_the_streams_and_the_channel_are_open",
        seen_inside="descriptors",
    ),
    "Landlock": Mutation(
        "cell.c",
        'MUST("landlock_restrict_self", SYS_landlock_restrict_self, ruleset, 0);',
        "",
        "test_code_cannot_write_its_proc_files",
        seen_inside="Landlock is not in force",
    ),
    "seccomp": Mutation(
        "cell.c",
        'MUST("seccomp", SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter);',
        "",
        "test_terminal_injection_is_refused_whatever_the_high_bits_say",
        seen_inside="forbidden system call",
    ),
    "the limit on core dumps": limit("CORE", "1, 1"),
    "the limit on processes": limit("NPROC", "order->processes + 1, order->processes + 1"),
    "the limit on descriptors": limit("NOFILE", "order->descriptors, order->descriptors"),
    "the limit on the size of files": limit("FSIZE", "order->file_bytes, order->file_bytes"),
    "the limit on locked memory": limit("MEMLOCK", "0, 0"),
    "the limit on message queues": limit("MSGQUEUE", "0, 0"),
    "the limit on address space": limit("AS", "order->address_bytes, order->address_ceiling"),
    "the limit on processor time": Mutation(
        "lockdown.py", "    hold(resource.RLIMIT_CPU, seconds, seconds)\n", "    pass\n", LIMITS
    ),
    "the limit on waiting signals": limit("SIGPENDING", "1024, 1024"),
    "the limit on the stack": limit("STACK", "8 << 20, 8 << 20"),
    "the limit on real-time priority": limit("RTPRIO", "0, 0"),
    "the limit on niceness": limit("NICE", "0, 0"),
    "Landlock on ports": Mutation(
        "kernel.h",
        "CONNECT_TCP = 2, ALL_TCP = 3",
        "CONNECT_TCP = 1, ALL_TCP = 1",
        "test_the_proxy_is_the_only_port_where_lo_is_up",
    ),
    "Landlock on what lies in the root": Mutation(
        "cell.c",
        'allow(ruleset, "/", EXECUTE |',
        'allow(ruleset, "/", WRITE_FILE | EXECUTE |',
        "test_code_cannot_write_its_proc_files",
        seen_inside="Landlock is not in force",
    ),
    # -- root.py
    "hidden packages": Mutation(
        "root.py",
        "        hide(folder)\n",
        "        pass\n",
        "test_no_installed_package_is_there",
        seen_inside="packages is not empty",
    ),
    "a read-only root": Mutation(
        "root.py", '    kernel.set_mount_attributes("/", FROZEN, recursive=False)\n', "", MOUNTS
    ),
    "read-only mounts of the host's folders": Mutation(
        "root.py", "FROZEN = QUIET | kernel.ATTR_RDONLY", "FROZEN = QUIET", MOUNTS
    ),
    "nosuid on the host's folders": Mutation(
        "root.py", "QUIET = kernel.ATTR_NOSUID | kernel.ATTR_NODEV", "QUIET = kernel.ATTR_NODEV", MOUNTS
    ),
    "nodev on the host's folders": Mutation(
        "root.py", "QUIET = kernel.ATTR_NOSUID | kernel.ATTR_NODEV", "QUIET = kernel.ATTR_NOSUID", MOUNTS
    ),
    "noexec on devices": Mutation(
        "root.py",
        'f"/dev/{name}", kernel.ATTR_NOSUID | kernel.ATTR_NOEXEC)',
        'f"/dev/{name}", kernel.ATTR_NOSUID)',
        MOUNTS,
    ),
    "nosuid on devices": Mutation(
        "root.py",
        'f"/dev/{name}", kernel.ATTR_NOSUID | kernel.ATTR_NOEXEC)',
        'f"/dev/{name}", kernel.ATTR_NOEXEC)',
        MOUNTS,
    ),
    "devices of its own": Mutation(
        "root.py",
        'DEVICES = ("null",',
        'DEVICES = ("tty", "null",',
        "test_root_folder_contains_only_expected_entries",
        seen_inside="/dev/tty is visible",
    ),
    "letting the host's root go": Mutation(
        "root.py",
        "    kernel.detach(OLD)\n    os.rmdir(OLD)\n",
        "",
        "test_root_folder_contains_only_expected_entries",
        seen_inside="/.old is visible",
    ),
    # -- zygote.py and workshop.py
    "dying with the server (zygote)": Mutation(
        "zygote.py",
        'kernel.prctl("parent death signal", kernel.PR_SET_PDEATHSIG, signal.SIGKILL)',
        "pass",
        "test_a_zygote_ends_with_a_killed_server_although_its_sockets_stay_open",
        beside="dying with the server after a change of ids (zygote)",
    ),
    "dying with the server after a change of ids (zygote)": Mutation(
        "cell.c",
        'PRCTL("parent death signal", PR_SET_PDEATHSIG, SIGKILL, 0);',
        "",
        "test_a_zygote_ends_with_a_killed_server_although_its_sockets_stay_open",
    ),
    "dying with the zygote (workshop)": Mutation(
        "workshop.py",
        'kernel.prctl("parent death signal", kernel.PR_SET_PDEATHSIG, signal.SIGKILL)',
        "pass",
        "test_a_zygote_ends_with_a_killed_server_although_its_sockets_stay_open",
    ),
    "an open umask": Mutation(
        "zygote.py", "os.umask(0o022)", "pass", "test_first_run_ignores_restrictive_umask_of_server"
    ),
    "the zygote's rights": Mutation(
        "zygote.py",
        "lockdown.keep_capabilities(CAP_SETGID | CAP_SETUID | CAP_SYS_ADMIN)",
        "pass",
        "test_the_process_that_runs_are_forked_from_keeps_three_rights",
    ),
    "the filter of the zygote": Mutation(
        "zygote.py",
        '    lockdown.load_filter(bytes.fromhex(plan["base_filter"]))',
        "    pass",
        "test_code_cannot_watch_access_to_shared_files",
        seen_inside="forbidden system call",
    ),
    "the uid map": Mutation("cell.c", "run->plan->flags & ROOT ? run->order->ids : ", "", refused="write uid_map"),
    "the net namespace of usual runs": Mutation(
        "cell.c", "SYS_setns, SLOTS_FROM + slot,", "SYS_setns, SLOTS_FROM,", OWN
    ),
    "the mounts of files": Mutation(
        "workshop.py", "            kernel.set_mount_attributes(folder, root.FROZEN, recursive=True)\n", "", MOUNTS
    ),
    # -- the namespaces and mounts of a run
    "the user namespace": Mutation("cell.c", "= CLONE_NEWUSER | ", "= ", refused="new namespaces: EPERM"),
    "the mount namespace": Mutation("cell.c", "CLONE_NEWNS | ", "", refused="mount"),
    "the pid namespace": Mutation("cell.c", "CLONE_NEWPID | ", "", "test_other_processes_are_not_seen"),
    "the ipc namespace": Mutation("cell.c", "CLONE_NEWIPC | ", "", OWN),
    "the uts namespace": Mutation("cell.c", "CLONE_NEWUTS | ", "", OWN),
    "the net namespace of runs with network": Mutation(
        "cell.c", " | CLONE_NEWNET }", " }", "test_the_proxy_is_the_only_port_where_lo_is_up"
    ),
    "small buffers": Mutation(
        "cell.c",
        "write_file(step, settings[index][0], settings[index][1], 16);",
        ";",
        "test_settings_of_loopback_cannot_be_changed",
    ),
    "the cgroup namespace": Mutation("cell.c", 'MUST("unshare", SYS_unshare, CLONE_NEWCGROUP);', "", OWN),
    "the cgroups": Mutation(
        "cell.c",
        'EXACTLY("cgroup", 1, SYS_write, run->received[index], "0", 1);',
        ";",
        "test_every_process_of_run_is_in_its_cgroups",
    ),
    "groups": Mutation(
        "zygote.py",
        "        os.setgroups([])",
        "        pass",
        "test_no_group_of_root_is_left",
    ),
    "the gid": Mutation(
        "cell.c",
        'MUST("gid", SYS_setresgid, INSIDE, INSIDE, INSIDE);',
        "",
        "test_code_runs_as_single_user_and_group",
        seen_inside="gids",
    ),
    "the uid": Mutation(
        "cell.c",
        'MUST("uid", SYS_setresuid, INSIDE, INSIDE, INSIDE);',
        "",
        "test_code_runs_as_single_user_and_group",
        seen_inside="uids",
    ),
    "the lock of both processes": Mutation(
        "cell.c", "    lock(run, ruleset);\n", "", FROM_OUTSIDE, seen_inside="capabilities"
    ),
    # -- two steps that have changed places
    "the rules of Landlock after the mounts": Mutation(
        "cell.c",
        f"{RULES}    lock(run, ruleset);\n",
        "    set_limits(run);\n    lock(run, -1);\n    if (run->landlock > 0) landlock_rules(run);\n",
        "test_code_cannot_write_its_proc_files",
        seen_inside="Landlock is not in force",
    ),
    "the bounds before the lock": Mutation(
        "cell.c",
        f"    close_bounds(run);\n{RULES}    lock(run, ruleset);\n",
        f"{RULES}    lock(run, ruleset);\n    close_bounds(run);\n",
        refused="securebits: EPERM",
    ),
    "the cgroups before their namespace": Mutation(
        "cell.c",
        """    for (long index = GROUP_FILES; index < run->count; index++)
        EXACTLY("cgroup", 1, SYS_write, run->received[index], "0", 1);
    MUST("unshare", SYS_unshare, CLONE_NEWCGROUP);
""",
        """    MUST("unshare", SYS_unshare, CLONE_NEWCGROUP);
    for (long index = GROUP_FILES; index < run->count; index++)
        EXACTLY("cgroup", 1, SYS_write, run->received[index], "0", 1);
""",
        "test_code_sees_its_cgroups_as_roots",
    ),
    "the loopback before the run's own proc": Mutation(
        "cell.c",
        "    if (run->order->filter != USUAL)\n        set_up_loopback(run->order->filter >= LOOPBACK); "
        "/* before the /proc of the run, which has no settings */\n    mount_own(run->order);\n",
        "    mount_own(run->order);\n    if (run->order->filter != USUAL)\n        "
        "set_up_loopback(run->order->filter >= LOOPBACK);\n",
        "test_settings_of_loopback_cannot_be_changed",
    ),
    "the C library's record of pid 2": Mutation(
        "cell.c",
        "flags = CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD",
        "flags = SIGCHLD",
        "test_the_code_signals_itself_as_any_process_does",
    ),
    "a program of pid 1 that nobody reads": Mutation(
        "root.py", "INIT, 0o111)", "INIT, 0o555)", "test_seen_from_the_host_pid_1_is_nobodys_to_read"
    ),
    "a session of its own": Mutation(
        "cell.c", "SYS(SYS_setsid) < 0 || ", "", "test_code_runs_as_single_user_and_group"
    ),
    "a name of its own": Mutation(
        "zygote.py", '    kernel.set_hostname("sandbox")\n', "", "test_the_machine_has_another_name_inside"
    ),
    "a proc of its own": Mutation(
        "cell.c",
        'SYS(SYS_mount, "proc", "/proc", "proc", PROC, "hidepid=2,subset=pid");',
        "0;",
        "test_other_processes_are_not_seen",
    ),
    "what proc shows": Mutation(
        "cell.c",
        '"hidepid=2,subset=pid"',
        '""',
        "test_nothing_else_of_the_host_is_there[/proc/sys]",
        seen_inside="/proc/sys can be opened",
    ),
    "nosuid on its own folders": Mutation("cell.c", "TMPFS = MS_NOSUID | MS_NODEV", "TMPFS = MS_NODEV", MOUNTS),
    "nodev on its own folders": Mutation("cell.c", "TMPFS = MS_NOSUID | MS_NODEV", "TMPFS = MS_NOSUID", MOUNTS),
    "noexec on proc": Mutation(
        "cell.c", "PROC = MS_NOSUID | MS_NODEV | MS_NOEXEC", "PROC = MS_NOSUID | MS_NODEV", MOUNTS
    ),
    "the size of /workspace": Mutation("cell.c", "order->disk_bytes, order", "0, order", f"{SIZES}[/workspace-8]"),
    "the size of /tmp": Mutation("cell.c", "order->tmp_bytes, 4096", "0, 4096", f"{SIZES}[/tmp-4]"),
    "the size of /dev/shm": Mutation("cell.c", "order->shm_bytes, 1024", "0, 1024", f"{SIZES}[/dev/shm-64]"),
    "the files of /workspace": Mutation("cell.c", "order->disk_files + 1", "0", f"{FILES}[/workspace-100]"),
    "the files of /tmp": Mutation("cell.c", "order->tmp_bytes, 4096", "order->tmp_bytes, 0", f"{FILES}[/tmp-4096]"),
    "the files of /dev/shm": Mutation(
        "cell.c", "order->shm_bytes, 1024", "order->shm_bytes, 0", f"{FILES}[/dev/shm-1024]"
    ),
}


Changer = Callable[..., None]
MUTATED_SECONDS = 15
"""How long a case waits for an event that a missing step prevents."""


@pytest.fixture
def change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Changer]:
    """Yield a function that applies mutations to sandboxes started later. End their remaining processes after the
    test.
    """

    def change(*mutations: Mutation) -> None:
        folder = changed_copy(tmp_path, *mutations)
        monkeypatch.setattr(zygotes, "HERE", folder)
        monkeypatch.setenv("SKILLERY_TEST_CELL", str(folder))  # for servers that a case starts
        if mutations != BLIND:
            monkeypatch.setattr(processes, "PATIENCE_SECONDS", MUTATED_SECONDS)

    yield change

    def no_group_is_left() -> bool:
        folders = test_sandbox_linux.group_folders(os.getpid())
        for folder in sorted(folders, reverse=True):
            end_group(folder)
        return not folders

    eventually(no_group_is_left)


def end_group(folder: Path) -> None:
    with contextlib.suppress(OSError):  # the last process of the group may take a moment to end, or has just ended
        for pid in (folder / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        folder.rmdir()


def changed_copy(folder: Path, *mutations: Mutation) -> Path:
    changed = folder / "changed"
    inside = changed / "inside"
    shutil.copytree(CELL, inside)
    sources = {name: (native.SOURCES / name).read_text() for name in native_build.SOURCES}
    for mutation in mutations:
        path = inside / mutation.file
        source = sources[mutation.file] if mutation.file in sources else path.read_text()
        assert source.count(mutation.old) == 1, f"{mutation.file} holds {mutation.old!r} {source.count(mutation.old)}x"
        source = source.replace(mutation.old, mutation.new)
        if mutation.file in sources:
            sources[mutation.file] = source
        else:
            path.write_text(source)
            for bytecode in inside.glob(f"__pycache__/{path.stem}.*"):
                bytecode.unlink()
    for name, content in compiled(*sources.values()).items():
        (inside / name).write_bytes(content)
    return changed


@cache
def compiled(*sources: str) -> dict[str, bytes]:
    """Compile the sources in C without optimisation. Return the files by name: many mutations need the same files."""
    with tempfile.TemporaryDirectory() as folder:
        native_sources, target = Path(folder, "native"), Path(folder, "target")
        native_sources.mkdir()
        target.mkdir()
        for name, source in zip(native_build.SOURCES, sources, strict=True):
            (native_sources / name).write_text(source)
        native_build.build(compiler(), native_sources, target, ("-w", "-O0"))
        return {path.name: path.read_bytes() for path in target.iterdir()}


def compiler() -> list[str]:
    found: list[str] | None = native_build.found_compiler()
    if found is None:
        pytest.skip("this machine has no C compiler")
    return found


@asynccontextmanager
async def started(folder: Path, prepared: int = 0) -> AsyncIterator[LinuxSandbox]:
    sandbox = open_sandbox(LinuxSandboxSettings(prepared=prepared), Place(folder))
    await sandbox.start()
    try:
        yield sandbox
    finally:
        await sandbox.close()


async def attempt(case: str, sandbox: Sandbox, folder: Path, suites: Sequence[type] = SUITES) -> None:
    """Run one case by its name, as pytest would."""
    name, _, example = case.removesuffix("]").partition("[")
    suite = next(suite() for suite in suites if hasattr(suite, name))
    method = getattr(suite, name)
    given: dict[str, Any] = {"sandbox": sandbox, "tmp_path": folder, "column": 0}
    given |= dict.fromkeys(("trial", "serving"), Trial(sandbox, folder))
    for mark in getattr(method, "pytestmark", []) if example else []:
        given |= examples(mark)[example]
    async with asyncio.timeout(300):
        await method(**{name: given[name] for name in inspect.signature(method).parameters})


class HasCase(Protocol):
    """A mutation of any backend."""

    @property
    def case(self) -> str: ...


async def failed_attempts(
    mutations: Iterable[HasCase], sandbox: Sandbox, folder: Path, suites: Sequence[type] = SUITES
) -> dict[str, str]:
    """Run each case of the mutations once in the same sandbox. Return the errors by case."""
    errors = {}
    for number, case in enumerate(sorted({mutation.case for mutation in mutations if mutation.case})):
        own = folder / f"case-{number}"
        own.mkdir()
        try:
            await attempt(case, sandbox, own, suites)
        except pytest.skip.Exception:
            continue
        except (Exception, pytest.fail.Exception) as error:
            errors[case] = repr(error)
    return errors


def examples(mark: pytest.Mark) -> dict[str, dict[str, Any]]:
    names = [mark.args[0]] if isinstance(mark.args[0], str) else mark.args[0]
    rows = [[row] if isinstance(mark.args[0], str) else row for row in mark.args[1]]
    return {"-".join(map(str, row)): dict(zip(names, row, strict=True)) for row in rows}


def pointless(mutation: Mutation) -> str:
    """Return why this machine cannot show the difference, or ""."""
    name = mutation.old.strip("{").partition(",")[0]
    if name in {"RLIMIT_RTPRIO", "RLIMIT_NICE"}:
        with test_sandbox_lockdown.generous_server():
            return "" if resource.getrlimit(getattr(resource, name))[1] else "the server has no more than its runs"
    return ""


@only_as_root
@pytest.mark.parametrize("name", MUTATIONS)
async def test_a_step_that_is_missing_is_noticed(name: str, change: Changer, tmp_path: Path) -> None:
    """A case must detect the missing step, so the self-check is switched off too."""
    mutation = MUTATIONS[name]
    if reason := pointless(mutation):
        pytest.skip(reason)
    change(*BLIND, mutation, *([MUTATIONS[mutation.beside]] if mutation.beside else []))
    if mutation.refused:
        with pytest.raises(SandboxUnavailable, match=re.escape(mutation.refused)):
            async with started(tmp_path):
                pass
        return
    async with started(tmp_path, mutation.prepared) as sandbox:
        await Trial(sandbox, tmp_path).is_well()  # runs still work, so a failure below comes from the case
        await asyncio.sleep(mutation.prepared)  # until a cell is prepared for the parameters of that run
        with pytest.raises((AssertionError, pytest.fail.Exception, SandboxUnavailable)):
            await attempt(mutation.case, sandbox, tmp_path)


@only_as_root
@pytest.mark.parametrize("name", [name for name, mutation in MUTATIONS.items() if mutation.seen_inside])
async def test_a_step_that_is_missing_stops_the_run_before_any_code(name: str, change: Changer, tmp_path: Path) -> None:
    mutation = MUTATIONS[name]
    change(mutation)
    with pytest.raises(SandboxUnavailable, match=rf"posture: .*{mutation.seen_inside}"):
        async with started(tmp_path):
            pass


ADDED = "    add_system()\n"
SELF_CHECKS = {
    "supplementary groups are left": [Mutation("zygote.py", "        os.setgroups([])", "        pass")],
    "the code would be pid 1": [
        Mutation("cell.c", 'if (MUST("pid 2", FORK(flags, thread)) == 0)', "if (thread | flags)"),
        Mutation("cell.c", "        flags |= CLONE_VM | CLONE_VFORK;", "        ;"),
    ],
    "Landlock is missing": [Mutation("cell.c", "SYS(SYS_landlock_create_ruleset, 0, 0, LANDLOCK_VERSION)", "0")],
    "a forbidden file could be opened": [
        Mutation("etc.py", '    *("alternatives",', '    *("shadow", "alternatives",'),
        Mutation("etc.py", "return name.lower().startswith(SECRET)", "return False"),
        Mutation("etc.py", "return seen.st_mode & needed == needed", "return bool(needed)"),
    ],
    "/root.* is visible": [Mutation("root.py", ADDED, f"{ADDED}    bind_folder('/root', '/root')\n")],
    "/sys is visible": [Mutation("root.py", ADDED, f"{ADDED}    bind_folder('/sys', '/sys')\n")],
    "a private folder of the owner is visible": [
        Mutation("root.py", ADDED, f"{ADDED}    bind_folder(plan['private'][0], plan['private'][0])\n")
    ],
}
"""Deviations by the words of the self-check that no case above causes."""
THREAD = Mutation(
    "zygote.py",
    "    gc.disable()\n    occupy",
    "    import threading\n    threading.Thread(target=threading.Event().wait, daemon=True).start()\n    occupy",
)
on_x86_64 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the changed code is that of x86_64")


@only_as_root
@on_x86_64
@pytest.mark.parametrize("words", SELF_CHECKS)
async def test_self_check_detects_each_deviation(words: str, change: Changer, tmp_path: Path) -> None:
    change(*SELF_CHECKS[words])
    before = os.getgroups()
    os.setgroups([27, 1234])
    try:
        with pytest.raises(SandboxUnavailable, match=f"posture: {words}"):
            async with started(tmp_path):
                pass
    finally:
        os.setgroups(before)


@only_as_root
@on_x86_64
async def test_pid_2_fails_on_a_wrong_stack(change: Changer, tmp_path: Path) -> None:
    change(Mutation("cell.c", " mov %rbp, %rsp\\n xor %eax, %eax", " xor %eax, %eax"))
    with pytest.raises(SandboxUnavailable):
        async with started(tmp_path):
            pass


@only_as_root
async def test_zygote_with_a_second_thread_forks_no_run(change: Changer, tmp_path: Path) -> None:
    change(THREAD)
    with pytest.raises(SandboxUnavailable, match="the zygote has more than one thread"):
        async with started(tmp_path):
            pass


@only_as_root
async def test_without_its_check_a_zygote_with_a_second_thread_forks(change: Changer, tmp_path: Path) -> None:
    change(THREAD, Mutation("cell.c", "return found[4] == ONE_THREAD;", "return 1;"))
    async with started(tmp_path) as sandbox:
        await Trial(sandbox, tmp_path).is_well()


@only_as_root
async def test_without_a_change_each_of_these_cases_passes(change: Changer, tmp_path: Path) -> None:
    """The cases pass with the copy and without the self-check, so they fail only because of the missing step."""
    change(*BLIND)
    async with started(tmp_path) as sandbox:
        assert await failed_attempts(MUTATIONS.values(), sandbox, tmp_path) == {}


@only_as_root
async def test_a_zygote_that_dies_leaves_no_waiting_run(change: Changer, tmp_path: Path) -> None:
    """The server does not know a run whose zygote ends before its answer, so the run must end by itself."""
    change(Mutation("cell.c", 'must("answer", send(run->plan->link,', 'must("answer", send(-1,'))

    with pytest.raises(SandboxUnavailable):
        async with started(tmp_path):
            pass

    folders = test_sandbox_linux.group_folders
    await eventually_async(lambda: not any(in_group(folder) for folder in folders(os.getpid())))


def in_group(folder: Path) -> list[str]:
    with contextlib.suppress(OSError):  # the group has just been removed
        return (folder / "cgroup.procs").read_text().split()
    return []


FOR_OTHERS = {
    "nobody may read pid 1": Mutation(
        "root.py",
        "INIT, 0o111)",
        "INIT, 0o555)",
        "test_seen_from_the_host_pid_1_is_nobodys_to_read",
    ),
}
"""Steps that a server of root does not need, because another step has the same effect there."""


@only_as_root
@pytest.mark.long
@pytest.mark.parametrize("name", [None, *FOR_OTHERS])
def test_the_server_of_an_ordinary_user_is_locked_in_too(name: str | None) -> None:
    """All cases pass with the unchanged copy. Without one step, the case of that step fails."""
    with tempfile.TemporaryDirectory() as folder:
        changed = changed_copy(Path(folder), *BLIND, *([FOR_OTHERS[name]] if name else []))
        Path(folder).chmod(0o755)
        user = (
            sys.executable,
            str(TESTS / "support" / "ordinary_user.py"),
            "/usr/bin/env",
            f"SKILLERY_TEST_CELL={changed}",
        )
        suite = f"{TESTS / 'sandbox' / 'test_sandbox_lockdown.py'}::TestLockdown"
        cases = (f"{suite}::{FOR_OTHERS[name].case}",) if name else (suite,)
        command = (
            *user,
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "tests.support.changed_cell",
        )
        done = subprocess.run((*command, *cases), cwd=TESTS.parent, capture_output=True, text=True, check=False)
    assert done.returncode == (1 if name else 0), done.stdout[-4000:] + done.stderr[-2000:]


@only_as_root
@pytest.mark.skipif(not EVERYTHING, reason="takes almost an hour: make mutations")
@pytest.mark.parametrize("name", MUTATIONS)
def test_whole_contract_detects_each_mutation(name: str, tmp_path: Path) -> None:
    mutation = MUTATIONS[name]
    folder = changed_copy(tmp_path, *BLIND, mutation, *([MUTATIONS[mutation.beside]] if mutation.beside else []))
    suites = ("test_sandbox_linux.py::TestLinuxSandbox", "test_sandbox_lockdown.py::TestLockdown")
    command = (
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--tb=no",
        "-rfE",
        "-p",
        "tests.support.changed_cell",
        "-p",
        "no:randomly",
    )
    done = subprocess.run(
        (*command, *(f"tests/sandbox/{suite}" for suite in suites)),
        cwd=TESTS.parent,
        env={**os.environ, "SKILLERY_TEST_CELL": str(folder)},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    noticed = re.findall(r"^(?:FAILED|ERROR) \S+::(test_\S+)", done.stdout, re.MULTILINE)
    sys.stdout.write(f"\n{name}: {len(noticed)} of the contract's cases, among them {', '.join(sorted(noticed)[:4])}\n")
    assert noticed, done.stdout[-3000:]
    assert mutation.refused or any(case.startswith(mutation.case.partition("[")[0]) for case in noticed)
