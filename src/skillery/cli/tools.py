"""`skillery tool`: the methods list_tools, call_tool, define_tool and remove_tool."""

from __future__ import annotations

import typing
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skillery.backends import Language
from skillery.cli.failures import RUN_FAILED
from skillery.cli.files import file_options, read_files, upload_files
from skillery.cli.options import Target, json_option, name_and_version, print_change, target_options, work_dir_option
from skillery.cli.output import as_json as as_json_text
from skillery.cli.output import clean, print_fields, print_json
from skillery.cli.run import ENDINGS, input_options, read_inputs, text_in, text_of, upload_inputs
from skillery.cli.run_output import (
    RunOptions,
    UsedCommand,
    detach_option,
    end_of_call,
    follow_option,
    output_fields,
    print_warnings,
    with_command,
)
from skillery.cli.verbs import Table, Verb, argument, option

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.client.results import DefinedTool

SESSION: Mapping[str, Any] = {
    "metavar": "TEXT",
    "help": "The session of the tools.  [default: the unnamed session]",
}
session_option = click.option("--session", **SESSION)


def _parameters(tool: Mapping[str, Any]) -> str:
    return ", ".join(
        name + ("?" if isinstance(declared, dict) and declared.get("optional") else "")
        for name, declared in tool["parameters"].items()
    )


def _print_defined(answer: Mapping[str, Any]) -> None:
    print_fields([(field, value) for field, value in answer.items() if value is not None])
    print_change("changed", err=True)


tool = click.Group(
    "tool",
    help="List, call and define tools (functions of skills).",
    commands=[
        Verb(
            "list",
            "list_tools",
            Table(
                "tools",
                "name skill version parameters description",
                skill=lambda tool: tool["skill"] or "(session)",
                version=lambda tool: tool["version"] or "",
                parameters=_parameters,
            ),
            argument("skill", "[SKILL[@VERSION]]", required=False),
            option("--session", **SESSION),
            pages="choice",
            help="List the tools of all skills, or of SKILL.",
        ),
        Verb(
            "remove",
            "remove_tool",
            _print_defined,
            argument("name", "[SKILL/]TOOL"),
            option("--session", **SESSION),
            help="Remove a defined tool.",
        ),
    ],
)


@tool.command("call")
@click.argument("name", metavar="[SKILL[@VERSION]/]TOOL")
@input_options
@session_option
@click.option(
    "--environment",
    metavar="NAME",
    help="Environment for a skill that declares no packages; '' means none.  [default: the server's]",
)
@file_options
@work_dir_option
@follow_option
@detach_option
@target_options
@json_option
def call(
    name: str,
    pairs: Sequence[str],
    args_json: str | None,
    blobs: Sequence[str],
    timeout_ms: int | None,
    session: str | None,
    environment: str | None,
    files: Sequence[str],
    out: Path | None,
    outputs: Sequence[str],
    workspace: str | None,
    work_dir: Path | None,
    follow: bool,
    detach_on_interrupt: bool,
    target: Target,
    as_json: bool,
) -> None:
    """Call a tool in a fresh sandbox and print its result."""
    from skillery.cli.connection import with_client

    if work_dir and workspace:
        raise click.UsageError("--work-dir and --workspace exclude each other: use only one of them")
    options = RunOptions(out, follow=follow, detach_on_interrupt=detach_on_interrupt)
    inputs, values = read_inputs(pairs, args_json, blobs), read_files(files)
    skill_name, slash, tool_name = name.rpartition("/")
    skill, version = name_and_version(skill_name, None) if slash else (None, None)

    async def call_tool(client: AsyncClient, workspace: str | None = workspace) -> Mapping[str, Any]:
        options.check(client)
        args, blob_ids = await upload_inputs(client, inputs)
        starting = client.call_tool(
            name=tool_name,
            skill=skill,
            version=version,
            args=args,
            input_blobs=blob_ids,
            timeout_ms=timeout_ms,
            session=session,
            environment=environment,
            files=await upload_files(client, values),
            outputs=list(outputs) or None,
            workspace=workspace,
            background=True,
        )
        return await end_of_call(client, starting, options)

    async def call_in_folder(client: AsyncClient, folder: Path) -> Mapping[str, Any]:
        from skillery.cli.work_dir import WorkDir

        async with WorkDir(folder).mapped(client) as mapped:
            answer = await call_tool(client, mapped.workspace)
            if not answer["is_error"]:
                await mapped.bring_back(answer.get("workspace"))
        return {**answer, "work_dir": mapped.report}

    def work(client: AsyncClient) -> Coroutine[Any, Any, Mapping[str, Any]]:
        return call_in_folder(client, work_dir) if work_dir else call_tool(client)

    answer = with_client(target, work, sandbox=True)
    if follow and not as_json:  # the log is already printed
        answer = {**answer, "logs_preview": ""}
    if as_json:
        print_json(answer)
    elif answer["is_error"]:
        command = ["skillery", "tool", "call", name, *(["--session", session] if session else [])]
        _print_error(answer, UsedCommand(command, target.options, inputs.blobs))
    else:
        _print_result(answer)
    if answer["is_error"] or (work_dir and answer["work_dir"]["not_changed"]):
        raise click.exceptions.Exit(RUN_FAILED)


