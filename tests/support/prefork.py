"""Run the command `skillery` without waiting for its imports: each command is forked from a process that has them.

The tests run some hundred commands, and starting an interpreter for each would take longer than the commands. A forked
process has its own arguments, environment and streams, and runs `main` from its first line. tests/cli/test_cli.py
compares forked and started commands.

`start` does the same for a server, which runs until it stops or its client ends. tests/support/skillery is a program
that does the same for shells, terminals and signals: it replaces `skillery` on the PATH.

A pytest run has one forking process for all its workers. A client connects to its socket, and sends an order: the
descriptors of the streams, then JSON until the end of the stream. The answer is the pid of the command, and at its end
the exit code and the processor seconds. If the client disconnects, the command is killed.

python tests/support/prefork.py LISTENER OWNER: fork for each client of the socket LISTENER, until the other end of the
socket OWNER is closed.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

SECONDS = 300
NUMBER = 16
"""Length of a pid, an exit code or processor seconds on the link, in bytes."""
CLIENTS = 256
"""Number of clients that may wait while the forking process imports its modules."""
FORKED = str(Path(__file__).with_name("skillery"))
"""Program that replaces `skillery`. Its environment needs the `variables` of `prefork()`."""
PROGRAMS = f"{Path(FORKED).parent}:{Path(sys.executable).parent}"
"""Beginning of a PATH with FORKED as `skillery`, and with the other programs of this virtual environment."""
IMPORTED = (
    "skillery.app.server",
    "skillery.cli.connection",
    "skillery.cli.mirror_git",
    "skillery.cli.mirror_index",
    "skillery.proof.locks",
    "anyio._backends._asyncio",
    "certifi",
    "httpcore",
    "skillery.app.composition",
    "skillery.app.routes",
    "skillery.git.endpoint",
    "skillery.plugins",
    "litestar.plugins.attrs",
    # Litestar imports these modules for the application because pydantic and OpenTelemetry are installed here.
    "litestar.plugins.opentelemetry",
    "litestar.plugins.pydantic",
    "litestar.plugins.prometheus",
    "skillery.rest.metrics",
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
    "skillery_oidc.verifier",
    "skillery_openbao",
    "skillery_ray.settings",
    "skillery_s3",
    "skillery_scanner",
    "skillery_semantic",
    "skillery_sigstore",
    # The application imports these modules when it registers its routes and starts.
    "anyio._backends._asyncio",
    "litestar._kwargs",
    "litestar.exceptions.responses._debug_response",
    "litestar.middleware._internal.exceptions",
    "litestar.middleware.allowed_hosts",
    "litestar.middleware.csrf",
    "litestar.middleware.response_cache",
    "uvicorn.lifespan.on",
    "uvloop",
    "sqlalchemy.dialects.sqlite",
    "sqlalchemy.dialects.postgresql.psycopg",
    "cryptography.fernet",
    "alembic.command",
    "alembic.autogenerate",
)


class Forked:
    """A forked command, with the part of `subprocess.Popen` that tests use."""

    # The command is not below this process, so its processor time is counted separately.

    def __init__(self, link: socket.socket, stdout: BinaryIO) -> None:
        from tests.support.durations import count_program  # not above, because this file is also a script

        self._link = link
        self.stdout: BinaryIO | None = stdout
        self.returncode: int | None = None
        self._link.settimeout(SECONDS)
        self.pid = int(link.recv(NUMBER, socket.MSG_WAITALL))
        count_program(self.pid)

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._link], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        from tests.support.durations import count_seconds

        if self.returncode is None:
            self._link.settimeout(timeout)
            try:
                ended = self._link.recv(2 * NUMBER, socket.MSG_WAITALL)
            except TimeoutError:
                raise subprocess.TimeoutExpired("skillery", timeout or 0) from None
            self._link.close()
            self.returncode = int(ended[:NUMBER])
            count_seconds(float(ended[NUMBER:]))
        return self.returncode

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # like subprocess.Popen, for a process that has just ended
            os.kill(self.pid, number)

    def disconnect(self) -> None:
        """Kill the command if it runs."""
        self._link.close()


class Prefork:
    """A client of the forking process at `address`. `run` runs a command like `subprocess.run`.

    The program FORKED writes the processor seconds of its command to a file in `folder`.
    """

    def __init__(self, address: str, folder: Path) -> None:
        self.address = address
        seconds = folder / "seconds"
        seconds.touch()
        self._seconds = seconds.open()
        self.variables = {"TESTS_PREFORK": address, "TESTS_SECONDS": str(seconds)}

    def count(self) -> None:
        """Count the processor time of the ended commands of tests/support/skillery."""
        from tests.support.durations import count_seconds

        for line in self._seconds.readlines():
            count_seconds(float(line))

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], stdin: bytes
    ) -> subprocess.CompletedProcess[bytes]:
        errors, written = os.pipe()
        with tempfile.TemporaryFile() as given:
            given.write(stdin)
            given.seek(0)
            process = self.start(arguments, environment, written, given.fileno())
        os.close(written)
        outputs: list[bytes] = [b"", b""]

        def read(number: int, stream: BinaryIO) -> None:
            with stream:
                outputs[number] = stream.read()

        assert process.stdout is not None
        streams = (process.stdout, open(errors, "rb"))  # noqa: PTH123, SIM115 - a descriptor that the reader closes
        readers = [threading.Thread(target=read, args=pair, daemon=True) for pair in enumerate(streams)]
        for reader in readers:
            reader.start()
        try:
            code = process.wait(SECONDS)
        finally:
            process.disconnect()
        for reader in readers:
            reader.join(SECONDS)
            assert not reader.is_alive(), f"another process holds the output of {arguments} open"
        return subprocess.CompletedProcess(arguments, code, *outputs)

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], stderr: int, stdin: int | None = None
    ) -> Forked:
        """Start a command that keeps running, with its stderr written to a descriptor. If the tests end, the command is
        killed.
        """
        link = socket.socket(socket.AF_UNIX)
        link.connect(self.address)
        output, written = os.pipe()
        with Path(os.devnull).open("rb") as nothing:
            socket.send_fds(link, [b"\0"], [nothing.fileno() if stdin is None else stdin, written, stderr])
        os.close(written)
        link.sendall(json.dumps([arguments, dict(environment), str(Path.cwd())]).encode())
        link.shutdown(socket.SHUT_WR)
        return Forked(link, open(output, "rb", buffering=0))  # noqa: PTH123 - a descriptor that the caller closes


@functools.cache
def prefork() -> Prefork:
    """Return a client of the forking process of this pytest run."""
    from tests.support.parallel import forking_process, own_folder

    return Prefork(forking_process(), own_folder())


@contextmanager
def running_prefork() -> Iterator[str]:
    """Yield the address of a forking process. A client may connect while the process imports its modules."""
    folder = tempfile.mkdtemp(prefix="skillery-prefork-")  # pytest's folder may be too long for an address
    address = f"{folder}/socket"
    owner, theirs = socket.socketpair()
    with owner, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(CLIENTS)
        process = subprocess.Popen(
            [sys.executable, __file__, str(listener.fileno()), str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno(), theirs.fileno()],
            start_new_session=True,  # Ctrl-C must not stop it
        )
        theirs.close()
        listener.close()
        try:
            yield address
        finally:
            owner.close()
            process.wait()  # it ends once it has imported its modules
            shutil.rmtree(folder)


# -- in the forking process ------------------------------------------------------------------------------------------


def serve(listener: socket.socket, owner: socket.socket) -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    importlib.import_module("skillery.web.site").compiled_templates()  # 0.4 s of a server's start
    settings = importlib.import_module("skillery.settings.load").Settings
    importlib.import_module("skillery.settings.sources").names_of(settings)  # a quarter of a small command's time
    gc.freeze()
    children = 0
    while owner not in select.select([listener, owner], [], [])[0]:
        link, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            owner.close()
            attend(link)
        link.close()
        children += 1
        while children and os.waitpid(-1, os.WNOHANG)[0]:
            children -= 1


def attend(link: socket.socket) -> NoReturn:
    """Fork again: the child runs the command, the parent reports its end."""
    _, streams, _, _ = socket.recv_fds(link, 1, 3)
    with link.makefile("rb") as told:
        order = json.loads(told.read())
    command = os.fork()
    if command == 0:
        link.close()
        become_command(order, streams)
    for stream in streams:
        os.close(stream)
    link.sendall(b"%*d" % (NUMBER, command))
    tell_the_end(link, command)


def become_command(order: list[Any], streams: Sequence[int]) -> NoReturn:
    arguments, environment, folder = order
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    open_streams()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["skillery", *arguments]
    from skillery.cli import main

    code: Any = None
    try:
        code = main()
    except SystemExit as ended:
        code = ended.code
    finish(code)


def open_streams() -> None:
    """Open the standard streams as an interpreter does. Those of the forking process belong to other files: they would
    seek in a pipe, or keep the lines for a terminal.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        former = getattr(sys, name)
        raw = io.FileIO(number, "w" if number else "r", closefd=False)
        raw.name = f"<{name}>"
        binary = io.BufferedWriter(raw) if number else io.BufferedReader(raw)
        lines = number == 2 or raw.isatty()
        stream = io.TextIOWrapper(binary, former.encoding, former.errors, newline="\n", line_buffering=lines)
        setattr(sys, name, stream)


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
    _, status, used = os.wait4(command, 0)
    code, seconds = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
    link.sendall(b"%*d%*.6f" % (NUMBER, code, NUMBER, seconds))
    os._exit(0)


if __name__ == "__main__":
    serve(*(socket.socket(fileno=int(descriptor)) for descriptor in sys.argv[1:]))
