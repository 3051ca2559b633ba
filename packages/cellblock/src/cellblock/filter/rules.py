"""The system call filter: an allow-list as a balanced tree of comparisons. The host makes it once.

The zygote loads most of it (`base`), and each run only the verdicts for DECIDED_BY_RUN. The kernel applies the stricter
verdict.

The filter is written without a library. Source: Documentation/userspace-api/seccomp_filter.rst.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from typing import NamedTuple

from cellblock.filter import calls
from cellblock.host.channel import can_refuse_descriptors

Instruction = tuple[int, int, int, int]
Code = tuple[Instruction, ...]

LOAD, JUMP, EQUAL, AT_LEAST, AND, RETURN = 0x20, 0x05, 0x15, 0x35, 0x54, 0x06
ALLOW = 0x7FFF0000
KILL_PROCESS = 0x80000000
REFUSE = 0x00050000
ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32 = 0x40000000

DECIDED_BY_RUN = (
    *("setns", "unshare", "mount", "clone", "socket", "connect", "bind", "listen", "sendmsg", "sched_setaffinity"),
    *("ioctl", "accept", "accept4", "sendmmsg"),
)
"""The calls that the filter of a run decides on: pid 1 makes them to set up a run, or only some runs may make them."""
NEW_NAMESPACES = 0x7E020000
FAMILY_UNIX, FAMILY_INET, FAMILY_INET6 = 1, 2, 10
STREAM, DATAGRAM, SEQUENCED = 1, 2, 5
MSG_OOB, MSG_ZEROCOPY, MSG_FASTOPEN = 1, 0x4000000, 0x20000000
WITH_FLAGS = {"sendto": 3, "recvfrom": 3, "recvmsg": 2, "recvmmsg": 3, "sendmsg": 2, "sendmmsg": 3}
"""Calls for messages, with the index of the argument that has their flags."""
F_SETLEASE, F_NOTIFY, F_SETPIPE_SZ = 1024, 1026, 1031
PR_SCHED_CORE, PR_SET_MEMORY_MERGE, PR_FUTEX_HASH = 62, 67, 78
# Each of these moves pages of files that the host and other runs use, or compares pages of several runs (KSM).
MADV_WILLNEED, MADV_MERGEABLE, MADV_COLD, MADV_PAGEOUT = 3, 12, 20, 21
SHARED_ANONYMOUS = 0x21  # MAP_SHARED_VALIDATE has the bit of MAP_SHARED too
MAP_HUGETLB, MFD_HUGETLB = 0x40000, 4
SOL_IP, SOL_SOCKET, SOL_TCP, SOL_IPV6 = 0, 1, 6, 41
OPTIONS = {
    # Sizes, delays and keep-alive of TCP, and TCP_INFO. Not: TLS and other protocols in the kernel, signatures, fast
    # open, congestion control, received pages in the memory of the process.
    SOL_TCP: (*range(1, 10), 11, 12, 18, 25),
    # Type of service, time to live, path MTU, binding. Not: groups and options of packets, whose memory nothing counts.
    SOL_IP: (1, 2, 10, 15, 24),
    SOL_IPV6: (16, 26, 66, 67),
}
"""The options of sockets that runs may read and set, by level. Those of SOL_SOCKET are refused by number."""
ATTACH_PROGRAMS = (26, 50, 51, 52)  # SO_ATTACH_FILTER, _BPF, _REUSEPORT_CBPF, _REUSEPORT_EBPF
BUFFER_SIZES = (7, 8, 32, 33)  # SO_SNDBUF, SO_RCVBUF and their privileged twins
TIMES_OF_PACKETS = (29, 35, 37, 63, 64, 65)  # SO_TIMESTAMP, …NS, …ING, and their twins with 64 bits
OTHER_ENDS = (31, 59, 76, 77)  # SO_PEERSEC, _PEERGROUPS, _PASSPIDFD, _PEERPIDFD: facts and a pidfd of the server
SOCKET_REQUESTS = 0x8900
"""The first of 256 requests of ioctl to any socket. Two of them let the kernel load modules (bridge, 8021q)."""
READS_OF_INTERFACES = (0x8910, 0x8912, 0x8913, 0x8915, 0x8919, 0x891B, 0x8921, 0x8927, 0x8933)
"""SIOCGIFNAME, …CONF, …FLAGS, …ADDR, …BRDADDR, …NETMASK, …MTU, …HWADDR, …INDEX."""
WIRELESS_REQUESTS = 0x8B00
TERMINAL_INJECTION = (0x5412, 0x541C, 0x5423)  # TIOCSTI, TIOCLINUX, TIOCSETD
PRIO_USER, IOPRIO_WHO_USER = 2, 3
HARMLESS_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)


class Sockets(IntEnum):
    """The sockets of a run. The value is the number of its filter in an order (native/cell.c)."""

    PAIRS = 0
    """Only unnamed pairs of UNIX sockets."""
    CLIENTS = 1
    """TCP clients, which reach only the proxy."""
    LOOPBACK = 2
    """TCP clients and servers on 127.0.0.1 of a net namespace of this run alone."""
    LOOPBACK_AND_UNIX = 3
    """UNIX sockets with names, too."""


class Filters(NamedTuple):
    """The system call filters of runs, in the kernel's format."""

    runs: tuple[bytes, ...]
    """The filter for each kind of `Sockets`."""
    base: bytes
    """The filter that the zygote loads. Runs inherit it, and load one of the others in addition."""


