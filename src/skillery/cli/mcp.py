"""`skillery mcp`: MCP over stdin and stdout, for clients that start their servers."""

from __future__ import annotations

from collections.abc import Sequence

import click

from skillery.cli.options import Target, target_options


@click.command()
@click.option(
    "--tools",
    "tools",
    multiple=True,
    metavar="NAME",
    help="Also offer this as a tool: search_skills, create_skill, or a skill (its Skill Tools). Repeatable.",
)
@target_options
def mcp(tools: Sequence[str], target: Target) -> None:
    """Speak MCP over stdin and stdout, one JSON message a line.

    It is what POST /mcp of a server says: of the one at --url, of the one that holds the home, or of this process
    where none does. Then the home is left to others again when nothing has been said for a few seconds.
    """
    import asyncio

    from skillery.cli.mcp_bridge import McpBridge
    from skillery.cli.registry_access import Reach

    async def speak() -> None:
        reach = Reach(target)
        try:
            # What is wrong with the settings is told at once, and the first word waits for nothing.
            async with reach.client():
                pass
            await McpBridge(reach.client, tools).run()
        finally:
            await reach.close()

    asyncio.run(speak())
