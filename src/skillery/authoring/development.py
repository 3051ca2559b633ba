"""`skillery dev`: send folders to a server as development versions, again after each change."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from skillery.client import AnsweredError, AsyncClient, ConnectionFailed, StrangeAnswer
from skillery.errors import BundleTooLarge, InvalidParams, InvalidVersion
from skillery.formats.semver import Version
from skillery.publishing.folders import IGNORED, SkillFolder, params_of, read_skill_folder, with_version

# -- Changes of folders, found by polling ------------------------------------------------------------------------------
# Polling works on every file system, also on network mounts and in containers, and needs no further package. A skill
# rarely has more than a few hundred files, so that one look takes a few milliseconds.


EVERY_SECONDS = 0.05
SHARE = 0.1
"""The share of the time that polling may take, so that large folders are polled less often."""


async def changes(folders: Sequence[Path], every: float = EVERY_SECONDS) -> AsyncIterator[list[Path]]:
    """Yield all folders, then, every `every` seconds, the folders that have changed since they were yielded."""
    former_hashes: dict[Path, str] = {}
    while True:
        began = time.monotonic()
        hashes = await asyncio.to_thread(lambda: {folder: fingerprint(folder) for folder in folders})
        changed = [folder for folder in folders if former_hashes.get(folder) != hashes[folder]]
        former_hashes = hashes
        if changed:
            yield changed
        else:
            await asyncio.sleep(max(every, (time.monotonic() - began) / SHARE))


def fingerprint(folder: Path) -> str:
    """Return a hash of the names, sizes, times and modes of the files that belong to a skill."""
    lines = hashlib.sha256()
    _add(folder, "", lines)
    return lines.hexdigest()


def _add(folder: Path, prefix: str, lines: hashlib._Hash) -> None:
    """Add the names, sizes, times and modes of the files in a folder to the hash `lines`, recursively."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:  # the folder may be replaced now
        lines.update(f"{prefix!r} {type(error).__name__}\n".encode())
        return
    for path in entries:
        if path.name in IGNORED or path.name.startswith("."):
            continue
        try:
            status = path.lstat()
        except OSError:
            continue
        name = f"{prefix}/{path.name}"
        lines.update(f"{name!r} {status.st_size} {status.st_mtime_ns} {status.st_mode}\n".encode())
        if path.is_dir() and not path.is_symlink():
            _add(path, name, lines)


KEEP_SECONDS = 10.0
"""Seconds between two calls that keep the development versions. The server ends them after 30 seconds."""
LOST_SECONDS = 1.0
"""Seconds between two attempts if the server cannot be reached."""

FAILURES = (AnsweredError, StrangeAnswer, ConnectionFailed, InvalidParams, BundleTooLarge, OSError)
"""Errors of reading or sending a folder. They are reported, and the folder is sent again after its next change."""


class Saved(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one save of a folder: the answer of develop_skill, or the reason why the server keeps the earlier
    version.
    """

    folder: Path
    answer: Any = None
    error: Exception | None = None
    refusal: str = ""
    took_ms: float = 0.0
    """The time from the start of the reading to the answer."""


class Development:
    """Serves the folders of one `skillery dev` command as development versions."""

    def __init__(self, client: AsyncClient, folders: Sequence[Path], report: Callable[[Saved], None]) -> None:
        """`report` is called after each save, and when the calls that keep the versions begin to fail."""
        self._client = client
        self._folders = list({folder.resolve(): folder for folder in folders}.values())
        self._report = report
        self._names: dict[Path, str] = {}
        """The names of the skills that are served, by folder."""
        self._numbers: dict[str, int] = {}
        self._refused: set[Path] = set()
        """Folders whose name another folder has."""
        self._turn = asyncio.Lock()

    async def run(self) -> None:
        """Serve the folders until the task is cancelled. Then end their development versions."""
        keeping = asyncio.create_task(self._keep())
        try:
            async for changed in changes(self._folders):
                for folder in changed:
                    await self._send(folder)
        finally:
            keeping.cancel()
            if self._names:
                # After a lost connection, the versions end by themselves.
                with contextlib.suppress(ConnectionFailed, AnsweredError, StrangeAnswer):
                    await self._client.end_development(names=list(self._names.values()))

    async def _send(self, folder: Path) -> None:
        """Save the folder as a skill and report the result with its milliseconds; then retry the folders it blocked."""
        async with self._turn:
            began = time.monotonic()
            saved = await self._saved(folder)
            self._report(msgspec.structs.replace(saved, took_ms=(time.monotonic() - began) * 1000))
        for unblocked in [
            refused for refused in self._refused if refused != folder and self._holder_of(refused) is None
        ]:
            await self._send(unblocked)

    async def _saved(self, folder: Path) -> Saved:
        """Send a folder to the server. Refuse it if another folder has the same skill name."""
        self._refused.discard(folder)
        try:
            skill = await asyncio.to_thread(read_skill_folder, folder)
            name = str(skill.manifest.get("name", ""))
            holder = next(
                (other for other, other_name in self._names.items() if other_name == name and other != folder), None
            )
            if holder is not None:
                self._refused.add(folder)
                return Saved(folder, refusal=_same_name(name, folder, holder))
            answer = await self._client.develop_skill(**self._params(name, skill))
        except FAILURES as error:
            return Saved(folder, error=error)
        await self._renamed(folder, answer["name"])
        return Saved(folder, answer)

    def _params(self, name: str, skill: SkillFolder) -> dict[str, Any]:
        """Return the params of develop_skill, with the next number of the skill in its version."""
        try:
            version = Version.parse(str(skill.manifest.get("version", "")))
        except InvalidVersion:
            version = None  # the server reports it with all other problems
        if version is not None:
            number = self._numbers[name] = self._numbers.get(name, 0) + 1
            release = Version(version.major, version.minor, version.patch, ("dev", str(number)))
            skill = with_version(skill, release)
        return params_of(skill)

    async def _renamed(self, folder: Path, name: str) -> None:
        former_name, self._names[folder] = self._names.get(folder), name
        if former_name not in (None, name):
            await self._client.end_development(names=[former_name])

    def _holder_of(self, folder: Path) -> Path | None:
        """Return the other folder that serves the skill name of a refused folder, or None. Return `folder` if it cannot
        be read.
        """
        try:
            name = str(read_skill_folder(folder).manifest.get("name", ""))
        except FAILURES:
            return folder
        return next(
            (other for other, other_name in self._names.items() if other_name == name and other != folder), None
        )

    async def _keep(self) -> None:
        """Keep the versions alive. Send those again that the server no longer has."""
        is_lost = False
        while True:
            await asyncio.sleep(LOST_SECONDS if is_lost else KEEP_SECONDS)
            if not self._names:
                continue
            try:
                answer = await self._client.keep_development(names=list(self._names.values()))
            except (ConnectionFailed, AnsweredError, StrangeAnswer) as error:
                if not is_lost:
                    self._report(Saved(self._folders[0], error=error))
                is_lost = True
                continue
            is_lost = False
            for folder in [served for served, name in self._names.items() if name not in answer["names"]]:
                await self._send(folder)


def _same_name(name: str, folder: Path, holder: Path) -> str:
    return f"the name '{name}' is also that of '{holder}', which is served: change the name in one skill.toml"
