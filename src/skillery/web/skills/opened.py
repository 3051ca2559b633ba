"""One version of a skill, as all pages of a skill show it: title, marks, notes and tabs."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple
from urllib.parse import urlencode

from skillery.backends import Identity, Scope
from skillery.errors import FileNotInSkill, InvalidName, NotAllowed, SkillNotFound
from skillery.formats.paths import path_problem
from skillery.formats.semver import Version
from skillery.formats.version_spec import Exact, VersionSpec, parse_reference
from skillery.formats.wording import quoted
from skillery.identity import access
from skillery.skills.descriptions import DescribeSkill, Skill, describe_skill
from skillery.versions.version_tables import VersionFacts, facts_for_page
from skillery.web.frame import Page, PageRequest, path_of


class Opened(NamedTuple):
    """A version that a page shows."""

    skill: Skill
    facts: VersionFacts
    requested: str
    """The version spec in the address. "" means the latest version."""

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
        """The address of exactly this version."""
        return path_of("s", f"{self.name}@{self.version}")


def reference_of(request: PageRequest) -> tuple[str, str, VersionSpec]:
    """Return the name, the text of the version spec and the version spec in the address.

    Raise SkillNotFound if the name is not valid, and InvalidVersionSpec if the version spec is not valid.
    """
    text = request.parameter("ref")
    try:
        name, spec = parse_reference(text)
    except InvalidName:
        name = text.partition("@")[0]
        raise SkillNotFound(f"there is no skill {quoted(name)}", name=name, near=[]) from None
    return name, text.partition("@")[2].strip(), spec


async def open_version(request: PageRequest, detail: Literal["summary", "full"] = "summary") -> Opened:
    """Return the version of the address. Raise SkillNotFound, VersionNotFound or LabelNotFound if the caller sees no
    such version.
    """
    name, wanted, spec = reference_of(request)
    identity = reader_of(request)
    facts = await request.read_page(lambda connection: facts_for_page(connection, identity, name, spec))
    return Opened(await describe(request, name, facts.version, detail), facts, wanted)


async def describe(
    request: PageRequest, name: str, version: str | None, detail: Literal["summary", "full"] = "full"
) -> Skill:
    """Return a version, or the latest version. Raise the errors of describe_skill."""
    return (await request.do(describe_skill, DescribeSkill(name=name, version=version or "", detail=detail))).skill


def file_path_of(request: PageRequest, opened_at: str) -> str:
    """Return the path of the file in the address. Raise FileNotInSkill if no bundle can have such a path.

    `opened_at` is the reference of the version, for the message.
    """
    path = request.parameter("path")
    if path_problem(path) is not None:
        raise FileNotInSkill(f"{opened_at} has no file {quoted(path)}", path=path)
    return path


def exactly(version: str) -> VersionSpec:
    """Return the version spec that selects this version only."""
    return Exact(Version.parse(version))


def reader_of(request: PageRequest) -> Identity:
    """Return the caller with its development versions. Raise NotAllowed if the caller may not read."""
    access.require(request.identity, "read")
    return request.site.core.developer.overlays.of(request.identity)


def may_use(request: PageRequest, scope: Scope) -> bool:
    """Return whether the caller has a scope. Admins have every scope."""
    try:
        access.require(request.identity, scope)
    except NotAllowed:
        return False
    return request.known is not None


def may_change(request: PageRequest, name: str) -> bool:
    """Return whether the caller publishes this skill."""
    return request.known is not None and access.publishes(request.identity, name)


def page_of(request: PageRequest, opened: Opened, tab: str, template: str, *, part: str = "", **values: Any) -> Page:
    """Return a page of a version. `tab` is the current tab, `part` the start of the title of the page."""
    skill, name = opened.skill, opened.name
    *above, last = name.split(".")
    counts = opened.facts.counts
    runtime = skill.manifest.get("runtime") or {}
    can_run = may_use(request, "run") and skill.kind == "action" and bool(runtime.get("entrypoint"))
    shared = {
        "skill": skill,
        "facts": opened.facts,
        "requested": opened.requested,
        "exact": opened.exact,
        "at": f"{name}@{opened.version}",
        "tab": tab,
        "crumbs": [(segment, ".".join(above[: place + 1])) for place, segment in enumerate(above)],
        "last": last,
        "can_run": can_run,
        "sees_runs": may_use(request, "run"),
        "reviews": skill.status == "in_review" and request.known is not None and access.reviews(request.identity, name),
        "versions_count": sum(counts.values()),
        "runs_address": _runs_address(request, name),
        "here_exactly": _exactly_here(request, opened),
    }
    title = f"{name} {opened.version}"
    return Page(template, f"{part} · {title}" if part else title, {**shared, **values}, "skills")


def _runs_address(request: PageRequest, name: str) -> str:
    """Return the address of the caller's own runs of a skill. Admins see the runs of others without `identity`."""
    mine = {"identity": request.identity.name} if access.is_admin(request.identity) else {}
    return f"/runs?{urlencode({'skill': name, **mine})}"


def _exactly_here(request: PageRequest, opened: Opened) -> str:
    """Return the address of this page for exactly this version."""
    path, mark, query = request.address.partition("?")
    if not path.startswith("/s/"):
        return request.address  # a review names one version
    _, slash, below = path.removeprefix("/s/").partition("/")
    return f"{opened.exact}{slash}{below}{mark}{query}"
