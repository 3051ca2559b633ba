"""A worker process: calls functions with foreign texts for the server, within limits of time and memory.

Code whose cost is not linear in a foreign text runs here, because it would hold the interpreter lock of the server. The
command line names the functions. A worker answers calls one after another over its standard input, which is a socket. A
message is a length (4 bytes, big-endian) and then MessagePack. The first message of a worker has the length 0 and means
that the worker is ready. A worker ends when the server closes the socket or dies.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import time
import typing
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, BinaryIO

import msgspec

with contextlib.suppress(ImportError):  # on Windows, where only commands for remote servers import this module
    import fcntl
    import resource

LENGTH = struct.Struct(">I")

_MOST_CALLS = 10_000
_NICE = 5
_NOBODY = 65534


class Call(msgspec.Struct, frozen=True):
    """A call of one of the worker's functions. `seconds` limits its processor time."""

    function: str
    args: msgspec.Raw
    seconds: float


class Reply(msgspec.Struct, frozen=True):
    """The result of a call. After a reply with `is_last`, the worker ends and so releases its memory."""

    result: msgspec.Raw
    cpu_seconds: float
    is_last: bool
    failure: str = ""
    """The name of the exception with which the function ended because the text is too deep or too large."""


class Signature(typing.NamedTuple):
    args: Any
    result: Any


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function of a module, for a command line and for calls."""
    return f"{function.__module__}:{function.__qualname__}"


def signature_of(function: Callable[..., Any]) -> Signature:
    """Return the types of the arguments, as one tuple, and the type of the result."""
    hints = typing.get_type_hints(function)
    result = hints.pop("return")
    return Signature(tuple[tuple(hints.values())], result)  # type: ignore[misc]


def main(functions: str, loaders: str, memory_bytes: int, resident_bytes: int) -> None:
    """Answer up to _MOST_CALLS calls, or until the server closes the socket.

    `functions` and `loaders` are names with commas. The loaders import what the functions need, because this process
    later cannot open files. `memory_bytes` limits the address space. If the process has more than `resident_bytes` of
    resident memory after a reply, this reply is the last one.
    """
    server = socket.socket(fileno=0)
    requests = server.makefile("rb")
    memory = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    known = {name: _imported(name) for name in functions.split(",")}
    signatures = {name: signature_of(function) for name, function in known.items()}
    for loader in filter(None, loaders.split(",")):
        _imported(loader)()
    _give_up_privileges(memory_bytes)
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    server.sendall(LENGTH.pack(0))
    for served in range(1, _MOST_CALLS + 1):
        call = _next_call(requests)
        if call is None:
            return
        before = time.process_time()
        with _ending_with_the_server(), _processor_time(call.seconds):
            failure, result = _result(known[call.function], signatures[call.function], call)
        used = time.process_time() - before
        is_last = served == _MOST_CALLS or failure == "MemoryError" or _resident_bytes(memory) > resident_bytes
        encoded = msgspec.msgpack.encode(Reply(msgspec.Raw(result), used, is_last, failure))
        server.sendall(LENGTH.pack(len(encoded)) + encoded)
        if is_last:
            return


def _imported(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    imported: Callable[..., Any] = getattr(import_module(module), function)
    return imported


def _next_call(requests: BinaryIO) -> Call | None:
    head = requests.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    body = requests.read(length)
    return msgspec.msgpack.decode(body, type=Call) if len(body) == length else None


def _result(function: Callable[..., Any], signature: Signature, call: Call) -> tuple[str, bytes]:
    """Return the name of a failure, or "", and the encoded result."""
    try:
        return "", msgspec.msgpack.encode(function(*msgspec.msgpack.decode(call.args, type=signature.args)))
    except (RecursionError, MemoryError) as error:
        return type(error).__name__, msgspec.msgpack.encode(None)


# -- limits ------------------------------------------------------------------------------------------------------


def _give_up_privileges(memory_bytes: int) -> None:
    """Limit this process to what its functions need: processor time and memory.

    After this call, the process cannot open descriptors, write files or write core dumps. Unless it still runs as root,
    it cannot start processes.
    """
    os.nice(_NICE)
    _become_nobody()
    _, inherited = resource.getrlimit(resource.RLIMIT_AS)
    memory_bytes = _lower(memory_bytes, inherited)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_CORE):
        resource.setrlimit(limit, (0, 0))


def _lower(limit: int, inherited: int) -> int:
    return limit if inherited == resource.RLIM_INFINITY else min(limit, inherited)


def _become_nobody() -> None:
    """If the process runs as root, try to change to the user `nobody`, so that an exploit of a bug in the compiler or a
    parser does not run as root.
    """
    if os.geteuid() != 0:
        return
    # A container may forbid changing the user, or may not have this user. The limits apply in spite of that.
    with contextlib.suppress(OSError):
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)


@contextlib.contextmanager
def _processor_time(seconds: float) -> Iterator[None]:
    """Context manager in which the kernel ends this process after `seconds` more of processor time (SIGPROF)."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)


@contextlib.contextmanager
def _ending_with_the_server() -> Iterator[None]:
    """Context manager in which the kernel ends this process when the server closes its end of the socket.

    While a function runs, no other Python code of this process can read the socket. Therefore the socket sends SIGIO,
    which ends a process by default. No other event sends SIGIO: the server sends nothing before it has read the answer.
    """
    flags = fcntl.fcntl(0, fcntl.F_GETFL)
    fcntl.fcntl(0, fcntl.F_SETFL, flags | os.O_ASYNC)
    yield
    fcntl.fcntl(0, fcntl.F_SETFL, flags)


def _resident_bytes(memory: int) -> int:
    return int(os.pread(memory, 128, 0).split()[1]) * resource.getpagesize()
