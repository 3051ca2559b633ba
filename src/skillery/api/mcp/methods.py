"""What MCP has beside tools, as methods: what each takes, who may call it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from skillery import registry
from skillery.api.answers import expect_result
from skillery.api.errors import encode
from skillery.api.rpc.methods import Method
from skillery.api.rpc.params import Params
from skillery.api.services import Services
from skillery.backends import Identity
from skillery.formats.json_pieces import JsonPieces
from skillery.registry.resources import Resource, SkillEntry

TTL_MS = 60_000
COMPLETE = {"resultType": "complete"}
FRESHNESS = {**COMPLETE, "ttlMs": TTL_MS, "cacheScope": "private"}
"""Another identity sees other skills, and a publication changes what is the latest."""


class ListPage(Params, frozen=True, kw_only=True):
    """A page."""

    cursor: str = ""


class AtUri(Params, frozen=True, kw_only=True):
    """What is at an address."""

    uri: str


class ListDirectory(Params, frozen=True, kw_only=True):
    """A page of a folder."""

    uri: str
    cursor: str = ""


async def list_resources(services: Services, identity: Identity, asked: ListPage) -> Any:
    work = partial(
        registry.list_resources,
        identity=identity,
        key=services.cursor_key,
        storage=services.storage,
        cursor=asked.cursor,
    )
    found, more = await _read(services, work)
    return {"resources": [_resource(one) for one in found], **_next(more), **FRESHNESS}


async def read_resource(services: Services, identity: Identity, asked: AtUri) -> Any:
    """The result as JSON in pieces: one before the text of the file, those of the text, and one behind it."""
    work = partial(
        registry.read_resource, identity=identity, storage=services.storage, uri=asked.uri, expect=expect_result
    )
    found = await _read(services, work)
    field, kind = ("text", "text/plain") if found.encoding == "utf-8" else ("blob", "application/octet-stream")
    about = {"uri": found.uri, "mimeType": found.media_type or kind}
    head = b'{"contents":[%s,"%s":' % (encode(about)[:-1], field.encode())
    return JsonPieces([head, *found.content, b"}],%s" % encode(FRESHNESS)[1:]])


async def read_directory(services: Services, identity: Identity, asked: ListDirectory) -> Any:
    work = partial(
        registry.read_directory,
        identity=identity,
        key=services.cursor_key,
        storage=services.storage,
        uri=asked.uri,
        cursor=asked.cursor,
    )
    found, more = await _read(services, work)
    return {"resources": [_resource(one) for one in found], **_next(more), **COMPLETE}


async def list_skill_entries(services: Services, identity: Identity, asked: ListPage) -> Any:
    work = partial(
        registry.list_skill_entries,
        identity=identity,
        key=services.cursor_key,
        storage=services.storage,
        cursor=asked.cursor,
    )
    found, more = await _read(services, work)
    return {"skills": [_entry(one) for one in found], **_next(more), **FRESHNESS}


async def get_skill_entry(services: Services, identity: Identity, asked: AtUri) -> Any:
    work = partial(registry.get_skill_entry, identity=identity, storage=services.storage, uri=asked.uri)
    return {"skill": _entry(await _read(services, work)), **FRESHNESS}


MCP_METHODS: dict[str, Method] = {
    "resources/list": Method(list_resources, ListPage, "read", audits=""),
    "resources/read": Method(read_resource, AtUri, "read", audits=""),
    "resources/directory/read": Method(read_directory, ListDirectory, "read", audits=""),
    "skills/list": Method(list_skill_entries, ListPage, "read", audits=""),
    "skills/get": Method(get_skill_entry, AtUri, "read", audits=""),
}


async def _read(services: Services, work: Any) -> Any:
    # Many files, and some of them in the storage.
    return await asyncio.to_thread(services.database.read_now, work)


def _next(cursor: str | None) -> dict[str, str]:
    return {"nextCursor": cursor} if cursor else {}


def _resource(one: Resource) -> dict[str, Any]:
    shown = {
        "uri": one.uri,
        "name": one.name,
        "description": one.description,
        "mimeType": one.media_type,
        "size": one.size,
    }
    return {key: value for key, value in shown.items() if value is not None}


def _entry(one: SkillEntry) -> dict[str, Any]:
    return {
        "uri": one.uri,
        "frontmatter": one.frontmatter,
        "resources": [{"uri": file.uri, "digest": file.digest, "size": file.size} for file in one.resources],
    }
