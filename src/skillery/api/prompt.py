"""`GET /prompt`: the system prompt for a model that uses the tools.

The text is appendix A of the Skills Protocol v0.1, unchanged, and below it the code contract in brief. If the caller
sees many skills, the text also recommends the search.
"""

from __future__ import annotations

from functools import partial

from skillery import registry
from skillery.api.code_contract import PROMPT_LINES
from skillery.backends import Identity
from skillery.database.registry import Registry
from skillery.identity.access import is_admin

MANY = 200
"""Number of visible skills above which the prompt advises a model to search."""
PROMPT = """\
You are connected to a Skills Runtime using the Skills Protocol.

If you have not yet read the Skills Protocol Guide,
you MUST call the `load_skills_protocol_guide` tool before using
any other Skills Protocol tools.

After reading the guide, follow its workflow:
discover → inspect → run or write code → use blobs for large data.
"""
SEARCH = f"""
There are more than {MANY} skills here. To find one, call `search_skills` with a few words about the task
instead of reading lists. Call `list_skills` only if you do not have that tool.
"""


async def prompt_for(registry_: Registry, identity: Identity) -> str:
    """Return the system prompt. The prompt recommends search_skills if the identity may read and sees more than MANY
    skills.
    """
    if not (is_admin(identity) or "read" in identity.scopes):
        return PROMPT + PROMPT_LINES
    sees_more = partial(registry.sees_more_skills_than, identity=identity, count=MANY)
    return PROMPT + PROMPT_LINES + (SEARCH if await registry_.read(sees_more) else "")
