"""Commands for the status of versions and skills: review, yank, purge, deprecate, waivers of findings, and labels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skillery.cli.failures import CHECK_FAILED
from skillery.cli.options import Target, filled, json_option, name_and_version, print_change, target_options
from skillery.cli.output import clean, print_json
from skillery.cli.proof import add_signed, find_owner, read_key, sign_option
from skillery.cli.verbs import Table, Verb, argument, changed, option, read_pages

if TYPE_CHECKING:
    from skillery.client import AsyncClient

# Commands for the status of a version or skill (`submit`, `approve`, `yank` and others), and `skillery versions`.


_VISIBLE_TO = {
    "public": "all callers",
    "namespace": "callers with a namespace grant that covers it",
    "private": "its publishers, reviewers and admins",
}
_print_step = changed("{name} {version} {digest} {status}")


def _print_purged(purged: Mapping[str, Any]) -> None:
    _print_step(purged)
    click.echo(f"deleted {purged['deleted_contents']} contents, {purged['deleted_bytes']} bytes")
    for path in purged["kept_files"]:
        click.echo(clean(f"{path} remains: another version, blob or workspace has the same content"))


def _print_visible(answer: Mapping[str, Any]) -> None:
    visibility = click.get_current_context().params["visibility"]
    print_change(f"{answer['name']} is visible to {_VISIBLE_TO[visibility]}")


def _print_approved(approved: Mapping[str, Any]) -> None:
    _print_step(approved)
    for missing in approved.get("missing", ()):
        click.echo(clean(f"still missing: {missing}"), err=True)


impact = Verb(
    "impact",
    "list_dependents",
    Table("dependents", "name version status requires range runs=runs_30d", headed=True),
    pages="choice",
    help="List the versions that require a skill, with their runs of 30 days.",
)
submit = Verb("submit", "submit_version", _print_step, help="Submit a draft for review.")


@click.command(short_help="Approve a version that is in review.")
@click.argument("name", metavar="NAME@VERSION")
@click.option("--version", help="The exact version, if NAME does not include it.")
@click.option("--digest", callback=filled, metavar="sha256:…", help="Digest of the reviewed bundle.")
@click.option("--note", "--reason", help="Note to record with the approval.")
@click.option("--accept", callback=filled, metavar="EVALUATION", help="Accept this unclear evaluation.")
@sign_option
@target_options
@json_option
def approve(
    name: str,
    version: str | None,
    digest: str | None,
    note: str | None,
    accept: str | None,
    sign_file: Path | None,
    target: Target,
    as_json: bool,
) -> None:
    """Approve a version that is in review. If it needs nothing more, it is published. By default, only people can
    approve versions, but not their own versions.
    """
    from skillery.cli.connection import with_client

    skill, number = name_and_version(name, version)
    if not number:
        raise click.UsageError(f"'{skill}' has no version: write NAME@VERSION")
    key = read_key(sign_file) if sign_file is not None else None

    async def work(client: AsyncClient) -> Any:
        if key is not None:
            await find_owner(client, key)
        approved = await client.approve_version(skill, number, digest=digest, note=note, accepts=accept)
        if key is not None:
            await add_signed(client, key, "review", approved, {"decision": "approved", "note": note or ""})
            if approved["status"] == "in_review":
                # The signature may be what the policy needed.
                explained = await client.explain_policy(skill, version=number)
                missing = [need["missing"] for need in explained["needs"] if need["missing"]]
                return {**approved, "status": explained["status"], "missing": missing}
        return approved

    answer = with_client(target, work)
    if as_json:
        print_json(answer)
    else:
        _print_approved(answer)
        if key is not None:
            click.echo(f"signed with {key.keyid}", err=True)


reject = Verb(
    "reject",
    "reject_version",
    _print_step,
    option("--reason", "--note", required=True),
    help="Reject a version that is in review. A rejected version stays rejected: the author publishes a new version.",
)
yank = Verb(
    "yank",
    "yank_version",
    _print_step,
    option("--reason", required=True),
    help="Withdraw a published version. Only requests for exactly this version still resolve.",
)
purge = Verb(
    "purge",
    "purge_version",
    _print_purged,
    option("--reason", required=True),
    asks="Remove the files of {name} {version} permanently?",
    help="""Remove the files of a version permanently.

    Use it for example after a leaked key. The number of the version cannot be used again. A purge cannot be undone:
    earlier backups are the only copies.
    """,
)
unyank = Verb("unyank", "unyank_version", _print_step)
deprecate = Verb(
    "deprecate",
    "deprecate_skill",
    _print_step,
    option("--message", required=True, help="Message shown in the description of the skill."),
    option("--successor", metavar="NAME"),
    help="Mark all published versions of a skill as deprecated. Deprecated versions still work.",
)
undeprecate = Verb("undeprecate", "undeprecate_skill", _print_step)
visibility = Verb(
    "visibility",
    "set_visibility",
    _print_visible,
    help="""Set which callers can see a skill.

    public: all callers. namespace: callers with a namespace grant that covers the name. private: the publishers of the
    skill. Its reviewers and admins always see it.
    """,
)
versions = Verb(
    "versions",
    "list_versions",
    Table(
        "versions",
        "skill=name version status publisher created=created_at digest",
        headed=True,
        publisher=lambda version: version["publisher"]["name"],
    ),
    argument("name", "[NAME]", required=False),
    option("--limit", type=click.IntRange(1), help="Maximum number of versions.  [default: all]"),
    pages="all",
    help="""List the versions of a skill, or of all skills.

    The most recently created version comes first.
    """,
)


# -- `skillery policy`: what versions need -----------------------------------------------------------------------------


def print_policy(explained: Mapping[str, Any]) -> None:
    """Print the needs of a policy, one a line, with who has met them."""
    state = "passed" if explained["passed"] else "not passed"
    click.echo(clean(f"policy {explained['policy']}: {state}, {explained['digest'][:19]}"))
    for need in explained["needs"]:
        by = ", ".join(f"{each['by']}{' (own key)' if each['own_key'] else ''}" for each in need["evidence"])
        sign, text = ("ok", by) if need["ok"] else ("no", need["missing"])
        click.echo(clean(f"  {sign}  {need['need']:<12}{text}"))
        if not need["ok"]:
            click.echo(clean(f"      {'':<12}{need['hint']}"))
    if origin := explained.get("origin"):  # an earlier release has no such field
        words = ", ".join(each["predicate"] for each in origin["statements"])
        stated = f"{origin['name']} {origin['version']} of {origin['source']}, as the importer has stated"
        click.echo(clean(f"  origin: {stated}; its keys are not checked ({words})"))
    if explained["vulnerabilities"]:
        click.echo(clean(f"  known vulnerabilities: {explained['vulnerabilities']}"))
    if explained["former_signer"]:
        click.echo(clean(f"  signer changed from {explained['former_signer']} to {explained['signer'] or 'none'}"))


policy = click.Group(
    "policy",
    help="Policies: what versions need before they are published.",
    commands=[
        Verb(
            "explain",
            "explain_policy",
            print_policy,
            help="Show which policy counts for a version, what it needs, and who has met the needs.",
        )
    ],
)


@policy.command("check")
@click.argument("namespace", default="")
@target_options
@json_option
def check(namespace: str, target: Target, as_json: bool) -> None:
    """List the latest versions that have not passed the policy that counts now. Exit 1 if there are any.

    A changed policy unpublishes nothing. Publish a new version to meet it.
    """
    from skillery.cli.connection import with_client

    async def work(client: AsyncClient) -> list[Any]:
        rows = (await read_pages(client.list_skills, {"namespace": namespace}, "skills"))[1]
        explained = [await client.explain_policy(row["name"], version=row["version"]) for row in rows]
        return [each for each in explained if not each["passed"] or any(need["missing"] for need in each["needs"])]

    different = with_client(target, work)
    if as_json:
        print_json({"versions": different})
    for each in () if as_json else different:
        missing = ", ".join(need["missing"] for need in each["needs"] if need["missing"])
        reason = missing or "meets the policy, but passed another one or none"
        click.echo(clean(f"{each['name']}@{each['version']} {each['policy']}: {reason}"))
    if different:
        raise SystemExit(CHECK_FAILED)


# -- `skillery waiver`: manage waivers, which allow versions to be published in spite of a finding ---------------------


def _print_waived(waiver: Mapping[str, Any]) -> None:
    expiry = f"until {waiver['until']}" if waiver["until"] else "without expiry"
    print_change(f"{waiver['id']}: {waiver['rule']} is waived for {waiver['name']} {expiry}")


waiver = click.Group(
    "waiver",
    help="""Manage waivers of findings.

    A waiver allows versions to be published in spite of a finding of a before_publish plugin.
    """,
    commands=[
        Verb(
            "add",
            "waive_finding",
            _print_waived,
            option("--reason", required=True),
            option(
                "--until",
                callback=filled,
                metavar="TIME",
                help="Expiry: 2027-01-31, a time, or a duration such as 90d.  [default: none]",
            ),
            option("--file", callback=filled, metavar="PATH"),
            option("--version", callback=filled),
            help="Allow versions of the skill NAME to be published in spite of findings of RULE.",
        ),
        Verb(
            "list",
            "list_waivers",
            Table(
                "waivers",
                "id skill=name rule file version status until by reason",
                until=lambda waiver: waiver["until"] or "never",
            ),
            argument("name", "[NAME]", required=False),
            pages="all",
            help="List the waivers of the skill NAME, or of all skills that you review, including expired ones.",
        ),
        Verb("rm", "revoke_waiver", changed("{id} ({rule} of {name}) is revoked")),
    ],
)


# -- `skillery label`: movable names for versions of a skill -----------------------------------------------------------


def _print_moved(answer: Mapping[str, Any]) -> None:
    former = f" (before: {answer['previous']})" if answer["previous"] else ""
    target_text = f"{answer['version']} {answer['digest']} {answer['status']}" if answer["version"] else "removed"
    print_change(f"{answer['name']}@{answer['label']} is {target_text}{former}")


def _print_labels(answer: Mapping[str, Any]) -> None:
    if click.get_current_context().params["history"]:
        Table("history", "label move version previous by at", noun="moves", none="No labels.")(answer)
    else:
        Table("labels", "label version status by at")({**answer, "next_cursor": None})


label = click.Group(
    "label",
    help="Labels of versions, such as stable and canary. NAME@LABEL resolves to the version that the label points to.",
    commands=[
        Verb(
            "rollback",
            "rollback_label",
            _print_moved,
            help="Undo the last move of LABEL. Repeat the command to undo earlier moves.",
        ),
        Verb("rm", "remove_label", _print_moved, help="Remove LABEL. A rollback restores it."),
        Verb(
            "list",
            "list_labels",
            _print_labels,
            argument("label", "[LABEL]", required=False),
            option(
                "--history", is_flag=True, help="List the moves of labels, newest first, instead of their versions."
            ),
            option("--limit", type=click.IntRange(1, 1000), help="Maximum number of moves.  [default: 50]"),
            help="List the labels of a skill, or their moves.",
        ),
    ],
)


@label.command("set")
@click.argument("name", metavar="NAME@VERSION")
@click.argument("label", metavar="LABEL")
@target_options
@json_option
def set_(name: str, label: str, target: Target, as_json: bool) -> None:
    """Point LABEL to a version. VERSION may be another label, a range or latest: the command resolves it at once."""
    from skillery.cli.connection import with_client

    name, version = name_and_version(name, None)
    if not version:
        raise click.UsageError(f"'{name}' has no version: write NAME@VERSION, or {name}@latest")
    answer = with_client(target, lambda client: client.set_label(name, label, version))
    if as_json:
        print_json(answer)
    else:
        _print_moved(answer)
