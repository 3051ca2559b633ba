"""Parts of the sandboxes that can be tested alone: the system call filter, the cgroups, the log and the channel."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.filter import calls, rules
from cellblock.host import groups, hierarchies, plan, processes, watchdog
from cellblock.host.channel import HEAD, Channel, ChannelAbused
from cellblock.host.logs import KeptLog
from cellblock.host.sessions import ended_early
from cellblock.host.shares import Uids
from cellblock.values import Busy, Failure, FailureKind, Limits, Log
from skillery.runs.readable_log import ReadableLog

EPERM, ENOSYS = (rules.REFUSE | errno.EPERM), (rules.REFUSE | errno.ENOSYS)
EACCES, DOES_NOTHING = (rules.REFUSE | errno.EACCES), rules.REFUSE
NOT_SUPPORTED, NO_OPTION = (rules.REFUSE | errno.EOPNOTSUPP), (rules.REFUSE | errno.ENOPROTOOPT)


def judge(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """Return the action of the filter for a system call, as the kernel would compute it."""
    wide = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, architecture, 0, *wide)
    code = list(struct.iter_unpack("=HBBI", program))
    place = accumulator = 0
    while True:
        operation, if_true, if_false, value = code[place]
        place += 1
        if operation == rules.LOAD:
            accumulator = struct.unpack_from("=I", data, value)[0]
        elif operation == rules.AND:
            accumulator &= value
        elif operation == rules.JUMP:
            place += value
        elif operation == rules.RETURN:
            return int(value)
        else:
            holds = accumulator == value if operation == rules.EQUAL else accumulator >= value
            place += if_true if holds else if_false


@pytest.mark.parametrize("cgroups", [True, False])
@pytest.mark.parametrize("machine", calls.MACHINES)
def test_the_filter_answers_every_number_as_the_tables_say(machine: str, cgroups: bool) -> None:
    program = rules.program(machine, cgroups=cgroups)
    architecture = rules.ARCHITECTURE[machine]
    judged = calls.numbers(calls.BY_ARGUMENT, machine).values()
    expected = dict.fromkeys(calls.numbers(calls.ALLOWED, machine).values(), rules.ALLOW)
    memory = dict.fromkeys(calls.numbers(calls.ONLY_WITH_CGROUPS, machine).values(), rules.ALLOW if cgroups else EPERM)
    expected |= memory | dict.fromkeys(calls.numbers(calls.FORBIDDEN, machine).values(), EPERM)
    expected |= dict.fromkeys(calls.numbers(calls.IGNORED, machine).values(), DOES_NOTHING)
    expected |= dict.fromkeys(calls.numbers(calls.UNSUPPORTED, machine).values(), rules.REFUSE | errno.EOPNOTSUPP)
    for number in range(1200):
        if number not in judged:
            assert judge(program, architecture, number) == expected.get(number, ENOSYS), number


def strictest(programs: tuple[bytes, ...], architecture: int, number: int, *arguments: int) -> int:
    """Return the action of several filters, the last one loaded first, as the kernel chooses it."""
    chosen = rules.ALLOW
    for program in programs:
        found = judge(program, architecture, number, *arguments)
        if signed_action(found) < signed_action(chosen):
            chosen = found
    return chosen


def signed_action(verdict: int) -> int:
    action = verdict & 0xFFFF0000
    return action - (1 << 32) if action & 0x80000000 else action


def edges(code: rules.Code) -> Iterator[tuple[int, ...]]:
    """Return arguments around each value at which the code changes its verdict, in all combinations."""
    values: dict[int, set[int]] = {}
    index = 0
    for operation, _, _, value in code:
        if operation == rules.LOAD:
            index = (value - 16) // 8
            values.setdefault(index, {0, 0xFFFFFFFF})
        elif operation in {rules.EQUAL, rules.AT_LEAST, rules.AND}:
            values[index] |= {(value + step) & 0xFFFFFFFF for step in (-1, 0, 1)}
    return itertools.product(*(sorted(values.get(index, {0})) for index in range(6)))


@pytest.mark.full
@pytest.mark.parametrize("rights", [True, False])
@pytest.mark.parametrize("sockets", rules.Sockets)
@pytest.mark.parametrize("cgroups", [True, False])
@pytest.mark.parametrize("machine", calls.MACHINES)
def test_filters_of_zygote_and_run_are_together_as_strict_as_the_whole(
    machine: str, cgroups: bool, sockets: rules.Sockets, rights: bool
) -> None:
    architecture = rules.ARCHITECTURE[machine]
    whole = rules.program(machine, cgroups=cgroups, sockets=sockets, rights=rights)
    base = rules.program(machine, cgroups=cgroups, also=rules.DECIDED_BY_RUN, rights=rights)
    run = rules.program(machine, cgroups=cgroups, sockets=sockets, only=rules.DECIDED_BY_RUN, rights=rights)
    known = rules.verdicts(machine, cgroups=cgroups, sockets=sockets, rights=rights)
    for number in (*range(1024), rules.X32 - 1, rules.X32, rules.X32 + 1, 0xFFFFFFFF):
        for arguments in edges(known.get(number, ())):
            expected = judge(whole, architecture, number, *arguments)
            assert strictest((run, base), architecture, number, *arguments) == expected, (number, arguments)
        assert strictest((run, base), architecture ^ 1, number) == judge(whole, architecture ^ 1, number)
    assert len(run) < len(whole) // 4


@pytest.mark.parametrize("machine", calls.MACHINES)
def test_an_additional_call_is_allowed_and_no_other(machine: str) -> None:
    usual = rules.program(machine, cgroups=True)
    wider = rules.program(machine, cgroups=True, also=("mount",))
    architecture, mount = rules.ARCHITECTURE[machine], calls.numbers(calls.FORBIDDEN, machine)["mount"]
    differing = [n for n in range(700) if judge(usual, architecture, n) != judge(wider, architecture, n)]
    assert differing == [mount]
    assert judge(wider, architecture, mount) == rules.ALLOW


@pytest.mark.parametrize("machine", calls.MACHINES)
def test_another_architecture_is_killed(machine: str) -> None:
    program = rules.program(machine, cgroups=True)
    assert judge(program, 0x40000003, 1) == rules.KILL_PROCESS
    assert judge(program, rules.ARCHITECTURE[machine], 0x40000001) == rules.KILL_PROCESS


@pytest.mark.parametrize("machine", calls.MACHINES)
@given(high=st.integers(0, 2**32 - 1), low=st.integers(0, 2**32 - 1))
def test_filter_checks_only_argument_bits_read_by_kernel(machine: str, high: int, low: int) -> None:
    program, architecture = rules.program(machine, cgroups=True), rules.ARCHITECTURE[machine]
    numbers = calls.numbers(calls.BY_ARGUMENT, machine)
    wide = high << 32 | low
    expected: dict[tuple[str, tuple[int, ...]], int] = {
        ("clone", (wide,)): EPERM if low & rules.NEW_NAMESPACES else rules.ALLOW,
        ("ioctl", (0, high << 32 | 0x5412)): EPERM,
        ("ioctl", (0, high << 32 | 0x5401)): rules.ALLOW,
        ("socketpair", (wide, 1)): rules.ALLOW if low == 1 else EPERM,
        ("socketpair", (high << 32 | 1, 5 | 0o2004000)): rules.ALLOW,
        ("socketpair", (1, 2)): EPERM,
        ("fcntl", (0, wide)): EPERM if low in {1024, 1026} else rules.ALLOW,
        ("prctl", (high << 32 | 78,)): EPERM,
        ("prlimit64", (wide,)): EPERM if low else rules.ALLOW,
        ("sched_setscheduler", (wide,)): EPERM if low == 1 else rules.ALLOW,
        ("sched_setattr", (high << 32 | 1,)): EPERM,
        ("sched_setparam", (high << 32 | 1,)): EPERM,
        ("sched_setaffinity", (high << 32 | 1,)): EPERM,
        ("setpriority", (0, wide)): EPERM if low == 1 else rules.ALLOW,
        ("setpriority", (high << 32 | 2, wide)): EPERM,
        ("ioprio_set", (1, wide)): EPERM if low == 1 else rules.ALLOW,
        ("ioprio_set", (high << 32 | 3, wide)): EPERM,
        ("mmap", (0, 0, 0, wide)): EPERM if low & 0x40000 else rules.ALLOW,
        ("fcntl", (0, high << 32 | 1031)): rules.ALLOW,
        ("madvise", (0, 0, wide)): DOES_NOTHING if low in {3, 12, 20, 21} else rules.ALLOW,
        ("setsockopt", (3, 1, high << 32 | 7)): DOES_NOTHING,
        ("setsockopt", (3, 1, 9)): rules.ALLOW,
        ("setsockopt", (3, high << 32 | 1, 26)): EPERM,
        ("setsockopt", (3, 1, high << 32 | 50)): EPERM,
        **{("setsockopt", (3, 1, high << 32 | option)): NO_OPTION for option in (29, 35, 37, 63, 64, 65)},
        ("setsockopt", (3, 41, 26)): rules.ALLOW,
        ("setsockopt", (3, high << 32 | 6, wide)): rules.ALLOW if low in {*range(1, 10), 11, 12, 18, 25} else NO_OPTION,
        ("setsockopt", (3, 0, wide)): rules.ALLOW if low in {1, 2, 10, 15, 24} else NO_OPTION,
        ("setsockopt", (3, wide, 30)): NO_OPTION if low != 1 else rules.ALLOW,
        ("getsockopt", (3, 1, wide)): NO_OPTION if low in {31, 59, 76, 77} else rules.ALLOW,
        ("getsockopt", (3, high << 32 | 6, 35)): NO_OPTION,
        ("ioctl", (3, high << 32 | 0x8914)): EPERM,
        ("ioctl", (3, high << 32 | 0x89A0)): EPERM,
        ("ioctl", (3, 0x8B01)): EPERM,
        ("ioctl", (3, 0x8912)): rules.ALLOW,
        ("ioctl", (3, 0x5421)): rules.ALLOW,
        ("memfd_create", (0, wide)): EPERM if low & 4 else rules.ALLOW,
        ("socket", (high << 32 | 2, 1, 6)): EACCES,
        ("socket", (10, 2 | 0o2004000, 17)): EACCES,
        ("socket", (1, 1, 0)): rules.REFUSE | errno.EAFNOSUPPORT,
        ("connect", (wide,)): EACCES,
        ("bind", (wide,)): EACCES,
        ("personality", (0x40000,)): EPERM,
        ("personality", (0,)): rules.ALLOW,
    }
    for (name, arguments), answer in expected.items():
        assert judge(program, architecture, numbers[name], *arguments) == answer, (name, arguments)


@pytest.mark.parametrize("machine", calls.MACHINES)
@given(high=st.integers(0, 2**32 - 1), low=st.integers(0, 2**32 - 1))
def test_runs_with_a_network_have_tcp_as_a_client_and_nothing_else(machine: str, high: int, low: int) -> None:
    architecture = rules.ARCHITECTURE[machine]
    program = rules.program(machine, cgroups=True, sockets=rules.Sockets.CLIENTS)
    numbers = calls.numbers(calls.BY_ARGUMENT, machine)
    wide = high << 32 | low
    expected = {
        ("socket", (high << 32 | 2, 1, 6)): rules.ALLOW,
        ("socket", (10, 1 | 0o2004000, 0)): rules.ALLOW,
        ("socket", (2, wide, 0)): rules.ALLOW if low & 0xF == 1 else EACCES,
        ("socket", (2, 1, 262)): EPERM,
        ("socket", (1, 1, 0)): rules.REFUSE | errno.EAFNOSUPPORT,
        ("connect", (wide,)): rules.ALLOW,
        ("bind", (wide,)): EACCES,
        ("listen", (wide,)): EACCES,
        ("accept", (wide,)): EACCES,
        ("accept4", (wide,)): EACCES,
    }
    for (name, arguments), answer in expected.items():
        if name in numbers:
            assert judge(program, architecture, numbers[name], *arguments) == answer, (name, arguments)


@pytest.mark.parametrize("sockets", [rules.Sockets.LOOPBACK, rules.Sockets.LOOPBACK_AND_UNIX])
@pytest.mark.parametrize("machine", calls.MACHINES)
@given(high=st.integers(0, 2**32 - 1), low=st.integers(0, 2**32 - 1))
def test_programs_have_tcp_servers_of_version_4(machine: str, sockets: rules.Sockets, high: int, low: int) -> None:
    architecture = rules.ARCHITECTURE[machine]
    program = rules.program(machine, cgroups=True, sockets=sockets, rights=False)
    numbers = calls.numbers(calls.BY_ARGUMENT, machine)
    wide, named = high << 32 | low, rules.ALLOW if sockets is rules.Sockets.LOOPBACK_AND_UNIX else EACCES
    expected: dict[tuple[str, tuple[int, ...]], int] = {
        ("socket", (2, wide, high << 32 | 6)): rules.ALLOW if low & 0xF == 1 else EACCES,
        ("socket", (2, 1, wide)): rules.ALLOW if low in {0, 6} else EPERM,
        ("socket", (high << 32 | 1, 1, 0)): named,
        ("socket", (1, 5 | 0o2004000, 0)): named,
        ("socket", (1, wide, 0)): named if low & 0xF in {1, 5} else EACCES,
        ("socket", (wide, 3, 0)): EACCES if low in {1, 2} else rules.REFUSE | errno.EAFNOSUPPORT,
        ("sendto", (3, 0, 0, wide)): NOT_SUPPORTED if low & 0x24000001 else rules.ALLOW,
        ("sendmsg", (3, 0, wide)): NOT_SUPPORTED if low & 0x24000001 else rules.ALLOW,
        **{(name, (wide,)): rules.ALLOW for name in ("connect", "bind", "listen", "accept", "accept4")},
    }
    for (name, arguments), answer in expected.items():
        assert judge(program, architecture, numbers[name], *arguments) == answer, (name, arguments)


@pytest.mark.parametrize("machine", calls.MACHINES)
@given(flags=st.integers(0, 2**64 - 1))
def test_without_cgroups_memory_that_no_watchdog_sees_cannot_be_had(machine: str, flags: int) -> None:
    program, architecture = rules.program(machine, cgroups=False), rules.ARCHITECTURE[machine]
    numbers = calls.numbers(calls.BY_ARGUMENT, machine)
    shared_anonymous = flags & 0x21 == 0x21
    answer = judge(program, architecture, numbers["mmap"], 0, 0, 0, flags)
    assert answer == (EPERM if shared_anonymous or flags & 0x40000 else rules.ALLOW)
    assert judge(program, architecture, numbers["fcntl"], 3, 1031, 1 << 20) == EPERM


@pytest.mark.parametrize("machine", calls.MACHINES)
def test_where_the_channel_takes_descriptors_none_can_be_sent(machine: str) -> None:
    numbers, architecture = calls.numbers(calls.BY_ARGUMENT, machine), rules.ARCHITECTURE[machine]
    for name in ("sendmsg", "sendmmsg"):
        assert judge(rules.program(machine, cgroups=True, rights=False), architecture, numbers[name], 3) == EPERM
        allowed = judge(rules.program(machine, cgroups=True, rights=True), architecture, numbers[name], 3)
        assert allowed == rules.ALLOW


def test_the_tables_name_no_call_twice() -> None:
    for machine in calls.MACHINES:
        tables = (
            calls.ALLOWED,
            calls.BY_ARGUMENT,
            calls.ONLY_WITH_CGROUPS,
            calls.IGNORED,
            calls.ABSENT,
            calls.UNSUPPORTED,
            calls.FORBIDDEN,
        )
        found = [number for table in tables for number in calls.numbers(table, machine).values()]
        assert len(found) == len(set(found))


@given(limit=st.integers(2, 64), pieces=st.lists(st.binary(max_size=40), max_size=30))
def test_stored_log_keeps_both_ends_and_counts_dropped_bytes(limit: int, pieces: list[bytes]) -> None:
    log, everything = KeptLog(limit), b"".join(pieces)
    for piece in pieces:
        log.add(piece)
    kept = Log(*log.parts())
    assert len(kept.head) + len(kept.tail) <= limit
    assert len(kept.head) + len(kept.tail) + kept.dropped == len(everything)
    assert everything.startswith(kept.head)
    assert everything.endswith(kept.tail)
    if len(everything) <= limit // 2 * 2:
        assert kept.dropped == 0


@given(
    limit=st.integers(2, 64),
    pieces=st.lists(st.binary(max_size=40), max_size=30),
    after=st.integers(0, 1300),
    size=st.integers(1, 100),
)
def test_a_kept_log_is_read_by_the_offsets_of_all_bytes(limit: int, pieces: list[bytes], after: int, size: int) -> None:
    log, everything = ReadableLog(limit), b"".join(pieces)
    for piece in pieces:
        log.add(piece)

    start, content = log.read(after, size)

    assert log.end == len(everything)
    assert start == max(after, min(start, log.end)) if after <= log.end else start == log.end
    assert content == everything[start : start + len(content)]
    at_gap = start + len(content) == log.gap_start
    assert len(content) == size or start + len(content) == log.end or at_gap


def receive_all(sent: bytes) -> None:
    async def talk() -> None:
        ours, theirs = socket.socketpair()
        channel = await Channel.over(ours)
        theirs.sendall(sent)
        theirs.close()
        try:
            while message := await channel.receive():
                assert len(await channel.body(min(message.body, 1 << 20))) <= 1 << 20
        finally:
            channel.close()

    asyncio.run(talk())


@given(st.binary(max_size=400))
def test_the_channel_survives_any_bytes(sent: bytes) -> None:
    try:
        receive_all(sent)
    except ChannelAbused:
        return


@given(header=st.binary(max_size=100), body=st.binary(max_size=100), claimed=st.integers(0, 2**63))
def test_the_channel_survives_any_message(header: bytes, body: bytes, claimed: int) -> None:
    try:
        receive_all(HEAD.pack(len(header), claimed) + header + body)
    except ChannelAbused:
        return


def test_cgroups_of_both_versions_get_the_same_limits() -> None:
    limits = Limits(memory_mb=100, processes=10, cpus=1.5)
    told = {(c, v): hierarchies.settings_of(c, v, limits) for c in hierarchies.CONTROLLERS for v in (1, 2)}
    assert told["memory", 1]["memory.limit_in_bytes"] == told["memory", 2]["memory.max"] == str(100 << 20)
    assert told["memory", 2]["memory.swap.max?"] == "0"
    assert told["memory", 2]["memory.oom.group?"] == "1"
    assert told["pids", 1] == told["pids", 2] == {"pids.max": "11"}
    assert told["cpu", 1] == {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000"}
    assert told["cpu", 2] == {"cpu.max": "150000 100000"}


def test_a_limit_is_written_only_to_a_file_that_the_kernel_offers(tmp_path: Path) -> None:
    hierarchies.write(tmp_path, "memory.swap.max?", "0")
    with pytest.raises(FileNotFoundError):
        hierarchies.write(tmp_path, "memory.max", "1")
    assert list(tmp_path.iterdir()) == []


def v2_folder(folder: Path, processes: list[int]) -> hierarchies.Hierarchy:
    (folder / "cellblock-server").mkdir()
    texts = {
        "cgroup.controllers": "cpuset cpu io memory pids\n",
        "cgroup.subtree_control": "",
        "cgroup.type": "domain\n",
        "cgroup.procs": "".join(f"{pid}\n" for pid in processes),
        "cellblock-server/cgroup.procs": "",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    return hierarchies.Hierarchy(folder, hierarchies.CONTROLLERS, 2)


def test_in_a_delegated_v2_group_the_server_steps_down_into_a_leaf(tmp_path: Path) -> None:
    found = hierarchies.delegate(v2_folder(tmp_path, [os.getpid()]))
    assert found.controllers == ("memory", "pids", "cpu")
    assert (tmp_path / "cellblock-server/cgroup.procs").read_text() == str(os.getpid())
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"


def test_processes_of_others_are_not_moved(tmp_path: Path) -> None:
    hierarchies.delegate(v2_folder(tmp_path, [os.getpid(), 1]))
    assert (tmp_path / "cellblock-server/cgroup.procs").read_text() == ""


def test_oom_kills_are_counted_in_both_versions(tmp_path: Path) -> None:
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    (tmp_path / "memory.events").write_text("low 0\noom 1\noom_kill 3\noom_group_kill 1\n")
    kills = [
        groups.ControlGroup([(hierarchies.Hierarchy(tmp_path, ("memory",), version), tmp_path)]).oom_kills()
        for version in (1, 2)
    ]
    assert kills == [2, 3]


FILES_OF_GROUPS = {
    1: {
        "memory.limit_in_bytes": "",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
        "memory.usage_in_bytes": "4194304\n",
        "pids.max": "",
        "pids.current": "0\n",
        "cpu.cfs_period_us": "",
        "cpu.cfs_quota_us": "",
        "cpu.stat": "nr_periods 4\nnr_throttled 0\nthrottled_time 0\n",
        "tasks": "",
        "cgroup.procs": "",
    },
    2: {
        "memory.max": "",
        "memory.events": "low 0\noom 0\noom_kill 0\noom_group_kill 0\n",
        "memory.current": "4194304\n",
        "pids.max": "",
        "pids.current": "0\n",
        "cpu.max": "",
        "cpu.stat": "usage_usec 9\nnr_periods 4\nnr_throttled 0\nthrottled_usec 0\n",
        "cgroup.procs": "",
    },
}
"""The files of a group after a run of which nothing is left, by version of cgroups."""
LEFT_BY_A_RUN = {
    (1, "a kill"): ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"),
    (2, "a kill"): ("memory.events", "low 0\noom 1\noom_kill 1\noom_group_kill 1\n"),
    (1, "memory"): ("memory.usage_in_bytes", f"{9 << 20}\n"),
    (2, "memory"): ("memory.current", f"{9 << 20}\n"),
    (1, "a pause"): ("cpu.stat", "nr_periods 4\nnr_throttled 1\nthrottled_time 7\n"),
    (2, "a pause"): ("cpu.stat", "usage_usec 9\nnr_periods 4\nnr_throttled 1\nthrottled_usec 7\n"),
    (1, "a process"): ("pids.current", "1\n"),
    (2, "a process"): ("pids.current", "1\n"),
}


def used_group(
    folder: Path, version: int, controllers: tuple[str, ...] = hierarchies.CONTROLLERS
) -> groups.ControlGroup:
    for name, text in FILES_OF_GROUPS[version].items():
        (folder / name).write_text(text)
    group = groups.ControlGroup([(hierarchies.Hierarchy(folder, controllers, version), folder)])
    group.keep_open()
    group.limit(Limits(memory_mb=256))
    return group


@pytest.mark.parametrize("version", [1, 2])
def test_empty_cgroup_is_as_new_while_its_limits_are_set(tmp_path: Path, version: int) -> None:
    group = used_group(tmp_path, version)
    assert group.is_as_new()
    group.free()
    assert not group.is_as_new()


@pytest.mark.parametrize(("version", "what"), list(LEFT_BY_A_RUN))
def test_a_group_with_anything_left_of_its_run_is_not_as_new(tmp_path: Path, version: int, what: str) -> None:
    group = used_group(tmp_path, version)
    name, text = LEFT_BY_A_RUN[version, what]
    (tmp_path / name).write_text(text)
    assert not group.is_as_new()


@pytest.mark.parametrize("version", [1, 2])
def test_without_a_count_of_processes_a_group_lists_them(tmp_path: Path, version: int) -> None:
    group = used_group(tmp_path, version, ("memory", "cpu"))
    assert group.is_as_new()
    (tmp_path / "cgroup.procs").write_text("4711\n")
    assert not group.is_as_new()


def test_uids_are_never_shared_and_last_used_again() -> None:
    uids = Uids(100, 2)
    first, second = uids.take(), uids.take()
    assert {first, second} == {100, 101}
    with pytest.raises(Busy):
        uids.take()
    uids.give_back(second)
    uids.give_back(first)
    assert uids.take() == second


def test_the_ways_a_process_ends_have_their_words() -> None:
    assert ended_early(9) == Failure(
        FailureKind.KILLED, "the process was killed by SIGKILL before it returned a result"
    )
    assert ended_early(24).kind is FailureKind.CPU_TIME
    assert ended_early(34).message == "the process was killed by SIGRTMIN before it returned a result"
    assert ended_early(3 << 8) == Failure(
        FailureKind.EXITED, "the process exited with status 3 before it returned a result"
    )


def test_hidden_package_folders_exist_inside_mounts() -> None:
    mounted = ["/usr", *plan.prefixes()]
    assert all(any(plan.is_beneath(path, root) for root in mounted) for path in plan.hidden(()))
    assert all(Path(path).is_dir() for path in plan.hidden(()))


HOLDS = """
import mmap, os, sys, time
held = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, 64 << 20, 4096): held[at] = 1
for _ in range(4):
    if os.fork() == 0: time.sleep(60)
