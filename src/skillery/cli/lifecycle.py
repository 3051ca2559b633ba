"""Commands for the status of a version or skill (`submit`, `approve`, `yank` and others), and `skillery versions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from skillery.cli.options import Target, confirm, filled, json_option, name_and_version, print_change, target_options
from skillery.cli.output import clean, print_json, print_rows

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.client.results import ListedVersion


version_option = click.option("--version", help="The exact version, if NAME does not include it.")

_VISIBLE_TO = {
    "public": "all callers",
    "namespace": "callers with a namespace grant that covers it",
    "private": "its publishers, reviewers and admins",
}


@click.command()
@click.argument("name", metavar="NAME@VERSION")
@version_option
@target_options
@json_option
def submit(name: str, version: str | None, target: Target, as_json: bool) -> None:
    """Submit a draft for review."""
    _call(target, as_json, "submit_version", **_exactly(name, version))


@click.command()
@click.argument("name", metavar="NAME@VERSION")
@version_option
@click.option(
    "--digest",
    callback=filled,
    metavar="sha256:…",
    help="Digest of the reviewed bundle; approval fails if the version has another digest.",
)
@click.option("--note", "--reason", help="Note to record with the approval.")
@target_options
@json_option
def approve(
    name: str, version: str | None, digest: str | None, note: str | None, target: Target, as_json: bool
) -> None:
    """Publish a version that is in review. By default, only people can approve versions, but not their own versions."""
    _call(target, as_json, "approve_version", **_exactly(name, version), digest=digest, note=note)


@click.command()
@click.argument("name", metavar="NAME@VERSION")
@version_option
@click.option("--reason", "--note", required=True, help="Reason shown to the author.")
@target_options
@json_option
def reject(name: str, version: str | None, reason: str, target: Target, as_json: bool) -> None:
    """Reject a version that is in review. A rejected version stays rejected: the author publishes a new version."""
    _call(target, as_json, "reject_version", **_exactly(name, version), reason=reason)


@click.command()
@click.argument("name", metavar="NAME@VERSION")
@version_option
@click.option("--reason", required=True, help="Reason shown to callers that request this exact version.")
@target_options
@json_option
def yank(name: str, version: str | None, reason: str, target: Target, as_json: bool) -> None:
    """Withdraw a published version. Only requests for exactly this version still resolve."""
    _call(target, as_json, "yank_version", **_exactly(name, version), reason=reason)


@click.command()
@click.argument("name", metavar="NAME@VERSION")
@version_option
@click.option("--reason", required=True, help="Reason shown to callers that request this exact version.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@target_options
@json_option
def purge(name: str, version: str | None, reason: str, yes: bool, target: Target, as_json: bool) -> None:
    """Remove the files of a version permanently.

    Use it for example after a leaked key. The number of the version cannot be used again. A purge cannot be undone:
    earlier backups are the only copies.
    """
    from skillery.cli.connection import with_client

    params = _exactly(name, version)
    if not yes:
        confirm(f"Remove the files of {params['name']} {params['version']} permanently?")
    purged = with_client(target, lambda client: client.call("purge_version", {**params, "reason": reason}))
    if as_json:
        print_json(purged)
        return
    _print_step(purged)
    click.echo(f"deleted {purged['deleted_contents']} contents, {purged['deleted_bytes']} bytes")
    for path in purged["kept_files"]:
        click.echo(clean(f"{path} remains: another version, blob or workspace has the same content"))


@click.command()
@click.argument("name", metavar="NAME@VERSION")
@version_option
@target_options
@json_option
def unyank(name: str, version: str | None, target: Target, as_json: bool) -> None:
    """Undo a yank."""
    _call(target, as_json, "unyank_version", **_exactly(name, version))


@click.command()
@click.argument("name", metavar="NAME")
@click.option("--message", required=True, help="Message shown in the description of the skill.")
@click.option("--successor", metavar="NAME", help="The skill to use instead.")
@target_options
@json_option
def deprecate(name: str, message: str, successor: str | None, target: Target, as_json: bool) -> None:
    """Mark all published versions of a skill as deprecated. Deprecated versions still work."""
    _call(target, as_json, "deprecate_skill", name=name, message=message, successor=successor)


@click.command()
@click.argument("name", metavar="NAME")
@target_options
@json_option
def undeprecate(name: str, target: Target, as_json: bool) -> None:
    """Undo a deprecation."""
    _call(target, as_json, "undeprecate_skill", name=name)


@click.command()
@click.argument("name", metavar="NAME")
@click.argument("caller", metavar="public|namespace|private", type=click.Choice(["public", "namespace", "private"]))
@target_options
@json_option
def visibility(name: str, caller: str, target: Target, as_json: bool) -> None:
    """Set which callers can see a skill.

    public: all callers. namespace: callers with a namespace grant that covers the name. private: the publishers of the
    skill. Its reviewers and admins always see it.
    """
    change = f"{name} is visible to {_VISIBLE_TO[caller]}"
    _call(target, as_json, "set_visibility", change=change, name=name, visibility=caller)


def _exactly(name: str, version: str | None) -> dict[str, str]:
    name, version = name_and_version(name, version)
    if not version:
        raise click.UsageError(f"'{name}' has no version: write NAME@VERSION")
    return {"name": name, "version": version}


def _call(target: Target, as_json: bool, method: str, *, change: str = "", **params: Any) -> None:
    """Call a method, and print `change`, or else the version that the method returns."""
    from skillery.cli.connection import with_client

    answer = with_client(target, lambda client: client.call(method, params))
    if as_json:
        print_json(answer)
    elif change:
        print_change(change)
    else:
        _print_step(answer)


def _print_step(answer: dict[str, Any]) -> None:
    print_change(f"{answer['name']} {answer['version']} {answer['digest']} {answer['status']}")


# -- `skillery versions`: list the versions of skills, for example the versions that are in review ---------------------


COLUMNS = ("skill", "version", "status", "publisher", "created", "digest")
STATUSES = ["draft", "in_review", "published", "deprecated", "yanked", "rejected", "purged"]


@click.command()
@click.argument("name", metavar="[NAME]", required=False)
@click.option(
    "--status",
    type=click.Choice(STATUSES),
    help="Only versions with this status; in_review lists those awaiting a reviewer.",
)
@click.option("--namespace", help="Only versions in this namespace and the namespaces below it.")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of versions.  [default: all]")
@target_options
@json_option
def versions(
    name: str | None, status: str | None, namespace: str | None, limit: int | None, target: Target, as_json: bool
) -> None:
    """List the versions of a skill, or of all skills.

    The most recently created version comes first.
    """
    from skillery.cli.connection import with_client

    params: dict[str, Any] = {"name": name, "status": status, "namespace": namespace}

    async def pages(client: AsyncClient) -> list[ListedVersion]:
        found: list[ListedVersion] = []
        cursor = None
        while limit is None or len(found) < limit:
            rows = 1000 if limit is None else min(1000, limit - len(found))
            page = await client.list_versions(**params, limit=rows, cursor=cursor)
            found += page["versions"]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        return found

    found = with_client(target, pages)
    if as_json:
        print_json({"versions": found})
        return
    print_rows(
        COLUMNS,
        [
            (
                one["name"],
                one["version"],
                one["status"],
                one["publisher"]["name"],
                one["created_at"],
                one["digest"],
            )
            for one in found
        ],
        none="No versions.",
        headed=True,
    )
