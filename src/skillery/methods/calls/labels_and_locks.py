"""Methods for labels and for locks of skills."""

from __future__ import annotations

from functools import partial

from skillery import registry
from skillery.backends import Identity
from skillery.formats.labels import parse_label
from skillery.formats.names import parse_skill_name
from skillery.formats.version_spec import parse_version_spec
from skillery.methods import params
from skillery.methods.core import Core
from skillery.registry import (
    Labels,
    Lock,
    MovedLabel,
    Pin,
    Verified,
)


async def set_label(core: Core, identity: Identity, asked: params.SetLabel) -> MovedLabel:
    name, label, spec = parse_skill_name(asked.name), parse_label(asked.label), parse_version_spec(asked.version)
    work = partial(registry.point_label, identity=identity, name=name, label=label, spec=spec)
    return await core.registry.write(work)


async def rollback_label(core: Core, identity: Identity, asked: params.RollbackLabel) -> MovedLabel:
    name, label = parse_skill_name(asked.name), parse_label(asked.label)
    return await core.registry.write(partial(registry.restore_label, identity=identity, name=name, label=label))


async def remove_label(core: Core, identity: Identity, asked: params.RemoveLabel) -> MovedLabel:
    name, label = parse_skill_name(asked.name), parse_label(asked.label)
    return await core.registry.write(partial(registry.drop_label, identity=identity, name=name, label=label))


async def list_labels(core: Core, identity: Identity, asked: params.ListLabels) -> Labels:
    work = partial(
        registry.read_labels,
        identity=identity,
        key=core.registry.cursor_key,
        name=parse_skill_name(asked.name),
        label=parse_label(asked.label) if asked.label else "",
        limit=asked.limit,
        cursor=asked.cursor,
    )
    return await core.registry.read(work)


async def resolve_skills(core: Core, identity: Identity, asked: params.ResolveSkills) -> Lock:
    work = partial(registry.lock_skills, identity=identity, texts=asked.skills)
    # Slow: a request may ask for a thousand look-ups.
    return await core.registry.read_page(work)


async def verify_lock(core: Core, identity: Identity, asked: params.VerifyLock) -> Verified:
    pins = [Pin(entry.name, entry.version, entry.digest) for entry in asked.lock]
    work = partial(registry.check_lock, identity=identity, pins=pins)
    return await core.registry.read_page(work)
