"""Run the command `skillery` without waiting for its imports: each command is forked from a process that has them.

A test runs some hundred commands, and starting an interpreter for each would take longer than the commands. A forked
process has its own arguments, environment and streams, and runs `main` from its first line. tests/cli/test_cli.py
compares forked and started commands.

`start` does the same for a server, which runs until it stops or the tests end.

python tests/support/prefork.py DESCRIPTOR: fork for each request on this socket, until the socket is closed.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

SECONDS = 120
NUMBER = 16
"""Length of a pid or an exit code on the link, in bytes."""
IMPORTED = (
    "skillery.app.server",
    "skillery.cli.connection",
    "skillery.cli.in_process",
    "skillery.app.composition",
    "skillery.api.routes",
    "skillery.plugins",
    "litestar.plugins.attrs",
    # Litestar imports these modules for the application because pydantic and OpenTelemetry are installed here.
    "litestar.plugins.opentelemetry",
    "litestar.plugins.pydantic",
    "litestar.plugins.prometheus",
    "skillery.api.metrics",
    "skillery.app.logs",
    "skillery.web.pages_table",
    "skillery.builtin.database_secrets",
    "skillery.builtin.directory_storage",
    "skillery.builtin.environment_secrets",
    "skillery.builtin.linux_sandbox.sandbox",
    "skillery.builtin.open_authenticator",
    "skillery.builtin.tokens_authenticator",
    "skillery.builtin.unsafe_subprocess",
    "skillery_bubblewrap.sandbox",
    "skillery_oidc.authenticator",
    "skillery_openbao",
    "skillery_s3",
    "skillery_scanner",
    "uvicorn.lifespan.on",
    "uvloop",
    "sqlalchemy.dialects.sqlite",
    "sqlalchemy.dialects.postgresql.psycopg",
    "cryptography.fernet",
    "alembic.command",
    "alembic.autogenerate",
)


class Forked:
    """A forked command that keeps running, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, link: socket.socket, stdout: BinaryIO) -> None:
        self._link = link
        self.stdout: BinaryIO | None = stdout
        self.returncode: int | None = None
        self._link.settimeout(SECONDS)
        self.pid = int(link.recv(NUMBER, socket.MSG_WAITALL))

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._link], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._link.settimeout(timeout)
            try:
                self.returncode = int(self._link.recv(NUMBER, socket.MSG_WAITALL))
            except TimeoutError:
                raise subprocess.TimeoutExpired("skillery", timeout or 0) from None
            self._link.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # like subprocess.Popen, for a process that has just ended
            os.kill(self.pid, number)


class Prefork:
    """The client in the test process. `run` runs a command like `subprocess.run`."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C must not stop it
            )

    def close(self) -> None:
        self._control.close()
        self._process.wait(300)

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], stdin: bytes
    ) -> subprocess.CompletedProcess[bytes]:
        outputs: list[bytes] = [b"", b""]
        ends = [os.pipe(), os.pipe()]
        link, theirs = socket.socketpair()
        with link, theirs, tempfile.TemporaryFile() as given:
            given.write(stdin)
            given.seek(0)
            socket.send_fds(self._control, [b"\0"], [theirs.fileno(), given.fileno(), *(end for _, end in ends)])
            theirs.close()
            order = {
                "arguments": arguments,
                "environment": dict(environment),
                "folder": str(Path.cwd()),
                "tells": False,
            }
            link.sendall(json.dumps(order).encode())
            link.shutdown(socket.SHUT_WR)

            def read(number: int) -> None:
                os.close(ends[number][1])
                with open(ends[number][0], "rb") as reading:  # noqa: PTH123 - a descriptor
                    outputs[number] = reading.read()

            readers = [threading.Thread(target=read, args=(number,), daemon=True) for number in range(2)]
            for reader in readers:
                reader.start()
            link.settimeout(SECONDS)
            code = int(link.recv(NUMBER, socket.MSG_WAITALL))  # raises after the timeout, which ends the command
            for reader in readers:
                reader.join(SECONDS)
                assert not reader.is_alive(), f"another process holds the output of {arguments} open"
        return subprocess.CompletedProcess(arguments, code, *outputs)

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], stderr: int) -> Forked:
        """Start a command that keeps running, with its stderr written to a descriptor. If the tests end, the command is
        killed.
        """
        link, theirs = socket.socketpair()
        output, written = os.pipe()
        with theirs, Path(os.devnull).open("rb") as nothing:
            socket.send_fds(self._control, [b"\0"], [theirs.fileno(), nothing.fileno(), written, stderr])
        os.close(written)
        give_order(link, arguments, environment, tells=True)
        return Forked(link, open(output, "rb", buffering=0))  # noqa: PTH123 - a descriptor that the caller closes


def give_order(link: socket.socket, arguments: Sequence[str], environment: Mapping[str, str], *, tells: bool) -> None:
    """Send a command over the link. `tells`: whether the pid is sent before the exit code."""
    order = {"arguments": arguments, "environment": dict(environment), "folder": str(Path.cwd()), "tells": tells}
    link.sendall(json.dumps(order).encode())
    link.shutdown(socket.SHUT_WR)


@functools.cache
def prefork() -> Prefork:
    """Return the Prefork of this process, started at its first use."""
    made = Prefork()
    atexit.register(made.close)
    return made


# -- in the forking process ------------------------------------------------------------------------------------------


def serve(control: socket.socket) -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    importlib.import_module("skillery.web.rendering").compiled_templates()  # 0.4 s of a server's start
    gc.freeze()
    children = 0
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 4)
        if not descriptors:
            return
        if os.fork() == 0:
            control.close()
            attend(socket.socket(fileno=descriptors[0]), descriptors[1:])
        for descriptor in descriptors:
            os.close(descriptor)
        children += 1
        while children and os.waitpid(-1, os.WNOHANG)[0]:
            children -= 1


def attend(link: socket.socket, streams: Sequence[int]) -> NoReturn:
    """Fork again: the child runs the command, the parent reports its exit code."""
    with link.makefile("rb") as told:
        order = json.loads(told.read())
    command = os.fork()
    if command == 0:
        link.close()
        become_command(order, streams)
    for stream in streams:
        os.close(stream)
    if order["tells"]:
        link.sendall(b"%*d" % (NUMBER, command))
    tell_the_end(link, command)


def become_command(order: dict[str, Any], streams: Sequence[int]) -> NoReturn:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = ["skillery", *order["arguments"]]
    from skillery.cli import main

    code: Any = None
    try:
        code = main()
    except SystemExit as ended:
        code = ended.code
    finish(code)


def finish(code: Any) -> NoReturn:
    """End like an interpreter, but do not take all modules apart: that would copy the memory of the forking process."""
    if not isinstance(code, int | None):
        sys.stderr.write(f"{code}\n")
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        code = 120  # as in CPython
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def tell_the_end(link: socket.socket, command: int) -> NoReturn:
    ended = os.pidfd_open(command)
    either = select.poll()
    either.register(link, 0)  # ready when the client has gone
    either.register(ended, select.POLLIN)
    if any(number == link.fileno() for number, _ in either.poll()):
        os.kill(command, signal.SIGKILL)
        os._exit(1)
    _, status = os.waitpid(command, 0)
    link.sendall(b"%*d" % (NUMBER, os.waitstatus_to_exitcode(status)))
    os._exit(0)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
