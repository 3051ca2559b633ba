"""One environment from its lock: installed aside, verified, compiled, and only then given its name."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
from pathlib import Path
from typing import NamedTuple

from skillery.environments.explaining import install_failure
from skillery.environments.sources import Sources, base_python
from skillery.environments.uv import TooLong, Uv
from skillery.environments.verifying import NotWhole, verify
from skillery.errors import SkilleryError
from skillery.formats.requirements import LOCK

MIB = 1024 * 1024
PACKAGES = "packages"
COMPILE_MB = 2048
_COMPILE = (
    "import compileall, resource, sys; limit = int(sys.argv[2]) << 20; "
    "resource.setrlimit(resource.RLIMIT_AS, (limit, limit)); compileall.compile_dir(sys.argv[1], quiet=2, workers=2)"
)


class BuildFailed(Exception):
    """The message says which package and why. `passing`: it is worth another try at once."""

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.passing = passing


class Built(NamedTuple):
    packages: int
    size_bytes: int


class Builder:
    """Builds below one folder: `incoming` is what has no name yet, and goes with the next start."""

    def __init__(self, folder: Path, uv: Uv, sources: Sources, seconds: float, max_bytes: int) -> None:
        self._incoming = folder / "incoming"
        self._uv = uv
        self._sources = sources
        self._seconds = seconds
        self._max_bytes = max_bytes

    def tidy(self) -> None:
        """Blocking: what a killed build left goes."""
        shutil.rmtree(self._incoming, ignore_errors=True)

    def forget_downloads(self) -> None:
        """Blocking: the cache that environments are linked from, so that what went frees its disk."""
        self._incoming.mkdir(parents=True, exist_ok=True)
        self._uv.forget(self._incoming / secrets.token_hex(16))

    async def build(self, lock: bytes, target: Path) -> Built:
        """`target` is there afterwards, whole; after an error or a cancelling nothing is. Raises BuildFailed."""
        aside = self._incoming / secrets.token_hex(16)
        try:
            async with asyncio.timeout(self._seconds):
                return await self._build(lock, aside, target)
        except (TimeoutError, TooLong):
            raise BuildFailed(
                f"installing took longer than {self._seconds:g} s (the setting packages.build_seconds)"
            ) from None
        except NotWhole as error:
            raise BuildFailed(str(error)) from None
        except SkilleryError as error:
            raise BuildFailed(error.message, passing=True) from None
        except OSError as error:
            raise BuildFailed(
                f"the files could not be written: {os.strerror(error.errno or 0)}", passing=True
            ) from None
        finally:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, aside, ignore_errors=True))

    async def _build(self, lock: bytes, aside: Path, target: Path) -> Built:
        packages = aside / PACKAGES
        packages.mkdir(parents=True)
        (aside / LOCK).write_bytes(lock)
        await self._install(aside / LOCK, packages)
        count, size = await asyncio.to_thread(verify, packages)
        if size > self._max_bytes:
            raise BuildFailed(
                f"its packages take {size // MIB} MiB, at most {self._max_bytes // MIB} are allowed "
                "(the setting packages.max_mb)"
            )
        await self._compile(packages)
        await asyncio.to_thread(_settle, aside, target)
        return Built(count, size)

    async def _install(self, lock: Path, packages: Path) -> None:
        arguments = ["pip", "install", "--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", str(lock)]
        where = ["--target", str(packages), "--python", base_python(), *self._sources.places()]
        environment = self._sources.environment()
        ran = await self._uv.run([*arguments, *where], stdin=b"", environment=environment, seconds=self._seconds)
        if ran.code != 0:
            message, passing = install_failure(ran.err)
            raise BuildFailed(message, passing=passing)

    async def _compile(self, packages: Path) -> None:
        """Runs cannot keep the code that they compile. What does not compile is left as it is: nobody may import it."""
        process = await asyncio.create_subprocess_exec(
            *(base_python(), "-I", "-S", "-c", _COMPILE, str(packages), str(COMPILE_MB)),
            env={"PATH": "/usr/bin:/bin"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await asyncio.shield(process.wait())


def _settle(aside: Path, target: Path) -> None:
    # On the disk before it has its name: a power cut must not leave an environment with holes.
    os.sync()
    target.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(target)
    aside.rename(target)
