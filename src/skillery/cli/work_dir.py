"""`--work-dir`: a local folder as the working directory of tool calls, through a workspace.

Before a call, the files of the folder replace those of the workspace. After a successful call, files that the call has
changed, created and deleted are changed in the folder too. The call chose their names and contents: no file is written
outside of the folder, through a link, at a hidden path, or over a file that changed during the call.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import stat
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from skillery.cli.failures import CheckFailed
from skillery.cli.import_uploads import printable
from skillery.cli.work_dir_files import (
    NO_FILE,
    State,
    digest_of,
    locked,
    open_file,
    parent_of,
    scan,
    staging_folder,
    state_of,
    unsafe,
)
from skillery.errors import StartupError
from skillery.formats.wording import first_names

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.client.results import WorkspaceFile

MOST_NAMED = 10
PLACE = """
import contextlib, os, tarfile
def main(args):
    for path in sorted(args["gone"], reverse=True):
        (os.rmdir if os.path.isdir(path) and not os.path.islink(path) else os.unlink)(path)
        with contextlib.suppress(OSError):  # not empty
            os.removedirs(os.path.dirname(path))
    with tarfile.open("/blobs/" + args["files"]) as archive:
        archive.extractall(".", filter="data")
"""


class Mapped:
    """A local folder that is mapped to a workspace during one call."""

    def __init__(
        self, client: AsyncClient, folder: Path, root: int, workspace: str, snapshot: str, sent: Mapping[str, State]
    ) -> None:
        self._client = client
        self._folder = folder
        self._root = root
        self._snapshot = snapshot
        self._sent = sent
        self.workspace = workspace
        lists: dict[str, list[Any]] = {"changed": [], "deleted": [], "not_changed": [], "left_out": []}
        self.report: dict[str, Any] = {"folder": printable(str(folder)), **lists}
        """What happened to the files, for the caller: paths, or paths with reasons."""

    async def bring_back(self, use: Mapping[str, Any] | None) -> None:
        """Make the changes of a successful call in the folder. `use` is the field `workspace` of its result.

        All new contents are downloaded before the first change, so a lost connection changes nothing.
        """
        if not use:
            return
        if use.get("not_saved"):
            raise CheckFailed(f"the files of the call were not saved, and --work-dir is unchanged: {use['not_saved']}")
        _check(use["before"], self._snapshot)
        snapshot, entry_list = await _listed(self._client, self.workspace)
        _check(snapshot, use["after"])
        entries = {entry["path"]: entry for entry in entry_list}
        changed = {path: _state(entry) for path, entry in entries.items() if _state(entry) != self._sent.get(path)}
        deleted_paths = [path for path in self._sent if path not in entries]
        if use["left_out"]:
            self._refuse(deleted_paths, "is missing, but the call also left files that a workspace cannot contain")
            deleted_paths = []
        for path, entry in entries.items():
            if reason := unsafe(path) or ("is a link" if entry["kind"] == "link" else ""):
                changed.pop(path, None)
                self._refuse([path], reason)
            elif entry["kind"] == "folder":
                del changed[path]
        if not changed and not deleted_paths:
            return
        with staging_folder(self._folder) as staging:
            for number, (path, state) in enumerate(changed.items()):
                staged = staging / str(number)
                await self._client.download_workspace_file(self.workspace, path, staged)
                if (await asyncio.to_thread(digest_of, staged)) != state.sha256:
                    raise CheckFailed(f"the file '{printable(path)}' of the workspace changed during its download")
            # No await from here on: an interrupt waits until all changes are made.
            for path in deleted_paths:
                self._change(path, None, None)
            for number, (path, state) in enumerate(changed.items()):
                self._change(path, state, staging / str(number))

    def _change(self, path: str, state: State | None, staged: Path | None) -> None:
        """Delete a file of the folder, or replace it with the staged one. If it has changed during the call, report it
        instead.
        """
        *folders, name = path.split("/")
        try:
            with parent_of(self._root, folders, create=staged is not None) as parent:
                local = state_of(parent, name)
                if local == state:
                    return
                if local != self._sent.get(path):
                    reason = "changed here during the call" if path in self._sent else "exists here and was not sent"
                    self._refuse([path], reason)
                elif staged is None:
                    os.unlink(name, dir_fd=parent)
                    self.report["deleted"].append(path)
                else:
                    assert state is not None
                    if local is not None:
                        staged.chmod(stat.S_IMODE(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode))
                    mode = stat.S_IMODE(staged.stat().st_mode)
                    # Who may read an executable file may execute it: each right to read is shifted to that place.
                    staged.chmod(mode | (mode & 0o444) >> 2 if state.executable else mode & ~0o111)
                    os.replace(staged, name, dst_dir_fd=parent)
                    self.report["changed"].append(path)
        except FileNotFoundError:
            return  # the parent of a file to delete is gone too
        except OSError as error:
            self._refuse([path], f"cannot be changed: {error.strerror}")
        else:
            if staged is None:
                self._remove_empty(folders)

    def _remove_empty(self, folders: Sequence[str]) -> None:
        try:
            while folders:
                with parent_of(self._root, folders[:-1], create=False) as parent:
                    os.rmdir(folders[-1], dir_fd=parent)
                folders = folders[:-1]
        except OSError:
            return  # not empty

    def _refuse(self, paths: Sequence[str], reason: str) -> None:
        self.report["not_changed"] += [{"path": printable(path), "reason": reason} for path in paths]


class WorkDir:
    """A local folder in which tool calls work, one call at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def mapped(self, client: AsyncClient) -> AsyncIterator[Mapped]:
        """Context manager: make the workspace of the folder equal to the folder, and yield it for one call.

        Raise StartupError if the folder cannot be read or is too large, or if another command uses it.
        """
        async with self._turn:
            with locked(self._folder) as root:
                sent, left_out = await asyncio.to_thread(scan, root, self._folder)
                workspace = await _workspace(client, self._folder)
                snapshot = await _place(client, root, workspace, sent)
                mapped = Mapped(client, self._folder, root, workspace, snapshot, sent)
                mapped.report["left_out"] = left_out
                yield mapped


