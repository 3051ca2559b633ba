"""Commands for the status of a version or skill (`submit`, `approve`, `yank` and others), and `skillery versions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from skillery.cli.options import filled, print_change
from skillery.cli.output import clean
from skillery.cli.verbs import Table, Verb, argument, changed, option

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


submit = Verb("submit", "submit_version", _print_step, help="Submit a draft for review.")
approve = Verb(
    "approve",
    "approve_version",
    _print_step,
    option("--digest", callback=filled, metavar="sha256:…"),
    option("--note", "--reason", help="Note to record with the approval."),
    help="Publish a version that is in review. By default, only people can approve versions, but not their own "
    "versions.",
)
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
