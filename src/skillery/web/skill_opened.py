"""One version of a skill, as all its pages show it: title, marks, notes and tabs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from skillery.backends import Identity
from skillery.errors import FileNotInSkill, InvalidName, NotFound, SkilleryError, SkillNotFound
from skillery.formats.check_results import CheckedExample
from skillery.formats.paths import path_problem
from skillery.formats.semver import Version
from skillery.formats.version_spec import Exact, VersionSpec, parse_reference
from skillery.formats.wording import quoted
from skillery.identity import access
from skillery.method import or_none
from skillery.publishing.passing import ExplainedPolicy, ExplainPolicy, explain_policy
from skillery.skills.descriptions import DescribeSkill, Skill, describe_skill
from skillery.skills.files import FoundFile, find_file
from skillery.skills.insight import has_insight
from skillery.tools.tool_listings import ListTools, ToolRow, list_tools
from skillery.versions.version_life import Life, read_life
from skillery.versions.version_tables import VersionFacts, facts_for_page
from skillery.web.display import ago
from skillery.web.frame import Page, PageRequest, path_of


class Opened(NamedTuple):
    """A version that a page shows."""

    skill: Skill
    facts: VersionFacts
    requested: str
    """The text of the version spec in the address. "" means the latest version."""

    @property
    def name(self) -> str:
        return self.skill.name

    @property
    def version(self) -> str:
        return self.skill.version

    @property
    def digest(self) -> str:
        return self.skill.digest

    @property
    def exact(self) -> str:
        """The address of the page of this version."""
        return path_of("s", f"{self.name}@{self.version}")


def reference_of(request: PageRequest) -> tuple[str, str, VersionSpec]:
    """Return the skill name, the text of the version spec, and the version spec in the address.

    Raise SkillNotFound if the name is invalid, and InvalidVersionSpec if the version spec is invalid.
    """
    text = request.parameter("ref")
    try:
        name, spec = parse_reference(text)
    except InvalidName:
        name = text.partition("@")[0]
        raise SkillNotFound(f"there is no skill {quoted(name)}", name=name, near=[]) from None
    return name, text.partition("@")[2].strip(), spec


async def open_version(request: PageRequest, detail: Literal["summary", "full"] = "summary") -> Opened:
    """Return the version in the address. Raise SkillNotFound, VersionNotFound or LabelNotFound if it is not seen."""
    name, spec_text, spec = reference_of(request)
    identity = reader_of(request)
    facts = await request.read_page(lambda connection: facts_for_page(connection, identity, name, spec))
    return Opened(await describe(request, name, facts.version, detail), facts, spec_text)


async def describe(
    request: PageRequest, name: str, version: str | None, detail: Literal["summary", "full"] = "full"
) -> Skill:
    """Return the result of describe_skill for a version, or for the latest version if it is None. Raise its errors."""
    return (await request.do(describe_skill, DescribeSkill(name=name, version=version or "", detail=detail))).skill


async def explain(request: PageRequest, opened: Opened) -> ExplainedPolicy | None:
    """Return the policy of a version with its evidence, or None for a development version."""
    if opened.facts.created_at is None:
        return None
    return await request.do(explain_policy, ExplainPolicy(name=opened.name, version=opened.version))


def file_path_of(request: PageRequest, opened_at: str) -> str:
    """Return the path of the file in the address. Raise FileNotInSkill if no bundle can have such a path.

    `opened_at` is the skill and version for the message.
    """
    path = request.parameter("path")
    if path_problem(path) is not None:
        raise FileNotInSkill(f"{opened_at} has no file {quoted(path)}", path=path)
    return path


async def find_in_version(request: PageRequest, name: str, version: str, path: str) -> FoundFile:
    """Return a file of exactly this version. Raise the errors of read_skill_file."""
    identity, spec = reader_of(request), Exact(Version.parse(version))
    return await request.read_page(partial(find_file, identity=identity, name=name, spec=spec, path=path))


def reader_of(request: PageRequest) -> Identity:
    """Return the caller, with its development versions. Raise NotAllowed if the caller may not read."""
    access.require(request.identity, "read")
    return request.site.core.developer.overlays.of(request.identity)


def sees_insight(request: PageRequest, name: str) -> bool:
    """Return whether the caller has insight into a skill."""
    return has_insight(request.identity) and access.covers(request.identity, name)


async def life_of(request: PageRequest, opened: Opened) -> Life:
    """Return the life of the skill of a version."""
    return await request.read_page(partial(read_life, identity=reader_of(request), skill_id=opened.facts.skill_id))


def permissions_of(manifest: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the hosts and the secrets that a manifest requests."""
    permissions = manifest.get("permissions") or {}
    return list(permissions.get("network") or ()), list(permissions.get("secrets") or ())


