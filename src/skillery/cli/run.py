"""`skillery run` and `code`: the methods execute_skill and run_code."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

from skillery.backends import Language
from skillery.cli.files import file_options, read_files, reference_of, upload_files, with_skills
from skillery.cli.options import Target, json_option, name_and_version, target_options
from skillery.cli.run_output import RunOptions, UsedCommand, arg_value, background_options, end_of_run, report

if TYPE_CHECKING:
    from skillery.client import AsyncClient

BLOB_ID = "blob:"
ENDINGS: dict[str, Language] = {".js": "javascript", ".mjs": "javascript", ".sh": "bash"}


class Inputs(msgspec.Struct, frozen=True):
    """The inputs of a run: args and input blobs.

    An input blob is a local path or `blob:ID`, with the arg that gets the id of the blob, or None.
    """

    args: dict[str, Any]
    blobs: tuple[tuple[str | None, str], ...]


def input_options(command: Any) -> Any:
    """Add the options for inputs: --arg, --args-json, --blob and --timeout-ms."""
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


@click.command()
@click.argument("name", metavar="NAME[@VERSION]|DIR")
@click.argument("argv", metavar="[-- ARGV…]", nargs=-1)
@input_options
@click.option("--version", help="Version, range or digest.  [default: the latest release]")
@click.option(
    "--script",
    metavar="PATH",
    help="If the skill has no entrypoint: run this file of the skill. The run starts in an empty folder, the skill is "
    "in /skills/NAME, and the files in out/ are kept. Arguments of the script follow NAME (after -- if they look "
    "like options).",
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
    detach_on_interrupt: bool,
    target: Target,
    as_json: bool,
) -> None:
    """Run a skill in a fresh sandbox.

    DIR is a skill that is not published: ./DIR, DIR/, `.` or an absolute path. A plain NAME is never a folder. The run
    of a folder has no secrets, and its blobs are deleted with it: keep files with --out.

    Ctrl-C cancels the run. A second Ctrl-C ends the command at once.
    """
    skill = reference_of(name, version)
    options = RunOptions(out, background, follow, detach_on_interrupt)
    inputs, values = read_inputs(pairs, args_json, blobs), read_files(files)
    is_script = script is not None or module is not None
    if is_script:
        inputs = msgspec.structs.replace(inputs, args=_script_args(argv, stdin) | inputs.args)
    elif argv or stdin is not None:
        argument = f"'{argv[0]}'" if argv else "--stdin"
        raise click.UsageError(
            f"{argument} requires --script PATH or --module NAME; pass args of an entrypoint with --arg K=V"
        )

    async def execute(client: AsyncClient, skills: Sequence[str]) -> Mapping[str, Any]:
        name, version = name_and_version(skills[0], None)
        options.check(client)
        args, blob_ids = await upload_inputs(client, inputs)
        starting = client.execute_skill(
            name=name,
            version=version,
            args=args,
            input_blobs=blob_ids,
            timeout_ms=timeout_ms,
            script=script,
            environment=environment,
            module=module,
            cwd=cwd,
            files=await upload_files(client, values),
            outputs=list(outputs) or None,
            workspace=workspace,
            background=True,
        )
        return await end_of_run(client, starting, options)

    command = UsedCommand(["skillery", "run", skill], target.options, inputs.blobs)
    report(with_skills(target, [skill], execute), as_json, of_script=is_script, has_log=follow, used=command)


def _script_args(argv: Sequence[str], stdin: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"argv": list(argv)} if argv else {}
    return values if stdin is None else {**values, "stdin": text_in(stdin.read(), stdin.name)}


@click.command()
@click.argument("file", metavar="FILE", type=click.File("rb"))
@click.option(
    "--mount", "mounts", multiple=True, metavar="NAME[@VERSION]|DIR", help="A skill that the code can import."
)
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
    detach_on_interrupt: bool,
    target: Target,
    as_json: bool,
) -> None:
    """Run the code in FILE in a fresh sandbox. The code is Python, JavaScript or bash. If FILE is -, read stdin.

    Ctrl-C cancels the run. A second Ctrl-C ends the command at once.
    """
    options = RunOptions(out, background, follow, detach_on_interrupt)
    inputs, values = read_inputs(pairs, args_json, blobs), read_files(files)
    source = text_in(file.read(), file.name)

    async def run_code(client: AsyncClient, skills: Sequence[str]) -> Mapping[str, Any]:
        options.check(client)
        args, blob_ids = await upload_inputs(client, inputs)
        starting = client.run_code(
            language=language or ENDINGS.get(Path(file.name).suffix, "python"),
            code=source,
            entrypoint=entrypoint,
            args=args,
            mount_skills=list(skills),
            input_blobs=blob_ids,
            limits=None if timeout_ms is None else {"timeout_ms": timeout_ms},
            environment=environment,
            files=await upload_files(client, values),
            outputs=list(outputs) or None,
            workspace=workspace,
            background=True,
        )
        return await end_of_run(client, starting, options)

    report(with_skills(target, mounts, run_code), as_json, has_log=follow)


def read_inputs(pairs: Sequence[str], args_json: str | None, blobs: Sequence[str]) -> Inputs:
    """Return the inputs of a run from the values of the options. Raise UsageError if a value is malformed or a file
    cannot be read.
    """
    args = _args_object(args_json) if args_json is not None else {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise click.UsageError(f"--arg '{pair}': write KEY=VALUE")
        args[key] = text_of(value[1:], "--arg") if value.startswith("@") else arg_value(value)
    input_blobs = tuple(_blob(text) for text in blobs)
    for _, file in input_blobs:
        if not file.startswith(BLOB_ID) and not Path(file).is_file():
            raise click.UsageError(f"--blob: the file '{file}' does not exist")
    return Inputs(args, input_blobs)


def _args_object(text: str) -> dict[str, Any]:
    if text.startswith("@"):
        text = text_of(text[1:], "--args-json")
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise click.UsageError(f"--args-json is not a JSON object: {error}") from None


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