def verdict(value: int) -> Code:
    return ((RETURN, 0, 0, value),)


def refuse(number: int) -> Code:
    return verdict(REFUSE | number)


def load_argument(index: int) -> Instruction:
    # The low half, because the kernel itself reads no more of an ioctl request, a family or clone flags. Filters that
    # compared all 64 bits were bypassed.
    return (LOAD, 0, 0, 16 + 8 * index)


def one_of(index: int, values: tuple[int, ...], then: Code, otherwise: Code) -> Code:
    """Return code that continues with `then` if the argument is one of the values, else with `otherwise`.

    `then` and `otherwise` must end with a return instruction.
    """
    last = len(values) - 1
    tests = tuple((EQUAL, last - place, int(place == last) * len(then), value) for place, value in enumerate(values))
    return (load_argument(index), *tests, *then, *otherwise)


def socket_type(*types: int, refused: int = errno.EPERM) -> Code:
    """Return code that refuses the call unless argument 1, without its flags, is one of the socket types."""
    last = len(types)
    tests = tuple((EQUAL, last - place, 0, value) for place, value in enumerate(types))
    return (load_argument(1), (AND, 0, 0, 0xF), *tests, *refuse(refused))


def by_argument(*, cgroups: bool, rights: bool) -> dict[str, Code]:
    """Return the code for each call whose arguments are checked, except the calls of `sockets`."""
    allow, eperm, ignored = verdict(ALLOW), refuse(errno.EPERM), refuse(0)
    # Leases and notices concern files that the host and other runs use too. A large pipe takes pages from the server
    # user's share if no cgroup counts them.
    fcntl = (F_SETLEASE, F_NOTIFY) if cgroups else (F_SETLEASE, F_NOTIFY, F_SETPIPE_SZ)
    return {
        "clone": (load_argument(0), (AND, 0, 0, NEW_NAMESPACES), (EQUAL, 0, 1, 0), *allow, *eperm),
        # A datagram socket, paired or not, sends to any address, such as a host socket in a mounted folder.
        "socketpair": (*socket_type(STREAM, SEQUENCED), *one_of(0, (FAMILY_UNIX,), allow, eperm)),
        # The memory of data in a socket is counted, or estimated, at the default buffer size.
        "setsockopt": socket_options(changes_of_sockets()),
        "getsockopt": socket_options(one_of(2, OTHER_ENDS, refuse(errno.ENOPROTOOPT), allow)),
        "ioctl": requests(),
        "personality": one_of(0, HARMLESS_PERSONALITIES, allow, eperm),
        "fcntl": one_of(1, fcntl, eperm, allow),
        "madvise": one_of(2, (MADV_WILLNEED, MADV_MERGEABLE, MADV_COLD, MADV_PAGEOUT), ignored, allow),
        "prctl": one_of(0, (PR_SCHED_CORE, PR_SET_MEMORY_MERGE, PR_FUTEX_HASH), eperm, allow),
        # Only of the caller itself: pid 1 has the same uid, and its own limits could kill it.
        "prlimit64": one_of(0, (0,), allow, eperm),
        **of_all_but_pid_1(cgroups=cgroups),
        # The server closes a descriptor sent to it, which takes as long as the code wants.
        **{name: without_urgent(index, allow) for name, index in WITH_FLAGS.items()},
        **({} if rights else dict.fromkeys(("sendmsg", "sendmmsg"), eperm)),
        "mmap": without_flag(3, MAP_HUGETLB, allow if cgroups else mmap_that_a_watchdog_sees()),
        "memfd_create": without_flag(1, MFD_HUGETLB, allow) if cgroups else eperm,
    }


def without_urgent(index: int, otherwise: Code) -> Code:
    """Return code that refuses the flags MSG_OOB, MSG_ZEROCOPY and MSG_FASTOPEN in argument `index`.

    Urgent data and pinned pages are parts of the kernel that almost no program uses, and TCP Fast Open is a second way
    to connect.
    """
    return (
        load_argument(index),
        (AND, 0, 0, MSG_OOB | MSG_ZEROCOPY | MSG_FASTOPEN),
        (EQUAL, 1, 0, 0),
        *refuse(errno.EOPNOTSUPP),
        *otherwise,
    )


