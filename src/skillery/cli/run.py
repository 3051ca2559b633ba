"""`skillery run` and `code`: the methods execute_skill and run_code."""

from __future__ import annotations

import sys
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

from skillery.backends import Language
from skillery.cli.files import download_files, file_options, read_files, upload_files
from skillery.cli.options import Target, json_option, name_and_version, target_options
from skillery.cli.run_output import report

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.client.results import Run

BLOB_ID = "blob:"
ENDINGS: dict[str, Language] = {".js": "javascript", ".mjs": "javascript", ".sh": "bash"}


class Inputs(msgspec.Struct, frozen=True):
    """The inputs of a run: args and input blobs.

    An input blob is a local path or `blob:ID`, with the arg that gets the id of the blob, or None.
    """

    args: dict[str, Any]
    blobs: tuple[tuple[str | None, str], ...]


def input_options(command: Any) -> Any:
    for option in (
        click.option("--timeout-ms", type=int, help="Wall-clock limit of the run.  [default: the server's]"),
        click.option(
            "--blob",
            "blobs",
            multiple=True,
            metavar="[ARG=]FILE",
            help="Upload FILE (or use a blob by its id) as an input blob; ARG= also sets that arg to the id.",
        ),
        click.option("--args-json", metavar="JSON", help="All args as one object; @FILE reads it from a file."),
        click.option(
            "--arg",
            "pairs",
            multiple=True,
            metavar="K=V",
            help="One arg. V is parsed as JSON if possible, otherwise used as text; K=@FILE reads the text of a file.",
        ),
    ):
        command = option(command)
    return command


def background_options(command: Any) -> Any:
    for option in (
        click.option("--follow", is_flag=True, help="Write the log to stderr while the run goes on."),
        click.option("--background", is_flag=True, help="Print the id of the run and do not wait for its end."),
    ):
        command = option(command)
    return command


async def finish(client: AsyncClient, answer: Run, out: Path | None, *, follow: bool) -> Mapping[str, Any]:
    """Return the answer of a run. With `follow`, write the log to stderr and wait until the run has ended.

    If the run has ended, download its files to `out`.
    """
    from skillery.cli.runs import write_log

    ended: Mapping[str, Any] = answer
    if follow:
        await write_log(client, answer["run_id"], sys.stderr)
        ended = await client.wait_run(answer["run_id"])
    if ended["status"] in {"completed", "failed"}:
        await download_files(client, ended, out)
    return ended


def in_background(client: AsyncClient, out: Path | None, *, background: bool, follow: bool) -> bool | None:
    """Return the param `background` of a run: True if the server must answer before the run has ended, otherwise None.

    Raise UsageError if the options exclude each other, or if `background` is given and no server is running.
    """
    from skillery.cli.connection import HomeClient

    if background and follow:
        raise click.UsageError("--background does not wait for the run, and --follow does: leave one out")
    if background and out is not None:
        raise click.UsageError("--out needs the end of the run; leave --background out")
    if background and isinstance(client, HomeClient):
        raise click.UsageError("--background needs a server; start one with 'skillery serve', or leave it out")
    return True if background or follow else None


@click.command()
@click.argument("name", metavar="NAME[@VERSION]")
@click.argument("argv", metavar="[-- ARGV…]", nargs=-1)
@input_options
@click.option("--version", help="Version, range or digest.  [default: the latest release]")
@click.option(
    "--script",
    metavar="PATH",
    help="Run this file of a skill without an entrypoint, in an empty folder. The skill is in /skills/NAME, and the "
    "files in out/ are kept. Arguments follow NAME (after -- if they look like options); use --arg K=V "
    "for argv, stdin and env.",
)
@click.option(
    "--module", metavar="NAME", help="Like --script for a module: scripts.x runs scripts/x.py like python -m."
)
@click.option(
    "--cwd",
    type=click.Choice(["workspace", "skill"]),
    help="The working directory of the script or module: /workspace, or the read-only folder of its skill.  "
    "[default: workspace]",
)
@click.option(
    "--stdin",
    type=click.File("rb"),
    metavar="FILE",
    help="The stdin of the script; - passes on the stdin of this command.",
)
@click.option(
    "--environment",
    metavar="NAME",
    help="Environment for a skill that declares no packages; '' means none.  [default: the server's]",
)
@file_options
@background_options
@target_options
@json_option
def run(
    name: str,
    argv: Sequence[str],
    version: str | None,
    script: str | None,
    module: str | None,
    cwd: Literal["workspace", "skill"] | None,
    stdin: Any,
    environment: str | None,
    files: Sequence[str],
    out: Path | None,
    outputs: Sequence[str],
    workspace: str | None,
    pairs: Sequence[str],
    args_json: str | None,
    blobs: Sequence[str],
    timeout_ms: int | None,
    background: bool,
    follow: bool,
    target: Target,
    as_json: bool,
) -> None:
    """Run a skill in a fresh sandbox."""
    from skillery.cli.connection import with_client

    name, version = name_and_version(name, version)
    inputs, given = read_inputs(pairs, args_json, blobs), read_files(files)
    is_script = script is not None or module is not None
    if is_script:
        inputs = msgspec.structs.replace(inputs, args=_script_args(argv, stdin) | inputs.args)
    elif argv or stdin is not None:
        what = f"'{argv[0]}'" if argv else "--stdin"
        raise click.UsageError(
            f"{what} requires --script PATH or --module NAME; pass args of an entrypoint with --arg K=V"
        )

    async def execute(client: AsyncClient) -> Mapping[str, Any]:
        is_early = in_background(client, out, background=background, follow=follow)
        args, blob_ids = await upload_inputs(client, inputs)
        answer = await client.execute_skill(
            name=name,
            version=version,
            args=args,
            input_blobs=blob_ids,
            timeout_ms=timeout_ms,
            script=script,
            environment=environment,
            module=module,
            cwd=cwd,
            files=await upload_files(client, given),
            outputs=list(outputs) or None,
            workspace=workspace,
            background=is_early,
        )
        return await finish(client, answer, out, follow=follow)

    report(with_client(target, execute, sandbox=True), as_json, of_script=is_script)


