"""The table of the endpoints of `/v1/skills`, with their descriptions for OpenAPI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from litestar.openapi.spec import Parameter, Reference, Schema
from litestar.openapi.spec.enums import OpenAPIType

from skillery.backends import Scope
from skillery.client_source.openrpc import field_schema
from skillery.http.operations import BINARY, ELSEWHERE, JSON, Body, Operation, Response, in_query
from skillery.method import annotated_params
from skillery.rest.skill_requests import (
    DEFAULT_LIMIT,
    MOST_LISTED,
    Deleted,
    Headers,
    InlineSkill,
    Skill,
    SkillParts,
    Skills,
    SkillVersion,
    SkillVersions,
)
from skillery.rest.skills import (
    content_endpoint,
    inline_endpoint,
    skill_endpoint,
    skills_endpoint,
    version_endpoint,
    versions_endpoint,
)
from skillery.skills.catalogue_filters import CHOICES, FLAGS, SkillFilters

_ZIP = Response("A zip with the files of the version at its root.", kinds=("application/zip",))
_SAME = Response("If-None-Match contains the ETag of the content.", kinds=())
_INLINE = Response("The version as an inline skill of a hosted shell.", InlineSkill)
_FILES = "The files of the skill, each with its path as filename (my-skill/SKILL.md), or one zip."
_NEW_DEFAULT = Body(
    JSON,
    Schema(
        type=OpenAPIType.OBJECT,
        properties={"default_version": Schema(type=OpenAPIType.STRING)},
        required=["default_version"],
    ),
    "The version that the label `default` points to from now on: its number, its id, or another version spec.",
)


def _form(**more: Schema) -> Body:
    """Return the description of a form with files, and with the fields `more`."""
    properties: dict[str, Reference | Schema] = {
        "files[]": Schema(type=OpenAPIType.ARRAY, items=BINARY, min_items=1),
        **more,
    }
    schema = Schema(type=OpenAPIType.OBJECT, properties=properties, required=["files[]"])
    return Body("multipart/form-data", schema, _FILES)


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
_ORDERS = ["asc", "desc"]
_BY_CREATION = (in_query("order", "Skills by creation. Without it, they are sorted by name.", enum=_ORDERS),)
_FILTERS = tuple(
    in_query(field.name, schema["description"], OpenAPIType(schema["type"]), enum=schema.get("enum"))
    for field, annotation in annotated_params(SkillFilters)
    for schema in [field_schema(annotation)]
    if field.name in FLAGS or field.name in CHOICES
)
_SOURCE = (in_query("source", "Every skill of this server has the source 'custom'."),)
_LIST = (*_PAGE, *_BY_CREATION, *_SOURCE, *_FILTERS)
_NAMESPACE = (in_query("namespace", "Namespace of the new skill."),)
_ORDER = (in_query("order", "Versions by creation, newest first by default.", enum=_ORDERS),)
_DEFAULT = Schema(
    type=OpenAPIType.STRING,
    enum=["true", "false"],
    description="Whether the new version becomes the default version, if it needs no review.",
)
_UPLOAD = (400, 404, 408, 409, 413, 415, 422)


class V1Endpoint(NamedTuple):
    """One endpoint of `/v1/skills`, for all its HTTP methods."""

    paths: tuple[str, ...]
    """Paths in the notation of Litestar."""
    methods: tuple[str, ...]
    endpoint: Callable[[SkillParts, Any, Any, Any, Headers], Awaitable[None]]
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
    """Return the description of an endpoint for OpenAPI. `answer` is a Response, or the struct of the result."""
    shown = answer if isinstance(answer, Response) else Response(summary, answer)
    answers = {200: shown}
    if shown in (_ZIP, _INLINE):
        answers |= {304: _SAME}
    if shown is _ZIP:
        answers |= {307: ELSEWHERE}
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
            _operation("GET", _ALL, "Skills, by name", Skills, "read", parameters=_LIST),
            _operation("POST", _ALL, "A new skill", Skill, "publish", *_UPLOAD, parameters=_NAMESPACE, body=_form()),
        ),
    ),
    V1Endpoint(
        ("/v1/skills/{skill_id:str}",),
        ("GET", "HEAD", "POST", "DELETE"),
        skill_endpoint,
        (
            _operation("GET", _ONE, "A skill", Skill, "read", 404),
            _operation(
                "POST",
                _ONE,
                "Set the default version of a skill",
                Skill,
                "publish",
                *(404, 408, 409, 413, 415),
                body=_NEW_DEFAULT,
            ),
            _operation("DELETE", _ONE, "Yank every version of a skill", Deleted, "publish", 404, 409),
        ),
    ),
    V1Endpoint(
        ("/v1/skills/{skill_id:str}/versions",),
        ("GET", "HEAD", "POST"),
        versions_endpoint,
        (
            _operation(
                "GET", _VERSIONS, "Versions by creation", SkillVersions, "read", 404, parameters=(*_PAGE, *_ORDER)
            ),
            _operation(
                "POST",
                _VERSIONS,
                "A new version of a skill",
                SkillVersion,
                "publish",
                *_UPLOAD,
                body=_form(default=_DEFAULT),
            ),
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
            _operation("GET", f"{_ONE}/content", "The files of the default version", _ZIP, "read", 404),
            _operation("GET", f"{_VERSION}/content", "The files of a version", _ZIP, "read", 404),
        ),
    ),
    V1Endpoint(
        ("/v1/skills/{skill_id:str}/inline", "/v1/skills/{skill_id:str}/versions/{version:str}/inline"),
        ("GET", "HEAD"),
        inline_endpoint,
        (
            _operation("GET", f"{_ONE}/inline", "The default version in a JSON object", _INLINE, "read", 404),
            _operation("GET", f"{_VERSION}/inline", "A version in a JSON object", _INLINE, "read", 404),
        ),
    ),
)
