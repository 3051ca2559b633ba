"""The forms with which people run a skill or tool (`/s/{ref}/try`), a script (`/s/{ref}/scripts/{path}`), or code
(`/runs/new`). The run is then on its page.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, get_args
from urllib.parse import urlencode

import msgspec

from skillery.backends import Language
from skillery.contents.blobs import CreateBlob, create_blob
from skillery.errors import Conflict, InvalidParams, NotFound, Refused, SkilleryError
from skillery.formats.inputs import inputs_in
from skillery.formats.scripts import Script, language_of
from skillery.identity import access
from skillery.method import or_none
from skillery.runs.methods import GetRun, call_tool, execute_skill, get_run, run_code
from skillery.runs.queries import args_of
from skillery.runs.requests import CallTool, ExecuteSkill, RunCode
from skillery.runs.results import RunRecord
from skillery.skills.files import ReadSkillFile, find_file, read_skill_file
from skillery.web.frame import Form, Page, PageRequest, SeeOther, message_of, path_of
from skillery.web.run_fields import (
    MOST_FIELDS,
    Declared,
    Field,
    args_of_form,
    fields_of,
    filled,
    inputs_of_schema,
    json_object,
    refused,
)
from skillery.web.skill_opened import (
    Opened,
    exactly,
    file_path_of,
    number_of,
    open_version,
    page_of,
    reader_of,
    tools_of,
)
from skillery.web.uploads import UploadedFile, is_multipart, read_multipart
from skillery.workspaces.manifests import RunFile

MOST_UPLOAD = 1_000_000_000
_MOST_FIELDS = 2000


async def show_try(request: PageRequest) -> Page | SeeOther:
    """Show the form of a skill or a tool, filled with an example or with the args of an earlier run. A skill with
    scripts and no entrypoint has the form of its first script.
    """
    opened = await open_version(request, "full")
    tool = request.query.get("tool", "")
    scripts = opened.skill.scripts or []
    if scripts and not tool:
        return SeeOther(path_of("s", f"{opened.name}@{opened.version}", "scripts", scripts[0].path))
    fields = await _fields(request, opened, tool)
    number = number_of(request.query.get("example", ""))
    args: dict[str, Any] = {}
    files: dict[str, str] = {}
    problems: dict[str, str] = {}
    examples = opened.skill.manifest.get("examples") or []
    if 0 < number <= len(examples) and not tool:
        example = examples[number - 1]
        args, files = example.get("args") or {}, example.get("blobs") or {}
    else:
        args = await _args_of_run(request)
        problems = refused(await _inputs(request, opened, tool), fields, args) if args else {}
    filled_fields, other_args = filled(fields, args)
    filled_fields = [field._replace(problem=problems.get(field.id, "")) for field in filled_fields]
    typed = {f"{field.id}-file": files[field.name] for field in fields if field.name in files}
    return await _page(
        request,
        opened,
        tool,
        filled_fields,
        json.dumps(other_args, ensure_ascii=False, indent=2) if other_args else "",
        typed,
    )


async def _args_of_run(request: PageRequest) -> dict[str, Any]:
    """Return the args of the run in the query, or {} if there is none or if they are not kept."""
    run_id = request.query.get("run")
    known = await request.read(partial(args_of, identity=request.identity, run_id=run_id)) if run_id else None
    return msgspec.json.decode(known) if known else {}


async def start_run(request: PageRequest) -> Page | SeeOther:
    """Start a run with the args of the form, and redirect to its page. If the args are invalid, show the form again."""
    access.require(request.identity, "run")

    async def keep(file: UploadedFile, content: AsyncIterator[bytes]) -> str:
        blob = await request.site.core.blobs.receive(request.identity, content, file.kind)
        return blob.blob_id

    if is_multipart(request.headers):
        form = await read_multipart(request, keep, MOST_UPLOAD)
    else:
        form = await request.form(1024 * 1024, _MOST_FIELDS)
    opened = await open_version(request, "full")
    tool = form.get("tool")
    fields = await _fields(request, opened, tool)
    parsed = args_of_form(fields, form)
    problems = dict(parsed.problems)
    for field in fields:
        if field.widget == "blob":
            try:
                blob_id = await _blob(request, opened, field, form)
            except SkilleryError as error:
                problems[field.id] = message_of(error)
                continue
            if blob_id:
                parsed.args[field.name] = blob_id
        if field.is_required and field.name not in parsed.args and field.id not in problems:
            problems[field.id] = f"{field.name[:80]} is required."
    if not problems:
        problems |= refused(await _inputs(request, opened, tool), fields, parsed.args)
    if not problems:
        try:
            return SeeOther(path_of("runs", await _start(request, opened, tool, parsed.args, form.get("key")[:64])))
        except (InvalidParams, Conflict, Refused) as error:
            problems[""] = message_of(error)
    typed = dict(form.pairs)
    filled_fields = [
        field._replace(
            value=parsed.args.get(field.name, "") if field.widget == "blob" else form.get(field.id),
            problem=problems.get(field.id, ""),
        )
        for field in fields
    ]
    page = await _page(request, opened, tool, filled_fields, form.get("more"), typed, problems)
    return page._replace(status=400)


async def _start(request: PageRequest, opened: Opened, tool: str, args: dict[str, Any], key: str) -> str:
    """Start a run of the skill, or of `tool` if it is not "", in the background. Return the run id.

    `key` is an idempotency key: a form that is sent twice starts one run.
    """
    if tool:
        call = CallTool(name=tool, skill=opened.name, version=opened.version, args=args, background=True)
        return (await request.do(call_tool, call, key=key or None)).run_id or ""
    params = ExecuteSkill(name=opened.name, version=opened.version, args=args, background=True)
    return (await request.do(execute_skill, params, key=key or None)).run_id


async def _fields(request: PageRequest, opened: Opened, tool: str) -> list[Field]:
    """Return the empty fields of the skill, or of `tool` if it is not "". Raise NotFound if there is no such tool."""
    if not tool:
        return fields_of(opened.skill.manifest.get("inputs"))[:MOST_FIELDS]
    for row in await tools_of(request, opened):
        if row.name == tool:
            return fields_of(inputs_of_schema(row.parameters))[:MOST_FIELDS]
    raise NotFound(f"{opened.name} {opened.version} has no tool '{tool[:80]}'", hint="Open the page of the skill.")


async def _inputs(request: PageRequest, opened: Opened, tool: str) -> Declared:
    """Return the declared inputs of the skill or tool, as a run checks them."""
    if tool:
        parameters = next(row.parameters for row in await tools_of(request, opened) if row.name == tool)
        return Declared(inputs_in(inputs_of_schema(parameters)), is_strict=False)
    manifest = opened.skill.manifest
    is_strict = (manifest.get("runtime") or {}).get("strict_inputs") is True
    return Declared(inputs_in(manifest.get("inputs") or {}), is_strict)


async def _blob(request: PageRequest, opened: Opened, field: Field, form: Form) -> str:
    """Return the id of the blob that the user has chosen: an upload, a pasted text, a file of the skill, or an id. ""
    if none.
    """
    uploaded = form.get(f"{field.id}-upload")
    if uploaded:
        return uploaded
    pasted = form.get(f"{field.id}-text")
    if pasted:
        return (await request.do(create_blob, CreateBlob(content=pasted, kind="text/plain"))).blob_id
    path = form.get(f"{field.id}-file")
    if path:
        file = await request.do(read_skill_file, ReadSkillFile(name=opened.name, version=opened.version, path=path))
        raw = base64.b64decode(file.content) if file.encoding == "base64" else file.content.encode()
        kind = "text/csv" if path.endswith(".csv") else "application/octet-stream"
        blob = await request.site.core.blobs.create_blob(request.identity, raw, kind)
        return blob.blob_id
    return form.get(f"{field.id}-id").strip()


async def _page(
    request: PageRequest,
    opened: Opened,
    tool: str,
    fields: list[Field],
    more: str,
    typed: dict[str, str],
    problems: dict[str, str] | None = None,
) -> Page:
    """Return the page of the form. `more` is the JSON of args without a field, `typed` are the other typed fields."""
    manifest = opened.skill.manifest
    bundled = {
        path
        for example in manifest.get("examples") or ()
        for path in (example.get("blobs") or {}).values()
        if isinstance(path, str)
    }
    return page_of(
        request,
        opened,
        "try",
        "runs_try.html",
        tool=tool,
        fields=fields,
        more=more,
        typed=typed,
        problems=problems or request.problems,
        examples=[
            (number, str(example.get("name") or f"Example {number}"))
            for number, example in enumerate(manifest.get("examples") or (), 1)
        ]
        if not tool
        else [],
        bundled=sorted(bundled),
        key=secrets.token_urlsafe(16),
        inputs_count=len(manifest.get("inputs") or {}),
        **await _reach(request, opened),
    )


async def _reach(request: PageRequest, opened: Opened) -> dict[str, Any]:
    """Return what a run may reach, as the template names it, and why it would not get its secrets, or ""."""
    permissions = opened.skill.manifest.get("permissions") or {}
    names = permissions.get("secrets") or []
    problem = await request.site.core.runner.secrets_problem(opened.name, names) if names else ""
    return {"hosts": permissions.get("network") or [], "secret_names": names, "secrets_problem": problem}


# -- `/s/{ref}/scripts/{path}`: a script with arguments, input and files -----------------------------------------------


async def show_script(request: PageRequest) -> Page:
    """Show the form of a script, filled with the args of an earlier run."""
    args = await _args_of_run(request)
    argv, stdin = args.get("argv"), args.get("stdin")
    lines = [str(word) for word in argv] if isinstance(argv, list) else []
    fields = {"argv": "\n".join(lines), "stdin": stdin if isinstance(stdin, str) else ""}
    return await _script_page(request, await open_version(request), fields)


async def start_script(request: PageRequest) -> Page | SeeOther:
    """Start a run of a script, and redirect to its page. If it is refused, show the form again."""
    files: list[RunFile] = []

    async def keep(file: UploadedFile, content: AsyncIterator[bytes]) -> str:
        blob = await request.site.core.blobs.receive(request.identity, content, file.kind)
        files.append(RunFile(f"in/{file.name.replace(chr(92), '/').rpartition('/')[2]}", blob.blob_id))
        return blob.blob_id

    if is_multipart(request.headers):
        form = await read_multipart(request, keep, MOST_UPLOAD)
    else:
        form = await request.form(1024 * 1024)
    opened = await open_version(request)
    argv = ["--help"] if form.has("help") else [line for line in form.get("argv").split("\n") if line.strip()]
    try:
        path = file_path_of(request, f"{opened.name} {opened.version}")
        args = {"argv": argv, "stdin": form.get("stdin")} if form.get("stdin") else {"argv": argv}
        params = ExecuteSkill(
            name=opened.name, version=opened.version, script=path, args=args, files=files, background=True
        )
        run = await request.do(execute_skill, params, key=form.get("key")[:64] or None)
    except (InvalidParams, Conflict, Refused) as error:
        fields = {"argv": form.get("argv"), "stdin": form.get("stdin")}
        return (await _script_page(request, opened, fields, message_of(error)))._replace(status=400)
    return SeeOther(path_of("runs", run.run_id))


async def _script_page(request: PageRequest, opened: Opened, fields: dict[str, str], problem: str = "") -> Page:
    """Return the page of the form. Raise FileNotInSkill if the version has no such file."""
    path = file_path_of(request, f"{opened.name} {opened.version}")
    work = partial(find_file, identity=reader_of(request), name=opened.name, spec=exactly(opened.version), path=path)
    await request.read_page(work)
    described = or_none(opened.skill.scripts) or ()
    script = next((script for script in described if script.path == path), None) or Script(path, language_of(path))
    values = {"script": script, "fields": fields, "problem": problem, "key": secrets.token_urlsafe(16)}
    return page_of(request, opened, "try", "runs_script.html", part=path, **values, **await _reach(request, opened))


# -- `/runs/new`: a run again, with other args or other code -----------------------------------------------------------


_CODE_FIELDS = ("language", "entrypoint", "code", "args", "skills")


def again_of(run: RunRecord) -> str:
    """Return the address of the form that repeats a run, or "" if nothing of it can be repeated."""
    is_module = (or_none(run.script) or "").startswith("-m ")
    can_repeat = or_none(run.code) or (or_none(run.skill) and not is_module)
    return f"/runs/new?{urlencode({'run': run.run_id})}" if can_repeat else ""


async def show_new(request: PageRequest) -> Page | SeeOther:
    """Show a form for code. For an earlier run of a skill or tool, redirect to its form. Both have its args."""
    run_id = request.query.get("run", "")
    if not run_id:
        return _code_page({"entrypoint": "main"})
    run = await request.do(get_run, GetRun(run_id=run_id))
    skill, code = or_none(run.skill), or_none(run.code)
    if skill:
        script, query = or_none(run.script), {"tool": run.tool, "run": run_id} if run.tool else {"run": run_id}
        below = ("scripts", script) if script else ("try",)
        version = request.query.get("version") or skill.version
        return SeeOther(f"{path_of('s', f'{skill.name}@{version}', *below)}?{urlencode(query)}")
    if code is None:
        raise NotFound("the code of this run is not kept", hint="Open the page of the run.")
    args = json.dumps(await _args_of_run(request), ensure_ascii=False)
    fields = {"language": code.language, "entrypoint": code.entrypoint, "code": code.code, "args": args}
    return _code_page(fields, is_cut=code.is_cut)


async def start_code(request: PageRequest) -> Page | SeeOther:
    """Start a run of the code in the form, and redirect to its page. If it is refused, show the form again."""
    form = await request.form(1024 * 1024)
    fields = {name: form.get(name) for name in _CODE_FIELDS}
    try:
        texts = {name: fields[name] for name in ("language", "entrypoint", "code")}
        values = {"args": json_object(fields["args"]), "mount_skills": fields["skills"].split(), "background": True}
        params = msgspec.convert({**texts, **values}, RunCode)
        run = await request.do(run_code, params, key=form.get("key")[:64] or None)
    except (ValueError, InvalidParams, NotFound, Conflict, Refused) as error:
        problem = message_of(error) if isinstance(error, SkilleryError) else str(error)
        return _code_page(fields, problem=problem)._replace(status=400)
    return SeeOther(path_of("runs", run.run_id))


def _code_page(fields: dict[str, str], problem: str = "", *, is_cut: bool = False) -> Page:
    values = {"languages": get_args(Language), "problem": problem, "is_cut": is_cut, "key": secrets.token_urlsafe(16)}
    return Page("runs_new.html", "Run code", {"fields": dict.fromkeys(_CODE_FIELDS, "") | fields, **values}, "runs")
