"""`POST /s/{ref}`: authors submit, yank, deprecate, label and hide skills. Each change has an undo."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from skillery.formats.version_spec import label_problem
from skillery.web.frame import CallFailed, Done, Form, Page, PageRequest, SeeOther, Undo, path_of
from skillery.web.skills.about import VISIBILITIES, about_page
from skillery.web.skills.opened import Opened, open_version

_MOST_REASON = 2000
Action = Callable[[PageRequest, Opened, Form], Awaitable[SeeOther]]


class _Refused(Exception):
    """Raised if a field is not valid. The page shows the message at the field."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


async def change(request: PageRequest) -> Page | SeeOther:
    form = await request.form()
    opened = await open_version(request)
    action = form.get("action")
    made = _ACTIONS.get(action)
    if made is None:
        return await _again(request, form, "", "The form has no known action. Use a button of this page.", 400)
    try:
        return await made(request, opened, form)
    except _Refused as refused:
        return await _again(request, form, refused.field, str(refused), 400)
    except CallFailed as failed:
        if failed.status not in {400, 409}:
            raise
        return await _again(request, form, "", f"{failed.message}. {failed.hint}".strip(), failed.status)


async def _again(request: PageRequest, form: Form, field: str, message: str, status: int) -> Page:
    typed = dict(form.pairs)
    problem = {"field": field, "message": message, "action": form.get("action")}
    return await about_page(request, {"problem": problem, "typed": typed}, 400 if status < 400 else status)


async def _submit(request: PageRequest, opened: Opened, _: Form) -> SeeOther:
    made = await request.call("submit_version", {"name": opened.name, "version": opened.version})
    state = "is published" if made.get("status") == "published" else "is in review"
    return SeeOther(opened.exact, Done(f"Version {opened.version} {state}."))


async def _yank(request: PageRequest, opened: Opened, form: Form) -> SeeOther:
    reason = _text(form, "reason", "Say why you yank this version.")
    await request.call("yank_version", {"name": opened.name, "version": opened.version, "reason": reason})
    undo = Undo("Undo", opened.exact, {"action": "unyank"})
    return SeeOther(opened.exact, Done(f"Version {opened.version} is yanked.", undo))


async def _unyank(request: PageRequest, opened: Opened, _: Form) -> SeeOther:
    before = opened.skill.get("yanked") or {}
    await request.call("unyank_version", {"name": opened.name, "version": opened.version})
    undo = Undo("Undo", opened.exact, {"action": "yank", "reason": before["reason"]}) if before else None
    return SeeOther(opened.exact, Done(f"Version {opened.version} is no longer yanked.", undo))


async def _deprecate(request: PageRequest, opened: Opened, form: Form) -> SeeOther:
    message = _text(form, "message", "Say what users should know.")
    before = opened.skill.get("deprecated")
    successor = form.get("successor").strip()
    await request.call("deprecate_skill", {"name": opened.name, "message": message, "successor": successor})
    fields = {"action": "undeprecate"}
    if before:
        fields = {"action": "deprecate", "message": before["message"], "successor": before["successor"] or ""}
    return SeeOther(opened.exact, Done(f"{opened.name} is deprecated.", Undo("Undo", opened.exact, fields)))


async def _undeprecate(request: PageRequest, opened: Opened, _: Form) -> SeeOther:
    before = opened.skill.get("deprecated") or {}
    await request.call("undeprecate_skill", {"name": opened.name})
    fields = {"action": "deprecate", "message": before.get("message", ""), "successor": before.get("successor") or ""}
    undo = Undo("Undo", opened.exact, fields) if before else None
    return SeeOther(opened.exact, Done(f"{opened.name} is no longer deprecated.", undo))


async def _set_label(request: PageRequest, opened: Opened, form: Form) -> SeeOther:
    label = form.get("label").strip()
    problem = label_problem(label)
    if problem:
        raise _Refused("label", f"This is not a label: {problem}.")
    moved = await request.call("set_label", {"name": opened.name, "label": label, "version": opened.version})
    before = moved.get("previous")
    undo = {"action": "rollback_label" if before else "remove_label", "label": label}
    text = f"{label} moved from {before} to {opened.version}." if before else f"{label} is {opened.version}."
    return SeeOther(opened.exact, Done(text, Undo("Undo", opened.exact, undo)))


async def _rollback_label(request: PageRequest, opened: Opened, form: Form) -> SeeOther:
    label = form.get("label")
    moved = await request.call("rollback_label", {"name": opened.name, "label": label})
    # The page of the version that had the label can point it back.
    page, before = path_of("s", f"{opened.name}@{moved['previous']}"), moved["previous"]
    undo = Undo("Undo", page, {"action": "set_label", "label": label}) if before else None
    return SeeOther(opened.exact, Done(f"{label} is {moved['version']} again.", undo))


async def _remove_label(request: PageRequest, opened: Opened, form: Form) -> SeeOther:
    label = form.get("label")
    await request.call("remove_label", {"name": opened.name, "label": label})
    undo = Undo("Undo", opened.exact, {"action": "rollback_label", "label": label})
    return SeeOther(opened.exact, Done(f"The label {label} is removed.", undo))


async def _set_visibility(request: PageRequest, opened: Opened, form: Form) -> SeeOther:
    visibility = form.get("visibility")
    if visibility not in VISIBILITIES:
        raise _Refused("visibility", "Choose who sees the skill.")
    before = opened.skill["visibility"]
    if before == visibility:
        return SeeOther(opened.exact, Done(f"Nothing changed: {opened.name} is visible to {VISIBILITIES[visibility]}."))
    await request.call("set_visibility", {"name": opened.name, "visibility": visibility})
    undo = Undo("Undo", opened.exact, {"action": "set_visibility", "visibility": before})
    return SeeOther(opened.exact, Done(f"{opened.name} is visible to {VISIBILITIES[visibility]}.", undo))


def _text(form: Form, field: str, message: str) -> str:
    text = form.get(field).strip()
    if not text:
        raise _Refused(field, message)
    if len(text) > _MOST_REASON:
        raise _Refused(field, f"This text has {len(text)} characters. The limit is {_MOST_REASON}.")
    return text


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
