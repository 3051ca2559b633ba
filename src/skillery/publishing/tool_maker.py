"""The methods define_tool and remove_tool. Agents define tools for a session, or as published skills."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Set
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, NoReturn

import msgspec
from msgspec import Meta
from sqlalchemy import Connection, select

from skillery.backends import Identity, Language
from skillery.database import Database
from skillery.database.tables import RESOLVABLE, skill_versions, skills
from skillery.errors import IllegalStep, InvalidParams, NameTaken, ToolNotFound, ToolProtected, VersionExists
from skillery.formats.bundle import BundleFile
from skillery.formats.defined_tools import (
    MADE_BY,
    defined_skill_name,
    defined_tool_name,
    handler_of,
    script_path,
    write_skill,
)
from skillery.formats.names import parse_namespace
from skillery.formats.semver import Version
from skillery.formats.texts import parse_plain
from skillery.formats.tools import Tool, parse_definition
from skillery.formats.wording import Problem, quoted, raise_problems
from skillery.identity import access
from skillery.identity.quotas import Quotas
from skillery.method import Method, Params, about, or_none
from skillery.publishing.compile_pool import CompilePool
from skillery.publishing.publisher import Publisher
from skillery.registry.resolution import find_skill
from skillery.registry.tool_rows import SessionName, define_session_tool, parse_session, remove_session_tool
from skillery.registry.visibility import sees_version
from skillery.tools.tool_lookup import ToolAddress, find_offered, near_names, parse_address
from skillery.versions.lifecycle import yank
from skillery.versions.new_versions import NewVersion

FIRST = "1.0.0"
MOST_TRIES = 5
REASON = "removed with remove_tool"


MOST_CODE = 256 * 1024
MOST_PARAMETERS = 64 * 1024


class DefinedTool(msgspec.Struct, frozen=True):
    """The result of define_tool and remove_tool. `skill` and `version` are None for a tool of a session."""

    name: str
    skill: str | None
    version: str | None
    status: str


class ToolMaker:
    """Defines tools, and removes tools that were made with define_tool."""

    def __init__(
        self,
        database: Database,
        publisher: Publisher,
        compilers: CompilePool,
        runs_javascript: Callable[[], Awaitable[bool]],
        quotas: Quotas,
        keep_for: timedelta,
        reserved: Set[str],
    ) -> None:
        """Store the parts. `keep_for` is the lifetime of a session tool. `reserved` has the names of the server's own
        tools.
        """
        self._database = database
        self._publisher = publisher
        self._compilers = compilers
        self._runs_javascript = runs_javascript
        self._quotas = quotas
        self._keep_for = keep_for
        self._reserved = reserved

    async def define_tool(self, identity: Identity, params: DefineTool) -> DefinedTool:
        """Define a tool for a session, or publish it as a skill. Raise InvalidParams or InvalidName if the definition
        is not valid. Raise ToolProtected if the name is reserved, or if the skill was not made with define_tool. Raise
        QuotaExceeded if a quota is used up. Raise the errors of `create_skill` if the skill cannot be published.
        """
        code, is_persistent = parse_plain(params.code, "code"), _is_true(params.persistent)
        session = parse_session(params.session)
        namespace = None if params.namespace is msgspec.UNSET else parse_namespace(params.namespace)
        self._check_reserved(params.name)
        language: Language = or_none(params.language) or await self._default_language()
        script = script_path(params.name, language)
        tool = await asyncio.to_thread(parse_definition, params.name, params.description, params.parameters, script)
        content = await self._handler(identity, code, language, script)
        if is_persistent:
            return await self._publish(identity, tool, content, namespace, session)
        work = partial(
            define_session_tool,
            identity=identity,
            session=session,
            tool=tool,
            content=content,
            keep_for=self._keep_for,
            quotas=self._quotas,
        )
        await self._database.write(work)
        return DefinedTool(tool.name, None, None, "session")

    async def remove_tool(self, identity: Identity, name: str, skill: str | None, session: str) -> DefinedTool:
        """Remove a tool of the session, or yank all published versions of the skill that define_tool made for the tool.

        A tool of the session is removed only if `skill` is None. Raise ToolNotFound if there is no such tool,
        ToolProtected if it was not made with define_tool, NotAllowed if no grant covers the skill, IllegalStep if the
        skill has only drafts.
        """
        self._check_reserved(name)
        work = partial(_remove, identity=identity, name=name, skill=skill, session=session)
        return await self._database.write(work)

    async def _publish(
        self, identity: Identity, tool: Tool, content: str, namespace: str | None, session: str
    ) -> DefinedTool:
        skill = _skill_for(identity, tool.name, namespace)
        access.require_namespace(identity, "publish", skill)
        created = await self._publish_next(identity, tool, skill, content)
        await self._database.write(partial(remove_session_tool, identity=identity, session=session, name=tool.name))
        return DefinedTool(tool.name, created.name, created.version, created.status)

    async def _publish_next(self, identity: Identity, tool: Tool, skill: str, content: str) -> NewVersion:
        """Publish the skill under the next version number. If another call took the number, try again with the next
        one.
        """
        for _ in range(MOST_TRIES - 1):
            try:
                return await self._publish_once(identity, tool, skill, content)
            except VersionExists:  # another caller defines the same tool
                continue
        return await self._publish_once(identity, tool, skill, content)

    async def _publish_once(self, identity: Identity, tool: Tool, skill: str, content: str) -> NewVersion:
        version = await self._database.read(partial(_next_version, identity=identity, skill=skill))
        written = write_skill(tool, skill, version, content)
        files = [BundleFile(path, text.encode()) for path, text in written.files.items()]
        return await self._publisher.create_skill(identity, written.manifest, written.skill_md, files, made_by=MADE_BY)

    async def _handler(self, identity: Identity, code: str, language: Language, script: str) -> str:
        """Return the text of the file with the handler. Raise InvalidParams if Python code does not compile."""
        if language != "python":
            return handler_of(code, language)
        handler = await self._compilers.handler(identity.name, script, code)
        return handler if isinstance(handler, str) else _refuse(handler)

    async def _default_language(self) -> Language:
        return "javascript" if await self._runs_javascript() else "python"

    def _check_reserved(self, name: str) -> None:
        if name in self._reserved:
            raise ToolProtected(f"'{name}' is one of the server's own tools", hint="Choose another name.", name=name)


def _refuse(problem: Problem) -> NoReturn:
    rejected = Problem(f"'code' is not the body of a Python function: {problem.message}", "code", line=problem.line)
    hint = "Write the lines below `def handler(args):`, which is line 1; end with `return`."
    raise_problems(InvalidParams, [rejected], hint=hint)


def _skill_for(identity: Identity, tool: str, namespace: str | None) -> str:
    """Return the name of the skill for a tool. `namespace` is the requested namespace, or None.

    If `namespace` is None and the identity may publish names without a namespace, the name has none. Otherwise the name
    is in the first namespace that the identity is granted.
    """
    skill = defined_skill_name(tool, namespace or "")
    if namespace is not None or access.covers(identity, skill):
        return skill
    granted_namespace = next((grant[:-2] for grant in identity.namespaces if grant.endswith(".*")), "")
    return defined_skill_name(tool, granted_namespace)


def _versions(connection: Connection, skill: str) -> list[Any]:
    """Return rows with the version, status, maker and publisher of each version of a skill, highest version first."""
    versions = (
        select(skill_versions.c.version, skill_versions.c.status, skill_versions.c.made_by, skill_versions.c.publisher)
        .join_from(skill_versions, skills, skills.c.id == skill_versions.c.skill_id)
        .where(skills.c.name == skill)
        .order_by(skill_versions.c.precedence.desc())
    )
    return list(connection.execute(versions))


def _next_version(connection: Connection, identity: Identity, skill: str) -> str:
    """Return the version number after the highest version of a skill. Raise ToolProtected if a version was not made
    with define_tool. Raise NameTaken if the identity does not see the skill.
    """
    versions = _versions(connection, skill)
    if not versions:
        return FIRST
    if find_skill(connection, identity, skill) is None:
        raise NameTaken(f"the name '{skill}' is taken", hint="Define the tool under another name.", name=skill)
    _check_defined(skill, versions)
    highest = Version.parse(versions[0].version)
    return f"{highest.major}.{highest.minor}.{highest.patch + 1}"


def _check_defined(skill: str, versions: list[Any]) -> None:
    """Raise ToolProtected if a version of the skill was not made with define_tool."""
    if all(version.made_by == MADE_BY for version in versions):
        return
    raise ToolProtected(
        f"the skill '{skill}' was not made by define_tool",
        hint="Define the tool under another name; change the skill with create_skill and yank_version.",
        skill=skill,
    )


def _remove(connection: Connection, identity: Identity, name: str, skill: str | None, session: str) -> DefinedTool:
    """Remove a session tool, or yank the published versions of its skill. See `ToolMaker.remove_tool`."""
    if skill is None and remove_session_tool(connection, identity, session, name):
        return DefinedTool(name, None, None, "removed")
    stored_skill = skill or _skill_of_tool(connection, identity, name)
    versions = _versions(connection, stored_skill) if stored_skill else []
    if stored_skill is None or not versions or find_skill(connection, identity, stored_skill) is None:
        raise _no_such_tool(connection, identity, name, session)
    _check_defined(stored_skill, versions)
    if defined_tool_name(stored_skill) != name:
        raise _no_such_tool(connection, identity, name, session)
    access.require_namespace(identity, "publish", stored_skill)
    published = [version.version for version in versions if version.status in RESOLVABLE]
    if not published:
        raise _nothing_to_remove(connection, identity, name, session, stored_skill, versions)
    for version in published:
        removed = yank(connection, identity, stored_skill, Version.parse(version), REASON)
    return DefinedTool(name, stored_skill, published[0], removed.status)


def _skill_of_tool(connection: Connection, identity: Identity, name: str) -> str | None:
    """Return the skill that define_tool makes for a tool of this name, if this skill exists.

    Otherwise, return another skill that offers a tool of this name, or None if no skill does.
    """
    try:
        default_skill = _skill_for(identity, name, None)
    except InvalidParams:
        return None
    if find_skill(connection, identity, default_skill) is not None:
        return default_skill
    offering_skill = find_offered(connection, identity, name)
    return offering_skill.name if offering_skill else None


def _nothing_to_remove(
    connection: Connection, identity: Identity, name: str, session: str, skill: str, versions: list[Any]
) -> IllegalStep | ToolNotFound:
    """Return the error for a skill without a published version: its newest draft, or no such tool if the identity sees
    none.
    """
    unpublished = [
        version
        for version in versions
        if version.status in {"draft", "in_review"} and sees_version(identity, skill, version.status, version.publisher)
    ]
    if not unpublished:
        return _no_such_tool(connection, identity, name, session)
    highest = unpublished[0]
    return IllegalStep(
        f"'{skill}' {highest.version} is {highest.status}: it is not published, so there is nothing to yank",
        hint="Keep it, or let a reviewer reject it: submit_version, then reject_version.",
        name=skill,
        version=highest.version,
        status=highest.status,
        legal=["submit_version"] if highest.status == "draft" else ["reject_version"],
    )


def _no_such_tool(connection: Connection, identity: Identity, name: str, session: str) -> ToolNotFound:
    suggestions = near_names(connection, identity, name, session)
    hint = (
        f"Did you mean {' or '.join(quoted(tool) for tool in suggestions)}?"
        if suggestions
        else "list_tools shows all tools."
    )
    return ToolNotFound(f"there is no tool {quoted(name)} to remove", hint=hint, name=name[:128], near=suggestions)


# -- define_tool -------------------------------------------------------------------------------------------------------


class DefineTool(Params, frozen=True, kw_only=True):
    """Define a tool, for a session or as a published skill."""

    name: Annotated[ToolAddress, about("Tool name (lowercase with underscores)")]
    description: Annotated[Annotated[str, Meta(min_length=1, max_length=1024)], about("What the tool does")]
    parameters: Annotated[
        Annotated[str, Meta(max_length=MOST_PARAMETERS)], about("JSON string of parameter definitions")
    ] = ""
    code: Annotated[
        Annotated[str, Meta(min_length=1, max_length=MOST_CODE)],
        about("Body of the function that gets 'args' and returns the result"),
    ]
    persistent: Annotated[str, about('"true" to keep it as a skill that others can use')] = ""
    language: Annotated[
        Language | msgspec.UnsetType,
        about("Language of the code. If omitted: JavaScript if the server can run it, else Python"),
    ] = msgspec.UNSET
    namespace: Annotated[
        str | msgspec.UnsetType,
        about(
            "Namespace of a persistent tool. If omitted: none if the caller may publish names without a namespace, "
            "else the first granted namespace"
        ),
    ] = msgspec.UNSET
    session: SessionName = ""


async def define_tool(maker: ToolMaker, identity: Identity, params: DefineTool) -> DefinedTool:
    return await maker.define_tool(identity, params)


# -- remove_tool -------------------------------------------------------------------------------------------------------


class RemoveTool(Params, frozen=True, kw_only=True):
    """Remove a tool that was made with define_tool."""

    name: Annotated[ToolAddress, about("Tool name to remove, or 'skill/tool'")]
    session: SessionName = ""


async def remove_tool(maker: ToolMaker, identity: Identity, params: RemoveTool) -> DefinedTool:
    skill, name = parse_address(params.name, "")
    return await maker.remove_tool(identity, name, skill, parse_session(params.session))


def _is_true(text: str) -> bool:
    if text not in {"", "true", "false"}:
        raise InvalidParams(
            f"'persistent' is {text[:80]!r}", hint='Write "true" to keep the tool, or leave it out.', param="persistent"
        )
    return text == "true"


METHODS = (
    Method(define_tool, "run", audits="name", once=True),
    Method(remove_tool, "run", audits="name"),
)