def lines_of_report(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the report as lines of text."""
    for key in ("changed", "deleted"):
        if report[key]:
            yield f"{key} in {report['folder']}: {_named(report[key])}"
    for key in ("not_changed", "left_out"):
        for file in report[key][:MOST_NAMED]:
            yield f"{key.replace('_', ' ')}: {file['path']}: {file['reason']}"
        if len(report[key]) > MOST_NAMED:
            yield f"{key.replace('_', ' ')}: {len(report[key]) - MOST_NAMED} more"


def _named(paths: Sequence[str]) -> str:
    return first_names([printable(path) for path in paths], MOST_NAMED)


# -- the workspace ---------------------------------------------------------------------------------------------------


async def _workspace(client: AsyncClient, folder: Path) -> str:
    """Return the id of a workspace of this folder of this computer. If all of them are in use by runs, create one."""
    digest = hashlib.sha256(f"{platform.node()}\0{printable(str(folder))}".encode()).hexdigest()
    name = f"--work-dir {printable(folder.name)[:100]} {digest[:16]}"
    busy_id = cursor = None
    while True:
        page = await client.list_workspaces(limit=1000, cursor=cursor)
        for workspace in page["workspaces"]:
            if workspace["name"] == name and workspace["run_id"] is None:
                return workspace["id"]
            if workspace["name"] == name:
                # The run of an interrupted call may still save its files there. A fork has the files of before.
                busy_id = workspace["id"]
        cursor = page["next_cursor"]
        if not cursor:
            return (await client.create_workspace(name=name, origin=busy_id))["id"]


async def _listed(client: AsyncClient, workspace: str) -> tuple[str, list[WorkspaceFile]]:
    """Return the present snapshot of a workspace, and its files."""
    page = await client.describe_workspace(workspace, limit=1000)
    snapshot, entries = page["workspace"]["snapshot"], page["entries"]
    while page["next_cursor"]:
        page = await client.describe_workspace(workspace, limit=1000, cursor=page["next_cursor"])
        _check(page["workspace"]["snapshot"], snapshot)
        entries += page["entries"]
    return snapshot, entries


def _check(snapshot: str, expected: str) -> None:
    if snapshot != expected:
        raise CheckFailed(
            "another run has changed the workspace of --work-dir; the folder is unchanged: call the tool again"
        )


def _state(entry: WorkspaceFile) -> State:
    return State(entry["sha256"], entry["executable"]) if entry["kind"] == "file" else NO_FILE


async def _place(client: AsyncClient, root: int, workspace: str, local_states: Mapping[str, State]) -> str:
    """Make the workspace equal to the folder with one run, and return its snapshot. Only changed files are sent."""
    snapshot, entries = await _listed(client, workspace)
    present = {entry["path"]: _state(entry) for entry in entries}
    outdated_paths = [path for path, state in present.items() if local_states.get(path) != state]
    changed_paths = [path for path, state in local_states.items() if present.get(path) != state]
    if not outdated_paths and not changed_paths:
        return snapshot
    with tempfile.TemporaryFile() as archive:
        await asyncio.to_thread(_pack, root, changed_paths, archive)
        blob = (await client.upload_blob(archive, "application/x-tar", ttl=3600))["blob_id"]
    try:
        args = {"gone": outdated_paths, "files": blob}
        run = await client.run_code("python", PLACE, args=args, input_blobs=[blob], workspace=workspace)
    finally:
        await client.delete_blob(blob)
    workspace_use, error = run.get("workspace"), run.get("error")
    if run["status"] != "completed" or workspace_use is None or "not_saved" in workspace_use:
        not_saved = workspace_use.get("not_saved") if workspace_use else run["status"]
        reason = error["message"] if error else not_saved
        raise CheckFailed(f"the files of --work-dir cannot be copied into the workspace '{workspace}': {reason}")
    _check(workspace_use["before"], snapshot)
    return workspace_use["after"]


def _pack(root: int, paths: Sequence[str], archive: IO[bytes]) -> None:
    """Write the files as a tar. Raise StartupError if a file can no longer be read."""
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path in paths:
            *folders, name = path.split("/")
            try:
                with parent_of(root, folders, create=False) as parent, open_file(parent, name) as file:
                    info = tar.gettarinfo(arcname=path, fileobj=file)
                    if not info.isreg():
                        raise StartupError(f"'{printable(path)}' in --work-dir is no longer a file: try again")
                    info.mode = 0o755 if info.mode & 0o100 else 0o644
                    tar.addfile(info, file)
            except OSError as error:
                reason = error.strerror or "it became shorter"
                raise StartupError(f"cannot read '{printable(path)}' in --work-dir: {reason}") from None
    archive.seek(0)
