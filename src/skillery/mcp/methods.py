"""The methods of MCP for resources, skills and tasks, with their params and results."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import msgspec
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from skillery.backends import Identity
from skillery.errors import RunEnded
from skillery.formats.json_pieces import JsonPieces
from skillery.mcp.prompts import get_prompt, list_prompts
from skillery.mcp.requests import FRESHNESS, Complete, Fresh, Visit
from skillery.method import Json, Method, Params
from skillery.methods.core import Core
from skillery.methods.errors import NOT_FOUND, encode
from skillery.methods.execution import Parts, perform
from skillery.runs.followed_runs import RunState
from skillery.skills.resources import (
    Resource,
    SkillEntry,
    find_in_folder,
    find_resources,
    find_skill_entries,
    find_skill_entry,
    read_content,
)
from skillery.skills.skill_folders import Completions, complete_path, complete_skill, complete_version


class ListedResource(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A file or a folder. A skill or a namespace is a folder too."""

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None


class ResourcePage(Fresh, frozen=True, kw_only=True, rename="camel"):
    """A page of resources."""

    resources: list[ListedResource]
    next_cursor: str | msgspec.UnsetType = msgspec.UNSET


class FolderPage(Complete, frozen=True, kw_only=True, rename="camel"):
    """A page of the direct children of a folder: files and folders. A skill or a namespace is a folder too."""

    resources: list[ListedResource]
    next_cursor: str | msgspec.UnsetType = msgspec.UNSET


class ResourceText(msgspec.Struct, frozen=True, rename="camel"):
    """The content of a resource: `text` if it is UTF-8, otherwise `blob` in base64."""

    uri: str
    mime_type: str
    text: str | msgspec.UnsetType = msgspec.UNSET
    blob: str | msgspec.UnsetType = msgspec.UNSET


class ResourceContents(Fresh, frozen=True, kw_only=True, rename="camel"):
    """The result of `resources/read`: the content of one resource."""

    contents: list[ResourceText]


class EntryFile(msgspec.Struct, frozen=True):
    """A file of a skill: its address, digest and size."""

    uri: str
    digest: str
    size: int


class EntryAdvisory(msgspec.Struct, frozen=True):
    """Why a version was yanked for security."""

    id: str
    severity: str
    reason: str


class Entry(msgspec.Struct, frozen=True):
    """A skill in the list of skills: its frontmatter and its files. `advisory` is that of a revoked version."""

    uri: str
    frontmatter: dict[str, object]
    resources: list[EntryFile]
    advisory: EntryAdvisory | msgspec.UnsetType = msgspec.UNSET


class EntryPage(Fresh, frozen=True, kw_only=True, rename="camel"):
    """A page of skills."""

    skills: list[Entry]
    next_cursor: str | msgspec.UnsetType = msgspec.UNSET


class OneEntry(Fresh, frozen=True, kw_only=True, rename="camel"):
    """The result of `skills/get`: one skill."""

    skill: Entry


class Completion(msgspec.Struct, frozen=True, rename="camel"):
    """Values of an argument that begin with the given text, at most 100."""

    values: list[str]
    has_more: bool


class CompletedArgument(Complete, frozen=True, kw_only=True, rename="camel"):
    """The result of `completion/complete`."""

    completion: Completion


class ListPage(Params, frozen=True, kw_only=True):
    """Params of methods that list all resources or skills."""

    cursor: str = ""


class AtUri(Params, frozen=True, kw_only=True):
    """Params of methods that read one resource or skill."""

    uri: str


class ListDirectory(Params, frozen=True, kw_only=True):
    """Params of the method that lists a folder."""

    uri: str
    cursor: str = ""


class CompleteArgument(Params, frozen=True, kw_only=True):
    """Params of the method that completes an argument of a template. `skill` and `version` are earlier arguments."""

    argument: Literal["skill", "version", "path"]
    value: str = ""
    skill: str = ""
    version: str = ""


class OfTask(Params, frozen=True, kw_only=True):
    """Params of methods for one task."""

    task_id: str


async def list_resources(core: Core, identity: Identity, page: ListPage) -> ResourcePage:
    work = partial(
        find_resources,
        identity=identity,
        key=core.registry.cursor_key,
        storage=core.registry.storage,
        cursor=page.cursor,
    )
    resources, next_cursor = await _read(core, work)
    return ResourcePage(
        resources=[_resource(resource) for resource in resources], next_cursor=next_cursor or msgspec.UNSET
    )


async def read_resource(core: Core, identity: Identity, uri: AtUri) -> Json[ResourceContents]:
    """Return the content of a resource as JSON in three parts: the text before the content, the content, and the text
    after it.
    """
    work = partial(read_content, identity=identity, storage=core.registry.storage, uri=uri.uri)
    resource = await _read(core, work)
    core.contents.uses.note_file(resource.skill, resource.path)
    field, kind = ("text", "text/plain") if resource.encoding == "utf-8" else ("blob", "application/octet-stream")
    about = {"uri": resource.uri, "mimeType": resource.media_type or kind}
    head = b'{"contents":[%s,"%s":' % (encode(about)[:-1], field.encode())
    return Json(JsonPieces([head, *resource.content, b"}],%s" % encode(FRESHNESS)[1:]]))