def socket_options(of_sockets: Code) -> Code:
    """Return the code for setsockopt or getsockopt. `of_sockets` decides on options of the level SOL_SOCKET."""
    absent = refuse(errno.ENOPROTOOPT)
    code = absent
    for level, options in OPTIONS.items():
        code = one_of(1, (level,), one_of(2, options, verdict(ALLOW), absent), code)
    return one_of(1, (SOL_SOCKET,), of_sockets, code)


def changes_of_sockets() -> Code:
    """Return code that ignores buffer sizes, and refuses to attach BPF programs and to take the times of packets.

    No cgroup counts the memory of BPF programs, and for times, the kernel changes its code on all processors.
    """
    rest = one_of(2, BUFFER_SIZES, refuse(0), verdict(ALLOW))
    absent = one_of(2, TIMES_OF_PACKETS + OTHER_ENDS, refuse(errno.ENOPROTOOPT), rest)
    return one_of(2, ATTACH_PROGRAMS, refuse(errno.EPERM), absent)


def requests() -> Code:
    """Return the code for ioctl. Of the requests to sockets, it allows only those that read network interfaces."""
    allow, eperm = verdict(ALLOW), refuse(errno.EPERM)
    reads = one_of(1, READS_OF_INTERFACES, allow, eperm)
    wireless = (load_argument(1), (AND, 0, 0, 0xFFFFFF00), (EQUAL, 0, 1, WIRELESS_REQUESTS), *eperm)
    others = (*wireless, *one_of(1, TERMINAL_INJECTION, eperm, allow))
    return (load_argument(1), (AND, 0, 0, 0xFFFFFF00), (EQUAL, 0, len(reads), SOCKET_REQUESTS), *reads, *others)


def without_flag(index: int, flag: int, otherwise: Code) -> Code:
    """Return code that refuses calls with this flag. The flag asks for huge pages, a pool of the host without
    limits.
    """
    refused = refuse(errno.EPERM)
    return (load_argument(index), (AND, 0, 0, flag), (EQUAL, 0, len(refused), flag), *refused, *otherwise)


def socket_calls(sockets: Sockets) -> dict[str, Code]:
    """Return the code for the calls that create, name and connect sockets.

    - A process with the channel may have clients, and no server: the socket of the channel belongs to the host's net
      namespace, so `bind` would give it an address there. With Landlock version 4, clients connect only to the proxy.
    - With `LOOPBACK`, the code is a program without the channel. Its net namespace has no route, so it reaches only
      itself and the proxy. A UNIX socket could connect to a socket in a mounted folder.
    - Datagrams are refused, because queued datagrams on loopback use memory that no limit counts.
    """
    allow, eacces, no_family = verdict(ALLOW), refuse(errno.EACCES), refuse(errno.EAFNOSUPPORT)
    tcp = (*socket_type(STREAM, refused=errno.EACCES), *one_of(2, (0, 6), allow, refuse(errno.EPERM)))
    servers = ("bind", "listen", "accept", "accept4")
    if sockets < Sockets.LOOPBACK:
        is_client = sockets is Sockets.CLIENTS
        return {
            "socket": one_of(0, (FAMILY_INET, FAMILY_INET6), tcp if is_client else eacces, no_family),
            "connect": allow if is_client else eacces,
            **dict.fromkeys(servers, eacces),
        }
    named = (*socket_type(STREAM, SEQUENCED, refused=errno.EACCES), *allow)
    unix = named if sockets is Sockets.LOOPBACK_AND_UNIX else eacces
    return {
        "socket": one_of(0, (FAMILY_INET,), tcp, one_of(0, (FAMILY_UNIX,), unix, no_family)),
        **dict.fromkeys(("connect", *servers), allow),
    }


def of_all_but_pid_1(*, cgroups: bool) -> dict[str, Code]:
    """Return the code for the calls that change the scheduling of a process. They are refused for pid 1.

    Without processor time, pid 1 could not end, and could not end the others. Without `cgroups`, a run may not change
    its processors at all.
    """
    allow, eperm = verdict(ALLOW), refuse(errno.EPERM)
    others = one_of(0, (1,), eperm, allow)
    second = one_of(1, (1,), eperm, allow)
    return {
        **dict.fromkeys(("sched_setscheduler", "sched_setparam", "sched_setattr"), others),
        "sched_setaffinity": others if cgroups else eperm,
        # Setting by uid would include pid 1.
        "setpriority": one_of(0, (PRIO_USER,), eperm, second),
        "ioprio_set": one_of(0, (IOPRIO_WHO_USER,), eperm, second),
    }


