"""Skills that only people start, as prompts of MCP: the user of a client chooses a prompt, and so starts the skill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection

from skillery.backends import Identity, Storage
from skillery.errors import SkillNotFound, TooLarge
from skillery.formats.bundle import SKILL_TOML
from skillery.formats.foreign_skill import title_of
from skillery.formats.names import parse_skill_name
from skillery.formats.skill_md import FILE as SKILL_MD
from skillery.formats.skill_md import body_of, text_of
from skillery.formats.wording import first_names
from skillery.registry.cursors import make_cursor, read_cursor
from skillery.registry.visibility import has_audience, require_audience
from skillery.skills.skill_folders import (
    SkillFolder,
    conforming,
    listed_after,
    open_folders,
    seen_named,
    stored_skill_md,
)

PROMPTS_A_PAGE = 50
ARGUMENTS = "$ARGUMENTS"
"""The place of the user's text in SKILL.md. Without it, the text is appended, as by Claude Code."""
MAX_CHARACTERS = 256 * 1024
FILES_NAMED = 20


class Prompt(NamedTuple):
    name: str
    title: str | None
    description: str
    arguments_hint: str
    """A hint at the text that the user may write after the name of the prompt, or ""."""


def find_prompts(
    connection: Connection, identity: Identity, key: bytes, storage: Storage, *, cursor: str
) -> tuple[list[Prompt], str | None]:
    """Return a page of prompts, sorted by name, and the next cursor. Tokens of agents have no prompts."""
    bound_to = ("prompts/list",)
    after = read_cursor(key, bound_to, cursor, 1)[0] if cursor else ""
    rows = listed_after(connection, _user_of(identity), after, PROMPTS_A_PAGE + 1, has_audience(["people"]))
    page = rows[:PROMPTS_A_PAGE]
    prompts = [_prompt(folder) for folder in open_folders(connection, identity, storage, page)]
    return prompts, make_cursor(key, bound_to, (page[-1][0],)) if len(rows) > len(page) else None


def read_prompt(
    connection: Connection, identity: Identity, storage: Storage, *, name: str, arguments: str
) -> tuple[Prompt, str]:
    """Return a prompt and its text: SKILL.md without frontmatter, with the user's `arguments`.

    Raise SkillNotFound if the skill has no prompt, PeopleOnly for the token of an agent, and TooLarge if the text could
    have more than MAX_CHARACTERS.
    """
    user = _user_of(identity)
    latest = seen_named(connection, user, [parse_skill_name(name)]).get(name)
    if latest is None or latest.audience != "people":
        hint = "prompts/list names the prompts: the skills that only people start. Tools read and run the others."
        raise SkillNotFound(f"there is no prompt '{name}'", hint=hint, name=name)
    require_audience(user, name, latest.audience)
    [folder] = open_folders(connection, user, storage, [(name, latest.latest_version_id)])
    content, description = stored_skill_md(connection, storage, folder.version_id)
    body = body_of(text_of(conforming(name, content, description).content)).strip()
    size = len(body) + body.count(ARGUMENTS) * len(arguments)
    if size > MAX_CHARACTERS:
        raise TooLarge(f"the prompt '{name}' has up to {size} characters; the limit is {MAX_CHARACTERS}", name=name)
    if ARGUMENTS in body or not arguments:
        body = body.replace(ARGUMENTS, arguments)
    else:
        body += f"\n\nARGUMENTS: {arguments}"
    return _prompt(folder), body + _other_files(folder)


def _user_of(identity: Identity) -> Identity:
    """Return the identity of a client's user, who chooses prompts. The token of an agent has no user."""
    return msgspec.structs.replace(identity, through_mcp=False)


def _prompt(folder: SkillFolder) -> Prompt:
    frontmatter = folder.skill_md.frontmatter
    metadata = frontmatter.get("metadata")
    further = metadata if isinstance(metadata, Mapping) else {}
    hint = str(frontmatter.get("argument-hint") or further.get("argument-hint") or "")
    title = title_of(frontmatter, "", folder.name) or None
    return Prompt(folder.name, title, folder.skill_md.description, hint)


def _other_files(folder: SkillFolder) -> str:
    paths = [file.path for file in folder.files if file.path not in (SKILL_MD, SKILL_TOML)]
    if not paths:
        return ""
    return (
        f"\n\nThe other files of this skill are {first_names(paths, FILES_NAMED)}. Models cannot read them on the "
        f"server. The user gets them with `skillery install DIR {folder.name}`."
    )
