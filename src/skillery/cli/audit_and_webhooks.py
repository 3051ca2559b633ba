"""`skillery audit`, `webhook` and `hold`: changes in the trail and as signed requests, and data that must be kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from skillery.cli.failures import CHECK_FAILED
from skillery.cli.options import Target, filled, home_options, json_option, print_change, target_options
from skillery.cli.output import as_json as json_text
from skillery.cli.output import clean, print_json
from skillery.cli.verbs import MAX_PAGE, Table, Verb, argument, changed, option, values_option

if TYPE_CHECKING:
    from skillery.audit import Head
    from skillery.client import AsyncClient


# -- `skillery audit`: list and verify the audit trail of changes and refused attempts ---------------------------------


@click.group()
def audit() -> None:
    """List and verify the audit trail.

    The trail records every change and every refused attempt. `list` and `follow` require a token with the scope audit,
    with --url and for the home, unless the setting auth is "open". `head` and `verify` read the database of the home,
    even while a server is running.
    """


@audit.command("head")
@home_options
@json_option
def head(target: Target, as_json: bool) -> None:
    """Print the sequence number and hash of the last entry.

    Store both in another place: `skillery audit verify --head` can then prove that no entry up to this one was changed.
    """
    from skillery.audit import head as read_head
    from skillery.cli.tokens import open_home_database

    with open_home_database(target) as database:
        entry = database.read_now(read_head)
    if as_json:
        print_json(entry._asdict())
    else:
        click.echo(str(entry))


@audit.command("verify")
@click.option("--head", "noted", metavar="SEQ:HASH", help="An earlier output of `skillery audit head`.")
@click.option(
    "--seals",
    "state",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="The state file of `skillery witness`, or the file of seals.file: every audit head in it must fit.",
)
@home_options
@json_option
def verify(noted: str | None, state: Path | None, target: Target, as_json: bool) -> None:
    """Verify that every entry is unchanged, and print the first broken entry. A server may be running.

    A person who can write to the database can rewrite the whole trail. To detect this, run `skillery witness` on
    another machine, and pass its state file with --seals. Or store the output of `skillery audit head` in another
    place, and pass it with --head.
    """
    from skillery.audit import verify as verify_trail
    from skillery.cli.seals import heads_of
    from skillery.cli.tokens import open_home_database

    heads = [_head(noted)] if noted else []
    heads += heads_of(state) if state is not None else []
    with open_home_database(target) as database:
        result = verify_trail(database, *heads)
    fault = result.fault
    if as_json:
        fault_fields = None if fault is None else fault._asdict()
        print_json({"ok": fault is None, "head": result.head._asdict(), "fault": fault_fields})
    elif fault is None:
        click.echo(f"ok: {result.head.seq} entries, up to {result.head}")
    else:
        click.echo(clean(f"entry {fault.seq}: {fault.reason}"), err=True)
        click.echo(f"{result.head.seq} entries before it are intact.", err=True)
    if fault is not None:
        raise click.exceptions.Exit(CHECK_FAILED)


FOLLOW_SECONDS = 1.0
"""Seconds between two requests of `audit follow` while there are no new entries, or while the server is away."""


@audit.command("follow")
@click.option(
    "--after",
    type=click.IntRange(0),
    help="Begin behind the entry with this number. 0 begins with the first entry.  [default: the newest entry]",
)
@target_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object in a line for each entry.")
def follow(after: int | None, target: Target, as_json: bool) -> None:
    """Print new entries of the audit trail, oldest first, until Ctrl-C. Each entry is printed once.

    To continue later, pass the `seq` of the last printed entry as --after. If the server restarts, the command waits
    for it. The command requires a token with the scope audit.
    """
    from skillery.cli.connection import with_client

    with_client(target, lambda client: _follow(client, after, as_json))


async def _follow(client: AsyncClient, after: int | None, as_json: bool) -> None:
    import asyncio

    from skillery.client import AnsweredError, ClientError

    if after is None:
        after = next((entry["seq"] for entry in (await client.list_audit(limit=1))["entries"]), 0)
    is_away = False
    # The first request fails at once: an address or a token may be wrong.
    page = await client.list_audit(after=after, limit=MAX_PAGE)
    while True:
        for entry in page["entries"]:
            after = entry["seq"]
            click.echo(json_text(entry, indent=0) if as_json else clean(_line(entry)))
        if not page["entries"]:
            await asyncio.sleep(FOLLOW_SECONDS)
        try:
            page, is_away = await client.list_audit(after=after, limit=MAX_PAGE), False
        except ClientError as error:
            if isinstance(error, AnsweredError) and error.type not in {"busy", "unavailable", "rate_limited"}:
                raise
            if not is_away:
                click.echo(clean(f"waiting for the server: {error}"), err=True)
            page, is_away = {"entries": [], "next_cursor": None}, True


def _line(entry: Mapping[str, Any]) -> str:
    change = _change(entry["before"], entry["after"])
    words = [entry["at"], _caller(entry), entry["address"] or "local", entry["action"], entry["subject"]]
    return " ".join([str(entry["seq"]), *filter(None, [*words, _outcome(entry), change])])


def _head(text: str) -> Head:
    from skillery.audit import Head

    try:
        return Head.parse(text)
    except ValueError:
        raise click.UsageError("--head must be SEQ:HASH, as printed by `skillery audit head`") from None


def _caller(entry: Mapping[str, Any]) -> str:
    caller = entry["identity"]
    return f"{caller['name']} ({caller['kind']})" if caller else "unknown"


def _outcome(entry: Mapping[str, Any]) -> str:
    times = f" ×{entry['count']}" if entry["count"] > 1 else ""
    return "done" if entry["outcome"] == "done" else f"{entry['type'] or 'refused'}{times}"


def _change(old: dict[str, Any] | None, new: dict[str, Any] | None) -> str:
    """Return the changed, added and removed fields as text, for example `status: draft → in_review`."""
    old, new = old or {}, new or {}
    parts = []
    for key in {**old, **new}:
        parts.append(f"{key}: {' → '.join(_short(side[key]) for side in (old, new) if key in side)}")
    return ", ".join(parts)


def _short(value: Any) -> str:
    import msgspec

    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= 40 else f"{text[:39]}…"


audit.add_command(
    Verb(
        "list",
        "list_audit",
        Table(
            "entries",
            "seq at who address action subject outcome change",
            at=lambda entry: entry["at"][:19] + "Z",
            who=_caller,
            address=lambda entry: entry["address"] or "local",
            outcome=_outcome,
            change=lambda entry: _change(entry["before"], entry["after"]),
        ),
        option("--identity", metavar="NAME"),
        option("--action", metavar="METHOD", help="Only this action, e.g. create_skill."),
        option("--subject", help="Only entries about this subject: a skill, NAME@VERSION, a token id."),
        option("--outcome", type=click.Choice(["done", "refused"])),
        option(
            "--since",
            metavar="TIME",
            help="Only entries at or after this time: 2026-11-22 or 2026-11-22T09:30:00Z.",
        ),
        option("--until", metavar="TIME"),
        fixed={"after": None},
        bundled=False,
        help="List the entries of the audit trail, newest first.",
    )
)


# -- `skillery webhook`: manage webhooks, which get events as signed HTTP requests -------------------------------------


def _print_added(added: Mapping[str, Any]) -> None:
    click.echo(clean(added["secret"]))
    skills_text = f" about {', '.join(added['skills'])}" if added["skills"] else ""
    click.echo(clean(f"{added['id']}: {', '.join(added['events'])}{skills_text} to {added['url']}"), err=True)
    print_change("added", err=True)
    click.echo("Store the secret now: it is not shown again.", err=True)


def _print_tested(tested: Mapping[str, Any]) -> None:
    outcome = f"accepted with {tested['status']}" if tested["ok"] else tested["error"]
    click.echo(clean(f"{tested['id']}: {outcome}, {tested['duration_ms']} ms"))


webhook = click.Group(
    "webhook",
    help="Manage webhooks, which get events as signed HTTP requests.",
    commands=[
        Verb(
            "add",
            "add_webhook",
            _print_added,
            argument("url_", "URL"),
            values_option(
                "--event", "events", "TYPE,…", "Types of events.  [default: all except run_failed, seal and audit]"
            ),
            values_option("--skill", "skills", "NAME,…", "Skills or namespaces ('sales.*').  [default: all]"),
            help="Send events to URL, and print the secret of the webhook once.",
        ),
        Verb(
            "list",
            "list_webhooks",
            Table(
                "webhooks",
                "id url events skills state waiting dead=dead_letters delivered attempts next=next_at last_error",
                events=lambda row: ",".join(row["events"]),
                skills=lambda row: " ".join(row["skills"]) or "all",
            ),
            help="List all webhooks and the state of their deliveries.",
        ),
        Verb(
            "test",
            "test_webhook",
            _print_tested,
            fails=lambda tested: not tested["ok"],
            help="Send an event of the type test now. The exit code is 1 if the target does not accept it.",
        ),
        Verb("rm", "remove_webhook", changed("{id} ({url}) is removed, with {dropped} unsent events,")),
        Verb(
            "dead",
            "list_dead_letters",
            Table(
                "dead_letters",
                "event=event_id type time=at about attempts error",
                about=lambda letter: letter["data"].get("name"),
            ),
            pages="all",
        ),
    ],
)


# -- `skillery hold`: keep data for a dispute or an investigation ------------------------------------------------------


@click.group()
def hold() -> None:
    """Manage legal holds, which stop retention and purges for what they name."""


@hold.command("add")
@click.option("--skill", metavar="NAME", help="Keep the versions and runs of this skill.")
@click.option("--identity", metavar="NAME", help="Keep the runs, blobs, workspaces and versions of this identity.")
@click.option("--run", metavar="ID", help="Keep this run, its blobs and its version.")
@click.option("--reason", required=True, callback=filled, help="Reason, for admins.")
@click.option("--until", callback=filled, metavar="TIME", help="End: 2027-01-31, a time, or 90d.  [default: none]")
@target_options
@json_option
def add_hold(
    skill: str | None,
    identity: str | None,
    run: str | None,
    reason: str,
    until: str | None,
    target: Target,
    as_json: bool,
) -> None:
    """Keep the data of a skill, an identity or a run until the hold ends."""
    from skillery.cli.connection import with_client

    named = [(kind, name) for kind, name in (("skill", skill), ("identity", identity), ("run", run)) if name]
    if len(named) != 1:
        raise click.UsageError("pass either --skill, --identity or --run")
    [(kind, name)] = named

    async def add(client: AsyncClient) -> Any:
        return await client.add_hold(cast(Any, kind), name, reason, **({"until": until} if until else {}))

    added = with_client(target, add)
    if as_json:
        print_json(added)
        return
    click.echo(clean(added["id"]))
    print_change(f"the {kind} {name} is held until {added['until'] or 'the hold is removed'},", err=True)


hold.add_command(
    Verb(
        "list",
        "list_holds",
        Table("holds", "id kind name status at until by reason", until=lambda row: row["until"] or "never"),
        help="List the holds, also those that have ended.",
    )
)
hold.add_command(
    Verb("remove", "remove_hold", changed("{id} ({kind} {name}) is removed"), option("--reason", required=True))
)