def _print_result(answer: Mapping[str, Any]) -> None:
    result = answer["result"]
    click.echo(clean(result) if isinstance(result, str) else as_json_text(result))
    _print_rest(answer, err=True)


def _print_error(answer: Mapping[str, Any], used: UsedCommand) -> None:
    message = with_command(str(answer["result"]["error"]), used)
    click.echo(f"{click.style('failed:', fg='red', bold=True)} {clean(message)}", err=True)
    _print_rest(answer, err=True)


def _print_rest(answer: Mapping[str, Any], *, err: bool) -> None:
    """Print logs, blobs and the id of the run: to stderr if `err` is true, so that stdout has only the result."""
    print_warnings(answer)
    skill = answer["skill"]
    if answer["logs_preview"]:
        click.echo(f"{click.style('logs:', bold=True)}\n{clean(answer['logs_preview']).rstrip()}", err=err)
    for label, value in output_fields(answer):
        click.echo(f"{label}: {clean(value)}", err=err)
    if "work_dir" in answer:
        from skillery.cli.work_dir import lines_of_report

        for line in lines_of_report(answer["work_dir"]):
            click.echo(clean(line), err=True)
    origin = f"{skill['name']} {skill['version']}" if skill else "a tool of this session"
    click.echo(f"of {clean(origin)}{', run ' + clean(answer['run_id']) if answer['run_id'] else ''}", err=err)


@tool.command("define")
@click.argument("name", metavar="NAME")
@click.argument("file", metavar="FILE", type=click.File("rb"))
@click.option("--description", required=True, help="Purpose of the tool; agents choose tools by their purpose.")
@click.option("--parameters", metavar="JSON", help="The parameters as in tools.json; @FILE reads them from a file.")
@click.option("--persistent", is_flag=True, help="Store the tool as a skill that others can use.")
@click.option(
    "--namespace",
    help="The namespace to store the tool in.  [default: no namespace if your grants allow it, else your first grant]",
)
@click.option(
    "--language",
    type=click.Choice(typing.get_args(Language)),
    help="The language of FILE.  [default: by extension: .py, .js, .mjs, .sh; otherwise JavaScript if available]",
)
@session_option
@target_options
@json_option
def define(
    name: str,
    file: Any,
    description: str,
    parameters: str | None,
    persistent: bool,
    namespace: str | None,
    language: Language | None,
    session: str | None,
    target: Target,
    as_json: bool,
) -> None:
    """Define a tool. FILE (- reads stdin) holds the body of its function, which receives `args`."""
    from skillery.cli.connection import with_client

    code = text_in(file.read(), file.name)
    if parameters is not None and parameters.startswith("@"):
        parameters = text_of(parameters[1:], "--parameters")
    by_ending: dict[str, Language] = {**ENDINGS, ".py": "python"}

    async def define_tool(client: AsyncClient) -> DefinedTool:
        return await client.define_tool(
            name=name,
            description=description,
            parameters=parameters,
            code=code,
            persistent="true" if persistent else None,
            language=language or by_ending.get(Path(file.name).suffix),
            namespace=namespace,
            session=session,
        )

    answer = with_client(target, define_tool, sandbox=True)
    if as_json:
        print_json(answer)
    else:
        _print_defined(answer)
