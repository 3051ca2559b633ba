"""The doors that skills go out by, with what OpenAPI tells of each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import msgspec
from litestar import HttpMethod, route
from litestar.openapi.datastructures import ResponseSpec
from litestar.types import ASGIApp

from skillery.api.exports import send_archive, send_file, send_index, send_indexed_file
from skillery.api.services import Services
from skillery.exports import KINDS

Door = Callable[[Services, Any, Any, Any, dict[str, str]], Awaitable[None]]


class ErrorAnswer(msgspec.Struct):
    """What a door answers where it does not do what it was asked."""

    error: dict[str, Any]


class Download(NamedTuple):
    """A door for GET and HEAD."""

    group: str
    """As metrics and the log call it."""
    paths: tuple[str, ...]
    door: Door
    summary: str
    description: str
    responses: Mapping[int, ResponseSpec]


def _responses(kind: str, what: str) -> dict[int, ResponseSpec]:
    said = {
        400: "The name, the version or the path is none.",
        401: "No token, or a bad one.",
        404: "There is no such thing, or none that the caller may see.",
    }
    errors = {status: ResponseSpec(ErrorAnswer, False, text) for status, text in said.items()}
    return {
        200: ResponseSpec(bytes, False, what, media_type=kind),
        304: ResponseSpec(None, False, "It is what If-None-Match says."),
        **errors,
    }


def _in_indexes(path: str) -> tuple[str, ...]:
    """Below both indexes, that of all and that of a namespace."""
    above = ("", "/n/{namespace:str}")
    return tuple(f"{place}/.well-known/{kind}/{path}" for place in above for kind in KINDS)


DOWNLOADS = (
    Download(
        "/skills",
        ("/skills/{name:str}/{archive:str}",),
        send_archive,
        "A version of a skill as an archive",
        "`archive` is a version spec (`1.2.0`, `latest`, a label, a range, a digest) and `.tar.gz` or `.zip`.",
        _responses("application/octet-stream", "The archive; its bytes follow from its files alone."),
    ),
    Download(
        "/skills",
        ("/skills/{name:str}/{version:str}/{path:path}",),
        send_file,
        "A file of a version of a skill",
        "As it stands in the archive: SKILL.md conforms to Agent Skills.",
        _responses("application/octet-stream", "The file."),
    ),
    Download(
        "/.well-known",
        tuple(
            f"{above}/.well-known/{kind}/index.json"
            for kind in ("agent-skills", "skills")
            for above in ("", "/n/{namespace:str}")
        ),
        send_index,
        "An index of Agent Skills",
        "`agent-skills` is the index of discovery 0.2.0, `skills` the older one that lists files.",
        _responses("application/json", "The index of what the caller sees."),
    ),
    Download(
        "/.well-known",
        tuple(
            f"{above}/.well-known/{kind}/{{name:str}}/{{path:path}}"
            for kind in ("agent-skills", "skills")
            for above in ("", "/n/{namespace:str}")
        ),
        send_indexed_file,
        "A file of the latest version of a skill in an index",
        "`name` is the skill's name in that index.",
        _responses("application/octet-stream", "The file."),
    ),
)


def documented(one: Download, app: ASGIApp) -> Any:
    """A route that Litestar knows the parameters and answers of, while the app behind it does the work."""

    @route(
        list(one.paths),
        http_method=[HttpMethod.GET, HttpMethod.HEAD],
        summary=one.summary,
        description=one.description,
        tags=["Agent Skills"],
        responses=one.responses,
    )
    async def handler() -> ASGIApp:
        return app

    return handler