def mmap_that_a_watchdog_sees() -> Code:
    """Return the code for mmap on hosts where no cgroup counts memory. The code refuses shared anonymous mappings.

    Pages of such a mapping can stay in memory after a process unmaps them. They then belong to no process, so the
    watchdog would not count them.
    """
    shared = (load_argument(3), (AND, 0, 0, SHARED_ANONYMOUS), (EQUAL, 0, 1, SHARED_ANONYMOUS))
    return (*shared, *refuse(errno.EPERM), *verdict(ALLOW))


def verdicts(
    machine: str,
    *,
    cgroups: bool,
    sockets: Sockets = Sockets.PAIRS,
    also: tuple[str, ...] = (),
    rights: bool | None = None,
) -> dict[int, Code]:
    """Return the code for each known call by its number. The arguments are those of `program`."""
    can_send = (can_refuse_descriptors() if rights is None else rights) or sockets >= Sockets.LOOPBACK
    checks = by_argument(cgroups=cgroups, rights=can_send) | socket_calls(sockets)
    allow, eperm, enosys = verdict(ALLOW), refuse(errno.EPERM), refuse(errno.ENOSYS)
    tables: tuple[tuple[str, Code], ...] = (
        (calls.ALLOWED, allow),
        (calls.ONLY_WITH_CGROUPS, allow if cgroups else eperm),
        (calls.IGNORED, refuse(0)),
        (calls.ABSENT, enosys),
        (calls.UNSUPPORTED, refuse(errno.EOPNOTSUPP)),
        (calls.FORBIDDEN, eperm),
    )
    verdicts = {number: checks[name] for name, number in calls.numbers(calls.BY_ARGUMENT, machine).items()}
    for table, code in tables:
        verdicts |= dict.fromkeys(calls.numbers(table, machine).values(), code)
    held = calls.numbers(calls.FORBIDDEN + calls.BY_ARGUMENT, machine)
    return verdicts | {held[name]: allow for name in also}


def intervals(known: Mapping[int, Code], unknown: Code) -> list[tuple[int, Code]]:
    """Return ranges of call numbers with the same code, as (first number, code), from 0 without gaps."""
    stretches: list[tuple[int, Code]] = []
    for number in range(max(known) + 2):
        code = known.get(number, unknown)
        if not stretches or stretches[-1][1] != code:
            stretches.append((number, code))
    return stretches


def tree(stretches: list[tuple[int, Code]]) -> Code:
    """Return a binary search by call number: about seven comparisons for each call instead of hundreds."""
    if len(stretches) == 1:
        return stretches[0][1]
    middle = len(stretches) // 2
    left, right = tree(stretches[:middle]), tree(stretches[middle:])
    first = stretches[middle][0]
    if len(left) <= 255:
        return ((AT_LEAST, len(left), 0, first), *left, *right)
    return ((AT_LEAST, 0, 1, first), (JUMP, 0, 0, len(left)), *left, *right)


@cache
def program(
    machine: str,
    *,
    cgroups: bool,
    sockets: Sockets = Sockets.PAIRS,
    also: tuple[str, ...] = (),
    only: tuple[str, ...] = (),
    rights: bool | None = None,
) -> bytes:
    """Return the filter in the kernel's format, an array of struct sock_filter. Raise KeyError if the machine is
    unsupported.

    - `cgroups`: whether a cgroup counts the memory of the run.
    - `sockets`: the sockets that the process may have.
    - `also`: calls that are allowed during set-up. Later, the run loads a filter for these calls in addition, or the
      complete one.
    - `only`: the calls that the filter decides on. It allows all others. Empty means that it decides on all calls.
    - `rights`: whether code may try to send descriptors. None means: only if the channel refuses them. Programs have
      no channel, so they always may.
    """
    kill = verdict(KILL_PROCESS)
    head: Code = (
        (LOAD, 0, 0, 4),
        (EQUAL, 1, 0, ARCHITECTURE[machine]),
        *kill,
        (LOAD, 0, 0, 0),
        (AT_LEAST, 0, 1, X32),
        *kill,
    )
    known, unknown = verdicts(machine, cgroups=cgroups, sockets=sockets, also=also, rights=rights), refuse(errno.ENOSYS)
    if only:
        chosen = calls.numbers(calls.FORBIDDEN + calls.BY_ARGUMENT, machine)
        known, unknown = {chosen[name]: known[chosen[name]] for name in only}, verdict(ALLOW)
    body = tree(intervals(known, unknown))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in (*head, *body))


def filters(machine: str, *, cgroups: bool) -> Filters:
    """Return the filters of the zygote and of all runs. Raise KeyError if the machine is unsupported."""
    runs = tuple(program(machine, cgroups=cgroups, sockets=sockets, only=DECIDED_BY_RUN) for sockets in Sockets)
    return Filters(runs, program(machine, cgroups=cgroups, also=DECIDED_BY_RUN))
