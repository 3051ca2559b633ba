"""Methods that publish bundles, check them, and serve them to their author as development versions."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from skillery.backends import Identity
from skillery.formats.bundle import BundleFile
from skillery.formats.names import parse_skill_name
from skillery.formats.paths import plain_path
from skillery.formats.semver import Version
from skillery.formats.texts import decode_content, parse_sentence
from skillery.method import HIDDEN, ExactVersion, Given, Method, Params, SkillName, about
from skillery.publishing.bundle_checks import DevelopedSkill, Developer, KeptSkills
from skillery.publishing.publisher import CheckedSkill, CreatedSkill, Publisher
from skillery.versions.new_versions import NewVersion

SMALL_FILES = 64 * 1024
"""Characters of files that are decoded on the event loop: a switch to a thread takes longer."""
SkillNames = Annotated[list[Annotated[str, Meta(max_length=128)]], Meta(min_length=1, max_length=50)]


class SkillFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of a new skill."""

    path: Annotated[str, about("Path within the skill directory (e.g., 'code/main.py')")]
    content: Annotated[str, about("Content of the file")]
    encoding: Annotated[Literal["utf-8", "base64"], about("How `content` is written", default="utf-8")] = "utf-8"
    executable: Annotated[bool, about("Whether the file keeps an executable mode", default=False)] = False


class BundleParams(Params, frozen=True, kw_only=True):
    """A bundle."""

    manifest: Annotated[
        dict[str, Any], about("skill.toml as JSON: name, version, description, and further declarations")
    ]
    skill_md: Annotated[str, about("SKILL.md: markdown for the LLM, with YAML frontmatter at the top")]
    files: Annotated[list[SkillFile], about("Code and resources of the skill")] = []


async def decoded_files(files: list[SkillFile]) -> list[BundleFile]:
    """Return the files with their contents. Raise InvalidPath, or InvalidParams for a content that is not base64."""
    if sum(len(file.content) for file in files) <= SMALL_FILES:
        return _decoded(files)
    return await asyncio.to_thread(_decoded, files)


def _decoded(files: list[SkillFile]) -> list[BundleFile]:
    return [
        BundleFile(plain_path(file.path), decode_content(file.content, file.encoding, file.path), file.executable)
        for file in files
    ]


# -- create_skill ------------------------------------------------------------------------------------------------------


class CreateSkill(BundleParams, frozen=True, kw_only=True):
    """Publish a new skill, or a new version of a skill. The whole bundle is checked before anything is stored."""

    submit: Annotated[
        bool | msgspec.UnsetType,
        HIDDEN,
        about("true: submit the version for review if it is not published at once; false: make it a draft"),
    ] = msgspec.UNSET


async def create_skill(publisher: Publisher, identity: Identity, params: CreateSkill) -> CreatedSkill:
    files = await decoded_files(params.files)
    submit = None if params.submit is msgspec.UNSET else params.submit
    return await publisher.create_skill(identity, params.manifest, params.skill_md, files, submit=submit)


# -- check_skill -------------------------------------------------------------------------------------------------------


class CheckSkill(CreateSkill, frozen=True, kw_only=True):
    """Run all checks of create_skill and the examples, without publishing anything."""


async def check_skill(publisher: Publisher, identity: Identity, params: CheckSkill) -> CheckedSkill:
    files = await decoded_files(params.files)
    submit = None if params.submit is msgspec.UNSET else params.submit
    return await publisher.check_skill(identity, params.manifest, params.skill_md, files, submit=submit)


# -- approve_version ---------------------------------------------------------------------------------------------------


class ApproveVersion(Params, frozen=True, kw_only=True):
    """Publish a version that is in review."""

    name: SkillName
    version: ExactVersion
    digest: Annotated[Given, about("Digest of the reviewed bundle: an approval of another digest is refused")] = ""
    note: Annotated[Annotated[str, Meta(max_length=2000)], about("Recorded with the approval")] = ""


async def approve_version(publisher: Publisher, identity: Identity, params: ApproveVersion) -> NewVersion:
    name, version = parse_skill_name(params.name), Version.parse(params.version)
    note = parse_sentence(params.note, "note") if params.note else ""
    return await publisher.approve_version(identity, name, version, params.digest or None, note)


# -- develop_skill -----------------------------------------------------------------------------------------------------


class DevelopSkill(BundleParams, frozen=True, kw_only=True):
    """Serve a bundle to the caller alone as a development version ('1.2.0-dev.3'), without publishing anything."""


async def develop_skill(developer: Developer, identity: Identity, params: DevelopSkill) -> DevelopedSkill:
    files = await decoded_files(params.files)
    return await developer.develop_skill(identity, params.manifest, params.skill_md, files)


# -- keep_development --------------------------------------------------------------------------------------------------


class KeepDevelopment(Params, frozen=True, kw_only=True):
    """Keep serving development versions, which end 30 seconds after the last call."""

    names: Annotated[SkillNames, about("Names of the skills")]


async def keep_development(developer: Developer, identity: Identity, params: KeepDevelopment) -> KeptSkills:
    return developer.keep(identity, params.names)


# -- end_development ---------------------------------------------------------------------------------------------------


class EndDevelopment(Params, frozen=True, kw_only=True):
    """Stop serving development versions."""

    names: Annotated[SkillNames, about("Names of the skills")]


async def end_development(developer: Developer, identity: Identity, params: EndDevelopment) -> KeptSkills:
    return developer.end(identity, params.names)


METHODS = (
    Method(create_skill, "publish", audits="manifest", once=True),
    Method(check_skill, "publish", audits=""),
    Method(approve_version, "review", audits="name"),
    Method(develop_skill, "publish", audits=""),
    Method(keep_development, "publish", audits=""),
    Method(end_development, "publish", audits=""),
)
