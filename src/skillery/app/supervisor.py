"""`skillery serve --workers N`: the supervisor forks the workers and replaces those that end.

The supervisor has the home and the listening socket. It has no event loop, no threads and no connection to the
database, so it can fork a worker at any time. A worker starts with all modules imported, and shares their memory.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn

from skillery.app.worker_links import Gatherings, Message, SharedCounts, SupervisorLink
from skillery.errors import DatabaseUnreachable, StartupError
from skillery.settings.load import Settings

log = logging.getLogger(__name__)
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
HEALTHY_SECONDS = 60.0
"""A worker that lived this long is replaced at once. If workers end earlier, each pause is twice the last one."""
IMPORTED = (
    "skillery.app.worker",
    "skillery.app.server",
    "skillery.rest.metrics",
    "skillery.builtin.linux_sandbox.sandbox",
    "skillery.web.pages_table",
    "alembic.command",
    "sqlalchemy.dialects.postgresql.psycopg",
    "uvicorn.lifespan.on",
    "uvloop",
)
"""Modules that a server imports late."""


class Worker:
    """A forked worker. `part` is its number, and its place in the shared counts."""

    def __init__(self, part: int, pid: int, link: SupervisorLink) -> None:
        self.part = part
        self.pid = pid
        self.link = link
        self.started = time.monotonic()
        self.is_ready = False
        self.token: str | None = None
        self.failure = StartupError("it ended without a reason, which the log may contain")
        """Why the worker did not start."""
        self.is_wanted = True
        """Whether the worker is replaced when it ends."""

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


class Supervisor:
    """Keeps `settings.workers` workers running, until SIGTERM or SIGINT.

    become_worker: called in a new process with the settings, the part, and the worker's end of the link. It ends the
        process.
    load: reads the settings again, for SIGHUP.
    ready: called once with the token of the first admin, or None, when all workers answer requests.
    """

    def __init__(
        self,
        settings: Settings,
        counts: SharedCounts,
        become_worker: Callable[[Settings, int, socket.socket], NoReturn],
        load: Callable[[], Settings],
        ready: Callable[[str | None], None],
    ) -> None:
        self._settings = settings
        self._counts = counts
        self._become_worker = become_worker
        self._load = load
        self._ready = ready
        self._selector = selectors.DefaultSelector()
        self._workers: dict[int, Worker] = {}
        """Living workers by pid."""
        self._due: dict[int, float] = {}
        """Parts whose worker has ended, and the time at which they get a new one."""
        self._pauses: dict[int, float] = {}
        self._gatherings = Gatherings()
        self._starting = False
        """Whether new workers start that must all become ready: at the start, and after SIGHUP."""
        self._stopping = 0

    def run(self) -> None:
        """Start the workers and supervise them until they have ended. Raise StartupError if a first worker does not
        start.
        """
        with _signals() as signals:
            self._selector.register(signals, selectors.EVENT_READ)
            try:
                self._start()
                while self._workers or (self._due and not self._stopping):
                    self._step()
            finally:
                self._end_all()

    def _start(self) -> None:
        """Start the first worker alone, because it migrates the database, and then the others."""
        token = self._fork_all([0])
        self._fork_all(range(1, self._settings.workers))
        if not self._stopping:
            self._ready(token)

    def _fork_all(self, parts: Iterable[int]) -> str | None:
        """Fork a worker for each part, and wait until all are ready. Return the token of the first admin, if one of
        them made it.

        Raise StartupError if one of them ends.
        """
        forked = [self._fork(part) for part in parts]
        self._starting = True
        try:
            while not self._stopping and not all(worker.is_ready for worker in forked):
                self._step()
                for worker in forked:
                    if worker.pid not in self._workers and not worker.is_ready:
                        raise worker.failure
        finally:
            self._starting = False
        return next((worker.token for worker in forked if worker.token), None)

    def _fork(self, part: int) -> Worker:
        """Fork a worker, and follow its link. The new process serves requests and never returns from this method."""
        own_end, worker_end = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            self._leave_supervisor(own_end)
            self._become_worker(self._settings, part, worker_end)
        worker_end.close()
        worker = Worker(part, pid, SupervisorLink(own_end))
        self._workers[pid] = worker
        self._selector.register(own_end, selectors.EVENT_READ, worker)
        return worker

    def _leave_supervisor(self, supervisor_end: socket.socket) -> None:
        """Close, in the new process, the files that belong only to the supervisor."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        supervisor_end.close()
        for worker in self._workers.values():
            worker.link.close()

    def _step(self) -> None:
        for key, _ in self._selector.select(self._patience()):
            if key.data is None:
                self._handle_signals(key.fileobj)
            elif key.data.pid in self._workers:
                self._read(key.data)
        for asker, message in self._gatherings.expired():
            self._send(asker, message)
        for part in [part for part, due in self._replacements() if due <= time.monotonic()]:
            del self._due[part]
            self._fork(part)

    def _replacements(self) -> list[tuple[int, float]]:
        """Return the parts that may get a new worker, with their times."""
        # A start may fail, and replacements then need the former settings.
        return [] if self._starting or self._stopping else [*self._due.items()]

    def _patience(self) -> float | None:
        times = [*(due for _, due in self._replacements()), *self._gatherings.deadlines()]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _handle_signals(self, signals: object) -> None:
        assert isinstance(signals, socket.socket)
        for number in signals.recv(256):
            if number in {signal.SIGTERM, signal.SIGINT}:
                self._stop()
            elif number == signal.SIGHUP:
                self._reload()
            elif number == signal.SIGCHLD:
                self._reap()

    def _stop(self) -> None:
        """Ask the workers to stop. The second time, they do not wait for runs."""
        self._stopping += 1
        if self._stopping == 1:
            log.info("stopping: runs may finish for %g s; a second signal ends them", self._settings.grace_seconds)
        for worker in self._workers.values():
            worker.signal(signal.SIGTERM)

    def _reload(self) -> None:
        """Replace all workers by workers with the settings that `load` returns. If these are not valid or a new worker
        does not start, keep the old workers.
        """
        former_workers, former_settings, new_parts = list(self._workers.values()), self._settings, set[int]()
        try:
            self._settings = self._reloaded()
            new_parts = self._free_parts()
            self._fork_all(new_parts)
        except StartupError as error:
            self._settings = former_settings
            self._due = {part: due for part, due in self._due.items() if part not in new_parts}
            self._dismiss([worker for worker in self._workers.values() if worker not in former_workers])
            log.error("the settings are not reloaded, and the workers continue: %s", str(error))
            return
        self._due = {part: due for part, due in self._due.items() if part in new_parts}
        self._dismiss(former_workers)
        log.info("the settings are reloaded, and the earlier workers finish their requests")

    def _reloaded(self) -> Settings:
        """Return the settings that `load` returns. Raise StartupError if they are not valid or need a restart of the
        server.
        """
        settings = self._load()
        for name in ("home", "host", "port", "workers", "database", "plugins_folder"):
            present_value, new_value = getattr(self._settings, name), getattr(settings, name)
            if present_value != new_value:
                raise StartupError(
                    f"{name} stays {present_value!r} until the server is restarted; then it becomes {new_value!r}"
                )
        check_workers(settings)
        if self._starting or self._stopping or len(self._workers) + len(self._due) > settings.workers:
            raise StartupError("earlier workers have not ended yet; send SIGHUP again later")
        return settings

    def _free_parts(self) -> set[int]:
        used_parts = {worker.part for worker in self._workers.values()} | self._due.keys()
        free_parts = (part for part in range(2 * self._settings.workers) if part not in used_parts)
        return {*itertools.islice(free_parts, self._settings.workers)}

    def _dismiss(self, workers: list[Worker]) -> None:
        for worker in workers:
            worker.is_wanted = False
            worker.signal(signal.SIGTERM)

    def _reap(self) -> None:
        """Handle the end of each worker process that has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            worker = self._workers.pop(pid, None)
            if worker is not None:
                self._bury(worker, os.waitstatus_to_exitcode(status))

    def _bury(self, worker: Worker, code: int) -> None:
        """Forget a worker that has ended. If it is still needed, schedule another one after a pause that grows."""
        if worker.link.end in self._selector.get_map():
            self._read(worker)  # its last messages
        self._stop_reading(worker)
        worker.link.close()
        self._counts.clear(worker.part)
        for asker, message in self._gatherings.forget(worker.pid):
            self._send(asker, message)
        if self._stopping or not worker.is_wanted or (self._starting and not worker.is_ready):
            return
        now = time.monotonic()
        if now - worker.started > HEALTHY_SECONDS:
            self._pauses.pop(worker.part, None)
        pause = self._pauses.get(worker.part, 0.0)
        self._pauses[worker.part] = min(LONGEST_PAUSE_SECONDS, max(FIRST_PAUSE_SECONDS, 2 * pause))
        self._due[worker.part] = now + pause
        log.error("worker process %d ended with code %d; another one starts in %g s", worker.pid, code, pause)

    def _stop_reading(self, worker: Worker) -> None:
        if worker.link.end in self._selector.get_map():
            self._selector.unregister(worker.link.end)

    def _read(self, worker: Worker) -> None:
        """Handle the messages that a worker sent. Stop reading its link if the worker closed it."""
        messages = worker.link.receive()
        if messages is None:
            self._stop_reading(worker)  # the worker is about to end: SIGCHLD follows
            return
        for message in messages:
            self._handle(worker, message)

    def _handle(self, worker: Worker, message: Message) -> None:
        """Handle a message of a worker."""
        if message.kind == "ready":
            worker.is_ready, worker.token = True, message.value
        elif message.kind == "failed":
            reason, is_unreachable = message.value
            worker.failure = DatabaseUnreachable(reason) if is_unreachable else StartupError(reason)
        elif message.kind == "ask":
            ready_pids = [other.pid for other in self._workers.values() if other.is_ready]
            question = self._gatherings.begin(worker.pid, message, ready_pids)
            for pid in ready_pids:
                self._send(pid, question)
        elif message.kind == "answer":
            for asker, answers in self._gatherings.add(worker.pid, message):
                self._send(asker, answers)

    def _send(self, pid: int, message: Message) -> None:
        if pid in self._workers:
            self._workers[pid].link.send(message)

    def _end_all(self) -> None:
        """Kill the workers that are left after an error, so that none outlives the supervisor."""
        for worker in self._workers.values():
            worker.signal(signal.SIGKILL)
        for worker in self._workers.values():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(worker.pid, 0)


def import_all() -> None:
    """Import what workers need, so that they share the memory of the modules."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    # The collector would write into the memory of all objects, and so end the sharing.
    gc.freeze()


@contextlib.contextmanager
def _signals() -> Iterator[socket.socket]:
    """Yield a socket with a byte for each signal that arrives: its number."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
    former_handlers = {number: signal.signal(number, lambda *_: None) for number in numbers}
    earlier = signal.set_wakeup_fd(writer.fileno())
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(earlier)
        for number, handler in former_handlers.items():
            signal.signal(number, handler)
        reader.close()
        writer.close()


def check_workers(settings: Settings) -> None:
    """Raise StartupError if the server cannot have `settings.workers` workers."""
    if settings.database_url.startswith("sqlite"):
        raise StartupError(
            f"setting 'workers' is {settings.workers}, and the database is SQLite, which has one writer at a time: "
            "set database to a Postgres, or workers to 1"
        )
