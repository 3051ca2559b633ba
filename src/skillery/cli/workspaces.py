"""`skillery workspace`: workspaces, their files and their snapshots."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skillery.cli.files import BLOB_ID, GivenFile, read_files
from skillery.cli.options import Target, json_option, print_change, target_options
from skillery.cli.output import clean, is_terminal, print_fields, print_json, print_rows

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.client.results import WorkspaceInfo


@click.group(short_help="Keep files from run to run.")
def workspace() -> None:
    """Create, list and change workspaces: files that stay from run to run."""


def _ttl_option(command: Any) -> Any:
    return click.option("--ttl", metavar="TIME", help="Lifetime after the last use: 12h, 90d.  [default: 7d]")(command)


@workspace.command("create")
@click.option("--name", help="Any text, shown in lists.")
@_ttl_option
@click.option(
    "--file",
    "files",
    multiple=True,
    metavar="FILE[:PATH]",
    help="Copy FILE (or a blob, as blob:ID:PATH) to PATH in the workspace.  [default: its name]",
)
@target_options
@json_option
def create(name: str | None, ttl: str | None, files: Sequence[str], target: Target, as_json: bool) -> None:
    """Create a workspace and print its id."""
    from skillery.cli.connection import with_client
    from skillery.cli.files import upload_files

    values = read_files(files)

    async def created(client: AsyncClient) -> WorkspaceInfo:
        sent = await upload_files(client, values)
        return await client.create_workspace(name=name, ttl=_seconds(ttl), files=sent)

    _print_id(with_client(target, created), as_json)


@workspace.command("fork")
@click.argument("origin", metavar="ID|SNAPSHOT|RUN")
@click.option("--name", help="Any text, shown in lists.")
@_ttl_option
@target_options
@json_option
def fork(origin: str, name: str | None, ttl: str | None, target: Target, as_json: bool) -> None:
    """Create a workspace with the files of a workspace, a snapshot or a run, and print its id."""
    from skillery.cli.connection import with_client

    answer = with_client(target, lambda client: client.create_workspace(origin=origin, name=name, ttl=_seconds(ttl)))
    _print_id(answer, as_json)


@workspace.command("list")
@click.option("--limit", type=click.IntRange(1, 1000), help="Maximum number of entries.  [default: 50]")
@click.option("--cursor", help="Continue after the page that returned this next_cursor.")
@target_options
@json_option
def list_(limit: int | None, cursor: str | None, target: Target, as_json: bool) -> None:
    """List your workspaces."""
    from skillery.cli.connection import with_client

    answer = with_client(target, lambda client: client.list_workspaces(limit=limit, cursor=cursor))
    if as_json:
        print_json(answer)
        return
    print_rows(
        ["id", "name", "files", "bytes", "expires", "held by"],
        [
            (one["id"], one["name"] or "-", one["files"], one["size_bytes"], one["expires_at"], one["run_id"] or "-")
            for one in answer["workspaces"]
        ],
        none="No workspaces.",
    )
    _print_cursor(answer)


@workspace.command("show")
@click.argument("id_", metavar="ID")
@target_options
@json_option
def show(id_: str, target: Target, as_json: bool) -> None:
    """Show a workspace and its snapshots, newest first."""
    from skillery.cli.connection import with_client

    answer = with_client(target, lambda client: client.describe_workspace(id_, limit=1))
    about = {**answer["workspace"], "snapshots": answer["snapshots"]}
    if as_json:
        print_json(about)
        return
    print_fields(_fields(about))


@workspace.command("files")
@click.argument("id_", metavar="ID")
@click.argument("path", required=False)
@click.option("--limit", type=click.IntRange(1, 1000), help="Maximum number of entries.")
@click.option("--cursor", help="Continue after the page that returned this next_cursor.")
@target_options
@json_option
def files(id_: str, path: str | None, limit: int | None, cursor: str | None, target: Target, as_json: bool) -> None:
    """List the files of a workspace, or those at or below PATH."""
    from skillery.cli.connection import with_client

    answer = with_client(target, lambda client: client.describe_workspace(id_, path=path, limit=limit, cursor=cursor))
    if as_json:
        print_json({"entries": answer["entries"], "next_cursor": answer["next_cursor"]})
        return
    print_rows(
        ["path", "kind", "bytes", "sha256"],
        [
            (one["path"], "program" if one["executable"] else one["kind"], one["size_bytes"], one["sha256"])
            for one in answer["entries"]
        ],
        none="No files.",
    )
    _print_cursor(answer)


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
    from skillery.cli.files import read_files

    local = read_files(values, "FILE")
    for file in local:
        if file.source.startswith(BLOB_ID):
            raise click.UsageError(f"'{file.source}' is a blob: download it first, or pass it to create with --file")

    async def send(client: AsyncClient, file: GivenFile) -> WorkspaceInfo:
        source, executable = Path(file.source), os.access(file.source, os.X_OK)
        return await client.upload_workspace_file(id_, file.path, source, executable=executable)

    async def sent(client: AsyncClient) -> WorkspaceInfo:
        return [await send(client, file) for file in local][-1]

    _print_snapshot(with_client(target, sent), as_json)


@workspace.command("reset")
@click.argument("id_", metavar="ID")
@click.argument("snapshot")
@target_options
@json_option
def reset(id_: str, snapshot: str, target: Target, as_json: bool) -> None:
    """Make an earlier snapshot the current one."""
    from skillery.cli.connection import with_client

    _print_snapshot(with_client(target, lambda client: client.reset_workspace(id_, snapshot)), as_json)


@workspace.command("delete")
@click.argument("id_", metavar="ID")
@target_options
@json_option
def delete(id_: str, target: Target, as_json: bool) -> None:
    """Delete a workspace with its snapshots. Its forks keep their files."""
    from skillery.cli.connection import with_client

    answer = with_client(target, lambda client: client.delete_workspace(id_))
    if as_json:
        print_json(answer)
    else:
        print_change(f"deleted {answer['id']}")


def _seconds(ttl: str | None) -> int | None:
    from skillery.cli.blobs import seconds_of

    return seconds_of(ttl) if ttl else None


def _print_id(answer: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        click.echo(clean(answer["id"]))
        print_change("created", err=True)


def _print_snapshot(answer: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        click.echo(clean(answer["snapshot"]))
        print_change("saved", err=True)


def _print_cursor(answer: Mapping[str, Any]) -> None:
    if answer["next_cursor"]:
        click.echo(f"More entries: --cursor {clean(answer['next_cursor'])}", err=True)


def _fields(about: Mapping[str, Any]) -> Iterable[tuple[str, object]]:
    for key, value in about.items():
        if key != "snapshots" and value not in (None, ""):
            yield key, value
    lines = [f"{one['snapshot']} {one['created_at']} {one['run_id'] or ''}".rstrip() for one in about["snapshots"]]
    if lines:
        yield "snapshots", "\n".join(lines)
