"""describe_namespace and set_namespace: what publishers say about a namespace, and how to reach them.

A namespace exists as long as a skill has it in its name. Its row in the table `namespaces` has only the words about it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from sqlalchemy import ColumnElement, Connection, ScalarSelect, and_, func, literal, literal_column, select, update
from sqlalchemy.dialects import postgresql, sqlite

from skillery import audit
from skillery.backends import Identity
from skillery.database import in_utc
from skillery.database.registry import Registry
from skillery.database.tables import catalogue, import_aliases, namespaces, skill_versions
from skillery.errors import InvalidParams, NamespaceNotFound
from skillery.formats.names import is_within, namespace_of, parse_namespace, parse_skill_name
from skillery.formats.wording import quoted
from skillery.identity import access
from skillery.method import Method, Params, about, or_none
from skillery.registry.visibility import parameters, sees_each, view_of
from skillery.skills.catalogue_filters import is_listed

MOST_PINNED = 6
MOST_SOURCES = 10
_LONGEST = {"title": 80, "text": 500, "contact": 200}
_EMPTY = {"title": "", "text": "", "contact": "", "pinned_json": "[]"}
_DIALECTS = {"sqlite": sqlite, "postgresql": postgresql}
_LINES = ("title", "contact")
"""Texts of one line."""


class PinnedSkill(msgspec.Struct, frozen=True):
    """A skill that the page of its namespace shows first."""

    name: str
    description: str


class Namespace(msgspec.Struct, frozen=True):
    """What publishers say about a namespace. Missing texts are empty."""

    namespace: str
    title: str
    text: str
    contact: Annotated[str, Meta(description="How to reach the owners: a web address, an email address, or words")]
    contact_of: Annotated[str | None, Meta(description="The namespace with this contact: it, or the nearest above")]
    sources: Annotated[list[str], Meta(description="Where its imported skills come from")]
    pinned: list[PinnedSkill]
    by: Annotated[str | None, Meta(description="Who set the texts last; null if there are none")]
    at: datetime | None


def contact_for(name: ColumnElement[str]) -> ScalarSelect[str]:
    """Return a subquery for the contact of the nearest namespace above a skill, or for NULL."""
    prefix = namespaces.c.namespace.concat(literal_column("'.'"))
    return (
        select(namespaces.c.contact)
        .where(namespaces.c.contact != literal_column("''"))
        .where(func.substr(name, literal_column("1"), func.length(prefix)) == prefix)
        .order_by(func.length(namespaces.c.namespace).desc())
        .limit(literal_column("1"))
        .correlate_except(namespaces)
        .scalar_subquery()
    )


def find_contact(connection: Connection, name: str) -> str:
    """Return how to reach the owners of a skill, or ""."""
    return connection.scalar(select(contact_for(literal(name)))) or ""


def read_namespace(connection: Connection, identity: Identity, namespace: str) -> Namespace:
    """Return what is said about a namespace. Raise NamespaceNotFound if the identity neither sees a skill in it nor
    publishes there.
    """
    values, parts = parameters(identity), namespace.split(".")
    seen = _seen(identity, namespace)
    is_visible = connection.execute(select(catalogue.c.skill_id).where(*seen).limit(1), values).first() is not None
    if not is_visible and not access.publishes(identity, f"{namespace}.*"):
        raise NamespaceNotFound(
            f"there is no namespace {quoted(namespace)}", hint="list_skills shows all skills.", namespace=namespace
        )
    above = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    rows = {
        row.namespace: row for row in connection.execute(select(namespaces).where(namespaces.c.namespace.in_(above)))
    }
    own = rows.get(namespace)
    contact_of = next((name for name in above if name in rows and rows[name].contact), None)
    names = msgspec.json.decode(own.pinned_json, type=list[str]) if own else []
    described = (
        select(catalogue.c.name, skill_versions.c.manifest_json)
        .join_from(catalogue, skill_versions, skill_versions.c.id == catalogue.c.version_id)
        .where(*seen, catalogue.c.name.in_(names))
    )
    manifests = dict(map(tuple, connection.execute(described, values))) if names else {}
    sources = (
        select(import_aliases.c.source)
        .join_from(import_aliases, catalogue, catalogue.c.name == import_aliases.c.name)
        .where(import_aliases.c.namespace == namespace, import_aliases.c.source != "", *seen)
        .distinct()
        .order_by(import_aliases.c.source)
        .limit(MOST_SOURCES)
    )
    return Namespace(
        namespace,
        title=own.title if own else "",
        text=own.text if own else "",
        contact=rows[contact_of].contact if contact_of else "",
        contact_of=contact_of,
        sources=list(connection.scalars(sources, values)),
        pinned=[PinnedSkill(name, _description(manifests[name])) for name in names if name in manifests],
        by=own.identity if own else None,
        at=in_utc(own.set_at) if own else None,
    )


MOST_USED, MOST_COUNTED = 4, 200
"""The number of namespaces that the catalogue begins with, and of the most used skills that they are counted by."""


def most_used(connection: Connection, identity: Identity) -> list[tuple[str, int]]:
    """Return the top namespaces with the most used skills, and the uses of these skills in the last 30 days."""
    rows = select(catalogue.c.name, catalogue.c.uses_30d).where(is_listed())
    if (view := view_of(identity)) is not None:
        rows = rows.where(sees_each(view, catalogue, catalogue.c.skill_id))
    uses = Counter[str]()
    most_used_first = rows.order_by(catalogue.c.used_rank.desc(), catalogue.c.version_id.desc()).limit(MOST_COUNTED)
    for name, count in connection.execute(most_used_first, parameters(identity)):
        if count and "." in name:
            uses[name.partition(".")[0]] += count
    return uses.most_common(MOST_USED)


def _seen(identity: Identity, namespace: str) -> list[ColumnElement[bool]]:
    """Return the conditions for the listed skills below a namespace that the identity sees."""
    # "/" follows "." in ASCII, so the names below a namespace are those between the two.
    where = [is_listed(), and_(catalogue.c.name >= f"{namespace}.", catalogue.c.name < f"{namespace}/")]
    if (view := view_of(identity)) is not None:
        where.append(sees_each(view, catalogue, catalogue.c.skill_id))
    return where


class _Manifest(msgspec.Struct):
    description: str = ""


def _description(manifest_json: str) -> str:
    return msgspec.json.decode(manifest_json, type=_Manifest).description


# -- describe_namespace ------------------------------------------------------------------------------------------------


NamespaceName = Annotated[str, Meta(min_length=1), about("Namespace (e.g., 'sales')")]


class DescribeNamespace(Params, frozen=True, kw_only=True):
    """Return what is said about a namespace: its title and text, the contact of its owners, and pinned skills."""

    namespace: NamespaceName


async def describe_namespace(registry: Registry, identity: Identity, params: DescribeNamespace) -> Namespace:
    work = partial(read_namespace, identity=identity, namespace=parse_namespace(params.namespace))
    return await registry.read_page(work)


# -- set_namespace -----------------------------------------------------------------------------------------------------


class SetNamespace(Params, frozen=True, kw_only=True):
    """Set what is said about a namespace. Omitted texts stay; an empty one removes the text."""

    namespace: NamespaceName
    title: Annotated[str | UnsetType, about("Name for people, at most 80 characters")] = UNSET
    text: Annotated[str | UnsetType, about("What the skills are for, at most 500 characters")] = UNSET
    contact: Annotated[
        str | UnsetType, about("How to reach the owners: a web address, an email address, or words ('#sales in chat')")
    ] = UNSET
    pinned: Annotated[list[str] | UnsetType, about("At most 6 skills of the namespace that its page shows first")] = (
        UNSET
    )


def write_namespace(connection: Connection, identity: Identity, params: SetNamespace) -> Namespace:
    """Store the texts that `params` has. Raise NotAllowed if the identity may not publish in the whole namespace, and
    InvalidParams if a pinned skill is not one that it sees there.
    """
    namespace = params.namespace
    access.require_namespace(identity, "publish", f"{namespace}.*")
    pinned = or_none(params.pinned)
    names = None if pinned is None else list(dict.fromkeys(pinned))
    if names:
        _check_pinned(connection, identity, namespace, names)
    # Two first calls at once insert one row.
    new = (
        _DIALECTS[connection.dialect.name]
        .insert(namespaces)
        .values({**_EMPTY, "namespace": namespace, "identity": identity.name, "set_at": datetime.now(UTC)})
    )
    connection.execute(new.on_conflict_do_nothing())
    own = namespaces.c.namespace == namespace
    row = connection.execute(select(namespaces).where(own).with_for_update()).mappings().one()
    texts: dict[str, Any] = {name: or_none(getattr(params, name)) for name in _LONGEST}
    texts["pinned_json"] = None if names is None else msgspec.json.encode(names).decode()
    after = {name: value for name, value in texts.items() if value is not None and value != row[name]}
    if after:
        stamp = {"identity": identity.name, "set_at": datetime.now(UTC)}
        connection.execute(update(namespaces).where(own).values(**after, **stamp))
        before = {name: row[name] for name in after}
        audit.record(connection, identity, "set_namespace", namespace, before=before, after=after)
    return read_namespace(connection, identity, namespace)


def _check_pinned(connection: Connection, identity: Identity, namespace: str, names: Sequence[str]) -> None:
    if len(names) > MOST_PINNED:
        raise InvalidParams(f"{len(names)} skills are pinned, at most {MOST_PINNED} are allowed", param="pinned")
    inside = [parse_skill_name(name) for name in names if is_within(namespace_of(name), namespace)]
    listed = select(catalogue.c.name).where(*_seen(identity, namespace), catalogue.c.name.in_(inside))
    missing = sorted(set(names) - set(connection.scalars(listed, parameters(identity))))
    if missing:
        raise InvalidParams(
            f"there is no published skill {quoted(missing[0])} in {namespace}",
            hint="Pin skills of the namespace.",
            param="pinned",
        )


async def set_namespace(registry: Registry, identity: Identity, params: SetNamespace) -> Namespace:
    parse_namespace(params.namespace)
    for name, longest in _LONGEST.items():
        text = or_none(getattr(params, name)) or ""
        if len(text) > longest:
            raise InvalidParams(f"{name} has {len(text)} characters, at most {longest} are allowed", param=name)
        if "\0" in text or (name in _LINES and "\n" in text):
            raise InvalidParams(f"{name} has a line break or a NUL character", param=name)
    return await registry.write(partial(write_namespace, identity=identity, params=params))


METHODS = (Method(describe_namespace, "read", audits=""), Method(set_namespace, "publish", audits="namespace"))
