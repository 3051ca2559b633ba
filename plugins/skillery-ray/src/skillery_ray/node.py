"""The engine process of a node: it owns the sandbox of the node and serves the runs of all servers.

The actor of the node starts it as `python -m skillery_ray.node`, writes its settings to stdin, and reads its address
from stdout. The process ends when stdin closes, so an engine never outlives its actor.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
import secrets
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from skillery.backends import Outcome, Place, Sandbox
from skillery.errors import SkilleryError, StartupError, is_disk_full
from skillery_ray.cache import Cache, WrongContent, own_folder
from skillery_ray.channels import Door, keep_alive, own_certificate
from skillery_ray.engines import open_engine
from skillery_ray.jobs import SentJob, failed, local_job, unpack
from skillery_ray.node_host import LogHost, NodeHost, Requests
from skillery_ray.settings import NodeSettings
from skillery_ray.trees import Entry
from skillery_ray.wire import Broken, Frame, Wire

logger = logging.getLogger(__name__)

STATUS_SECONDS = 1.0
HELLO_SECONDS = 10.0


class Engine:
    """Serves the connections of servers. Each connection has at most one run at a time."""

    def __init__(self, sandbox: Sandbox, cache: Cache, token: str) -> None:
        self._sandbox = sandbox
        self._cache = cache
        self.token = token
        self.running = 0
        self._connections: set[asyncio.Task[Any]] = set()

    @property
    def is_used(self) -> bool:
        """Whether a server is connected."""
        return bool(self._connections)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection until it ends. Runs of the connection end with it."""
        wire = Wire(reader, writer)
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            keep_alive(writer)
            purpose = await self._welcome(wire)
            await (self._watched(wire) if purpose == "watch" else Line(wire, self).serve())
        except (Broken, TimeoutError, OSError):
            pass  # the end of a connection is no error
        finally:
            self._connections.discard(task)
            wire.close()

    async def close(self) -> None:
        """End all runs and connections."""
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _welcome(self, wire: Wire) -> str:
        """Return the purpose of a new connection; `Broken` if its token is wrong."""
        async with asyncio.timeout(HELLO_SECONDS):
            header = (await wire.receive()).header
        if not hmac.compare_digest(str(header.get("token")).encode(), self.token.encode()):
            raise Broken("a wrong token")
        await wire.send({"op": "welcome", "capabilities": sorted(self._sandbox.capabilities)})
        return str(header.get("purpose"))

    async def _watched(self, wire: Wire) -> None:
        while wire.is_open:
            await wire.send({"op": "status", "running": self.running})
            await asyncio.sleep(STATUS_SECONDS)

    async def outcome(self, frame: Frame, host: NodeHost) -> tuple[Outcome, str]:
        """Run a job. Return its outcome and the trouble of this node: "", "disk" or "digest"."""
        held: list[str] = []
        self.running += 1
        try:
            sent = unpack(frame.header["job"])
            await self._fetch(sent, host, held)
            return await self._sandbox.run(local_job(sent, frame.payload, self._cache, host.contents), host), ""
        except WrongContent as wrong:
            return failed(f"the node got wrong files from the server: {wrong}"), "digest"
        except OSError as error:
            full = is_disk_full(error)
            reason = "the disk of the node is full" if full else f"the node cannot store files: {error.strerror}"
            return failed(reason), "disk"
        except (SkilleryError, StartupError) as error:
            return failed(str(error)), ""
        finally:
            self.running -= 1
            for digest in held:
                self._cache.release(digest)

    async def _fetch(self, sent: SentJob, host: NodeHost, held: list[str]) -> None:
        for digest in sent.trees():

            async def fetch(digest: str = digest) -> tuple[tuple[Entry, ...], Any]:
                entries, stream = await host.tree(digest)
                return entries, lambda: host.piece(stream)

            await self._cache.hold(digest, fetch)
            held.append(digest)


