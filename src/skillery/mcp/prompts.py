"""The methods of MCP for prompts, with their params and results."""

from __future__ import annotations

from functools import partial
from typing import Literal

import msgspec

from skillery.backends import Identity
from skillery.formats.skill_md import FILE as SKILL_MD
from skillery.mcp.requests import Complete, Fresh
from skillery.method import Params
from skillery.methods.core import Core
from skillery.skills.prompts import Prompt, find_prompts, read_prompt


class PromptArgument(msgspec.Struct, frozen=True):
    """The argument of a prompt: the text that the user writes after its name."""

    name: str
    description: str
    required: bool = False


class ListedPrompt(msgspec.Struct, frozen=True, omit_defaults=True):
    """A prompt: a skill that only people start."""

    name: str
    description: str
    arguments: list[PromptArgument]
    title: str | None = None


class PromptPage(Fresh, frozen=True, kw_only=True, rename="camel"):
    """A page of prompts."""

    prompts: list[ListedPrompt]
    next_cursor: str | msgspec.UnsetType = msgspec.UNSET


class PromptText(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """The text of a message."""

    text: str


class PromptMessage(msgspec.Struct, frozen=True):
    """A message to the model."""

    content: PromptText
    role: Literal["user"] = "user"


class PromptResult(Complete, frozen=True, kw_only=True, rename="camel"):
    """The result of `prompts/get`: the SKILL.md of a skill, as a message of the user."""

    description: str
    messages: list[PromptMessage]


class ListPrompts(Params, frozen=True, kw_only=True):
    """Params of the method that lists all prompts."""

    cursor: str = ""


class GetPrompt(Params, frozen=True, kw_only=True):
    """Params of the method that returns a prompt. `arguments` has the text after its name."""

    name: str
    arguments: str = ""


async def list_prompts(core: Core, identity: Identity, page: ListPrompts) -> PromptPage:
    registry = core.registry
    work = partial(
        find_prompts, identity=identity, key=registry.cursor_key, storage=registry.storage, cursor=page.cursor
    )
    prompts, next_cursor = await core.registry.read_page(work)
    listed = [
        ListedPrompt(
            prompt.name, prompt.description, [PromptArgument("arguments", prompt.arguments_hint)], prompt.title
        )
        for prompt in prompts
    ]
    return PromptPage(prompts=listed, next_cursor=next_cursor or msgspec.UNSET)


async def get_prompt(core: Core, identity: Identity, prompt: GetPrompt) -> PromptResult:
    storage = core.registry.storage
    work = partial(read_prompt, identity=identity, storage=storage, name=prompt.name, arguments=prompt.arguments)
    chosen, text = await core.registry.read_page(work)
    core.contents.uses.note_file(chosen.name, SKILL_MD)
    return PromptResult(description=chosen.description, messages=[PromptMessage(PromptText(text))])


def _listed(prompt: Prompt) -> ListedPrompt:
    words = PromptArgument("arguments", prompt.arguments_hint or "What the skill works on.")
    return ListedPrompt(prompt.name, prompt.description, [words], prompt.title)
