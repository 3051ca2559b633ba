"""The compile worker: a process that compiles Python source of skills for the server.

The compiler holds the interpreter lock, so the server itself compiles no source. A worker answers requests one after
another over its standard input, which is a socket. A message is a length (4 bytes, big-endian) and then MessagePack.
The first message of a worker has the length 0 and means that the worker is ready. A worker ends when the server closes
the socket or dies.
"""

from __future__ import annotations

import codecs
import contextlib
import encodings.aliases
import math
import os
import socket
import struct
import time
import unicodedata  # noqa: F401 - the compiler imports it for names and escapes that are not ASCII
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from skillery.formats.imports import Import, find_imports
from skillery.formats.python_handler import python_handler
from skillery.formats.python_source import SourceFault, find_fault
from skillery.formats.relative_imports import RelativeImport, find_relative_imports

with contextlib.suppress(ImportError):  # on Windows, where only commands for remote servers import this module
    import fcntl
    import resource

LENGTH = struct.Struct(">I")
MOST_ANSWER_BYTES = 8 * 1024 * 1024

_MOST_REQUESTS = 10_000
_NICE = 5
_NOBODY = 65534


class Check(msgspec.Struct, frozen=True, tag="check"):
    """Request to find the fault of a file. `export` is the name that the file must define, or None for any names."""

    source: bytes
    export: str | None


class Wrap(msgspec.Struct, frozen=True, tag="wrap"):
    """Request to make a handler file from the body that `define_tool` received."""

    code: bytes


class Look(msgspec.Struct, frozen=True, tag="look"):
    """Request to find the imports of each source."""

    sources: tuple[bytes, ...]


class LookBeside(msgspec.Struct, frozen=True, tag="look_beside"):
    """Request to find the relative imports of each source."""

    sources: tuple[bytes, ...]


Request = Check | Wrap | Look | LookBeside


class WorkerReply(msgspec.Struct, frozen=True):
    """The result of one request. After an answer with `is_last`, the worker ends and so releases its memory."""

    fault: SourceFault | None
    cpu_seconds: float
    is_last: bool
    handler: bytes = b""
    imports: tuple[tuple[Import, ...], ...] = ()
    """For a Look: the imports of each source."""
    relative: tuple[tuple[RelativeImport, ...], ...] = ()
    """For a LookBeside: the relative imports of each source."""


def main(cpu_seconds: int, memory_bytes: int, resident_bytes: int) -> None:
    """Answer up to _MOST_REQUESTS requests, or until the server closes the socket.

    `cpu_seconds` limits the processor time of each request. `memory_bytes` limits the address space. If the process has
    more than `resident_bytes` of resident memory after an answer, this answer is the last one.
    """
    server = socket.socket(fileno=0)
    requests = server.makefile("rb")
    memory = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    _load_what_the_compiler_imports()
    _give_up_privileges(memory_bytes)
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    server.sendall(LENGTH.pack(0))
    for served in range(1, _MOST_REQUESTS + 1):
        request = _next_request(requests)
        if request is None:
            return
        with _ending_with_the_server(), _processor_time(cpu_seconds) as started:
            answer = _work(request)
            used = time.process_time() - started
        is_last = served == _MOST_REQUESTS or _resident_bytes(memory) > resident_bytes
        encoded = msgspec.msgpack.encode(msgspec.structs.replace(answer, cpu_seconds=used, is_last=is_last))
        server.sendall(LENGTH.pack(len(encoded)) + encoded)
        if is_last:
            return


def _next_request(requests: BinaryIO) -> Request | None:
    head = requests.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    body = requests.read(length)
    return msgspec.msgpack.decode(body, type=Request) if len(body) == length else None


def _work(request: Request) -> WorkerReply:
    """Return the answer to a request. The caller sets `cpu_seconds` and `is_last` of the answer."""
    if isinstance(request, Check):
        return WorkerReply(find_fault(request.source, request.export), 0, False)
    if isinstance(request, Look):
        return WorkerReply(None, 0, False, imports=tuple(find_imports(source) for source in request.sources))
    if isinstance(request, LookBeside):
        return WorkerReply(None, 0, False, relative=tuple(find_relative_imports(source) for source in request.sources))
    made = python_handler(request.code.decode())
    return WorkerReply(made, 0, False) if isinstance(made, SourceFault) else WorkerReply(None, 0, False, made.encode())


# -- limits ------------------------------------------------------------------------------------------------------


def _load_what_the_compiler_imports() -> None:
    """Import all codecs in advance, because the limits later prevent this process from opening files."""
    for name in set(encodings.aliases.aliases.values()):
        with contextlib.suppress(LookupError, ImportError):
            codecs.lookup(name)


def _give_up_privileges(memory_bytes: int) -> None:
    """Limit this process to what compiling needs: processor time and memory.

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
    """If the process runs as root, try to change to the user `nobody`, so that an exploit of a compiler bug does not
    run as root.
    """
    if os.geteuid() != 0:
        return
    # A container may forbid changing the user, or may not have this user. The limits apply in spite of that.
    with contextlib.suppress(OSError):
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)


@contextlib.contextmanager
def _processor_time(seconds: int) -> Iterator[float]:
    """Context manager in which the kernel ends this process after `seconds` more of processor time.

    It yields the processor time that the process has used before.
    """
    used = time.process_time()
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (_lower(math.ceil(used) + seconds, most), most))
    yield used


@contextlib.contextmanager
def _ending_with_the_server() -> Iterator[None]:
    """Context manager in which the kernel ends this process when the server closes its end of the socket.

    While the compiler runs, no other Python code of this process can read the socket. Therefore the socket sends SIGIO,
    which ends a process by default. No other event sends SIGIO: the server sends nothing before it has read the answer.
    """
    flags = fcntl.fcntl(0, fcntl.F_GETFL)
    fcntl.fcntl(0, fcntl.F_SETFL, flags | os.O_ASYNC)
    yield
    fcntl.fcntl(0, fcntl.F_SETFL, flags)


def _resident_bytes(memory: int) -> int:
    return int(os.pread(memory, 128, 0).split()[1]) * resource.getpagesize()
