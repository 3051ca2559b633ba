"""`skillery mcp`: MCP over stdin and stdout, for clients that start their MCP servers as processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from skillery.cli.options import Target, target_options, work_dir_option


@click.command()
@click.option(
    "--tools",
    "tools",
    multiple=True,
    metavar="NAME",
    help="Also offer this as a tool: search_skills, create_skill, or a skill (its Skill Tools). Repeatable.",
)
@work_dir_option
@target_options
def mcp(tools: Sequence[str], work_dir: Path | None, target: Target) -> None:
    """Speak MCP over stdin and stdout, one JSON message per line.

    The answers come from POST /mcp of a server: the server at --url, or else the server that uses the home. If no
    server uses the home, this process answers, and releases the home after a few seconds without a request.
    """
    import asyncio

    from skillery.cli.mcp_bridge import McpBridge, RegistryAccess

    async def speak() -> None:
        access = RegistryAccess(target)
        try:
            # Connect before the first message, to report errors in the settings early and to make this message fast.
            async with access.client():
                pass
            await McpBridge(access.client, tools, work_dir=work_dir).run()
        finally:
            await access.close()

    asyncio.run(speak())
