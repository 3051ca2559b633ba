"""The output of commands that run skills and code."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from skillery.cli.failures import RUN_FAILED
from skillery.cli.files import download_files
from skillery.cli.options import target_of
from skillery.cli.output import as_json as as_json_text
from skillery.cli.output import clean, print_fields, print_json
from skillery.formats.inputs import CORRECT_CALL, SAMPLE_BLOB
from skillery.formats.words import MOUNT

if TYPE_CHECKING:
    import asyncio

    from skillery.client import AsyncClient


class UsedCommand(NamedTuple):
    """The command of the user, without its args: its words, the options of its target, and the values of --blob."""

    words: Sequence[str]
    options: str = ""
    blobs: Sequence[tuple[str | None, str]] = ()


class _Call(msgspec.Struct):
    """The correct call in a message about wrong args."""

    name: str
    args: dict[str, Any]


def with_command(message: str, used: UsedCommand) -> str:
    """Return a message about wrong args. Its correct call, which is JSON, becomes a command of a POSIX shell."""
    text_before, mark, text = message.rpartition(CORRECT_CALL)
    try:
        args = msgspec.json.decode(text, type=_Call).args if mark else None
    except msgspec.DecodeError:  # the text is cut off, or from the code of the run
        args = None
    if args is None:
        return message
    files = {arg: file for arg, file in used.blobs if arg in args and str(args[arg]).startswith("blob:")}
    files |= {arg: "FILE" for arg, value in args.items() if value == SAMPLE_BLOB}
    plain_args = {arg: value for arg, value in args.items() if arg not in files}
    options = [("--blob", file) for arg, file in used.blobs if arg is None]
    options += [("--blob", f"{arg}={file}") for arg, file in files.items()]
    if all(arg and arg.isprintable() and "=" not in arg for arg in plain_args):
        options += [("--arg", f"{arg}={_arg_text(value)}") for arg, value in plain_args.items()]
    else:
        options.append(("--args-json", as_json_text(plain_args, -1)))
    words = [*used.words, *(word for option in options for word in option)]
    return f"{text_before}{CORRECT_CALL}{shlex.join(words)}{used.options}"


def arg_value(text: str) -> Any:
    """Return the value of one --arg: parsed as JSON if possible, otherwise the text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text


def _arg_text(value: object) -> str:
    """Return the text of one --arg with this value."""
    is_plain = isinstance(value, str) and value.isprintable() and value[:1] != "@" and arg_value(value) is value
    return str(value) if is_plain else as_json_text(value, -1)


def report(
    answer: Mapping[str, Any],
    as_json: bool,
    *,
    of_script: bool = False,
    has_log: bool = False,
    used: UsedCommand | None = None,
) -> None:
    """Print the result of a run, or the id of a run in the background. Raise Exit if the run or its script failed.

    `of_script` says whether the run executed a script or module. `has_log` says whether the log is already printed.
    `used` is the command for the correct call of a message about wrong args.
    """
    if answer["status"] in {"queued", "started"}:
        if as_json:
            print_json(answer)
        else:
            click.echo(answer["run_id"])
        return
    failed = answer["status"] != "completed"
    result = answer["output"] if of_script and isinstance(answer["output"], dict) else {}
    if as_json:
        print_json(answer)
    else:
        print_warnings(answer)
        if has_log:
            answer = {**answer, "logs_preview": ""}
            result = {name: value for name, value in result.items() if name not in {"stdout", "stderr"}}
        _print_ended(answer, result, used)
    if failed or result.get("exit_code"):
        raise click.exceptions.Exit(RUN_FAILED)


def print_warnings(answer: Mapping[str, Any]) -> None:
    """Print the warnings of a run to stderr, one line each."""
    for warning in answer.get("warnings", ()):
        click.echo(f"warning: {clean(warning)}", err=True)


def _print_ended(answer: Mapping[str, Any], result: Mapping[str, Any], used: UsedCommand | None) -> None:
    if answer["status"] != "completed":
        _print_failure(answer, used)
    elif "exit_code" in result:
        _print_script(answer, result)
    else:
        _print_success(answer)