print(flush=True)
time.sleep(60)
"""


@pytest.fixture
def sharing() -> Iterator[int]:
    """Start five processes that share 64 MiB. Yield the pid of their parent.

    They use the network of this machine, so the sockets of this machine count as theirs.
    """
    command = [
        sys.executable,
        "-c",
        "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])",
        HOLDS,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        os.killpg(process.pid, signal.SIGKILL)


def test_memory_that_processes_share_is_counted_once(sharing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "SLOW_WORK", 60)
    monkeypatch.setattr(watchdog, "SLOW", 60)

    assert not watchdog.over(sharing, (200 << 20) + watchdog.socket_memory(sharing))
    assert watchdog.over(sharing, 48 << 20)


def test_a_look_that_takes_too_long_counts_it_for_each(sharing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many mappings can make a check arbitrarily slow. Then shared pages count for each process, so that the limit
    holds.
    """
    monkeypatch.setattr(watchdog, "SLOW_WORK", 0)

    assert watchdog.over(sharing, 200 << 20)
    assert not watchdog.over(sharing, (600 << 20) + watchdog.socket_memory(sharing))


@pytest.mark.full
def test_threads_that_come_and_go_hide_no_child() -> None:
    def churn() -> None:
        while not enough.is_set():
            threading.Thread(target=lambda: None).start()

    enough, churning = threading.Event(), [threading.Thread(target=churn) for _ in range(2)]
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        for thread in churning:
            thread.start()
        try:
            assert all(child.pid in processes.children(os.getpid()) for _ in range(2000))
        finally:
            enough.set()
            for thread in churning:
                thread.join()
            child.kill()


