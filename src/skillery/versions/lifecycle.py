"""The status of a version (draft, in_review, published, deprecated, yanked, rejected), and the visibility of a skill.

Each change runs in the transaction of its caller and locks the row of the skill first. If two callers change a skill at
the same time, the second change applies to the result of the first.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from sqlalchemy import Connection, select, update

from skillery import audit
from skillery.backends import Identity
from skillery.database.registry import Registry
from skillery.database.tables import skill_versions, skills
from skillery.errors import InvalidParams, NotPublished
from skillery.formats.names import parse_skill_name
from skillery.formats.semver import Version
from skillery.formats.texts import parse_sentence
from skillery.identity import access
from skillery.method import ExactVersion, Method, Params, Sentence, SkillName, about
from skillery.registry.visibility import Visibility
from skillery.skills.catalogue_order import rank_later
from skillery.skills.catalogue_rows import update_visibility
from skillery.skills.search_index import index_visibility
from skillery.versions.lifecycle_steps import (
    STEPS,
    latest_version,
    lock_skill,
    step_all,
    step_one,
)
from skillery.versions.new_versions import NewVersion

# -- one version ---------------------------------------------------------------------------------------------------


def submit(connection: Connection, identity: Identity, name: str, version: Version) -> NewVersion:
    """Submit a draft for review, and return the version.

    Raise NotAllowed if the identity may not publish the skill, SkillNotFound or VersionNotFound if the identity sees no
    such version, and IllegalStep if the status of the version does not permit the step. All functions of this module
    that change a version raise these errors.
    """
    access.require_namespace(identity, "publish", name)
    return step_one(connection, identity, name, version, "submit")


def yank(connection: Connection, identity: Identity, name: str, version: Version, reason: str) -> NewVersion:
    """Yank a version without an advisory. Only requests for the exact version or its digest still resolve to it. Raise
    the errors of `submit`.
    """
    access.require_namespace(identity, "publish", name)
    return step_one(connection, identity, name, version, "yank", note=reason)


def unyank(connection: Connection, identity: Identity, name: str, version: Version) -> NewVersion:
    """Undo the yank of a version. Raise the errors of `submit`."""
    access.require_namespace(identity, "publish", name)
    return step_one(connection, identity, name, version, "unyank")


# -- a whole skill ---------------------------------------------------------------------------------------------------


def yank_skill(connection: Connection, identity: Identity, name: str, reason: str) -> None:
    """Yank all published and deprecated versions of a skill. Raise NotPublished if there are none, and the errors of
    `yank`.
    """
    access.require_namespace(identity, "publish", name)
    skill_id = lock_skill(connection, identity, name)
    versions = (
        select(skill_versions.c.version)
        .where(skill_versions.c.skill_id == skill_id, skill_versions.c.status.in_(STEPS["yank"].starts))
        .order_by(skill_versions.c.precedence.desc())
    )
    rows = connection.scalars(versions).all()
    if not rows:
        raise NotPublished(
            f"'{name}' has no version that is published",
            hint="The skill is deleted already, or its versions wait for a review: reject them with reject_version.",
            name=name,
        )
    for version in rows:
        step_one(connection, identity, name, Version.parse(version), "yank", note=reason)


def deprecate(connection: Connection, identity: Identity, name: str, message: str, successor: str | None) -> NewVersion:
    """Deprecate all published versions of a skill, and return its latest version.

    Deprecated versions still resolve, and show `message` to users. Versions that are published later are not
    deprecated. Raise InvalidParams if `successor` is the skill itself, and the errors of `submit`.
    """
    if successor == name:
        raise InvalidParams(f"'successor' is '{name}' itself", hint="Name the skill to use instead.", param="successor")
    deprecated = {"message": message, "successor": successor}
    return step_all(connection, identity, name, "deprecate", note=message, deprecated=deprecated)


def undeprecate(connection: Connection, identity: Identity, name: str) -> NewVersion:
    """Undo the deprecation of all versions of a skill, and return its latest version. Raise the errors of `submit`."""
    return step_all(connection, identity, name, "undeprecate")


def change_visibility(connection: Connection, identity: Identity, name: str, visibility: Visibility) -> NewVersion:
    """Set the visibility of a skill, and return its latest version."""
    access.require_namespace(identity, "publish", name)
    skill_id = lock_skill(connection, identity, name)
    value = connection.scalar(select(skills.c.visibility).where(skills.c.id == skill_id))
    if value != visibility:
        connection.execute(update(skills).where(skills.c.id == skill_id).values(visibility=visibility))
        index_visibility(connection, skill_id, visibility)
        update_visibility(connection, skill_id, visibility)
        rank_later(connection, name)
        before, after = {"visibility": value}, {"visibility": visibility}
        audit.record(connection, identity, "set_visibility", name, before=before, after=after)
    return latest_version(connection, identity, name, skill_id)


# -- submit_version ----------------------------------------------------------------------------------------------------


class SubmitVersion(Params, frozen=True, kw_only=True):
    """Ask for a review of a draft."""

    name: SkillName
    version: ExactVersion


async def submit_version(registry: Registry, identity: Identity, params: SubmitVersion) -> NewVersion:
    name, version = parse_skill_name(params.name), Version.parse(params.version)
    return await registry.write(partial(submit, identity=identity, name=name, version=version))


# -- deprecate_skill ---------------------------------------------------------------------------------------------------


class DeprecateSkill(Params, frozen=True, kw_only=True):
    """Mark all published versions of a skill as deprecated."""

    name: SkillName
    message: Annotated[Sentence, about("Message that describe_skill shows")]
    successor: Annotated[str, about("Name of the skill to use instead")] = ""


async def deprecate_skill(registry: Registry, identity: Identity, params: DeprecateSkill) -> NewVersion:
    name, message = parse_skill_name(params.name), parse_sentence(params.message, "message")
    successor = parse_skill_name(params.successor) if params.successor else None
    work = partial(deprecate, identity=identity, name=name, message=message, successor=successor)
    return await registry.write(work)


# -- undeprecate_skill -------------------------------------------------------------------------------------------------


class UndeprecateSkill(Params, frozen=True, kw_only=True):
    """Undo a deprecation."""

    name: SkillName


async def undeprecate_skill(registry: Registry, identity: Identity, params: UndeprecateSkill) -> NewVersion:
    name = parse_skill_name(params.name)
    return await registry.write(partial(undeprecate, identity=identity, name=name))


# -- set_visibility ----------------------------------------------------------------------------------------------------


class SetVisibility(Params, frozen=True, kw_only=True):
    """Set which callers can see a skill."""

    name: SkillName
    visibility: Annotated[
        Visibility,
        about("public: all callers; namespace: callers with a grant that covers the name; private: its publishers"),
    ]


async def set_visibility(registry: Registry, identity: Identity, params: SetVisibility) -> NewVersion:
    name = parse_skill_name(params.name)
    work = partial(change_visibility, identity=identity, name=name, visibility=params.visibility)
    return await registry.write(work)


METHODS = (
    Method(submit_version, "publish", audits="name"),
    Method(deprecate_skill, "publish", audits="name"),
    Method(undeprecate_skill, "publish", audits="name"),
    Method(set_visibility, "publish", audits="name"),
)
