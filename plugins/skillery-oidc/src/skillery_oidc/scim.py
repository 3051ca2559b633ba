"""Endpoints of SCIM 2.0 (RFC 7644): an identity provider creates, changes, deactivates and deletes users and groups."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from skillery.backends import Identity
from skillery.routes import Request, Response, Route
from skillery_oidc.accounts import Accounts
from skillery_oidc.scim_resources import (
    ATTRIBUTES,
    CORE,
    FILTERS,
    MESSAGES,
    Resource,
    ScimError,
    cleaned,
    parse_filter,
    patched,
    projected,
)

PATH = "scim/v2"
SCIM_JSON = "application/scim+json"
KINDS = (SCIM_JSON, "application/json")
MOST_RESULTS = 200
MOST_MEMBERS = 10_000
"""A page of groups ends after so many members."""
_NUMBER = re.compile(r"-?[0-9]{1,9}")
_NOT_SHOWN = frozenset({"created", "changed", "identities"})


class ScimEndpoints:
    """Answers the requests below `/x/oidc/scim/v2`."""

    def __init__(self, accounts: Accounts, address: str) -> None:
        """`address` is the public address of the server."""
        self._accounts = accounts
        self._base = f"{address}/x/oidc/{PATH}"
        self._described = described(self._base, MOST_RESULTS)

    def routes(self) -> list[Route]:
        """Return the routes. The caller needs a token with the scope accounts."""
        routes = [
            Route(f"{PATH}/{{kind}}", self._answering(self.list_resources), "accounts"),
            Route(f"{PATH}/{{kind}}/{{id}}", self._answering(self.read), "accounts"),
            Route(f"{PATH}/.search", self._answering(self.search_all), "accounts", "POST", KINDS),
        ]
        # Other addresses than those of users and groups answer GET only.
        for kind in ATTRIBUTES:
            single = f"{PATH}/{kind}s/{{id}}"
            routes += [
                Route(f"{PATH}/{kind}s", self._answering(self.create, kind), "accounts", "POST", KINDS),
                Route(f"{PATH}/{kind}s/.search", self._answering(self.search, kind), "accounts", "POST", KINDS),
                Route(single, self._answering(self.replace, kind), "accounts", "PUT", KINDS),
                Route(single, self._answering(self.patch, kind), "accounts", "PATCH", KINDS),
                Route(single, self._answering(self.delete, kind), "accounts", "DELETE", KINDS),
            ]
        return routes

    def _answering(self, work: Callable[..., Response], *kind: str) -> Callable[[Request], Response]:
        def answer(request: Request) -> Response:
            try:
                return work(request, *kind)
            except ScimError as error:
                body = {"schemas": [f"{MESSAGES}Error"], "status": str(error.status), "detail": error.detail}
                return _json(body | ({"scimType": error.kind} if error.kind else {}), error.status)

        answer.__doc__ = work.__doc__
        return answer

    def list_resources(self, request: Request) -> Response:
        """List users or groups, or describe the service."""
        plural = request.parameters["kind"]
        if plural in self._described:
            content = self._described[plural]
            return _json(content if isinstance(content, dict) else _page(list(content), len(content), 1))
        return self._listed(_kind(plural), {name.lower(): value for name, value in request.query.items()})

    def search(self, request: Request, kind: str) -> Response:
        """List users or groups, with the parameters in the content."""
        query = {name.lower(): value for name, value in _body(request).items()}
        return self._listed(
            kind, {name: ",".join(map(str, v)) if isinstance(v, list) else str(v) for name, v in query.items()}
        )

    def search_all(self, _: Request) -> Response:
        """Refuse to list users and groups together."""
        raise ScimError(501, "search users or groups: /Users/.search, /Groups/.search")

    def _listed(self, kind: str, query: Mapping[str, str]) -> Response:
        ids = self._matching(kind, query["filter"]) if "filter" in query else self._accounts.ids(kind)
        start = max(1, _number(query.get("startindex"), 1))
        count = min(MOST_RESULTS, max(0, _number(query.get("count"), MOST_RESULTS)))
        resources, members = list[Resource](), 0
        for resource_id in ids[start - 1 : start - 1 + count]:
            resource = self._accounts.find_resource(kind, resource_id)
            if resource:
                resources.append(self._shown(kind, resource, query))
                members += len(resource.get("members", ()))
            # A page may be shorter than asked for (RFC 7644 §3.4.2.4).
            if members >= MOST_MEMBERS:
                break
        return _json(_page(resources, len(ids), start))

    def _matching(self, kind: str, text: str) -> list[str]:
        name, value = parse_filter(text)
        attribute = next((known for known in FILTERS[kind] if known.lower() == name), None)
        if attribute is None or not isinstance(value, str):
            raise ScimError(400, f"filters of {kind}s are for {', '.join(FILTERS[kind])}", "invalidFilter")
        resource_id = self._accounts.find_by(kind, attribute, value)
        return [resource_id] if resource_id and self._accounts.find_resource(kind, resource_id) else []

    def create(self, request: Request, kind: str) -> Response:
        """Create a user or a group."""
        stored = self._accounts.create(kind, cleaned(kind, _body(request)), _caller(request))
        shown = self._shown(kind, stored, {})
        return _json(shown, 201, location=shown["meta"]["location"])

    def read(self, request: Request) -> Response:
        """Read a user or a group, or one part of the description of the service."""
        plural, resource_id = request.parameters["kind"], request.parameters["id"]
        parts = self._described.get(plural)
        if isinstance(parts, list):
            for part in parts:
                if part["id"] == resource_id:
                    return _json(part)
        kind = _kind(plural)
        query = {name.lower(): value for name, value in request.query.items()}
        return _json(self._shown(kind, self._find(kind, request), query))

    def replace(self, request: Request, kind: str) -> Response:
        """Replace the attributes of a user or a group."""
        old = self._find(kind, request)
        # A client that leaves `active` out does not want to bring a deactivated user back.
        new = cleaned(kind, _body(request), active=old.get("active", True))
        return _json(self._shown(kind, self._accounts.replace(kind, old, new, _caller(request)), {}))

    def patch(self, request: Request, kind: str) -> Response:
        """Change some attributes of a user or a group."""
        old = self._find(kind, request)
        new = patched(kind, old, _body(request))
        return _json(self._shown(kind, self._accounts.replace(kind, old, new, _caller(request)), {}))

    def delete(self, request: Request, kind: str) -> Response:
        """Delete a user or a group."""
        self._accounts.delete(kind, self._find(kind, request), _caller(request))
        return Response(status=204)

    def _find(self, kind: str, request: Request) -> Resource:
        resource = self._accounts.find_resource(kind, request.parameters["id"])
        if resource is None:
            raise ScimError(404, f"there is no {kind} with this id")
        return resource

    def _shown(self, kind: str, resource: Resource, query: Mapping[str, str]) -> Resource:
        """Return a resource as clients see it, with the attributes that the query asks for."""
        shown: Resource = {"schemas": [f"{CORE}{kind}"]}
        shown |= {name: value for name, value in resource.items() if name not in _NOT_SHOWN}
        if kind == "User":
            groups = self._accounts.groups_of(resource["id"])
            shown["groups"] = [
                {"value": group["id"], "$ref": self._address("Group", group["id"]), "display": group["displayName"]}
                for group in groups
            ]
        else:
            members = resource.get("members", ())
            shown["members"] = [
                {"value": member["value"], "$ref": self._address("User", member["value"])} for member in members
            ]
        shown["meta"] = {
            "resourceType": kind,
            "created": resource["created"],
            "lastModified": resource["changed"],
            "location": self._address(kind, resource["id"]),
        }
        return projected(shown, query.get("attributes", ""), query.get("excludedattributes", ""))

    def _address(self, kind: str, resource_id: str) -> str:
        return f"{self._base}/{kind}s/{resource_id}"


def _kind(plural: str) -> str:
    kind = plural.removesuffix("s")
    if plural == kind or kind not in ATTRIBUTES:
        raise ScimError(404, "there is nothing at this address")
    return kind


def _caller(request: Request) -> Identity:
    assert request.identity is not None, "no route is public"
    return request.identity


def _body(request: Request) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(request.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise ScimError(400, "the content is not a JSON object", "invalidSyntax")
    return body


def _number(text: str | None, default: int) -> int:
    return (
        int(text) if text and text.lstrip("-").isascii() and text.lstrip("-").isdigit() and len(text) < 10 else default
    )


def _page(resources: list[Resource], total: int, start: int) -> Resource:
    return {
        "schemas": [f"{MESSAGES}ListResponse"],
        "totalResults": total,
        "startIndex": start,
        "itemsPerPage": len(resources),
        "Resources": resources,
    }


def _json(body: Any, status: int = 200, **headers: str) -> Response:
    return Response(msgspec.json.encode(body), SCIM_JSON, status, headers)


# -- Discovery (RFC 7644 §4) -------------------------------------------------------------------------------------------


def described(base: str, most: int) -> Mapping[str, Resource | Sequence[Resource]]:
    """Return what clients discover, by the last part of its address. `base` is the address of all resources."""
    off = {"supported": False}

    def meta(kind: str, place: str) -> Resource:
        return {"resourceType": kind, "location": f"{base}/{place}"}

    return {
        "ServiceProviderConfig": {
            "schemas": [f"{CORE}ServiceProviderConfig"],
            "patch": {"supported": True},
            "bulk": {**off, "maxOperations": 0, "maxPayloadSize": 0},
            "filter": {"supported": True, "maxResults": most},
            "changePassword": off,
            "sort": off,
            "etag": off,
            "authenticationSchemes": [
                {
                    "type": "oauthbearertoken",
                    "name": "Token of the registry",
                    "description": "A token with the scope accounts",
                }
            ],
            "meta": meta("ServiceProviderConfig", "ServiceProviderConfig"),
        },
        "ResourceTypes": [
            {
                "schemas": [f"{CORE}ResourceType"],
                "id": kind,
                "name": kind,
                "endpoint": f"/{kind}s",
                "schema": f"{CORE}{kind}",
                "meta": meta("ResourceType", f"ResourceTypes/{kind}"),
            }
            for kind in ATTRIBUTES
        ],
        "Schemas": [
            {
                "schemas": [f"{CORE}Schema"],
                "id": f"{CORE}{kind}",
                "name": kind,
                "attributes": [attribute.schema() for attribute in attributes],
                "meta": meta("Schema", f"Schemas/{CORE}{kind}"),
            }
            for kind, attributes in ATTRIBUTES.items()
        ],
    }