async def without_value(request: PageRequest, secrets: Sequence[str]) -> frozenset[str]:
    """Return those of the secrets that have no value on this server, or none if the values cannot be read."""
    if not secrets:
        return frozenset()
    try:
        return frozenset(secrets).difference(await asyncio.to_thread(request.site.state.secrets))
    except SkilleryError:
        return frozenset()


def page_of(request: PageRequest, opened: Opened, tab: str, template: str, *, part: str = "", **values: Any) -> Page:
    """Return a page of a version, with its current tab. `part` is the first part of the page title, or ""."""
    skill, name = opened.skill, opened.name
    runtime = skill.manifest.get("runtime") or {}
    can_run = request.may("run") and skill.kind == "action" and bool(runtime.get("entrypoint"))
    shared = {
        "skill": skill,
        "facts": opened.facts,
        "requested": opened.requested,
        "exact": opened.exact,
        "at": f"{name}@{opened.version}",
        "tab": tab,
        "can_run": can_run,
        "scripts": or_none(skill.scripts) or [],
        "sees_insight": sees_insight(request, name),
        "reviews": skill.status == "in_review" and access.reviews(request.identity, name),
        "here_exactly": _exactly_here(request, opened),
    }
    title = f"{name} {opened.version}"
    return Page(template, f"{part} · {title}" if part else title, {**shared, **values}, "skills")


def _exactly_here(request: PageRequest, opened: Opened) -> str:
    """Return the address of the current page with the exact version in place of the version spec."""
    path, mark, query = request.address.partition("?")
    if not path.startswith("/s/"):
        return request.address  # a review names one version
    _, slash, below = path.removeprefix("/s/").partition("/")
    return f"{opened.exact}{slash}{below}{mark}{query}"


# -- The tools of a version --------------------------------------------------------------------------------------------


async def tools_of(request: PageRequest, opened: Opened, limit: int = 1000) -> list[ToolRow]:
    """Return at most `limit` tools of a version. Raise the errors of list_tools."""
    return (await request.do(list_tools, ListTools(skill=f"{opened.name}@{opened.version}", limit=limit))).tools


async def shown_tools(request: PageRequest, opened: Opened) -> list[ToolRow]:
    """Return the first tools of a version, or [] for a withdrawn version, which offers none."""
    try:
        return await tools_of(request, opened, 100)
    except SkilleryError:
        return []


def number_of(text: str) -> int:
    """Return the number of an example in an address, or 0 for "". Raise NotFound if the text is no number."""
    if text and not (text.isdecimal() and text.isascii() and len(text) < 4):
        raise NotFound(f"there is no example {quoted(text)}", hint="Examples have the numbers 1, 2 and so on.")
    return int(text or 0)


def examples_of(request: PageRequest, opened: Opened) -> list[CheckedExample]:
    """Return the examples with the results of the last check. `run_id` is None if the caller may not see the runs."""
    sees_runs = request.may("admin") or request.identity.name == opened.facts.publisher.name
    checked = {example.name: example for example in or_none(opened.skill.examples) or ()}
    examples = []
    for number, example in enumerate(opened.skill.manifest.get("examples") or (), 1):
        name = str(example.get("name") or f"Example {number}")
        result = checked.get(name) or CheckedExample(name, "not_run")
        examples.append(result if sees_runs else replace(result, run_id=None))
    return examples


# -- Who decides -------------------------------------------------------------------------------------------------------


def why_not(request: PageRequest, opened: Opened, policy: ExplainedPolicy | None) -> str:
    """Return why the caller cannot decide about this version, or ""."""
    if policy is None or not policy.waiting:
        return state_of(opened.skill)
    if access.reviews(request.identity, opened.name):
        return ""
    if opened.facts.publisher.name == request.identity.name:
        return "You published this version. Another reviewer decides about it."
    return "Only reviewers decide about this version."


def why_no_approval(request: PageRequest, opened: Opened, policy: ExplainedPolicy | None) -> str:
    """Return why the caller cannot approve: the approval rules, or an approval by the caller. Else return ""."""
    of_reviews = [need.evidence for need in policy.needs if need.need == "review"] if policy else []
    if any(each.by == request.identity.name for evidence in of_reviews for each in evidence):
        return "You have approved this version."
    rules = request.site.core.passing.policies.of(opened.name).approval
    refusal = rules.refusal(request.identity, opened.facts.publisher.name)
    return f"You cannot approve this version: {quoted(request.identity.name)} {refusal}." if refusal else ""


def state_of(skill: Skill) -> str:
    """Return a sentence on the decision about a version that is not in review any more."""
    approval, rejected = or_none(skill.approval), or_none(skill.rejected)
    if approval:
        return f"{approval.by} approved version {skill.version} {ago(approval.at)}."
    if rejected:
        return f"{rejected.by} rejected version {skill.version} {ago(rejected.at)}: {rejected.reason}"
    return f"Version {skill.version} is {skill.status.replace('_', ' ')}, so there is nothing to decide."
