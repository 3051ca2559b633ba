"""Forking runs: the zygote receives an order, forks pid 1 of the run, answers, and waits for the next order.

One script of system calls does all of this, as long as the parameters of the runs are the same. The zygote's
interpreter is needed only for the first run with other parameters. After a fork, Python code is
expensive: the kernel copies each page of memory that it changes.

Pid 1 of a run shares the zygote's memory until it becomes the program of `init`, and the zygote stops for this time
(vfork). So the kernel copies the table of the zygote's pages only for pid 2. Pid 1 executes only calls of the script,
which the zygote wrote, and no other process may trace it. Two kinds of zygotes and runs do not share memory:

- Zygotes with preloaded packages. Their pid 1 waits for the server, and other runs should not wait as well.
- Runs with little memory (see `shares_memory` of their parameters). If the kernel ended pid 1 because memory ran out,
  it would end all processes with the same memory.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os

from . import calls, inmate, kernel, messages, posture, zygote
from .link import (
    CROWDED,
    HEAD_BYTES,
    ID_MAP_BYTES,
    MOST_BYTES,
    MOST_DESCRIPTORS,
    NUMBER,
    ORDER,
    PID,
    SLOTS_FROM,
    id_map,
)

TYPE_CHECKING = False  # importing `typing` for this costs every start milliseconds
if TYPE_CHECKING:
    from typing import Any

    from .link import Link

KEPT = 32
CONTROL_ROOM = 16 + 8 * MOST_DESCRIPTORS
HOME = SLOTS_FROM - 1
"""The descriptor of the zygote's own net namespace."""
HIGHEST = 180
"""Received descriptors get numbers below this, so they differ from those with a fixed number."""
ONE_THREAD = 3
"""The link count of a folder with exactly one subfolder."""


def check_threads() -> None:
    """Raise SetupError if another thread runs: a fork copies only one thread, but the locks of all threads."""
    if os.stat("/proc/self/task").st_nlink != ONE_THREAD:  # noqa: PTH116 - importing pathlib would cost milliseconds
        raise kernel.SetupError("the zygote has more than one thread")


def fill_gaps() -> tuple[int, int]:
    """Open /dev/null at all free numbers below the highest open descriptor.

    Return a number of /dev/null, and the number of the next descriptor that is opened. So a script knows the numbers of
    the descriptors that it receives: they are the next ones.
    """
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    opened = {number for number in posture.open_descriptors() if number < HIGHEST}
    for number in set(range(max(opened))) - opened:
        os.dup2(null, number, inheritable=False)
    return null, max(opened) + 1


class Slots:
    """Empty net namespaces. Each is created at its first use, and then reused. The server gives a namespace to one run
    at a time. The zygote itself is in another one (HOME), which no run gets.
    """

    def __init__(self) -> None:
        self._made = 0

    def make(self, descriptor: int) -> None:
        """Make all namespaces up to that with this descriptor."""
        if SLOTS_FROM + self._made > descriptor:
            return
        if not self._made:
            self._add(HOME)
        while SLOTS_FROM + self._made <= descriptor:
            self._add(SLOTS_FROM + self._made)
            self._made += 1
        kernel.set_namespace(HOME, kernel.NEWNET)

    def _add(self, descriptor: int) -> None:
        kernel.unshare(kernel.NEWNET)
        namespace = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(namespace, descriptor, inheritable=False)
        os.close(namespace)


