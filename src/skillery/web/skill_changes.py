"""`/s/{ref}/versions` and `POST /s/{ref}`: versions, and the changes by publishers, each with an undo."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from skillery.formats.version_spec import parse_label
from skillery.labels import labels
from skillery.method import or_none
from skillery.skills.catalogue_listings import Deprecation
from skillery.versions import lifecycle, revocations
from skillery.versions.version_tables import VersionGroup, table_of_versions
from skillery.web.frame import Done, Form, FormRefused, Page, PageRequest, SeeOther, Undo, at_field, path_of
from skillery.web.skill_about import VISIBILITIES
from skillery.web.skill_opened import Opened, open_version, page_of, reader_of

Action = Callable[[PageRequest, Opened, Form], Awaitable[SeeOther]]


async def change(request: PageRequest) -> SeeOther:
    """Make the change that the action of the form names."""
    form = await request.form()
    opened = await open_version(request)
    change_version = _ACTIONS.get(form.get("action"))
    if change_version is None:
        raise FormRefused({"": "The form has no known action. Use a button of this page."})
    return await change_version(request, opened, form)


def _done(opened: Opened, text: str, undo: dict[str, str] | None = None, page: str = "") -> SeeOther:
    """Return the redirect to the version, with a message. `undo` are the fields of the form that takes the change back.

    The form goes to `page`, or to the version.
    """
    return SeeOther(opened.exact, Done(text, Undo("Undo", page or opened.exact, undo) if undo else None))


async def _submit(request: PageRequest, opened: Opened, _: Form) -> SeeOther:
    submitted = await request.do(
        lifecycle.submit_version, lifecycle.SubmitVersion(name=opened.name, version=opened.version)
    )
    state = "is published" if submitted.status == "published" else "is in review"
    return _done(opened, f"Version {opened.version} {state}.")


async def _yank(request: PageRequest, opened: Opened, form: Form) -> SeeOther:
    severity: Any = form.get("severity") or "broken"
    params = revocations.YankVersion(
        name=opened.name, version=opened.version, reason=form.get("reason"), severity=severity
    )
    await request.do(revocations.yank_version, params)
    # Only another reviewer withdraws an advisory that is more severe.
    undo = {"action": "unyank"} if severity == "broken" else None
    return _done(opened, f"Version {opened.version} is yanked.", undo)


async def _unyank(request: PageRequest, opened: Opened, _: Form) -> SeeOther:
    before = or_none(opened.skill.yanked)
    await request.do(revocations.unyank_version, revocations.UnyankVersion(name=opened.name, version=opened.version))
    undo = {"action": "yank", "reason": before.reason, "severity": or_none(before.severity) or ""} if before else None
    return _done(opened, f"Version {opened.version} is no longer yanked.", undo)


async def _deprecate(request: PageRequest, opened: Opened, form: Form) -> SeeOther:
    before, successor = or_none(opened.skill.deprecated), form.get("successor").strip()
    params = lifecycle.DeprecateSkill(name=opened.name, message=form.get("message"), successor=successor)
    await request.do(lifecycle.deprecate_skill, params)
    undo = _deprecate_again(before) if before else {"action": "undeprecate"}
    return _done(opened, f"{opened.name} is deprecated.", undo)


async def _undeprecate(request: PageRequest, opened: Opened, _: Form) -> SeeOther:
    before = or_none(opened.skill.deprecated)
    await request.do(lifecycle.undeprecate_skill, lifecycle.UndeprecateSkill(name=opened.name))
    return _done(opened, f"{opened.name} is no longer deprecated.", _deprecate_again(before) if before else None)


def _deprecate_again(before: Deprecation) -> dict[str, str]:
    return {"action": "deprecate", "message": before.message, "successor": before.successor or ""}


async def _set_label(request: PageRequest, opened: Opened, form: Form) -> SeeOther:
    label = form.get("label").strip()
    with at_field("label"):
        parse_label(label)
    params = labels.SetLabel(name=opened.name, label=label, version=opened.version)
    moved = await request.do(labels.set_label, params)
    before = moved.previous
    text = f"{label} moved from {before} to {opened.version}." if before else f"{label} is {opened.version}."
    return _done(opened, text, {"action": "rollback_label" if before else "remove_label", "label": label})


async def _rollback_label(request: PageRequest, opened: Opened, form: Form) -> SeeOther:
    label = form.get("label")
    moved = await request.do(
        labels.rollback_label, labels.RollbackLabel(name=opened.name, label=label, to=form.get("to"))
    )
    # The page of the version that had the label can point it back.
    page = path_of("s", f"{opened.name}@{moved.previous}")
    undo = {"action": "set_label", "label": label} if moved.previous else None
    return _done(opened, f"{label} is {moved.version} again.", undo, page)


async def _remove_label(request: PageRequest, opened: Opened, form: Form) -> SeeOther:
    label = form.get("label")
    await request.do(labels.remove_label, labels.RemoveLabel(name=opened.name, label=label))
    return _done(opened, f"The label {label} is removed.", {"action": "rollback_label", "label": label})


async def _set_visibility(request: PageRequest, opened: Opened, form: Form) -> SeeOther:
    visibility: Any = form.get("visibility")
    await request.do(lifecycle.set_visibility, lifecycle.SetVisibility(name=opened.name, visibility=visibility))
    undo = {"action": "set_visibility", "visibility": opened.skill.visibility}
    return _done(opened, f"{opened.name} is visible to {VISIBILITIES[visibility]}.", undo)


_ACTIONS: dict[str, Action] = {
    "submit": _submit,
    "yank": _yank,
    "unyank": _unyank,
    "deprecate": _deprecate,
    "undeprecate": _undeprecate,
    "set_label": _set_label,
    "rollback_label": _rollback_label,
    "remove_label": _remove_label,
    "set_visibility": _set_visibility,
}


# -- `/s/{ref}/versions`: all versions of a skill, highest first -------------------------------------------------------


AT_ONCE = 50
FOLDED_AT_ONCE = 20
_GROUPS: dict[str, VersionGroup] = {"releases": "releases", "pre-releases": "prereleases", "withdrawn": "withdrawn"}
_FOLDED: tuple[VersionGroup, ...] = ("prereleases", "withdrawn")


async def show_versions(request: PageRequest) -> Page:
    """Show the versions in three tables, or one of the tables if `?show=` names one."""
    opened = await open_version(request)
    shown, cursor = _GROUPS.get(request.query.get("show", "")), request.query.get("cursor", "")
    pages: dict[VersionGroup, tuple[int, str]] = {shown or "releases": (AT_ONCE, cursor)}
    if shown is None:
        pages |= dict.fromkeys(_FOLDED, (FOLDED_AT_ONCE, ""))
    key, identity = request.site.core.registry.cursor_key, reader_of(request)
    read = partial(table_of_versions, identity=identity, key=key, name=opened.name)
    tables = {
        group: await request.read_page(partial(read, group=group, limit=limit, cursor=cursor))
        for group, (limit, cursor) in pages.items()
    }
    values = {"tables": tables, "shown": shown or ""}
    return page_of(request, opened, "versions", "skill_versions.html", part="Versions", **values)
