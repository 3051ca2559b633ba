"""`skillery dev`: serve folders during development."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from skillery.cli.options import Target, folders_argument, json_option, target_options


@click.command(short_help="Serve the skill in each DIR to you alone, and update it after each change.")
@folders_argument
@click.option("--host", metavar="HOST", help="The address to listen on, if no server uses the home.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="PORT", help="0 chooses a free port.")
@target_options
@json_option
def dev(folders: Sequence[Path], host: str | None, port: int | None, target: Target, as_json: bool) -> None:
    """Serve the skill in each DIR to you alone as version X.Y.Z-dev.N, and update it after each change.

    Agents and MCP clients with the same token find the skill by its name at once. Nothing is published, and the
    versions disappear when the command ends. If no server uses the home, the command starts one. With --json, each save
    prints one line of JSON.
    """
    import asyncio

    from skillery.cli.dev_session import serve_folders

    asyncio.run(serve_folders(folders, target, {"host": host, "port": port}, as_json))