async def read_directory(core: Core, identity: Identity, directory: ListDirectory) -> FolderPage:
    """Return a page of the direct children of a folder."""
    work = partial(
        find_in_folder,
        identity=identity,
        key=core.registry.cursor_key,
        storage=core.registry.storage,
        uri=directory.uri,
        cursor=directory.cursor,
    )
    resources, next_cursor = await _read(core, work)
    return FolderPage(
        resources=[_resource(resource) for resource in resources], next_cursor=next_cursor or msgspec.UNSET
    )


async def list_skill_entries(core: Core, identity: Identity, page: ListPage) -> EntryPage:
    work = partial(
        find_skill_entries,
        identity=identity,
        key=core.registry.cursor_key,
        storage=core.registry.storage,
        cursor=page.cursor,
    )
    skills, next_cursor = await _read(core, work)
    return EntryPage(skills=[_entry(skill) for skill in skills], next_cursor=next_cursor or msgspec.UNSET)


async def get_skill_entry(core: Core, identity: Identity, uri: AtUri) -> OneEntry:
    work = partial(find_skill_entry, identity=identity, storage=core.registry.storage, uri=uri.uri)
    return OneEntry(skill=_entry(await _read(core, work)))


async def complete(core: Core, identity: Identity, argument: CompleteArgument) -> CompletedArgument:
    """Return the values for an argument of a template that begin with the given text."""
    work: Callable[..., Completions]
    match argument.argument:
        case "skill":
            work = partial(complete_skill, identity=identity, text=argument.value)
        case "version":
            work = partial(complete_version, identity=identity, skill=argument.skill, text=argument.value)
        case "path":
            work = partial(
                complete_path,
                identity=identity,
                skill=argument.skill,
                version=argument.version,
                text=argument.value,
            )
    values, has_more = await _read(core, work)
    return CompletedArgument(completion=Completion(values, has_more))


async def get_task(core: Core, identity: Identity, task: OfTask) -> RunState:
    return await core.following.state(identity, task.task_id)


async def cancel_task(core: Core, identity: Identity, task: OfTask) -> RunState:
    """Cancel the run of a task, and return the state of the task. If the run has ended, nothing changes."""
    state = await core.following.state(identity, task.task_id)
    if state.has_ended:
        return state
    with suppress(RunEnded):
        await core.cancellation.cancel_run(identity, task.task_id)
    return await core.following.state(identity, task.task_id)


MCP_METHODS: dict[str, Method] = {
    "resources/list": Method(list_resources, "read", audits=""),
    "resources/read": Method(read_resource, "read", audits=""),
    "resources/directory/read": Method(read_directory, "read", audits=""),
    "completion/complete": Method(complete, "read", audits=""),
    "skills/list": Method(list_skill_entries, "read", audits=""),
    "skills/get": Method(get_skill_entry, "read", audits=""),
    "prompts/list": Method(list_prompts, "read", audits=""),
    "prompts/get": Method(get_prompt, "read", audits=""),
    "tasks/get": Method(get_task, "run", audits=""),
    "tasks/cancel": Method(cancel_task, "run", audits="task_id"),
}


async def _read(core: Core, work: Any) -> Any:
    # Slow: skills may have many files, and some files are in the storage.
    return await core.registry.read_page(work)


def _resource(resource: Resource) -> ListedResource:
    return ListedResource(
        resource.uri, resource.name, resource.title, resource.description, resource.media_type, resource.size
    )


def _entry(entry: SkillEntry) -> Entry:
    files = [EntryFile(file.uri, file.digest, file.size) for file in entry.resources]
    revoked = entry.revocation
    advisory = EntryAdvisory(revoked["advisory"], revoked["severity"], revoked["reason"]) if revoked else msgspec.UNSET
    return Entry(entry.uri, entry.frontmatter, files, advisory)


# -- Calls of the methods of MCP_METHODS, with the error codes of MCP --------------------------------------------------


async def answer_of(visit: Visit, method: str, **params: str | None) -> Parts:
    """Return the JSON result of a method of MCP_METHODS. Params that are None are omitted.

    Raise MCPError if the method fails. For things that do not exist, its code is the one of invalid params.
    """
    raw = msgspec.Raw(encoded({name: value for name, value in params.items() if value is not None}))
    answer, error = await perform(visit.core, visit.identity, method, raw, None, MCP_METHODS)
    if answer is None:
        code = INVALID_PARAMS if error["code"] == NOT_FOUND else error["code"]
        raise MCPError(code, error["message"], error["data"])
    return answer


def encoded(value: object) -> bytes:
    """Return `value` as JSON.

    Raise MCPError if JSON cannot contain the value, although the SDK has accepted it.
    """
    try:
        return encode(value)
    except (UnicodeEncodeError, OverflowError, RecursionError):
        message = "a text in this call contains a lone surrogate, or a number has too many digits"
        raise MCPError(INVALID_PARAMS, message, {"type": "invalid_params", "hint": "Send valid Unicode."}) from None
