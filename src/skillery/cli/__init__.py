"""The command `skillery`: one module for each group of commands.

Each command imports the modules that it uses when it runs. Importing this package is therefore fast, and `skillery
--version` and shell completion do not load a web framework.
"""

from __future__ import annotations

import gc
import sys

import click

from skillery.cli import (
    audit_and_webhooks,
    auth,
    authoring,
    backups,
    blobs,
    connect,
    database,
    demo,
    diff,
    evaluation,
    grants,
    imports,
    install,
    installation,
    keys,
    locks,
    login,
    mirror,
    offline,
    plugins,
    production,
    publish,
    registry_keys,
    review,
    run,
    runs,
    seals,
    search,
    server_use,
    status,
    storage,
    tokens,
    tools,
    try_skill,
    verify,
    workspaces,
)
from skillery.cli.failures import EXIT_CODES, Commands
from skillery.cli.plugins import load_commands


def _print_version(ctx: click.Context, _option: click.Parameter, is_requested: bool) -> None:
    if not is_requested:
        return
    from skillery import __version__

    click.echo(f"skillery {__version__}")
    ctx.exit()


@click.group(cls=Commands, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def commands() -> None:
    """Keep, find, run and publish the skills of LLM agents.

    The skills are in your home folder, or on the server of --url, SKILLERY_URL or `skillery use`.
    """


commands.sections = {
    "Find and use skills": (
        search.search,
        search.list_,
        search.describe,
        search.read,
        try_skill.try_,
        install.install,
    ),
    "Run": (run.run, run.code, tools.tool, runs.runs),
    "Write and publish": (authoring.new, authoring.test, authoring.dev, publish.publish, diff.diff, imports.import_),
    "Connect": (login.login, login.use, connect.connect, installation.serve, demo.demo, installation.doctor),
    "More commands": (
        click.Group(
            "review",
            help="Review and release versions: `skillery review approve` is `skillery approve`.",
            short_help="versions, submit, approve, reject, label, yank, …",
            commands=[
                review.versions,
                review.impact,
                review.submit,
                review.approve,
                review.reject,
                review.policy,
                review.waiver,
                review.label,
                review.yank,
                review.unyank,
                review.purge,
                review.deprecate,
                review.undeprecate,
                review.visibility,
            ],
        ),
        click.Group(
            "admin",
            help="Administer a server and its home: `skillery admin token` is `skillery token`.",
            short_help="token, secret, trust, audit, backup, config, db, …",
            commands=[
                tokens.token,
                keys.key,
                registry_keys.attest,
                auth.auth,
                auth.offboard,
                auth.incident,
                grants.trust,
                grants.secret,
                audit_and_webhooks.webhook,
                audit_and_webhooks.audit,
                audit_and_webhooks.hold,
                server_use.usage,
                server_use.insight,
                server_use.quota,
                server_use.env,
                offline.packages,
                installation.config,
                production.init,
                plugins.plugins,
                database.db,
                storage.storage,
                backups.backup,
                backups.restore,
                backups.check,
                server_use.gc,
                mirror.mirror,
            ],
        ),
        click.Group(
            "more",
            help="Further commands: `skillery more lock` is `skillery lock`.",
            short_help="eval, bump, lock, status, verify, witness, export, sync, workspace, blob, mcp, logout, …",
            commands=[
                evaluation.evaluate,
                publish.bump,
                locks.lock,
                status.status,
                verify.verify,
                seals.witness,
                offline.export,
                imports.sync,
                authoring.schema,
                workspaces.workspace,
                search.namespace,
                blobs.blob,
                connect.mcp,
                connect.credential,
                login.logout,
                plugins.plugin,
            ],
        ),
    ),
}
"""The first screen of the help, with the groups of all other commands."""
commands.load_more = load_commands
for _listed in commands.sections.values():
    for _command in _listed:
        commands.add_command(_command)
for _group in commands.sections["More commands"]:
    assert isinstance(_group, click.Group)
    for _command in _group.commands.values():
        # The short spelling `skillery approve` also works.
        commands.add_command(_command)


def _start_quickly() -> None:
    """Reduce the start time of the process with settings of the interpreter. They save a fifth of the half second that
    a command takes.
    """
    # A command creates modules and little garbage, so frequent garbage collections only cost time.
    gc.set_threshold(20_000, 50, 50)
    # Without this entry, httpx imports its command line, with rich and pygments, if they are installed.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]


def main() -> int:
    """Run the command line of this process, and end the process with the exit code."""
    _start_quickly()
    result: int = commands.main(prog_name="skillery")
    return result


__all__ = ["commands", "main"]
