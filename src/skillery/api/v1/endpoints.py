"""The table of the endpoints of `/v1/skills`, with their descriptions for OpenAPI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from litestar.openapi.spec import Parameter, Schema
from litestar.openapi.spec.enums import OpenAPIType

from skillery.api.v1.parts import V1Parts
from skillery.api.v1.requests import DEFAULT_LIMIT, MOST_LISTED, Headers
from skillery.api.v1.shapes import Deleted, Skill, Skills, SkillVersion, SkillVersions
from skillery.api.v1.skills import content_endpoint, skill_endpoint, skills_endpoint
from skillery.api.v1.versions import version_endpoint, versions_endpoint
from skillery.backends import Scope
from skillery.edge.operations import BINARY, ELSEWHERE, Body, Operation, Response, in_query

_ZIP = Response("A zip with the files of the version at its root.", kinds=("application/zip",))
_SAME = Response("If-None-Match contains the ETag of the content.", kinds=())
_FORM = Body(
    "multipart/form-data",
    Schema(
        type=OpenAPIType.OBJECT,
        properties={"files[]": Schema(type=OpenAPIType.ARRAY, items=BINARY, min_items=1)},
        required=["files[]"],
    ),
    "The files of the skill, each with its path as filename (my-skill/SKILL.md), or one zip.",
)
_PAGE = (
    in_query(
        "limit",
        "Maximum number of results.",
        OpenAPIType.INTEGER,
        minimum=1,
        maximum=MOST_LISTED,
        default=DEFAULT_LIMIT,
    ),
    in_query("after", "last_id of the previous page."),
    in_query("page", "next_page of the previous page."),
)
_SOURCE = (in_query("source", "Every skill of this server has the source 'custom'."),)
_NAMESPACE = (in_query("namespace", "Namespace of the new skill."),)
_ORDER = (in_query("order", "Newest first is the only order.", enum=["desc"]),)
_UPLOAD = (400, 404, 408, 409, 413, 415, 422)


class V1Endpoint(NamedTuple):
    paths: tuple[str, ...]
    """Addresses in the notation of Litestar."""
    methods: tuple[str, ...]
    endpoint: Callable[[V1Parts, Any, Any, Any, Headers], Awaitable[None]]
    operations: tuple[Operation, ...]


def _operation(
    method: str,
    path: str,
    summary: str,
    answer: Any,
    needs: Scope,
    *errors: int,
    parameters: tuple[Parameter, ...] = (),
    body: Body | None = None,
) -> Operation:
    shown = answer if isinstance(answer, Response) else Response(summary, answer)
    answers = {200: shown, 304: _SAME, 307: ELSEWHERE} if shown is _ZIP else {200: shown}
    return Operation(
        method, path, summary, answers, (400, *errors), needs, parameters=parameters, body=body, tag="/v1/skills"
    )


_ALL, _ONE = "/v1/skills", "/v1/skills/{skill_id}"
_VERSIONS, _VERSION = f"{_ONE}/versions", f"{_ONE}/versions/{{version}}"
V1_ENDPOINTS = (
    V1Endpoint(
        (_ALL,),
        ("GET", "HEAD", "POST"),
        skills_endpoint,
        (
            _operation("GET", _ALL, "Skills, by name", Skills, "read", parameters=(*_PAGE, *_SOURCE)),
            _operation("POST", _ALL, "A new skill", Skill, "publish", *_UPLOAD, parameters=_NAMESPACE, body=_FORM),
        ),
    ),
    V1Endpoint(
        ("/v1/skills/{skill_id:str}",),
        ("GET", "HEAD", "DELETE"),
        skill_endpoint,
        (
            _operation("GET", _ONE, "A skill", Skill, "read", 404),
            _operation("DELETE", _ONE, "Yank every version of a skill", Deleted, "publish", 404, 409),
        ),
    ),
    V1Endpoint(
        ("/v1/skills/{skill_id:str}/versions",),
        ("GET", "HEAD", "POST"),
        versions_endpoint,
        (
            _operation(
                "GET", _VERSIONS, "Versions, newest first", SkillVersions, "read", 404, parameters=(*_PAGE, *_ORDER)
            ),
            _operation("POST", _VERSIONS, "A new version of a skill", SkillVersion, "publish", *_UPLOAD, body=_FORM),
        ),
    ),
    V1Endpoint(
        ("/v1/skills/{skill_id:str}/versions/{version:str}",),
        ("GET", "HEAD", "DELETE"),
        version_endpoint,
        (
            _operation("GET", _VERSION, "A version", SkillVersion, "read", 404),
            _operation("DELETE", _VERSION, "Yank a version", Deleted, "publish", 404, 409),
        ),
    ),
    V1Endpoint(
        ("/v1/skills/{skill_id:str}/content", "/v1/skills/{skill_id:str}/versions/{version:str}/content"),
        ("GET", "HEAD"),
        content_endpoint,
        (
            _operation("GET", f"{_ONE}/content", "The files of the latest version", _ZIP, "read", 404),
            _operation("GET", f"{_VERSION}/content", "The files of a version", _ZIP, "read", 404),
        ),
    ),
)
