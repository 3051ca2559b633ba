"""Functions that the endpoints of `/v1/skills` share: they read requests, and call the registry."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast
from urllib.parse import unquote_to_bytes

import msgspec

from skillery.backends import Identity
from skillery.context.budget import Bodies
from skillery.database.registry import Registry
from skillery.errors import InvalidParams, SkilleryError, VersionNotFound
from skillery.formats.semver import Version
from skillery.formats.version_spec import VersionSpec
from skillery.formats.wording import quoted
from skillery.http.gate import Gate
from skillery.http.requests import HttpRefusal, send_bytes
from skillery.importing import Importer
from skillery.labels.labels import point_label
from skillery.methods.errors import NOT_FOUND, encode, is_refusal, plain_error
from skillery.rest.exports import DownloadParts
from skillery.skills.creation_order import Order
from skillery.skills.descriptions import read_description
from skillery.versions.versions import ListedVersion, VersionPage, read_versions

# -- The parts of the server that the endpoints of `/v1/skills` use ----------------------------------------------------


class V1Parts(NamedTuple):
    """The parts of the server that the endpoints of `/v1/skills` use."""

    gate: Gate
    registry: Registry
    importer: Importer
    downloads: DownloadParts
    bodies: Bodies


DEFAULT_LIMIT = 20
MOST_LISTED = 1000
REASON = "Deleted at /v1/skills."
DEFAULT = "default"
"""The label that the default version of a skill has."""
Headers = dict[str, str]


class Asked(NamedTuple):
    """One request of an authenticated caller."""

    parts: V1Parts
    identity: Identity
    headers: Headers

    @property
    def registry(self) -> Registry:
        return self.parts.registry

    @property
    def key(self) -> bytes:
        return self.registry.cursor_key


async def describe(request: Asked, name: str, spec: VersionSpec) -> dict[str, Any]:
    work = partial(
        read_description,
        identity=request.identity,
        storage=request.registry.storage,
        name=name,
        spec=spec,
        detail="manifest",
    )
    described = await request.registry.read(work)
    skill: dict[str, Any] = msgspec.json.decode(described)["skill"]
    return skill


async def versions_of(request: Asked, name: str, limit: int, cursor: str) -> list[ListedVersion]:
    """Return up to `limit` versions of a skill after `cursor`, newest first. Raise SkillNotFound if the caller sees
    no such skill.
    """
    page = await request.registry.read_page(partial(versions_page, request, name, limit, cursor, "desc"))
    return page.versions


def versions_page(request: Asked, name: str, limit: int, cursor: str, order: Order, connection: Any) -> VersionPage:
    return read_versions(
        connection,
        request.identity,
        request.key,
        name=name,
        status="",
        namespace="",
        limit=limit,
        cursor=cursor,
        oldest_first=order == "asc",
    )


async def yanked(request: Asked, subject: str, work: Callable[[Any], None]) -> None:
    await _written(request, "yank_version", subject, work)


async def make_default(request: Asked, name: str, spec: VersionSpec) -> None:
    """Point the label `default` to the version that `spec` selects. Raise the errors of `point_label`."""
    work = partial(point_label, identity=request.identity, name=name, label=DEFAULT, spec=spec)
    await _written(request, "set_label", f"{name}@{DEFAULT}", work)


async def _written(request: Asked, action: str, subject: str, work: Callable[[Any], Any]) -> None:
    """Change the registry. Record a refused change in the audit trail."""
    try:
        await request.registry.write(work)
    except SkilleryError as error:
        if is_refusal(error, "name"):
            request.parts.gate.note_refusal(request.identity, action, subject, error)
        raise


def with_token(headers: Headers) -> Headers:
    """Return the headers with the token as `authorization`. Clients of Anthropic send the token as `x-api-key`."""
    if "authorization" in headers or "x-api-key" not in headers:
        return headers
    return headers | {"authorization": f"Bearer {headers['x-api-key']}"}


def segments(scope: Any, *counts: int) -> list[str]:
    """Return the decoded segments of the address. Raise HttpRefusal 404 if their number is not one of `counts`."""
    raw = scope["raw_path"].partition(b"?")[0].strip(b"/").split(b"/")
    try:
        found = [unquote_to_bytes(part).decode() for part in raw]
    except UnicodeDecodeError:
        found = []
    if len(found) not in counts or any("/" in part or "\0" in part for part in found):
        raise HttpRefusal(404, plain_error(NOT_FOUND, "there is nothing at this address", "not_found"))
    return found


def limit_of(query: dict[str, str]) -> int:
    text = query.get("limit", str(DEFAULT_LIMIT))
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= MOST_LISTED):
        raise InvalidParams(
            f"the parameter 'limit' is {quoted(text)}", hint=f"Write a number from 1 to {MOST_LISTED}.", param="limit"
        )
    return int(text)


def order_of(query: dict[str, str]) -> Order | None:
    """Return the order of a list, or None if the query does not state one."""
    text = query.get("order")
    if text not in (None, "asc", "desc"):
        raise InvalidParams(f"the parameter 'order' is {quoted(text)}", hint="Write asc or desc.", param="order")
    return cast("Order | None", text)


def version_number(name: str, text: str) -> str:
    """Return the version spec in an address: `text`, or the version in `text` if that is the id of a version.

    Raise VersionNotFound if the id belongs to another skill.
    """
    skill, separator, version = text.rpartition("@")
    if not separator:
        return text
    if skill != name:
        raise VersionNotFound(
            f"{quoted(text)} is not a version of '{name}'",
            hint=f"Write the name and the number of a version: {name}@1.0.0.",
            name=name,
        )
    return str(Version.parse(version))


async def send_answer(send: Any, answer: Any) -> None:
    await send_bytes(send, 200, encode(answer))