def _print_success(answer: Mapping[str, Any]) -> None:
    """Print the fields of a successful run."""
    fields: list[tuple[str, object]] = [
        ("summary", answer["summary"]),
        ("output", answer["output"] if not isinstance(answer["output"], str) else as_json_text(answer["output"])),
        *output_fields(answer),
    ]
    if answer["logs_preview"]:
        fields.append(("logs", answer["logs_preview"]))
    if answer.get("environment"):
        fields.append(("environment", answer["environment"]["name"]))
    if answer.get("degraded"):
        fields.append(("degraded", ", ".join(answer["degraded"])))
    print_fields([*fields, ("run", f"{answer['run_id']}, {answer['duration_ms']:.0f} ms")])


def output_fields(answer: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a label and a text for each output blob of a run. The label is `file` for a blob with a path, otherwise
    `blob`.
    """
    files = {file["blob_id"]: file for file in answer.get("files", ())}
    other_blobs = [("blob", blob_id) for blob_id in answer["output_blobs"] if blob_id not in files]
    return [*(("file", f"{file['path']} {file['blob_id']}") for file in files.values()), *other_blobs]


def _print_script(answer: Mapping[str, Any], result: Mapping[str, Any]) -> None:
    """Print the stdout and stderr of a script. The log of the run is omitted, because it contains the same text."""
    print_fields(
        [
            ("summary", answer["summary"]),
            *[(name, result[name]) for name in ("stdout", "stderr") if result.get(name)],
            *[("file", f"{file['path']} {file['blob_id']}") for file in result.get("files", ())],
            *([("hint", result["hint"])] if result.get("hint") else []),
            *([("degraded", ", ".join(answer["degraded"]))] if answer.get("degraded") else []),
            ("run", f"{answer['run_id']}, {answer['duration_ms']:.0f} ms"),
        ]
    )


def _print_failure(answer: Mapping[str, Any], used: UsedCommand | None) -> None:
    """Print the failure of a run to stderr, with its log and blobs."""
    error = answer["error"]
    message = MOUNT.sub(r"--mount \1", error["message"])
    message = with_command(message, used) if used else message
    click.echo(f"{click.style('failed:', fg='red', bold=True)} {clean(error['type'])}: {clean(message)}", err=True)
    if error.get("traceback"):
        click.echo(clean(error["traceback"]).rstrip("\n"), err=True)
    if answer["logs_preview"]:
        click.echo(f"{click.style('logs:', bold=True)}\n{clean(answer['logs_preview']).rstrip()}", err=True)
    for label, value in output_fields(answer):
        click.echo(f"{label}: {clean(value)}", err=True)
    click.echo(f"run: {clean(answer['run_id'])}", err=True)


# -- The end of a run that a command has started: its result, its files, and Ctrl-C ------------------------------------


RUNNING = frozenset({"queued", "started"})


class RunOptions(NamedTuple):
    """The options of a command that starts a run: whether and how the command waits for the run."""

    out: Path | None = None
    background: bool = False
    follow: bool = False
    detach_on_interrupt: bool = False

    def check(self, client: AsyncClient) -> None:
        """Raise UsageError if the options exclude each other, or if one of them needs a server and none is running."""
        from skillery.cli.connection import HomeClient

        if self.background and self.follow:
            raise click.UsageError("--background and --follow exclude each other: use only one of them")
        if self.background and self.out is not None:
            raise click.UsageError("--out and --background exclude each other: --out waits for the end of the run")
        for name, is_given in (("background", self.background), ("detach-on-interrupt", self.detach_on_interrupt)):
            if is_given and isinstance(client, HomeClient):
                raise click.UsageError(f"--{name} needs a server; start one with 'skillery serve', or leave it out")


detach_option = click.option(
    "--detach-on-interrupt",
    is_flag=True,
    help="Ctrl-C leaves the run running, and prints the commands to follow and to cancel it.",
)


follow_option = click.option("--follow", is_flag=True, help="Write the log to stderr while the run goes on.")


def background_options(command: Any) -> Any:
    for option in (
        detach_option,
        follow_option,
        click.option("--background", is_flag=True, help="Print the id of the run and do not wait for its end."),
    ):
        command = option(command)
    return command


async def end_of_run(
    client: AsyncClient, starting: Coroutine[Any, Any, Mapping[str, Any]], options: RunOptions
) -> Mapping[str, Any]:
    """Return the result of a run, and download its files. With --background, return its first answer.

    `starting` starts the run in the background, so that its id is known before its end. With --follow, write the log to
    stderr. At the first Ctrl-C, cancel the run, or leave it running with --detach-on-interrupt. The second Ctrl-C ends
    the command at once.
    """
    return (await _end(client, starting, options))[1]


async def end_of_call(
    client: AsyncClient, starting: Coroutine[Any, Any, Mapping[str, Any]], options: RunOptions
) -> Mapping[str, Any]:
    """Return the result of a call of a tool, as `end_of_run` does for a run. A failed run is also a result."""
    answer, run = await _end(client, starting, options)
    if run is answer:  # a tool without a handler has no run
        return answer
    error = run.get("error")
    kept_keys = ("run_id", "logs_preview", "output_blobs", "files", "workspace", "environment", "warnings")
    return {
        "result": {"error": error["message"] or error["type"]} if error else run["output"],
        "is_error": error is not None,
        "skill": answer["skill"],
        **{name: run[name] for name in kept_keys if name in run},
    }


async def _end(
    client: AsyncClient, starting: Coroutine[Any, Any, Mapping[str, Any]], options: RunOptions
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the first answer of a call, and the result of its run."""
    import asyncio

    from skillery.client import NotAllowed

    started = asyncio.ensure_future(starting)
    try:
        answer = await asyncio.shield(started)
        if answer.get("status") not in RUNNING or options.background:
            return answer, answer
        await print_packages(client, answer)
        if options.follow:
            from skillery.cli.runs import write_log

            await write_log(client, answer["run_id"], sys.stderr)
        run = _result(answer, await client.wait_run(answer["run_id"]))
        await download_files(client, run, options.out)
        return answer, run
    except asyncio.CancelledError:
        await _interrupted(client, started, options)
        raise
    except NotAllowed:
        if started.done() and not started.exception():
            click.echo(clean(f"{started.result()['run_id']} goes on: its result needs the scope read"), err=True)
        raise


async def print_packages(client: AsyncClient, answer: Mapping[str, Any]) -> None:
    """While the run waits for packages, print the progress to stderr: after a second, and after each change."""
    printed, part = "", answer
    while part.get("state") == "waiting_for_packages":
        part = await client.read_run_log(answer["run_id"], max_bytes=4, wait_ms=1000)
        text = part["progress"]["text"] if "packages" in part else printed
        if text != printed:
            click.echo(clean(text), err=True)
            printed = text


def _result(answer: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a run from its record, in the form in which the method returns it to a caller that waits."""
    from skillery.client.results import Run

    warnings = {"warnings": answer["warnings"]} if "warnings" in answer else {}
    # A run without network or log has [] or null in its record, and no such members in its result.
    return warnings | {
        name: value
        for name, value in record.items()
        if name in Run.__annotations__ and (value or name not in {"network", "logs_blob"})
    }


async def _interrupted(client: AsyncClient, started: asyncio.Future[Mapping[str, Any]], options: RunOptions) -> None:
    """Cancel the run, and print its end. With --detach-on-interrupt, print the commands to follow and to cancel it."""
    from skillery.client import ClientError

    try:
        run_id = (await started).get("run_id")
    except ClientError:  # the run was refused
        return
    if run_id is None:
        return
    if options.detach_on_interrupt:
        target = target_of(click.get_current_context())
        target_options = target.options if target is not None else ""
        for verb in ("follow", "cancel"):
            click.echo(clean(f"skillery runs {verb} {run_id}{target_options}"), err=True)
        return
    click.echo(clean(await _cancelled(client, run_id)), err=True)


async def _cancelled(client: AsyncClient, run_id: str) -> str:
    """Cancel a run. Return a sentence that says how the run has ended."""
    from skillery.cli.runs import end_of_cancelled
    from skillery.client import Conflict

    try:
        run = await client.cancel_run(run_id)
    except Conflict as ended:  # it has just ended
        return f"{run_id} has ended before: it is {ended.data.get('status', 'completed')}"
    return end_of_cancelled(run)
