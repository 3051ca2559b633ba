"""`skillery waiver`: manage waivers, which allow versions to be published in spite of a finding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from skillery.cli.options import filled, print_change
from skillery.cli.verbs import Table, Verb, argument, changed, option


def _print_waived(waiver: Mapping[str, Any]) -> None:
    until = f"until {waiver['until']}" if waiver["until"] else "without expiry"
    print_change(f"{waiver['id']}: {waiver['rule']} is waived for {waiver['name']} {until}")


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
