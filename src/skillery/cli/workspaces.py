"""`skillery workspace`: workspaces, their files and their snapshots."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skillery.cli.files import BLOB_ID, GivenFile, read_files
from skillery.cli.options import Target, json_option, target_options
from skillery.cli.output import is_terminal, print_fields, print_json
from skillery.cli.verbs import Table, Verb, argument, changed, option, printed

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.client.results import WorkspaceInfo


def _seconds(_ctx: click.Context, _option: click.Parameter, ttl: str | None) -> int | None:
    from skillery.cli.blobs import seconds_of

    return seconds_of(ttl) if ttl else None


def _print_workspace(workspace: Mapping[str, Any]) -> None:
    print_fields(_fields(workspace))


def _fields(workspace: Mapping[str, Any]) -> Iterable[tuple[str, object]]:
    for key, value in workspace.items():
        if key != "snapshots" and value not in (None, ""):
            yield key, value
    lines = [
        f"{snapshot['snapshot']} {snapshot['created_at']} {snapshot['run_id'] or ''}".rstrip()
        for snapshot in workspace["snapshots"]
    ]
    if lines:
        yield "snapshots", "\n".join(lines)


ID = argument("workspace", "ID")
TTL: Mapping[str, Any] = {
    "metavar": "TIME",
    "callback": _seconds,
    "help": "Lifetime after the last use: 12h, 90d.  [default: 7d]",
}
_print_id = printed("id", "created")
_print_snapshot = printed("snapshot", "saved")
workspace = click.Group(
    "workspace",
    short_help="Keep files from run to run.",
    help="Create, list and change workspaces: files that stay from run to run.",
    commands=[
        Verb(
            "fork",
            "create_workspace",
            _print_id,
            argument("origin", "ID|SNAPSHOT|RUN"),
            option("--ttl", **TTL),
            fixed={"files": None},
            help="Create a workspace with the files of a workspace, a snapshot or a run, and print its id.",
        ),
        Verb(
            "list",
            "list_workspaces",
            Table("workspaces", "id name files bytes=size_bytes expires=expires_at held_by=run_id"),
        ),
        Verb(
            "show",
            "describe_workspace",
            _print_workspace,
            ID,
            fixed={"path": None, "limit": 1, "cursor": None},
            takes=lambda answer: {**answer["workspace"], "snapshots": answer["snapshots"]},
            help="Show a workspace and its snapshots, newest first.",
        ),
        Verb(
            "files",
            "describe_workspace",
            Table(
                "entries",
                "path kind bytes=size_bytes sha256",
                noun="files",
                kind=lambda entry: "program" if entry["executable"] else entry["kind"],
            ),
            ID,
            argument("path", required=False),
            option("--limit", type=click.IntRange(1, 1000), help="Maximum number of files.  [default: 200]"),
            takes=lambda answer: {"entries": answer["entries"], "next_cursor": answer["next_cursor"]},
            help="List the files of a workspace, or those at or below PATH.",
        ),
        Verb("reset", "reset_workspace", _print_snapshot, ID, help="Make an earlier snapshot the current one."),
        Verb(
            "delete",
            "delete_workspace",
            changed("deleted {id}"),
            ID,
            help="Delete a workspace with its snapshots. Its forks keep their files.",
        ),
    ],
)


@workspace.command("create")
@click.option("--name", help="Any text, shown in lists.")
@click.option("--ttl", **TTL)
@click.option(
    "--file",
    "files",
    multiple=True,
    metavar="FILE[:PATH]",
    help="Copy FILE (or a blob, as blob:ID:PATH) to PATH in the workspace.  [default: its name]",
)
@target_options
@json_option
def create(name: str | None, ttl: int | None, files: Sequence[str], target: Target, as_json: bool) -> None:
    """Create a workspace and print its id."""
    from skillery.cli.connection import with_client
    from skillery.cli.files import upload_files

    values = read_files(files)

    async def created(client: AsyncClient) -> WorkspaceInfo:
        return await client.create_workspace(name=name, ttl=ttl, files=await upload_files(client, values))

    answer = with_client(target, created)
    if as_json:
        print_json(answer)
    else:
        _print_id(answer)


@workspace.command("get")
@click.argument("id_", metavar="ID")
@click.argument("path", required=False)
@click.option("-o", "--output", metavar="FILE", help="The file to write.  [default: -, which is stdout]")
@target_options
def get(id_: str, path: str | None, output: str | None, target: Target) -> None:
    """Write a file of a workspace to stdout or to a file. Without PATH, write all files as a tar archive."""
    from skillery.cli.blobs import open_output
    from skillery.cli.connection import with_client

    if output is None and is_terminal():
        raise click.UsageError("the file can be binary: name a file with -o FILE, or print it with -o -")

    async def fetch(client: AsyncClient) -> None:
        with open_output(None if output in {None, "-"} else output) as sink:
            if path is None:
                await client.download_workspace(id_, sink)
            else:
                await client.download_workspace_file(id_, path, sink)

    with_client(target, fetch)


@workspace.command("put")
@click.argument("id_", metavar="ID")
@click.argument("values", metavar="FILE[:PATH]...", nargs=-1, required=True)
@target_options
@json_option
def put(id_: str, values: Sequence[str], target: Target, as_json: bool) -> None:
    """Add or replace files of a workspace. PATH is the name of FILE by default."""
    from skillery.cli.connection import with_client

    local = read_files(values, "FILE")
    for file in local:
        if file.source.startswith(BLOB_ID):
            raise click.UsageError(f"'{file.source}' is a blob: download it first, or pass it to create with --file")

    async def send(client: AsyncClient, file: GivenFile) -> WorkspaceInfo:
        source, executable = Path(file.source), os.access(file.source, os.X_OK)
        return await client.upload_workspace_file(id_, file.path, source, executable=executable)

    async def sent(client: AsyncClient) -> WorkspaceInfo:
        return [await send(client, file) for file in local][-1]

    answer = with_client(target, sent)
    if as_json:
        print_json(answer)
    else:
        _print_snapshot(answer)