async def test_the_watchdog_waits_for_no_thread_of_others(sharing: int) -> None:
    free = threading.Event()
    loop = asyncio.get_running_loop()
    busy = [loop.run_in_executor(None, free.wait) for _ in range(100)]
    try:
        await asyncio.wait_for(watchdog.exceeds(sharing, 48 << 20), 300)
    finally:
        free.set()
        await asyncio.gather(*busy)


WORKSHOP = """
import os, resource, sys
from cellblock.inside import kernel, workshop
kernel.unshare(kernel.NEWNS)
workshop.leave_room()
own = os.open('/proc/self/ns/mnt', os.O_RDONLY)
entry = {'point': 'skills', 'name': 'one', 'source': sys.argv[1], 'closed': False, 'is_folder': True}
blob = {'point': 'blobs', 'name': 'b', 'source': sys.argv[2], 'closed': False, 'is_folder': False}
shelf = workshop.Shelf()
def left():
    return len(os.listdir('/proc/self/fd')), open('/proc/self/mounts').read().count('/given'), os.listdir('/given')
def failing(entries, work):
    try:
        work(entries)
    except kernel.SetupError:
        return left()
def give(entries):
    workshop.give(shelf, 65000, entries, (own, own))  # there is no /skills here
def starved(entries):
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, 64))
    try:
        shelf.open(65000, entries)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
free = os.dup(0) + 1  # room for one more, which is the first of two trees
os.close(free - 1)
before = left()
print(failing([entry, blob], give) == before, failing([entry, blob], starved) == before)
kept = failing([entry], give)
print(kept[0] == before[0], len(kept[2]))
free -= 1
print(failing([entry], starved) == before)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_workshop_keeps_nothing_of_mounts_that_failed(tmp_path: Path) -> None:
    (tmp_path / "skill").mkdir()
    (tmp_path / "blob").touch()
    command = [sys.executable, "-c", WORKSHOP, str(tmp_path / "skill"), str(tmp_path / "blob")]

    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    assert (ended.stdout, ended.stderr) == ("True True\nTrue 1\nTrue\n", "")
