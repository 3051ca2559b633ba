"""The input files of a run, which are copied into its workspace: checks of paths, blobs and space."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import accumulate

from sqlalchemy import Connection

from skillery.backends import Identity, InputFile, Limits
from skillery.contents.blob_rows import BlobRow, find_blob
from skillery.database import Database
from skillery.errors import InputFilesTooLarge, InvalidParams, InvalidPath
from skillery.formats.manifest import Permissions
from skillery.formats.paths import path_problem, plain_path
from skillery.formats.wording import quoted
from skillery.runs.cache import Cache
from skillery.workspaces.run_files import RunFile

PAGE = 4096
"""A file takes a multiple of this many bytes in a workspace."""
IMPORTED = (".py", ".pyc", ".so", ".pth")


def check_harmless(files: Sequence[RunFile], permissions: Permissions) -> None:
    """Raise InvalidPath if a skill with permissions gets a file that could change which code runs.

    The workspace is the working directory and the home folder of a run. With such a file, a caller could read the
    secrets of the skill.
    """
    if not (permissions.secrets or permissions.network):
        return
    for file in files:
        if changes_what_runs(file.path):
            raise InvalidPath(
                f"the file {quoted(file.path)} could change which code runs, and the skill has permissions",
                hint="Rename the file: its path may have no segment that starts with '.' or is 'node_modules', and may "
                f"not end with {', '.join(IMPORTED)}.",
                param="files",
            )


def changes_what_runs(path: str) -> bool:
    """Return whether an interpreter or another program may automatically read a file with this path."""
    lower = path.casefold()
    segments = lower.split("/")
    return lower.endswith(IMPORTED) or any(segment.startswith(".") or segment == "node_modules" for segment in segments)


def check_room(files: Sequence[RunFile], sizes: Sequence[int], limits: Limits) -> None:
    """Raise InputFilesTooLarge if the copies exceed `disk_mb` or `disk_files` of the run."""
    taken = sum(-(-size // PAGE) * PAGE for size in sizes)
    room = limits.disk_mb << 20
    if taken > room:
        raise InputFilesTooLarge(
            f"the {len(files)} input files of this run take {taken} bytes, and its /workspace has {room}",
            hint="Set a higher limit disk_mb, or pass large blobs in input_blobs: a run reads them from "
            "/blobs/<blob_id> without a copy.",
            size_bytes=taken,
            limit=room,
        )
    folders = {folder for file in files for folder in list(accumulate(file.path.split("/"), "{}/{}".format))[:-1]}
    entries = len(files) + len(folders)
    if entries > limits.disk_files:
        raise InputFilesTooLarge(
            f"the input files of this run are {entries} files and folders, and its /workspace has room for "
            f"{limits.disk_files}",
            hint="Pack them into an archive and unpack it in /tmp.",
            files=entries,
            limit=limits.disk_files,
        )


class InputFiles:
    """Finds the blobs of input files, and provides their contents on this machine."""

    def __init__(self, database: Database, cache: Cache) -> None:
        self._database = database
        self._cache = cache

    async def find(
        self, identity: Identity, files: Sequence[RunFile], limits: Limits, permissions: Permissions
    ) -> tuple[InputFile, ...]:
        """Return the files that the sandbox copies.

        Raise BlobNotFound if the identity has no such blob, InputFilesTooLarge if the files exceed the limits, and
        InvalidPath if a file could change the code of a skill with permissions.
        """
        if not files:
            return ()
        check_harmless(files, permissions)

        def work(connection: Connection) -> list[BlobRow]:
            return [find_blob(connection, identity=identity, blob_id=file.blob_id) for file in files]

        rows = await self._database.read(work)
        check_room(files, [row.size_bytes for row in rows], limits)
        return await asyncio.to_thread(self._on_this_machine, files, rows)

    def _on_this_machine(self, files: Sequence[RunFile], rows: Sequence[BlobRow]) -> tuple[InputFile, ...]:
        return tuple(
            InputFile(file.path, self._cache.blob(row), row.size_bytes, file.executable)
            for file, row in zip(files, rows, strict=True)
        )


# -- The globs of a run: files in its workspace that it keeps in addition to those in `out` ----------------------------


MOST_GLOBS = 100
HINT = (
    "A glob is relative to /workspace, with '/' between at most 8 segments, e.g. 'report/*.pdf' or '**/*.csv'. '*' is "
    "any part of a segment, '**' any number of folders."
)


def parse_outputs(globs: Sequence[str]) -> tuple[str, ...]:
    """Return the globs without duplicates.

    Raise InvalidPath if a glob breaks the rules of bundle paths, and InvalidParams if there are too many globs.
    """
    if len(globs) > MOST_GLOBS:
        raise InvalidParams(
            f"a run was given {len(globs)} globs in 'outputs', at most {MOST_GLOBS} are allowed",
            hint="Write '**' for any number of folders: one glob can match many files.",
            param="outputs",
        )
    globs = list(dict.fromkeys(map(plain_path, globs)))
    for glob in globs:
        problem = path_problem(glob)
        if problem:
            raise InvalidPath(f"The glob {quoted(glob)} {problem}.", hint=HINT, param="outputs")
    return tuple(globs)


def checked_outputs(globs: Sequence[str], permissions: Permissions) -> tuple[str, ...]:
    """Return the globs. Raise InvalidParams if there are globs and the skill has permissions.

    Such a skill may write its secrets, or what it read with them, to files that its author does not give to callers.
    """
    if globs and (permissions.secrets or permissions.network):
        raise InvalidParams(
            "'outputs' names files of a skill that has permissions",
            hint="Leave 'outputs' out. The skill chooses the files: it writes them to /workspace/out.",
            param="outputs",
        )
    return tuple(globs)
