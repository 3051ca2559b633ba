"""Methods for the status of a version, the visibility of a skill, and waivers of findings."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial

import msgspec

from skillery import registry
from skillery.backends import Identity
from skillery.formats.names import parse_namespace, parse_skill_name
from skillery.formats.paths import parse_path
from skillery.formats.semver import Version
from skillery.formats.texts import parse_id, parse_sentence
from skillery.formats.timestamps import parse_until
from skillery.maintenance.purges import PurgedVersion
from skillery.methods import params
from skillery.methods.core import Core
from skillery.publishing import RecheckedVersion
from skillery.registry import (
    NewVersion,
    VersionPage,
    Waiver,
    WaiverPage,
)


async def submit_version(core: Core, identity: Identity, asked: params.SubmitVersion) -> NewVersion:
    name, version = parse_skill_name(asked.name), Version.parse(asked.version)
    return await core.registry.write(partial(registry.submit, identity=identity, name=name, version=version))


async def approve_version(core: Core, identity: Identity, asked: params.ApproveVersion) -> NewVersion:
    name, version = parse_skill_name(asked.name), Version.parse(asked.version)
    note = parse_sentence(asked.note, "note") if asked.note else ""
    return await core.publisher.approve_version(identity, name, version, asked.digest or None, note)


async def reject_version(core: Core, identity: Identity, asked: params.RejectVersion) -> NewVersion:
    name, version, reason = (
        parse_skill_name(asked.name),
        Version.parse(asked.version),
        parse_sentence(asked.reason, "reason"),
    )
    work = partial(registry.reject, identity=identity, name=name, version=version, reason=reason)
    return await core.registry.write(work)


async def yank_version(core: Core, identity: Identity, asked: params.YankVersion) -> NewVersion:
    name, version, reason = (
        parse_skill_name(asked.name),
        Version.parse(asked.version),
        parse_sentence(asked.reason, "reason"),
    )
    work = partial(registry.yank, identity=identity, name=name, version=version, reason=reason)
    return await core.registry.write(work)


async def purge_version(core: Core, identity: Identity, asked: params.PurgeVersion) -> PurgedVersion:
    name, version, reason = (
        parse_skill_name(asked.name),
        Version.parse(asked.version),
        parse_sentence(asked.reason, "reason"),
    )
    return await asyncio.to_thread(core.purger.purge_version, identity, name, version, reason)


async def unyank_version(core: Core, identity: Identity, asked: params.UnyankVersion) -> NewVersion:
    name, version = parse_skill_name(asked.name), Version.parse(asked.version)
    return await core.registry.write(partial(registry.unyank, identity=identity, name=name, version=version))


async def deprecate_skill(core: Core, identity: Identity, asked: params.DeprecateSkill) -> NewVersion:
    name, message = parse_skill_name(asked.name), parse_sentence(asked.message, "message")
    successor = parse_skill_name(asked.successor) if asked.successor else None
    work = partial(registry.deprecate, identity=identity, name=name, message=message, successor=successor)
    return await core.registry.write(work)


async def undeprecate_skill(core: Core, identity: Identity, asked: params.UndeprecateSkill) -> NewVersion:
    name = parse_skill_name(asked.name)
    return await core.registry.write(partial(registry.undeprecate, identity=identity, name=name))


async def set_visibility(core: Core, identity: Identity, asked: params.SetVisibility) -> NewVersion:
    name = parse_skill_name(asked.name)
    work = partial(registry.change_visibility, identity=identity, name=name, visibility=asked.visibility)
    return await core.registry.write(work)


async def list_versions(core: Core, identity: Identity, asked: params.ListVersions) -> VersionPage:
    work = partial(
        registry.read_versions,
        identity=identity,
        key=core.registry.cursor_key,
        name=parse_skill_name(asked.name) if asked.name else "",
        status="" if asked.status is msgspec.UNSET else asked.status,
        namespace=parse_namespace(asked.namespace) if asked.namespace else "",
        limit=asked.limit,
        cursor=asked.cursor,
    )
    # Slow: with a filter, one page may read many rows.
    return await core.registry.read_page(work)


async def recheck_version(core: Core, identity: Identity, asked: params.RecheckVersion) -> RecheckedVersion:
    name, version = parse_skill_name(asked.name), Version.parse(asked.version)
    return await core.rechecks.recheck_version(identity, name, version)


async def waive_finding(core: Core, identity: Identity, asked: params.WaiveFinding) -> Waiver:
    work = partial(
        registry.insert_waiver,
        identity=identity,
        name=parse_skill_name(asked.name),
        rule=parse_sentence(asked.rule, "rule"),
        reason=parse_sentence(asked.reason, "reason"),
        until=parse_until(asked.until, datetime.now(UTC)),
        file=parse_path(asked.file) if asked.file else None,
        version=Version.parse(asked.version) if asked.version else None,
    )
    return await core.registry.write(work)


async def list_waivers(core: Core, identity: Identity, asked: params.ListWaivers) -> WaiverPage:
    name = parse_skill_name(asked.name) if asked.name else ""
    key, limit, cursor = core.registry.cursor_key, asked.limit, asked.cursor
    work = partial(registry.read_waivers, identity=identity, key=key, name=name, limit=limit, cursor=cursor)
    return await core.registry.read(work)


async def revoke_waiver(core: Core, identity: Identity, asked: params.RevokeWaiver) -> Waiver:
    return await core.registry.write(partial(registry.end_waiver, identity=identity, waiver_id=parse_id(asked.id)))
