"""Parts for commands of plugins. Commands of Skillery use the same parts.

A command with `target_options` or `home_options` gets a `Target`. `with_client(target, work)` calls `work` with a
client of the server of --url, SKILLERY_URL or `skillery use`, or else of the home. `json_option` adds --json.
`print_json` and `print_rows` print results, `print_change` prints a change and its place, and `clean` removes control
characters from text of other authors. The client raises `AnsweredError` for an error of the server. Raise `CheckFailed`
to end with the exit code 1. All other exceptions become messages and exit codes like those of built-in commands.
"""

from __future__ import annotations

from skillery.cli.connection import with_client
from skillery.cli.failures import CheckFailed
from skillery.cli.options import Target, home_options, json_option, print_change, target_options
from skillery.cli.output import clean, is_terminal, print_json, print_rows
from skillery.client import AnsweredError

__all__ = [
    "AnsweredError",
    "CheckFailed",
    "Target",
    "clean",
    "home_options",
    "is_terminal",
    "json_option",
    "print_change",
    "print_json",
    "print_rows",
    "target_options",
    "with_client",
]