def _script_args(argv: Sequence[str], stdin: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"argv": list(argv)} if argv else {}
    return given if stdin is None else {**given, "stdin": text_in(stdin.read(), stdin.name)}


@click.command()
@click.argument("file", metavar="FILE", type=click.File("rb"))
@click.option("--mount", "mounts", multiple=True, metavar="NAME[@VERSION]", help="A skill that the code can import.")
@input_options
@click.option("--entrypoint", help="The function to call.  [default: main]")
@click.option(
    "--language",
    type=click.Choice(typing.get_args(Language)),
    help="The language of FILE.  [default: by extension: .js, .mjs, .sh, otherwise python]",
)
@click.option(
    "--environment",
    metavar="NAME",
    help="Environment with the packages that Python code can import; '' means none.  [default: the server's]",
)
@file_options
@background_options
@target_options
@json_option
def code(
    file: Any,
    mounts: Sequence[str],
    pairs: Sequence[str],
    args_json: str | None,
    blobs: Sequence[str],
    entrypoint: str | None,
    language: Language | None,
    environment: str | None,
    files: Sequence[str],
    out: Path | None,
    outputs: Sequence[str],
    workspace: str | None,
    timeout_ms: int | None,
    background: bool,
    follow: bool,
    target: Target,
    as_json: bool,
) -> None:
    """Run the code in FILE in a fresh sandbox. The code is Python, JavaScript or bash. If FILE is -, read stdin."""
    from skillery.cli.connection import with_client

    inputs, given = read_inputs(pairs, args_json, blobs), read_files(files)
    source = text_in(file.read(), file.name)

    async def run_code(client: AsyncClient) -> Mapping[str, Any]:
        is_early = in_background(client, out, background=background, follow=follow)
        args, blob_ids = await upload_inputs(client, inputs)
        answer = await client.run_code(
            language=language or ENDINGS.get(Path(file.name).suffix, "python"),
            code=source,
            entrypoint=entrypoint,
            args=args,
            mount_skills=list(mounts),
            input_blobs=blob_ids,
            limits=None if timeout_ms is None else {"timeout_ms": timeout_ms},
            environment=environment,
            files=await upload_files(client, given),
            outputs=list(outputs) or None,
            workspace=workspace,
            background=is_early,
        )
        return await finish(client, answer, out, follow=follow)

    report(with_client(target, run_code, sandbox=True), as_json)


def read_inputs(pairs: Sequence[str], args_json: str | None, blobs: Sequence[str]) -> Inputs:
    """Return the inputs of a run from the values of the options. Raise UsageError if a value is malformed or a file
    cannot be read.
    """
    args = _args_object(args_json) if args_json is not None else {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise click.UsageError(f"--arg '{pair}': write KEY=VALUE")
        args[key] = text_of(value[1:], "--arg") if value.startswith("@") else _value(value)
    named = tuple(_blob(text) for text in blobs)
    for _, file in named:
        if not file.startswith(BLOB_ID) and not Path(file).is_file():
            raise click.UsageError(f"--blob: the file '{file}' does not exist")
    return Inputs(args, named)


def _args_object(text: str) -> dict[str, Any]:
    if text.startswith("@"):
        text = text_of(text[1:], "--args-json")
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise click.UsageError(f"--args-json is not a JSON object: {error}") from None


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text


def _blob(text: str) -> tuple[str | None, str]:
    """Parse one `--blob`: `ARG=FILE` or `FILE`. If a file with the whole text as its name exists, the text is not
    split at `=`.
    """
    arg, equals, file = text.partition("=")
    if not equals or text.startswith(BLOB_ID) or Path(text).is_file():
        return None, text
    return arg, file


def text_of(path: str, option: str) -> str:
    try:
        return text_in(Path(path).read_bytes(), path)
    except OSError as error:
        raise click.UsageError(f"{option}: cannot read '{path}': {error.strerror}") from None


def text_in(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise click.UsageError(f"'{name}' is not UTF-8 text; pass binary content with --blob") from None


async def upload_inputs(client: AsyncClient, inputs: Inputs) -> tuple[dict[str, Any], list[str]]:
    """Upload the input files. Return the args, including the args that get the id of a blob, and the ids of all
    input blobs.
    """
    from skillery.cli.blobs import kind_of, upload_file

    args, blob_ids = dict(inputs.args), []
    for arg, file in inputs.blobs:
        blob_id = file
        if not file.startswith(BLOB_ID):
            blob_id = (await upload_file(client, Path(file), kind_of(file)))["blob_id"]
        blob_ids.append(blob_id)
        if arg is not None:
            args[arg] = blob_id
    return args, blob_ids
