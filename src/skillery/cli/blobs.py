"""`skillery blob put`, `blob get` and `blob rm`: upload, download and delete blobs, with constant memory."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from skillery.cli.options import Target, json_option, print_change, target_options
from skillery.cli.output import clean, is_terminal, print_json
from skillery.cli.verbs import Verb, argument, changed

if TYPE_CHECKING:
    from skillery.client import AsyncClient, AsyncOpenBlob
    from skillery.client.blobs import Progress
    from skillery.client.results import NewBlob

ANY_KIND = "application/octet-stream"
# These entries complete the system's own table, which differs between machines.
KINDS = {".csv": "text/csv", ".md": "text/markdown", ".jsonl": "application/x-ndjson", ".toml": "application/toml"}


@click.group()
def blob() -> None:
    """Upload, download and delete blobs of any size."""


@blob.command("put")
@click.argument("file", metavar="FILE")
@click.option("--kind", help="MIME type.  [default: derived from the name]")
@click.option("--ttl", metavar="TIME", help="How long to keep the blob: 12h, 90d.  [default: the server's]")
@target_options
@json_option
def put(file: str, kind: str | None, ttl: str | None, target: Target, as_json: bool) -> None:
    """Store FILE (- reads stdin) as a blob and print its id."""
    from skillery.cli.connection import with_client

    if file != "-" and not Path(file).is_file():
        raise click.UsageError(f"the file '{file}' does not exist")
    kind = kind or kind_of(file)
    seconds = seconds_of(ttl) if ttl else None

    async def upload(client: AsyncClient) -> NewBlob:
        if file != "-":
            return await upload_file(client, Path(file), kind, seconds)
        with _progress("stdin", None) as progress:
            return await client.upload_blob(sys.stdin.buffer, kind, ttl=seconds, progress=progress)

    answer = with_client(target, upload)
    if as_json:
        print_json({**answer, "kind": kind})
        return
    click.echo(clean(answer["blob_id"]))
    print_change("stored", err=True)


@blob.command("get")
@click.argument("blob_id", metavar="ID")
@click.option("-o", "--output", metavar="FILE", help="The file to write.  [default: -, which is stdout]")
@target_options
@json_option
def get(blob_id: str, output: str | None, target: Target, as_json: bool) -> None:
    """Write a blob to stdout or to a file. A file is created only when complete."""
    from skillery.cli.connection import with_client

    to_stdout = output is None or output == "-"
    if as_json and to_stdout:
        raise click.UsageError("--json prints the path of the file: name a file with -o")
    if output is None and is_terminal():
        raise click.UsageError("a blob can be binary: name a file with -o FILE, or print it with -o -")

    async def fetch(client: AsyncClient) -> dict[str, Any]:
        async with client.open_blob(blob_id) as blob:
            size = blob.size_bytes or 0
            hidden = to_stdout and is_terminal()  # the blob itself shows the progress
            with (
                _progress(blob_id, size, hidden=hidden) as progress,
                open_output(None if to_stdout else output) as sink,
            ):
                await save(blob, sink, progress)
            return {"blob_id": blob_id, "size_bytes": size, "kind": blob.kind}

    answer = with_client(target, fetch)
    if as_json:
        print_json({**answer, "path": output})


blob.add_command(
    Verb(
        "rm",
        "delete_blob",
        changed("deleted {blob_id}"),
        argument("blob_id", "ID"),
        help="Delete a blob. The blob is unavailable at once; later sweeps remove its content.",
    )
)


def seconds_of(ttl: str) -> int:
    """Return the seconds of `--ttl`. Raise BadParameter if the text is not a duration, or too long."""
    from skillery.errors import InvalidParams
    from skillery.formats.timestamps import parse_duration

    try:
        return int(parse_duration(ttl, "ttl").total_seconds())
    except InvalidParams as error:
        raise click.BadParameter(f"{error.message}. {error.hint}", param_hint="--ttl") from None


def kind_of(name: str) -> str:
    """Return the MIME type for the extension of a file name."""
    if Path(name).suffix.lower() in KINDS:
        return KINDS[Path(name).suffix.lower()]
    import mimetypes

    kind, encoding = mimetypes.guess_type(name)
    return kind if kind and not encoding else ANY_KIND


async def upload_file(client: AsyncClient, path: Path, kind: str, ttl: int | None = None) -> NewBlob:
    """Upload a file as a stream."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise click.UsageError(f"cannot read '{path}': {error.strerror}") from None
    with file, _progress(path.name, os.fstat(file.fileno()).st_size) as progress:
        return await client.upload_blob(file, kind, ttl=ttl, progress=progress)


async def save(blob: AsyncOpenBlob, sink: BinaryIO, progress: Progress) -> None:
    """Write the content of a blob to an open file."""
    size = 0
    async for piece in blob.pieces:
        sink.write(piece)
        size += len(piece)
        progress(size, blob.size_bytes)


@contextlib.contextmanager
def open_output(output: str | None) -> Iterator[BinaryIO]:
    """Context manager: stdout, or a temporary file next to `output`, which is renamed to `output` when it is
    complete.
    """
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    import secrets

    target = Path(output)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    try:
        file = partial.open("xb")
    except OSError as error:
        raise click.UsageError(f"cannot write '{output}': {error.strerror}") from None
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _progress(name: str, total: int | None, *, hidden: bool = False) -> Iterator[Progress]:
    """Context manager: a progress bar on stderr, if stderr is a terminal and `hidden` is False. Stdout may carry the
    blob.
    """
    if hidden or not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(escape(clean(name)), total=total)
        yield lambda done, _total: bar.update(task, completed=done)
