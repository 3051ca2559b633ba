"""One version of a skill, as all pages of a skill show it: title, marks, notes and tabs."""

from __future__ import annotations

from typing import Any, NamedTuple

from skillery.backends import Identity, Scope
from skillery.errors import NotAllowed
from skillery.formats.version_spec import VersionSpec, parse_reference
from skillery.identity import access
from skillery.registry import VersionFacts, facts_of_version, resolve
from skillery.web.frame import Page, PageRequest, path_of


class Opened(NamedTuple):
    """A version that a page shows."""

    skill: dict[str, Any]
    """`skill` of describe_skill."""
    facts: VersionFacts
    asked: str
    """The version spec in the address. "" means the latest version."""

    @property
    def name(self) -> str:
        return str(self.skill["name"])

    @property
    def version(self) -> str:
        return str(self.skill["version"])

    @property
    def digest(self) -> str:
        return str(self.skill["digest"])

    @property
    def exact(self) -> str:
        """The address of exactly this version."""
        return path_of("s", f"{self.name}@{self.version}")


def reference_of(request: PageRequest) -> tuple[str, str, VersionSpec]:
    """Return the name, the text of the version spec and the version spec in the address.

    Raise InvalidName or InvalidVersionSpec if the address has no valid reference.
    """
    text = request.parameter("ref")
    name, spec = parse_reference(text)
    return name, text.partition("@")[2].strip(), spec


async def open_version(request: PageRequest, detail: str = "summary") -> Opened:
    """Return the version of the address. Raise CallFailed if the caller sees no such version."""
    name, asked, spec = reference_of(request)
    found = await request.call("describe_skill", {"name": name, "version": asked, "detail": detail})
    identity = reader_of(request)
    facts = await request.site.core.registry.read_page(
        lambda connection: facts_of_version(connection, identity, resolve(connection, identity, name, spec))
    )
    return Opened(found["skill"], facts, asked)


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
    return may_use(request, "publish") and access.covers(request.identity, name)


def page_of(request: PageRequest, opened: Opened, tab: str, template: str, **values: Any) -> Page:
    """Return a page of a version. `tab` is the current tab."""
    skill, name = opened.skill, opened.name
    *above, last = name.split(".")
    counts = opened.facts.counts
    runtime = skill["manifest"].get("runtime") or {}
    can_run = may_use(request, "run") and bool(runtime.get("entrypoint"))
    shared = {
        "skill": skill,
        "facts": opened.facts,
        "asked": opened.asked,
        "exact": opened.exact,
        "at": f"{name}@{opened.version}",
        "tab": tab,
        "crumbs": [(one, ".".join(above[: place + 1])) for place, one in enumerate(above)],
        "last": last,
        "can_run": can_run,
        "sees_runs": may_use(request, "run"),
        "reviews": skill["status"] == "in_review"
        and request.known is not None
        and access.reviews(request.identity, name),
        "versions_count": sum(counts.values()),
    }
    return Page(template, f"{name} {opened.version}", {**shared, **values}, "skills")
