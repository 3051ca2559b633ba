"""`skillery env`, `usage`, `insight`, `quota` and `gc`: packages, counts and space of a server."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from skillery.cli.failures import CHECK_FAILED
from skillery.cli.options import Target, json_option, print_change, target_options
from skillery.cli.output import clean, print_fields, print_json, print_rows
from skillery.cli.verbs import MAX_PAGE, Table, Verb, option

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.client.results import DescribedEnvironment


# -- `skillery usage` and `skillery quota`: how often skills were read and run, and the use of each quota --------------


OF_IDENTITY = (
    *("blobs", "blob_bytes", "runs_per_minute", "concurrent_runs", "session_tools"),
    *("workspaces", "workspace_bytes"),
)


def _clients(skill: Mapping[str, Any]) -> str:
    return ", ".join(f"{client['client']} {client['loads'] + client['reads']}" for client in skill["clients"])


def _print_quotas(answer: Mapping[str, Any]) -> None:
    print_rows(["of", "quota", "used", "limit"], _quotas(answer), headed=True)


def _quotas(answer: Mapping[str, Any]) -> Iterator[tuple[str, str, int, object]]:
    for name in OF_IDENTITY:
        yield answer["identity"], name, answer[name]["used"], _limit(answer[name])
    for namespace in answer["namespaces"]:
        used = namespace["bundle_bytes"]
        yield namespace["namespace"], "bundle_bytes", used["used"], _limit(used)


def _limit(used: Mapping[str, Any]) -> object:
    return "none" if used["limit"] is None else used["limit"]


usage = Verb(
    "usage",
    "list_skill_usage",
    Table(
        "skills",
        "skill=name loads reads runs read_by",
        none="No skill was read or run in the last 30 days.",
        headed=True,
        read_by=_clients,
    ),
    pages="all",
    help="""Show how often skills were read and run in the last 30 days.

    `loads` are reads of SKILL.md and of whole versions, `reads` are reads of other files. Browsers and programs that
    do not name themselves are not counted. New counts appear after at most ten seconds.""",
)
quota = Verb(
    "quota",
    "get_usage",
    _print_quotas,
    option(
        "--identity",
        metavar="NAME",
        help="The identity. Other identities than your own require the scope admin.  [default: your own]",
    ),
    option("--namespace", metavar="NAMESPACE", help="The namespace.  [default: the namespaces of your grants]"),
    help="Show the used amount and the limit of each quota.",
)


# -- `skillery insight`: what is used and by whom, what fails, what skills may reach, and what callers search for ------

_ACTIVITY = {
    "skills": Table("skills", "skill=name runs loads callers failed busy_ms p95_ms last_day", headed=True),
    "callers": Table("callers", "caller runs loads skills failed busy_ms last_day", headed=True),
}


def _print_activity(answer: Mapping[str, Any]) -> None:
    _ACTIVITY["callers" if click.get_current_context().params["callers"] else "skills"](answer)
    total = ", ".join(f"{answer['total'][name]} {name}" for name in ("runs", "failed", "loads", "callers"))
    click.echo(f"In all: {total}; {answer['unused']} skills without a use", err=True)


class _Reach(Table):
    """A row for each host, secret and required skill of each skill."""

    def __call__(self, answer: Mapping[str, Any]) -> None:
        rows = []
        for skill in answer["skills"]:
            row = dict.fromkeys(("granted", "runs", "refused", "last_day")) | {"skill": skill["name"], "kind": "skill"}
            required = [f"{each['name']}@{each['version']}" for each in skill["requires"]]
            hidden = [f"{count} hidden" for count in [skill.get("requires_hidden")] if count]
            rows += [row | target for target in (*skill["reach"], *({"target": name} for name in required + hidden))]
        super().__call__({**answer, self.key: rows})


_MOST_ROWS = option("--limit", type=click.IntRange(1, MAX_PAGE), help="Maximum number of rows.  [default: 20]")
insight = click.Group(
    "insight",
    help="Show admins and publishers what is used, what fails, and what callers search for.",
    commands=[
        Verb(
            "activity",
            "get_activity",
            _print_activity,
            option("--callers", is_flag=True, help="List callers instead of skills."),
            _MOST_ROWS,
            help="List which skills are used, or by whom.",
        ),
        Verb(
            "failures",
            "list_failures",
            Table("failures", "skill type=error_type runs callers since=since_version last_at message", headed=True),
            pages="choice",
            help="List which skills fail, most harm first.",
        ),
        Verb(
            "reach",
            "list_reach",
            _Reach(
                "skills",
                "skill kind target granted runs refused last_day",
                headed=True,
                granted=lambda row: {True: "yes", False: "no"}.get(row["granted"]),
            ),
            option("--target", "target_"),
            pages="choice",
            help="List which hosts, secrets and other skills each skill may reach, and whether its runs did.",
        ),
        Verb(
            "searches",
            "list_searches",
            Table("searches", "words times matched opened callers last_day", headed=True),
            _MOST_ROWS,
            help="List what callers searched for.",
        ),
    ],
)


# -- `skillery gc`: remove unreferenced and expired data ---------------------------------------------------------------


def print_sweep(answer: Mapping[str, Any]) -> None:
    done = "would be removed" if answer["dry_run"] else "removed"
    for step, swept in answer["removed"].items():
        click.echo(clean(f"{step.replace('_', ' ')}: {swept['count']} {done}, {swept['bytes']} bytes"))
    if not answer["dry_run"]:
        print_change("swept", err=True)


def sweep_verb(steps: list[str] | None, help: str) -> Verb:
    """Return the command `gc` for these steps of a sweep, or for all."""
    dry_run = option("--dry-run", is_flag=True, help="Print what would be removed; change nothing.")
    return Verb("gc", "collect_garbage", print_sweep, dry_run, fixed={"steps": steps}, help=help)


gc = sweep_verb(
    None,
    """Remove expired and unreferenced data.

    The command removes expired blobs, unreferenced contents and unused local copies. A server does this automatically
    every gc.interval_minutes.
    """,
)


# -- `skillery env`: environments of packages for runs, by name or by the SHA-256 of a lock ----------------------------


STEPS = ["old_locks", "environments"]
"""The steps of a sweep that remove packages."""
POLL_SECONDS = 0.3
MIB = 1024 * 1024


@click.group()
def env() -> None:
    """List, show and rebuild environments of packages."""


@env.command("show")
@click.argument("name", metavar="NAME|LOCK")
@click.option("--wait", is_flag=True, help="Wait for the installation; exit code 1 if it fails.")
@target_options
@json_option
def show(name: str, wait: bool, target: Target, as_json: bool) -> None:
    """Show the packages, servers and skills of an environment.

    The argument is the name of an environment, or the SHA-256 of a lock of packages.
    """
    from skillery.cli.connection import with_client

    async def shown(client: AsyncClient) -> DescribedEnvironment:
        answer = await client.describe_environment(name)
        while wait and _is_being_installed(answer):
            _print_progress(answer)
            answer = await _describe_later(client, name)
        return answer

    answer = with_client(target, shown, sandbox=wait, environments=wait)
    _print(answer, as_json)
    if wait and answer["state"] != "ready":
        raise click.exceptions.Exit(CHECK_FAILED)


@env.command("rebuild")
@click.argument("name", metavar="NAME|LOCK")
@click.option("--wait", is_flag=True, help="Wait until the rebuild is in use; exit code 1 if it fails.")
@target_options
@json_option
def rebuild(name: str, wait: bool, target: Target, as_json: bool) -> None:
    """Rebuild an environment.

    A named environment is locked and installed again. If the argument is the SHA-256 of a lock, this lock is installed
    again. The present installation stays in use until the rebuild is complete, and also if the rebuild fails. Without
    a server, the command always waits for the end.
    """
    from skillery.cli.connection import HomeClient, with_client

    async def rebuilt(client: AsyncClient) -> DescribedEnvironment:
        answer = await client.rebuild_environment(name=name)
        while (wait or isinstance(client, HomeClient)) and _is_rebuilding(answer):
            _print_progress(answer)
            answer = await _describe_later(client, name)
        return answer

    answer = with_client(target, rebuilt, sandbox=True)
    _print(answer, as_json)
    if not as_json:
        print_change("rebuild requested", err=True)
    if answer["rebuild"] and answer["rebuild"]["state"] == "failed":
        raise click.exceptions.Exit(CHECK_FAILED)


async def _describe_later(client: AsyncClient, name: str) -> DescribedEnvironment:
    """Return the description of an environment after a short pause."""
    import asyncio

    await asyncio.sleep(POLL_SECONDS)
    return await client.describe_environment(name)


def _is_being_installed(answer: DescribedEnvironment) -> bool:
    # A pending lock without a name may stay pending: it is installed when a run needs it.
    return answer["state"] == "building" or (answer["state"] == "pending" and bool(answer["name"]))


def _is_rebuilding(answer: DescribedEnvironment) -> bool:
    return answer["rebuild"] is not None and answer["rebuild"]["state"] == "running"


def _print_progress(answer: Mapping[str, Any]) -> None:
    """Print the current step of the build over the last line of stderr, if stderr is a terminal."""
    progress = answer["progress"]
    if progress is None or not sys.stderr.isatty():
        return
    total = f" {progress['done']} of {progress['total']}" if progress["total"] > 1 else ""
    click.echo(f"\r\x1b[K{clean(progress['step'])}{total} …", nl=False, err=True)


def _print(answer: Mapping[str, Any], as_json: bool) -> None:
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)
    if as_json:
        print_json(answer)
    else:
        print_fields(_fields(answer))


def _fields(environment: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield the label and the text of each field of an environment."""
    if environment["name"]:
        yield "name", f"{environment['name']}{' (default)' if environment['default'] else ''}"
    for key in ("description", "dependencies", "preload"):
        if environment[key]:
            yield key, environment[key] if isinstance(environment[key], str) else ", ".join(environment[key])
    state, message = environment["state"], environment["message"]
    yield "state", f"{state}: {message}" if message else state
    rebuild = environment["rebuild"]
    if rebuild:
        reason = f": {rebuild['message']}" if rebuild["message"] else ""
        yield "rebuild", f"{rebuild['state']}{reason} ({rebuild['by']}, {rebuild['began_at']})"
    if environment["lock"]:
        yield "lock", environment["lock"]["sha256"]
        yield "packages", "\n".join(f"{pin['name']} {pin['version']}" for pin in environment["lock"]["packages"] or [])
    if npm := environment.get("npm"):
        yield "npm", ", ".join(npm["dependencies"])
        yield "npm state", f"{npm['state']}: {npm['message']}" if npm["message"] else npm["state"]
        locked = npm["lock"]["packages"] if npm["lock"] else ()
        yield "npm packages", "\n".join(f"{pin['name']} {pin['version']}" for pin in locked or ())
    for server in environment["servers"]:
        label = "this server" if server["here"] else "another server"
        size = f", {_mib(server['size_bytes'])} MiB" if server["size_bytes"] is not None else ""
        yield label, f"{server['state']}{size}, since {server['changed_at']}"
    if environment["warm"]:
        reason = f": {environment['warm']['message']}" if environment["warm"]["message"] else ""
        yield "warm", f"{_warm(environment)}{reason}"
    if environment["used_at"]:
        yield "used", environment["used_at"]
    if environment["versions"]:
        yield "skills", "\n".join(f"{version['name']} {version['version']}" for version in environment["versions"])


def _warm(environment: Mapping[str, Any]) -> str:
    warm = environment["warm"]
    if not warm:
        return "-"
    return f"{warm['state']}, {round(warm['memory_mb'])} MiB" if warm["state"] == "ready" else str(warm["state"])


def _mib(size_bytes: int) -> int:
    return round(size_bytes / MIB)


env.add_command(
    Verb(
        "list",
        "list_environments",
        Table(
            "environments",
            "name state lock MiB warm dependencies",
            name=lambda row: f"{row['name'] or '-'}{' (default)' if row['default'] else ''}",
            lock=lambda row: row["lock"]["sha256"] if row["lock"] else None,
            MiB=lambda row: None if row["size_bytes"] is None else _mib(row["size_bytes"]),
            warm=_warm,
        ),
        option("--installed", is_flag=True, help="All installed locks, including those of skills (admins only)."),
        help="List the named environments.",
    )
)
env.add_command(
    sweep_verb(
        STEPS,
        """Remove unneeded packages.

        A package is unneeded if no skill and no environment needs it, or if no run has used it for gc.cache_days.
        """,
    )
)
