"""What OpenAPI tells of a door: each declares its operations beside itself, and hands them to its route."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, Parameter, Reference, RequestBody, Schema
from litestar.openapi.spec import Operation as OpenApiOperation
from litestar.openapi.spec.enums import OpenAPIFormat, OpenAPIType

from skillery.backends import Scope

JSON = "application/json"
TEMPLATE = "#/components/schemas/{name}"
SCHEME = "bearer"
_NAMES = re.compile(r"\{(\w+)\}")
_ERRORS = {
    400: "A parameter, a name or the body is wrong.",
    401: "No token, or one that is not good.",
    403: "The token's scopes or grants do not cover it; or a Host or an Origin that is none of this server's.",
    404: "There is no such thing, or none that the caller may see.",
    405: "Another method than those that this address takes.",
    408: "Nothing of the body came for a while.",
    409: "The state of things does not allow it.",
    413: "It is too large, or a quota is used up.",
    415: "Another Content-Type than this door takes.",
    416: "No byte of it lies in the Range.",
    422: "A policy said no; data.findings says why.",
    429: "Too many logins from this address failed.",
    503: "Busy, or a database or storage is away; Retry-After says when to try again.",
}


class Fault(msgspec.Struct):
    """What went wrong."""

    code: int
    """As in JSON-RPC, where the same goes wrong there."""
    message: str
    data: dict[str, Any]
    """`type`, a stable word; mostly `hint`, what to do next."""


class ErrorAnswer(msgspec.Struct):
    """What a door answers where it does not do what it was asked."""

    error: Fault


class Answer(NamedTuple):
    """What an operation answers where all goes well."""

    description: str
    type: Any = None
    """Of the JSON; None where it is no JSON, or has no body."""
    kinds: tuple[str, ...] = (JSON,)
    """The media types; none where there is no body."""


class Body(NamedTuple):
    """What an operation is sent."""

    kind: str
    schema: Schema
    description: str


class Operation(NamedTuple):
    """One method of one address. `path` is as OpenAPI writes it: `/blobs/{blob_id}`."""

    method: str
    path: str
    summary: str
    answers: dict[int, Answer]
    errors: tuple[int, ...] = ()
    """Beside those of every door, and of every door that asks who is calling."""
    needs: Scope | None = None
    """The scope that it takes; None: any token, or none where it is `open`."""
    is_open: bool = False
    """It asks nobody who they are."""
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    tag: str = "doors"


def in_query(name: str, description: str, kind: OpenAPIType = OpenAPIType.STRING, **schema: Any) -> Parameter:
    return Parameter(name, "query", schema=Schema(type=kind, **schema), description=description)


BINARY = Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY)


def types_of(operations: list[Operation]) -> list[Any]:
    """What their answers are made of, for the components of the document."""
    answers = [answer.type for one in operations for answer in one.answers.values() if answer.type is not None]
    return [ErrorAnswer, *answers]


def described(one: Operation, schema_of: Mapping[int, Schema | Reference]) -> OpenApiOperation:
    """As Litestar writes it; `schema_of` finds a type's schema by the type's id."""
    responses: dict[str, OpenAPIResponse | Reference] = {}
    for status, answer in one.answers.items():
        schema = BINARY if answer.type is None else schema_of[id(answer.type)]
        content = {kind: OpenAPIMediaType(schema=schema) for kind in answer.kinds} or None
        responses[str(status)] = OpenAPIResponse(answer.description, content=content)
    always = (503,) if one.is_open else (401, 403, 429, 503)
    for status in sorted({*one.errors, *always} - one.answers.keys()):
        error = {JSON: OpenAPIMediaType(schema=schema_of[id(ErrorAnswer)])}
        responses[str(status)] = OpenAPIResponse(_ERRORS[status], content=error)
    in_path = [
        Parameter(name, "path", schema=Schema(type=OpenAPIType.STRING, min_length=1), required=True)
        for name in _NAMES.findall(one.path)
    ]
    body = one.body
    return OpenApiOperation(
        tags=[one.tag],
        summary=one.summary,
        description=" ".join(part for part in (one.description, _who(one)) if part),
        operation_id=f"{one.method.lower()}{re.sub(r'[^0-9A-Za-z]+', '_', one.path).rstrip('_')}",
        parameters=[*in_path, *one.parameters] or None,
        request_body=RequestBody({body.kind: OpenAPIMediaType(schema=body.schema)}, body.description, required=True)
        if body
        else None,
        responses=responses,
        security=[] if one.is_open else [{SCHEME: []}],
    )


def _who(one: Operation) -> str:
    if one.is_open:
        return ""
    return f"Takes the scope `{one.needs}`." if one.needs else "Any token will do."
