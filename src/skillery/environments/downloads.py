"""Downloads of the files of a lock. The sandbox downloads them, and the host verifies the hashes in the lock."""

from __future__ import annotations

import asyncio
import hashlib
import io
import secrets
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from packaging.tags import compatible_tags, cpython_tags, sys_tags

from skillery.context.queue import BuildProgress
from skillery.environments.definitions import base_python
from skillery.environments.jobs import BuildFailed, JobFailed, Jobs, Receiver, too_large
from skillery.environments.sources import PackageSources
from skillery.environments.uv_errors import build_failure, job_failure, uv_failure
from skillery.formats.requirements import Pin
from skillery.formats.wording import printable

MIB = 1024 * 1024
BUILD_DISK_MB = 4096


class Fetched(NamedTuple):
    """A downloaded file, or a wheel that was built from one. The digest is that of the downloaded file."""

    pin: Pin
    digest: str
    """The digest with its algorithm, such as `sha256:…`."""
    path: Path
    name: str


class Begin(msgspec.Struct, frozen=True):
    name: str
    version: str
    file: str
    size: int


class IncomingFiles(Receiver):
    """Receives files one after the other. Each complete file is put into the queue `whole`."""

    def __init__(
        self, pins: Sequence[Pin], path: Path, max_mb: int, progress: BuildProgress, *, unlocked: bool = False
    ) -> None:
        """`unlocked` accepts any hash: a wheel that was built here has no hash in the lock."""
        self._pins = {(pin.name, pin.version): pin for pin in pins}
        self._aside = path
        self._left = max_mb * MIB
        self._unlocked = unlocked
        self._loop = asyncio.get_running_loop()
        self._begun: Begin | None = None
        self._file: io.BufferedRandom | None = None
        self._size = 0
        self.progress = progress
        self.max_mb = max_mb
        self.whole: asyncio.Queue[Fetched | None] = asyncio.Queue()
        """Complete files; None marks the end."""

    def take(self, kind: str, piece: bytes) -> None:
        match kind:
            case "x/begin":
                self._begin(piece)
            case "x/piece" if self._file is not None:
                self._size += len(piece)
                if self._size > self._left:
                    raise too_large(self.max_mb)
                self._file.write(piece)
            case "x/end" if self._file is not None and self._begun is not None:
                self._end(self._begun, self._file)
            case _:
                raise BuildFailed("the sandbox returned unexpected data")

    def _begin(self, head: bytes) -> None:
        """Start a file, or restart the file whose transfer was interrupted."""
        try:
            self._begun = begun = msgspec.json.decode(head, type=Begin)
        except msgspec.MsgspecError:
            raise BuildFailed("the sandbox returned unexpected data") from None
        if (begun.name, begun.version) not in self._pins:
            raise BuildFailed(f"{printable(begun.name, 100)} is not in the lock, or was delivered twice")
        if self._file is not None:
            self._file.close()
            Path(self._file.name).unlink()
        self._size = 0
        self._file = (self._aside / f"{secrets.token_hex(8)}.part").open("xb+")
        self.progress.step = f"fetching {begun.name} {printable(begun.version, 100)}"

    def _end(self, begun: Begin, file: io.BufferedRandom) -> None:
        pin = self._pins.pop((begun.name, begun.version))
        file.seek(0)
        algorithm = next(iter(pin.hashes)).partition(":")[0]
        digest = f"{algorithm}:{hashlib.file_digest(file, algorithm).hexdigest()}"
        file.close()
        self._file = None
        if not self._unlocked and digest not in pin.hashes:
            raise BuildFailed(other_file(f"{pin.name} {pin.version}"))
        self._left -= self._size
        fetched = Fetched(pin, digest, Path(file.name), begun.file)
        self._loop.call_soon_threadsafe(self.whole.put_nowait, fetched)

    def close(self) -> None:
        """Mark the end of the queue."""
        if self._file is not None:
            self._file.close()
        self.whole.put_nowait(None)


def other_file(package: str) -> str:
    return f"{package}: the file of the index is not the one that was locked (the hash differs)"


