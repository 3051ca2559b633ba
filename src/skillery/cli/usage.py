"""`skillery usage` and `skillery quota`: how often skills were read and run, and the use of each quota."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from skillery.cli.output import print_rows
from skillery.cli.verbs import Table, Verb, option

OF_IDENTITY = (
    "blobs",
    "blob_bytes",
    "runs_per_minute",
    "concurrent_runs",
    "session_tools",
    "workspaces",
    "workspace_bytes",
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

    `loads` are reads of SKILL.md and of whole versions, `reads` are reads of other files. Only programs that name
    themselves are counted, not browsers. New counts appear after at most ten seconds.
    """,
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
