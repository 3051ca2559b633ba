"""Methods that list, search, read and publish skills."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from skillery import registry
from skillery.backends import Identity
from skillery.formats.bundle import BundleFile
from skillery.formats.names import parse_namespace
from skillery.formats.paths import parse_path, plain_path
from skillery.formats.texts import decode_content
from skillery.formats.version_diffs import VersionsDiff
from skillery.formats.version_spec import parse_version_spec
from skillery.method import Json
from skillery.methods import development_params, params
from skillery.methods.calls.values import which
from skillery.methods.core import Core
from skillery.publishing import CheckedSkill, CreatedSkill, DevelopedSkill, KeptSkills
from skillery.registry import (
    DescribedSkill,
    FoundSkillPage,
    SkillFileContent,
    SkillPage,
    SkillUsagePage,
)

SMALL_FILES = 64 * 1024
"""Characters of files that are decoded on the event loop: a switch to a thread takes longer."""


class Guide(msgspec.Struct, frozen=True):
    """The Skills Protocol Guide, in Markdown."""

    content: str


async def list_skills(core: Core, identity: Identity, asked: params.ListSkills) -> Json[SkillPage]:
    namespace = parse_namespace(asked.namespace) if asked.namespace else ""
    wanted = registry.filter_of(namespace, _text(asked.kind), asked.tags, _facts(asked))
    if asked.counts or asked.catalogue or asked.sort != "name" or wanted != registry.CatalogueFilter(namespace):
        return await _list_catalogue(core, identity, asked, wanted)
    work = partial(
        registry.read_skills,
        identity=identity,
        key=core.registry.cursor_key,
        namespace=namespace,
        detail=asked.detail,
        limit=asked.limit,
        cursor=asked.cursor,
    )
    return Json(await core.registry.read(work))


async def _list_catalogue(
    core: Core, identity: Identity, asked: params.ListSkills, wanted: registry.CatalogueFilter
) -> Json[SkillPage]:
    work = partial(
        registry.list_catalogue,
        identity=identity,
        key=core.registry.cursor_key,
        asked=wanted,
        sort=asked.sort,
        detail=asked.detail,
        limit=asked.limit,
        cursor=asked.cursor,
        entries=asked.catalogue,
        counts=core.counts if asked.counts else None,
    )
    # Slow: a filter that few skills pass reads an index of all skills.
    return Json(await core.registry.read_page(work))


def _facts(asked: params.ListSkills | params.SearchSkills) -> registry.Facts:
    return registry.Facts(
        language="" if asked.language is msgspec.UNSET else asked.language,
        status="" if asked.status is msgspec.UNSET else asked.status,
        verified=_flag(asked.verified),
        network=_flag(asked.network),
        secrets=_flag(asked.secrets),
    )


def _flag(value: bool | msgspec.UnsetType) -> bool | None:
    return None if value is msgspec.UNSET else value


def _text(value: str | msgspec.UnsetType) -> str:
    return "" if value is msgspec.UNSET else value


async def describe_skill(core: Core, identity: Identity, asked: params.DescribeSkill) -> Json[DescribedSkill]:
    name, spec = which(asked.name, asked.version)
    storage = core.registry.storage
    if asked.detail == "full":
        # A large SKILL.md is in the storage, and not in the database.
        in_full = partial(registry.describe_in_full, identity=identity, storage=storage, name=name, spec=spec)
        found = await core.registry.read_page(in_full)
        core.reads.note(name, "loads")
        return Json(found)
    work = partial(
        registry.read_description, identity=identity, storage=storage, name=name, spec=spec, detail=asked.detail
    )
    return Json(await core.registry.read(work))


async def read_skill_file(
    core: Core, identity: Identity, asked: params.ReadSkillFile
) -> SkillFileContent | Json[SkillFileContent]:
    name, spec = which(asked.name, asked.version)
    path = parse_path(asked.path)
    small = partial(registry.read_inline_file, identity=identity, name=name, spec=spec, path=path)
    answer = await core.registry.read(small)
    if answer is not None:
        core.reads.note_file(name, path)
        return answer
    storage = core.registry.storage
    work = partial(
        registry.read_stored_file,
        identity=identity,
        storage=storage,
        name=name,
        spec=spec,
        path=path,
    )
    found = await core.registry.read_page(work)
    core.reads.note_file(name, path)
    return Json(found)


async def list_skill_usage(core: Core, identity: Identity, asked: params.ListSkillUsage) -> SkillUsagePage:
    work = partial(
        registry.read_skill_usage,
        identity=identity,
        key=core.registry.cursor_key,
        namespace=parse_namespace(asked.namespace) if asked.namespace else "",
        never_run=asked.never_run,
        limit=asked.limit,
        cursor=asked.cursor,
    )
    return await core.registry.read_page(work)


async def diff_versions(core: Core, identity: Identity, asked: params.DiffVersions) -> VersionsDiff:
    name, old = which(asked.name, asked.from_version)
    new = parse_version_spec(asked.to_version)
    work = partial(registry.read_diff, identity=identity, storage=core.registry.storage, name=name, old=old, new=new)
    return await core.registry.read_and_compare(work)


async def search_skills(core: Core, identity: Identity, asked: params.SearchSkills) -> FoundSkillPage:
    work = partial(
        registry.find_skills,
        identity=identity,
        key=core.registry.cursor_key,
        query=asked.query,
        kind="" if asked.kind is msgspec.UNSET else asked.kind,
        tags=asked.tags,
        namespace=parse_namespace(asked.namespace) if asked.namespace else "",
        limit=asked.limit,
        cursor=asked.cursor,
        facts=_facts(asked),
        sort=asked.sort,
        entries=asked.catalogue,
        counts=asked.counts,
        detail=asked.detail,
    )
    # Slow: a search for a word that every skill has reads all skills.
    return await core.registry.read_page(work)


async def load_skills_protocol_guide(core: Core, identity: Identity, _: params.LoadSkillsProtocolGuide) -> Guide:
    return Guide(core.guide)


async def create_skill(core: Core, identity: Identity, asked: params.CreateSkill) -> CreatedSkill:
    files = await _files(asked.files)
    submit = None if asked.submit is msgspec.UNSET else asked.submit
    return await core.publisher.create_skill(identity, asked.manifest, asked.skill_md, files, submit=submit)


async def check_skill(core: Core, identity: Identity, asked: params.CheckSkill) -> CheckedSkill:
    files = await _files(asked.files)
    submit = None if asked.submit is msgspec.UNSET else asked.submit
    return await core.publisher.check_skill(identity, asked.manifest, asked.skill_md, files, submit=submit)


async def develop_skill(core: Core, identity: Identity, asked: development_params.DevelopSkill) -> DevelopedSkill:
    files = await _files(asked.files)
    return await core.developer.develop_skill(identity, asked.manifest, asked.skill_md, files)


async def keep_development(core: Core, identity: Identity, asked: development_params.KeepDevelopment) -> KeptSkills:
    return core.developer.keep(identity, asked.names)


async def end_development(core: Core, identity: Identity, asked: development_params.EndDevelopment) -> KeptSkills:
    return core.developer.end(identity, asked.names)


async def _files(files: list[params.SkillFile]) -> list[BundleFile]:
    if sum(len(file.content) for file in files) <= SMALL_FILES:
        return _decoded(files)
    return await asyncio.to_thread(_decoded, files)


def _decoded(files: list[params.SkillFile]) -> list[BundleFile]:
    return [
        BundleFile(plain_path(file.path), decode_content(file.content, file.encoding, file.path), file.executable)
        for file in files
    ]