class Part:
    """The script for all runs with the same parameters, and the places of an order in this script."""

    def __init__(self, plan: dict[str, Any], content: bytes, *, link: int, slot: bool, received: range, null: int):
        parameters = json.loads(content)
        self.landlock_abi = 0
        self.ahead = ctypes.c_bool()
        self._root = plan["root"]
        self._answer = ctypes.create_string_buffer(NUMBER.size + PID.size)
        self._ids = ctypes.create_string_buffer(id_map(posture.UID), ID_MAP_BYTES)
        self._unused = ctypes.create_string_buffer(ID_MAP_BYTES)
        self._rest = ctypes.create_string_buffer(MOST_BYTES)
        self._control = ctypes.create_string_buffer(CONTROL_ROOM)
        self._pidfd = ctypes.c_int(-1)
        order = messages.message([], None)
        answer = messages.message([messages.place_of(self._answer)], messages.rights(received.stop))
        with calls.Script(descriptors=zygote.CHANNEL + 1) as script:
            receive = script.position
            script.add(
                "order",
                kernel.SYS_RECVMSG,
                link,
                order,
                messages.MSG_CMSG_CLOEXEC,
                kind=calls.RECEIVE,
                answer=HEAD_BYTES,
            )
            start = script.position
            if slot:
                kernel.call("net namespace", kernel.SYS_SETNS, -1, kernel.NEWNET)
            ids = script.position
            if self._root:
                kernel.call("gid", kernel.SYS_SETRESGID, -1, -1, -1)
                kernel.call("uid", kernel.SYS_SETRESUID, -1, -1, -1)
            fork = script.position
            flags = kernel.CLONE_PIDFD | inmate.NAMESPACES & ~(kernel.NEWNET if slot else 0)
            if parameters["shares_memory"] and not plan["environment"]:
                flags |= kernel.CLONE_VM | kernel.CLONE_VFORK
            arguments = kernel.clone_arguments(flags, parent=self._pidfd)
            script.add("new namespaces", kernel.SYS_CLONE, *arguments, kind=calls.FIRST, answer=0)
            self.landlock_abi = inmate.add_first(script, plan, parameters, received, null, self._ids)
            if not plan["environment"]:
                script.jump(fork, script.position)
                self._go_on(plan, link, received, answer)
                script.continue_at(receive)
        written = script.end()
        self.start = written.address_of(start)
        self._written = written
        self._places = [
            (ctypes.addressof(self._answer), NUMBER.size),
            messages.place_of(self._ids if self._root else self._unused),
            (written.argument_address(ids, 1), 8) if self._root else self._unused_place(),
            (written.argument_address(ids + 1, 1), 8) if self._root else self._unused_place(),
            (written.argument_address(start, 0), 8) if slot else self._unused_place(),
            messages.place_of(self.ahead),
            messages.place_of(self._rest),
        ]
        messages.set_places(order, self._places, self._control)
        self._order = order

    def _unused_place(self) -> messages.Place:
        return ctypes.addressof(self._unused), 8

    def _go_on(self, plan: dict[str, Any], link: int, received: range, answer: messages.Message) -> None:
        """Append what the zygote does after the fork: take its own ids again, answer, and close what it received."""
        if self._root:
            kernel.call("uid", kernel.SYS_SETRESUID, -1, 0, -1)
            kernel.call("gid", kernel.SYS_SETRESGID, -1, 0, -1)
            # A change of ids makes the kernel forget this. The server may have ended a moment before it is set again.
            kernel.prctl("parent death signal", kernel.PR_SET_PDEATHSIG, kernel.SIGKILL)
            kernel.call("parent", kernel.SYS_GETPPID, answer=plan["server"])
        kernel.call("answer", kernel.SYS_SENDMSG, link, answer, 0)
        kernel.call("close_range", kernel.SYS_CLOSE_RANGE, received.start, received.stop, 0)

    @property
    def number(self) -> bytes:
        return self._answer.raw[: NUMBER.size]

    def put(self, head: bytes) -> None:
        """Put the beginning of an order, which arrived elsewhere, at its places in the script."""
        for start, length in self._places[:-1]:
            ctypes.memmove(start, head[:length], length)
            head = head[length:]

    def received(self, size: int) -> tuple[bytes, int]:
        """Return an order that the script received, and the number of its descriptors. Raise EOFError at the end."""
        if size <= 0:
            raise EOFError("the server has gone")
        if self._order.flags & messages.MSG_CTRUNC:
            raise kernel.SetupError("descriptors of an order were lost")
        content = b"".join(ctypes.string_at(start, length) for start, length in self._places)
        return content[:size], messages.descriptor_count(self._control)


class Forks:
    """Forks a process for each run. Runs with equal parameters share one script, made by the first of these runs."""

    def __init__(self, server: Link, plan: dict[str, Any]) -> None:
        self._server = server
        self._plan = plan
        self._slots = Slots()
        self._parts: dict[tuple[bytes, bool, int], Part] = {}
        self._do = calls.load()
        self._null, self._first = fill_gaps()

    def serve(self) -> None:
        """Serve orders. Raise EOFError when the server closes the link. Pid 2 of a run never returns."""
        message, count = self._receive()
        while True:
            check_threads()
            received = range(self._first, self._first + count)
            part = self._part(message, received)
            part.put(message[:HEAD_BYTES])
            # The collector of pid 2 would visit the objects of the script, and so change their pages of memory.
            gc.freeze()
            result = self._fork(part)
            if result == 0:
                inmate.be_second(self._plan, part.landlock_abi, ahead=part.ahead.value)
            if self._plan["environment"]:
                os.closerange(received.start, received.stop + 1)  # the next one is the pidfd
                self._server.send(part.number + PID.pack(0 if result > 0 else CROWDED))
                message, count = self._receive()
            else:
                message, count = part.received(result - calls.RECEIVED)

    def _receive(self) -> tuple[bytes, int]:
        message, descriptors = self._server.receive()
        if descriptors != [*range(self._first, self._first + len(descriptors))]:
            raise kernel.SetupError("descriptors have other numbers than expected")
        return message, len(descriptors)

    def _fork(self, part: Part) -> int:
        try:
            return kernel.forked(self._do, part.start)
        except kernel.SetupError:
            if not self._plan["environment"]:
                raise
            return -1  # its runs have reached their common limit of processes

    def _part(self, message: bytes, received: range) -> Part:
        slot = ORDER.unpack_from(message, NUMBER.size)[3]
        self._slots.make(slot)
        known = message[HEAD_BYTES:], slot >= 0, len(received)
        if known not in self._parts:
            if len(self._parts) >= KEPT:
                del self._parts[next(iter(self._parts))]
            self._parts[known] = Part(
                self._plan,
                known[0],
                link=self._server.descriptor,
                slot=slot >= 0,
                received=received,
                null=self._null,
            )
        return self._parts[known]


def serve(server: Link, plan: dict[str, Any]) -> None:
    """Fork runs until the server closes the link."""
    kernel.ignore(kernel.SIGCHLD)  # the kernel reaps children; the server has a pidfd of each
    forks = Forks(server, plan)
    gc.disable()
    server.say(ready=True)
    forks.serve()
