"""Users and groups of SCIM 2.0 as JSON objects: their attributes, PATCH operations and filters (RFC 7643, RFC 7644)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

CORE = "urn:ietf:params:scim:schemas:core:2.0:"
MESSAGES = "urn:ietf:params:scim:api:messages:2.0:"
MOST_TEXT = 1000
MOST_OPERATIONS = 1000
MOST_ELEMENTS = 100
"""The maximum number of e-mail addresses of a user. The members of a group are limited by the size of the request."""
Resource = dict[str, Any]


class ScimError(Exception):
    """An answer with an error (RFC 7644 §3.12). `kind` is its `scimType`."""

    def __init__(self, status: int, detail: str, kind: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.kind = kind


class Attribute(NamedTuple):
    """An attribute of a resource."""

    name: str
    description: str
    type: str = "string"
    parts: tuple[Attribute, ...] = ()
    """The sub-attributes of a complex attribute."""
    is_multiple: bool = False
    is_required: bool = False
    is_unique: bool = False
    mutability: str = "readWrite"
    references: tuple[str, ...] = ()

    def schema(self) -> Resource:
        """Return the definition as RFC 7643 §7 has it."""
        definition: Resource = {
            "name": self.name,
            "type": self.type,
            "multiValued": self.is_multiple,
            "description": self.description,
            "required": self.is_required,
            "mutability": self.mutability,
            "returned": "default",
        }
        if self.type in ("string", "reference"):
            definition |= {"caseExact": self.type == "reference", "uniqueness": "server" if self.is_unique else "none"}
        if self.references:
            definition["referenceTypes"] = list(self.references)
        if self.parts:
            definition["subAttributes"] = [part.schema() for part in self.parts]
        return definition


EXTERNAL_ID = Attribute("externalId", "Id at the identity provider")
"""Every resource has this attribute, and no schema lists it (RFC 7643 §3.1)."""
_VALUE = Attribute("value", "Id of the resource", mutability="immutable")
_REF = Attribute("$ref", "Address of the resource", "reference", mutability="immutable", references=("User",))
_EMAIL = (
    Attribute("value", "Address"),
    Attribute("type", "Kind of address, such as work"),
    Attribute("primary", "Whether this is the main address", "boolean"),
)
_NAME = tuple(Attribute(name, name) for name in ("formatted", "familyName", "givenName"))
ATTRIBUTES = {
    "User": (
        Attribute("userName", "Name for the login", is_required=True, is_unique=True),
        Attribute("active", "Whether the user may use this server", "boolean", is_required=True),
        Attribute("displayName", "Name for people"),
        Attribute("name", "Parts of the name", "complex", _NAME),
        Attribute("emails", "E-mail addresses", "complex", _EMAIL, is_multiple=True),
        Attribute(
            "groups",
            "Groups of the user",
            "complex",
            (
                _VALUE._replace(mutability="readOnly"),
                _REF._replace(mutability="readOnly", references=("Group",)),
                Attribute("display", "Name of the group", mutability="readOnly"),
            ),
            is_multiple=True,
            mutability="readOnly",
        ),
    ),
    "Group": (
        Attribute("displayName", "Name of the group", is_required=True, is_unique=True),
        Attribute("members", "Users in the group", "complex", (_VALUE, _REF), is_multiple=True),
    ),
}
FILTERS = {"User": ("id", "userName", "externalId"), "Group": ("id", "displayName", "externalId")}
_FIXED = frozenset({"id", "meta", "schemas"})
_NOT_STORED = {"password", "title", "locale", "timezone", "ims", "photos", "addresses", "entitlements", "roles"}
_NOT_STORED |= {"nickname", "profileurl", "usertype", "preferredlanguage", "phonenumbers", "x509certificates"}
"""Further attributes of users in RFC 7643 §4.1. Providers send them without a question, so they are ignored."""
_NAME_OF = r"[A-Za-z$][A-Za-z0-9_$-]*"
_PATH = re.compile(rf"(?P<name>{_NAME_OF})(?:\[(?P<filter>[^\]]*)\])?(?:\.(?P<part>{_NAME_OF}))?")
_FILTER = re.compile(rf'\s*(?P<name>{_NAME_OF})\s+eq\s+(?P<value>"(?:[^"\\]|\\.)*"|true|false)\s*', re.IGNORECASE)


def parse_filter(text: str) -> tuple[str, Any]:
    """Return the attribute in lower case, and the value. Raise ScimError if the filter is not `attribute eq value`."""
    match = _FILTER.fullmatch(_without_schema(text.strip()))
    try:
        if match:
            value = match["value"]
            return match["name"].lower(), msgspec.json.decode(value if value[0] == '"' else value.lower())
    except msgspec.DecodeError:
        pass
    raise ScimError(400, 'only filters of the form `attribute eq "value"` are supported', "invalidFilter")


def cleaned(kind: str, body: Mapping[str, Any], *, active: bool = True) -> Resource:
    """Return the attributes of a resource that the server stores. `active` is the default of users. Raise ScimError for
    a value of a wrong type.
    """
    resource: Resource = {"active": active} if kind == "User" else {}
    for name, value in body.items():
        attribute = _find(kind, _without_schema(name))
        if attribute is not None and value is not None and attribute.mutability != "readOnly":
            resource[attribute.name] = _value(attribute, value)
    return _complete(kind, resource)


def patched(kind: str, resource: Resource, message: Mapping[str, Any]) -> Resource:
    """Return a resource after the operations of a PATCH (RFC 7644 §3.5.2). Raise ScimError if one is not valid."""
    operations = _lower(message).get("operations")
    if not isinstance(operations, list) or not 1 <= len(operations) <= MOST_OPERATIONS:
        raise ScimError(400, "a PATCH needs a list of Operations", "invalidSyntax")
    result: Resource = msgspec.json.decode(msgspec.json.encode(resource))
    for operation in operations:
        fields = _lower(operation) if isinstance(operation, dict) else {}
        verb, path, value = str(fields.get("op", "")).lower(), fields.get("path"), fields.get("value")
        if verb not in ("add", "replace", "remove"):
            raise ScimError(400, "the op of an operation is add, replace or remove", "invalidSyntax")
        if path:
            _change(kind, result, verb, str(path), value)
        elif verb == "remove":
            raise ScimError(400, "remove needs a path", "noTarget")
        elif not isinstance(value, dict):
            raise ScimError(400, "without a path, the value is an object", "invalidValue")
        else:
            for name, member in value.items():
                if name.lower() not in _FIXED:
                    _change(kind, result, verb, name, member)
    return _complete(kind, result)


def _change(kind: str, resource: Resource, verb: str, path: str, value: Any) -> None:
    """Apply an operation with a path."""
    match = _PATH.fullmatch(_without_schema(path))
    attribute = _find(kind, match["name"]) if match else None
    if attribute is None and _is_ignored(path, match):
        return
    if match is None or attribute is None:
        raise ScimError(400, f"there is no attribute {path[:80]!r}", "invalidPath")
    if attribute.mutability == "readOnly":
        raise ScimError(400, f"'{attribute.name}' cannot be changed", "mutability")
    part = _part(attribute, match["part"]) if match["part"] else None
    if match["filter"] is not None or (attribute.is_multiple and part):
        _change_elements(resource, attribute, part, verb, match["filter"], value)
    elif part:
        _set(resource.setdefault(attribute.name, {}), part, verb, value)
    elif verb == "remove" and attribute.is_multiple and value:
        # Entra ID names the members that a group loses in the value.
        gone = {element.get("value") for element in _value(attribute, value)}
        resource[attribute.name] = [
            element for element in resource.get(attribute.name, []) if element.get("value") not in gone
        ]
    else:
        _set(resource, attribute, verb, value)


def _change_elements(
    resource: Resource, attribute: Attribute, part: Attribute | None, verb: str, condition: str | None, value: Any
) -> None:
    """Apply an operation to the elements of a list that a condition selects, or to all of them."""
    elements = resource.setdefault(attribute.name, [])
    name, expected = parse_filter(condition) if condition is not None else ("", None)
    selector = _part(attribute, name) if name else None
    chosen = [element for element in elements if selector is None or _same(element.get(selector.name), expected)]
    if not chosen and verb == "replace":
        raise ScimError(400, f"no element of '{attribute.name}' matches", "noTarget")
    if not chosen and verb == "add":
        chosen = [{selector.name: expected} if selector else {}]
        elements += chosen
    for element in chosen:
        if part:
            _set(element, part, verb, value)
        elif verb == "remove":
            elements.remove(element)
        else:
            element.update(_value(attribute, [value])[0])


def _set(target: Resource, attribute: Attribute, verb: str, value: Any) -> None:
    """Add, replace or remove an attribute."""
    if verb == "remove" or value is None:
        target.pop(attribute.name, None)
        return
    valid = _value(attribute, value)
    if attribute.is_multiple and verb == "add":
        present = target.get(attribute.name, [])
        values = {element.get("value") for element in present}
        valid = [*present, *(element for element in valid if element.get("value") not in values)]
    elif attribute.parts and not attribute.is_multiple:
        valid = target.get(attribute.name, {}) | valid
    target[attribute.name] = valid


def _complete(kind: str, resource: Resource) -> Resource:
    """Return the resource without empty attributes. Raise ScimError if a required attribute has no value."""
    for attribute in ATTRIBUTES[kind]:
        if attribute.is_required and resource.get(attribute.name) in (None, ""):
            raise ScimError(400, f"'{attribute.name}' needs a value", "invalidValue")
    if len(resource.get("emails", ())) > MOST_ELEMENTS:
        raise ScimError(400, f"a user has at most {MOST_ELEMENTS} e-mail addresses", "tooMany")
    return {name: value for name, value in resource.items() if value not in ({}, [])}


def _value(attribute: Attribute, value: Any) -> Any:
    """Return a value with the type of its attribute. Raise ScimError if that is not possible."""
    if attribute.is_multiple:
        elements = value if isinstance(value, list) else [value]
        return [_single(attribute, element) for element in elements]
    return _single(attribute, value)


def _single(attribute: Attribute, value: Any) -> Any:
    if attribute.parts:
        if isinstance(value, str) and attribute.is_multiple:
            return {"value": value}
        if isinstance(value, dict):
            known = ((part, value[name]) for name in value for part in _parts(attribute, name))
            return {part.name: _single(part, member) for part, member in known if member is not None}
    elif attribute.type == "boolean":
        # Entra ID sends the texts "True" and "False".
        truth = {"true": True, "false": False}.get(str(value).lower())
        if truth is not None:
            return truth
    elif isinstance(value, str) and len(value) <= MOST_TEXT and "\0" not in value:
        return value
    raise ScimError(400, f"the value of '{attribute.name}' is not valid", "invalidValue")


def projected(resource: Resource, wanted: str, unwanted: str) -> Resource:
    """Return the attributes that the parameters `attributes` or `excludedAttributes` name (RFC 7644 §3.9)."""
    keeps, drops = _names(wanted), _names(unwanted)
    return {
        name: value
        for name, value in resource.items()
        if name in ("id", "schemas") or ((not keeps or name.lower() in keeps) and name.lower() not in drops)
    }


def _names(text: str) -> frozenset[str]:
    names = (_without_schema(name.strip()).partition(".")[0].lower() for name in text.split(","))
    return frozenset(name for name in names if name)


def _find(kind: str, name: str) -> Attribute | None:
    attributes = *ATTRIBUTES[kind], EXTERNAL_ID
    return next((attribute for attribute in attributes if attribute.name.lower() == name.lower()), None)


def _part(attribute: Attribute, name: str) -> Attribute:
    for part in _parts(attribute, name):
        return part
    raise ScimError(400, f"'{attribute.name}' has no sub-attribute {name[:80]!r}", "invalidPath")


def _parts(attribute: Attribute, name: str) -> Iterator[Attribute]:
    return (part for part in attribute.parts if part.name.lower() == name.lower())


def _is_ignored(path: str, match: re.Match[str] | None) -> bool:
    """Return whether a path leads to an attribute of a standard schema that the server does not store."""
    is_extension = path.lower().startswith("urn:") and not path.lower().startswith(CORE.lower())
    return is_extension or (match is not None and match["name"].lower() in _NOT_STORED)


def _without_schema(path: str) -> str:
    """Return a path without the schema of users or groups in front."""
    for kind in ATTRIBUTES:
        prefix = f"{CORE}{kind}:"
        if path.lower().startswith(prefix.lower()):
            return path[len(prefix) :]
    return path


def _lower(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name.lower(): value for name, value in body.items()}


def _same(value: Any, expected: Any) -> bool:
    if isinstance(value, str) and isinstance(expected, str):
        return value.casefold() == expected.casefold()
    return type(value) is type(expected) and bool(value == expected)
