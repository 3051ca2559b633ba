"""`skillery publish --bump` and `--trusted`, `skillery bump`: the next version and ranges of required skills, and the
token of a CI job.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import urlencode, urlsplit

import click

from skillery.cli.connection import json_answer
from skillery.cli.options import Target
from skillery.errors import InvalidVersion, NotAuthenticated, Unavailable
from skillery.formats.manifest_tables import ranges_in
from skillery.formats.semver import Version
from skillery.formats.version_diffs import PARTS, Facts, Part, Step, derived_step, step_between
from skillery.formats.version_spec import parse_version_spec, selects
from skillery.settings.sources import JOB_TOKEN_VARIABLE

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.publishing.folders import SkillFolder

SKILL_TOML, TOOLS_JSON = "skill.toml", "tools.json"
NOT_FOUND, INVALID_PARAMS = -32003, -32602


class Stepped(NamedTuple):
    """A skill with its next version, the step that its changes need (None without an earlier version), and warnings."""

    skill: SkillFolder
    step: Step | None = None
    warnings: tuple[str, ...] = ()


async def stepped(client: AsyncClient, skill: SkillFolder, bump: Part | Literal["auto"] | None) -> Stepped:
    """Return the skill with the version that `bump` makes. Without `bump`, the version stays.

    `auto` takes the step that the changes since the latest version need. Without an earlier version, `auto` keeps the
    version. If the step is smaller than the changes need, there is a warning.
    """
    latest = await _latest(client, str(skill.manifest.get("name", "")))
    step = derived_step(latest.facts, _facts(skill)) if latest else None
    derived_part = step.part if step else None
    part = derived_part if bump == "auto" else bump
    next_skill = with_bump(skill, part) if part else skill
    try:
        version = Version.parse(str(next_skill.manifest.get("version", "")))
    except InvalidVersion:
        return Stepped(next_skill, step)  # the server reports it with all other problems
    if latest is None or step is None or not version.precedence > latest.version.precedence:
        return Stepped(next_skill, step)
    taken_step = step_between(latest.version, version)
    if PARTS.index(taken_step) >= PARTS.index(step.part):
        return Stepped(next_skill, step)
    needed = f"the changes need {step.part}: {step.reasons[0]}"
    text = f"{version} is a {taken_step} step after {latest.version}, but {needed}"
    return Stepped(next_skill, step, (f"{text}; publish --bump auto takes this step",))


class _Latest(NamedTuple):
    """The latest version of a skill."""

    version: Version
    facts: Facts


async def _latest(client: AsyncClient, name: str) -> _Latest | None:
    """Return the latest version of a skill, or None if the caller sees none."""
    from skillery.client import AnsweredError

    try:
        described: Any = (await client.describe_skill(name, detail="full"))["skill"]
        paths = frozenset(file["path"] for file in described["files"])
        tools = b""
        if TOOLS_JSON in paths:
            answer = await client.read_skill_file(name, path=TOOLS_JSON, version=described["version"])
            content = answer["content"]
            tools = base64.b64decode(content) if answer["encoding"] == "base64" else content.encode()
    except AnsweredError as error:
        if error.object.get("code") in {NOT_FOUND, INVALID_PARAMS}:
            return None
        raise
    return _Latest(Version.parse(described["version"]), Facts(described["manifest"], _tools(tools, paths), paths))


async def stored_digest(client: AsyncClient, skill: SkillFolder) -> str:
    """Return the digest of the stored version with the number of the skill, or "" if the caller sees none."""
    from skillery.client import InvalidParams, NotFound

    name, version = (str(skill.manifest.get(key, "")) for key in ("name", "version"))
    try:
        return (await client.describe_skill(name, version=version, detail="manifest"))["skill"]["digest"]
    except (NotFound, InvalidParams):  # the server reports an invalid manifest with all other problems
        return ""


def _facts(skill: SkillFolder) -> Facts:
    paths = frozenset(file.path for file in skill.files)
    tools = next((file.content for file in skill.files if file.path == TOOLS_JSON), b"")
    return Facts(skill.manifest, _tools(tools, paths), paths)


def _tools(content: bytes, paths: frozenset[str]) -> dict[str, dict[str, Any]]:
    """Return the declared parameters of each tool, by name."""
    from skillery.formats.tools import read_tools

    return {tool.name: tool.declared for tool in read_tools(content, paths).tools} if content else {}


def with_bump(skill: SkillFolder, part: Part) -> SkillFolder:
    """Return the skill with its next version in the manifest and in skill.toml. Raise InvalidManifest or
    InvalidVersion.

    Only the version changes in skill.toml, all other bytes stay.
    """
    from skillery.publishing.folders import with_version

    return with_version(skill, next_version(Version.parse(str(skill.manifest.get("version", ""))), part))


def write_bump(folder: Path, skill: SkillFolder) -> None:
    """Write the skill.toml of a skill that `with_bump` returned."""
    (folder / SKILL_TOML).write_bytes(next(file.content for file in skill.files if file.path == SKILL_TOML))


def next_version(version: Version, part: Part) -> Version:
    """Return the next version by the rules of npm.

    If the version is a pre-release of the wanted release, return this release: 1.3.0 after 1.3.0-rc.1 with `minor`.
    """
    is_prerelease = bool(version.prerelease)
    release = Version(version.major, version.minor, version.patch)
    if part == "patch":
        return version.next_patch()
    if part == "minor":
        return release if is_prerelease and not version.patch else version.next_minor()
    return release if is_prerelease and not (version.patch or version.minor) else version.next_major()


# -- `skillery publish --trusted`: get a token of the registry for the CI job in which the command runs ----------------


REQUEST_URL, REQUEST_TOKEN = "ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"


def trusted_target(target: Target, publishes: str) -> Target:
    """Return the target with a new token for the skill `publishes`, or, if this is "", for everything that the trust
    rule permits.

    Raise UsageError if the options do not fit, NotAuthenticated if the CI service gives no token or the server refuses
    it, and Unavailable if the server does not answer.
    """
    if not target.url:
        raise click.UsageError("--trusted needs --url: the public address of the server")
    if target.token:
        raise click.UsageError("--trusted gets a token for this job: leave out --token and SKILLERY_TOKEN")
    token = _token_of_job(target.url, os.environ)
    body = {"token": token, **({"target": publishes} if publishes else {})}
    answer = json_answer("POST", f"{target.url}/auth/exchange", json=body)
    return target._replace(token=str(answer.get("token", "")))


def _token_of_job(audience: str, environ: Mapping[str, str]) -> str:
    """Return the token of the CI service: GitLab sets a variable, GitHub answers a request of the job."""
    if token := environ.get(JOB_TOKEN_VARIABLE):
        return token
    address, secret = environ.get(REQUEST_URL), environ.get(REQUEST_TOKEN)
    if not address or not secret:
        raise NotAuthenticated(
            "this command does not run in a CI job that can get a token",
            hint="GitHub Actions: give the job 'permissions: id-token: write'. GitLab: give it 'id_tokens' with "
            f"{JOB_TOKEN_VARIABLE} and 'aud: {audience}'.",
        )
    if not _is_safe(address):
        raise NotAuthenticated(f"{REQUEST_URL} is not an https address")
    full_address = address + ("&" if urlsplit(address).query else "?") + urlencode({"audience": audience})
    answer = json_answer("GET", full_address, headers={"authorization": f"Bearer {secret}"})
    value = answer.get("value")
    if not isinstance(value, str) or not value:
        raise Unavailable("the CI service answered without a token", hint="Try the job again.")
    return value


def _is_safe(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in {"127.0.0.1", "localhost", "::1"})


# -- `skillery bump --requires`: the newest versions of required skills ------------------------------------------------


async def with_raised_ranges(client: AsyncClient, skill: SkillFolder) -> tuple[SkillFolder, list[str]]:
    """Return the skill with raised ranges and the next patch, and a line for each change of a range or of a chosen
    version. Raise InvalidVersion, InvalidManifest, and the errors of `resolve_skills`.
    """
    from skillery.publishing.folders import with_range

    name, ranges, changes = str(skill.manifest.get("name")), ranges_in(skill.manifest), list[str]()
    for required, spec in ranges.items():
        latest = Version.parse((await client.describe_skill(required, detail="manifest"))["skill"]["version"])
        if not selects(parse_version_spec(spec), latest.precedence, is_release=latest.is_release):
            skill = with_range(skill, required, f"^{latest}")
            changes.append(f"{required}: {spec} -> ^{latest}")
    latest_own = await _latest(client, name) if ranges else None
    if latest_own is None:
        return skill, changes
    texts = [f"{required}@{spec}" for required, spec in ranges_in(skill.manifest).items()]
    chosen = (await client.resolve_skills(skills=texts, required_by=name))["lock"]
    described: Any = (await client.describe_skill(name, detail="manifest"))["skill"]
    former = {row["name"]: row["version"] for row in described.get("requires", ())}
    moved = [row for row in chosen if former.get(row["name"]) != row["version"]]
    changes += [f"{row['name']}: {former.get(row['name'], 'new')} -> {row['version']}" for row in moved]
    is_published = Version.parse(str(skill.manifest.get("version"))).precedence <= latest_own.version.precedence
    return (with_bump(skill, "patch") if changes and is_published else skill), changes