class Line:
    """The runs of one connection, one after the other."""

    def __init__(self, wire: Wire, engine: Engine) -> None:
        self._wire = wire
        self._engine = engine
        self._requests = Requests(wire)
        self._run: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Serve the connection until it ends. Then end its run: the server has ended, or has given the run up."""
        try:
            while True:
                self._take(await self._wire.receive())
        finally:
            self._requests.end()
            if self._run is not None:
                self._run.cancel()
                await asyncio.wait({self._run})

    def _take(self, frame: Frame) -> None:
        """Handle a frame of the server. Raise Broken if it is unexpected."""
        match frame.header.get("op"):
            case "answer":
                self._requests.answered(frame)
            case "cancel" if self._run is not None:
                self._run.cancel()
            case "run" if self._run is None or self._run.done():
                self._requests = Requests(self._wire)
                self._run = asyncio.ensure_future(self._serve_run(frame))
            case op:
                raise Broken(f"an unexpected frame {op!r}")

    async def _serve_run(self, frame: Frame) -> None:
        """Run the job of a frame, and send its outcome."""
        most_log = int(frame.header["job"]["limits"]["log_kb"]) * 1024
        kind = LogHost if "log" in frame.header["host"] else NodeHost
        host = kind(self._wire, self._requests, most_log)
        try:
            outcome, trouble = await self._engine.outcome(frame, host)
        except asyncio.CancelledError:  # the server waits for the end of the run that it has cancelled
            outcome, trouble = failed("the run was cancelled"), ""
        except Exception:
            logger.exception("a run has failed on this node")
            outcome, trouble = failed("the sandbox of the node failed"), ""
        host.flush()
        with contextlib.suppress(Broken):
            await self._wire.send(_ended(outcome, trouble, self._engine.running), outcome.result or b"")


def _ended(outcome: Outcome, trouble: str, running: int) -> dict[str, Any]:
    builtins = msgspec.to_builtins(msgspec.structs.replace(outcome, result=None))
    has_result = outcome.result is not None
    return {"op": "ended", "outcome": builtins, "has_result": has_result, "trouble": trouble, "running": running}


# -- the process -------------------------------------------------------------------------------------------------


async def serve(settings: NodeSettings, host: str, folder: Path, stdin: BinaryIO) -> None:
    """Serve runs until `stdin` closes, or until no server has been connected for a while."""
    sandbox = open_engine(settings.backend, settings.backend_settings, Place(folder, settings.allow_degraded))
    try:
        await sandbox.start()
        engine = Engine(sandbox, Cache(folder, settings.cache_mb << 20), secrets.token_urlsafe(32))
        context, fingerprint = own_certificate()
        server = await asyncio.start_server(engine.serve, host, 0, ssl=context)
        async with server:
            port = server.sockets[0].getsockname()[1]
            _say(msgspec.to_builtins(Door(host, port, fingerprint, engine.token)))
            await _until_closed(stdin, engine, settings.idle_seconds)
            await engine.close()
    finally:
        await sandbox.close()


async def _until_closed(stdin: BinaryIO, engine: Engine, idle_seconds: int) -> None:
    """Return when `stdin` has closed, or when no server has been connected for `idle_seconds`."""
    closed = asyncio.Event()
    loop = asyncio.get_running_loop()
    # A daemon thread: a thread of the executor would block the end of the process until stdin closes.
    threading.Thread(target=lambda: (stdin.read(), loop.call_soon_threadsafe(closed.set)), daemon=True).start()
    unused = 0
    while unused < idle_seconds and not closed.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await closed.wait()
        unused = 0 if engine.is_used else unused + 1


def _say(message: dict[str, Any]) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    """Serve runs in this process. Write the address of the engine, or its problem, to stdout."""
    import uvloop

    os.umask(0o022)  # runs read the cache as other users
    order = msgspec.json.decode(sys.stdin.buffer.readline())
    try:
        settings = msgspec.convert(order["settings"], NodeSettings)
        folder, _lock = own_folder(Path(settings.folder).expanduser())
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings, order["host"], folder, sys.stdin.buffer))
    except (StartupError, SkilleryError, OSError) as error:
        _say({"problem": str(error)})


if __name__ == "__main__":
    main()