def file_arguments(sources: PackageSources) -> dict[str, Any]:
    """Return the arguments of jobs that choose the files of a lock."""
    command = ["pip", "compile", "-", "--no-header", "--no-annotate", *sources.kinds(), *sources.interpreter()]
    from_source = bool(sources.from_source) and not sources.python
    return {"tags": supported_tags(sources.python), "arguments": command, "from_source": from_source}


async def fetch(
    jobs: Jobs, sources: PackageSources, pins: Sequence[Pin], incoming: IncomingFiles, seconds: float
) -> None:
    """Download the file of each pin, and put it into `incoming.whole`; put None at the end. Raise BuildFailed on
    failure.
    """
    args = {
        "pins": [{"name": pin.name, "version": pin.version, "hashes": bare(pin)} for pin in pins],
        "max_bytes": incoming.max_mb * MIB,
        **file_arguments(sources),
    }
    try:
        answer = await jobs.run("fetch", args, seconds=seconds, receiver=incoming, build=incoming.progress)
    except JobFailed as stopped:
        raise job_failure("the packages could not be fetched", stopped) from None
    finally:
        incoming.close()
    if answer.result:
        failure = _failure(answer.result, answer.refused, incoming)
        failure.package = str(answer.result.get("package", "")).partition(" ")[0]
        raise failure


async def build_wheel(
    jobs: Jobs, source: Fetched, path: Path, max_mb: int, seconds: float, progress: BuildProgress
) -> Fetched:
    """Build a wheel from a source archive. Return the wheel, with the hash of the archive. Raise BuildFailed if the
    build fails.
    """
    package = f"{source.pin.name} {source.pin.version}"
    incoming = IncomingFiles([source.pin], path, max_mb, progress, unlocked=True)
    args = {
        "pin": {"name": source.pin.name, "version": source.pin.version},
        "file": source.name,
        "python": base_python(),
    }
    values = {"source": source.path}
    try:
        answer = await jobs.run(
            "build", args, seconds=seconds, receiver=incoming, paths=values, disk_mb=BUILD_DISK_MB, build=progress
        )
    except JobFailed as stopped:
        raise job_failure(f"{package} could not be built from source", stopped) from None
    finally:
        incoming.close()
    if answer.result:
        raise _failure(answer.result, answer.refused, incoming)
    built = incoming.whole.get_nowait()
    if built is None:
        raise BuildFailed(f"{package} could not be built from source: the build produced no wheel")
    return built._replace(digest=source.digest)


def bare(pin: Pin) -> list[str]:
    return [digest.rpartition(":")[2] for digest in sorted(pin.hashes)]


@cache
def supported_tags(python: str = "") -> list[str]:
    """Return the wheel tags that this interpreter, or another version of CPython, supports on this machine, the best
    first.
    """
    if not python:
        return [str(tag) for tag in sys_tags()]
    major, _, minor = python.partition(".")
    version = (int(major), int(minor))
    pure = compatible_tags(version, f"cp{major}{minor}")
    return [str(tag) for tag in (*cpython_tags(version), *pure)]


def _failure(report: dict[str, Any], refused: tuple[str, ...], incoming: IncomingFiles) -> BuildFailed:
    reason, package = str(report.get("reason", "")), printable(str(report.get("package", "")), 200)
    detail = str(report.get("detail", ""))
    if refused and reason in {"away", "uv"}:
        hosts = ", ".join(refused[:3])
        return BuildFailed(
            f"{package or 'a package'} is stored at {hosts}, which is not an allowed host "
            "(the setting packages.file_hosts)"
        )
    match reason:
        case "hash":
            return BuildFailed(other_file(package))
        case "no_wheel":
            return BuildFailed(f"{package} has no wheel for this server", reason="no_wheel")
        case "source":
            message = f"{package} has no wheel, and this server does not build packages from source"
            return BuildFailed(message, reason="no_wheel")
        case "too_large":
            return too_large(incoming.max_mb, package)
        case "away":
            return BuildFailed(
                f"{package} could not be fetched after several attempts: the package index cannot be reached",
                passing=True,
            )
        case "build":
            message = f"{package} could not be built from source: {build_failure(detail)}"
            return BuildFailed(message, reason="build_failed")
        case "uv":
            message, passing = uv_failure(detail)
            return BuildFailed(message, passing=passing)
    return BuildFailed("the packages could not be fetched")
