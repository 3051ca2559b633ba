"""Forms that run a skill or tool (`/s/{ref}/try`), a script (`/s/{ref}/scripts/{path}`) or code (`/runs/new`)."""

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
from skillery.errors import NotFound, SkilleryError
from skillery.formats.scripts import Script, language_of
from skillery.identity import access
from skillery.method import or_none
from skillery.runs.methods import GetRun, call_tool, execute_skill, get_run, run_code
from skillery.runs.queries import args_of
from skillery.runs.requests import CallTool, ExecuteSkill, RunCode
from skillery.runs.results import RunRecord
from skillery.skills.files import ReadSkillFile, read_skill_file
from skillery.web.frame import Form, FormRefused, Page, PageRequest, SeeOther, message_of, path_of
from skillery.web.run_fields import (
    Declared,
    Field,
    args_of_form,
    filled,
    inputs_of_schema,
    json_object,
    refused,
    typed_again,
)
from skillery.web.skill_opened import (
    Opened,
    file_path_of,
    find_in_version,
    number_of,
    open_version,
    page_of,
    permissions_of,
    tools_of,
)
from skillery.web.uploads import UploadedFile, is_multipart, read_multipart
from skillery.workspaces.manifests import RunFile

MOST_UPLOAD = 1_000_000_000
_MOST_FIELDS = 2000


async def show_try(request: PageRequest) -> Page | SeeOther:
    """Show the form of a skill or a tool, filled with an example or with the args of an earlier run. A skill with
    scripts and no entrypoint has the form of its first script. A refused form has what its user has typed.
    """
    opened, form = await open_version(request, "full"), request.typed
    tool = form.get("tool") or request.query.get("tool", "")
    scripts = opened.skill.scripts or []
    if scripts and not tool:
        return SeeOther(path_of("s", f"{opened.name}@{opened.version}", "scripts", scripts[0].path))
    declared = await _declared(request, opened, tool)
    examples = [] if tool else opened.skill.manifest.get("examples") or []
    number = number_of(request.query.get("example", ""))
    typed = dict(form.pairs)
    if request.problems:
        fields, more = typed_again(declared.fields, form, request.problems), form.get("more")
    elif 0 < number <= len(examples):
        example = examples[number - 1]
        fields, more = filled(declared.fields, example.get("args") or {})
        files = example.get("blobs") or {}
        typed = {f"{field.id}-file": files[field.name] for field in fields if field.name in files}
    else:
        args = await _args_of_run(request)
        fields, more = filled(declared.fields, args)
        problems = refused(declared, args) if args else {}
        fields = [field._replace(problem=problems.get(field.id, "")) for field in fields]
    paths = {path for example in examples for path in (example.get("blobs") or {}).values() if isinstance(path, str)}
    return page_of(
        request,
        opened,
        "try",
        "runs_try.html",
        tool=tool,
        fields=fields,
        more=more,
        typed=typed,
        examples=[str(example.get("name") or f"Example {place}") for place, example in enumerate(examples, 1)],
        bundled=sorted(paths),
        key=secrets.token_urlsafe(16),
        inputs_count=len(declared.inputs),
        **await _reach(request, opened),
    )


async def _args_of_run(request: PageRequest) -> dict[str, Any]:
    """Return the args of the run in the query, or {} if there is none or if they are not kept."""
    run_id = request.query.get("run")
    known = await request.read(partial(args_of, identity=request.identity, run_id=run_id)) if run_id else None
    return msgspec.json.decode(known) if known else {}


async def start_run(request: PageRequest) -> SeeOther:
    """Start a run with the args of the form, and redirect to its page. Raise FormRefused if the args are invalid."""
    access.require(request.identity, "run")
    form, _ = await _read_form(request)
    opened = await open_version(request, "full")
    tool = form.get("tool")
    declared = await _declared(request, opened, tool)
    args, problems = args_of_form(declared.fields, form)
    for field in declared.fields:
        if field.widget == "blob":
            try:
                blob_id = await _blob(request, opened, field, form)
            except SkilleryError as error:
                problems[field.id] = message_of(error)
                continue
            if blob_id:
                args[field.name] = blob_id
        if field.is_required and field.name not in args and field.id not in problems:
            problems[field.id] = f"{field.name[:80]} is required."
    if problems := problems or refused(declared, args):
        raise FormRefused(problems)
    # A form that is sent twice starts one run.
    key, version = form.get("key")[:64] or None, opened.version
    if tool:
        call = CallTool(name=tool, skill=opened.name, version=version, args=args, background=True)
        return SeeOther(path_of("runs", (await request.do(call_tool, call, key=key)).run_id or ""))
    params = ExecuteSkill(name=opened.name, version=version, args=args, background=True)
    return SeeOther(path_of("runs", (await request.do(execute_skill, params, key=key)).run_id))


async def _read_form(request: PageRequest) -> tuple[Form, list[RunFile]]:
    """Return the fields of a form, and its files as files of a run. The value of a field with a file is a blob id."""
    files: list[RunFile] = []

    async def keep(file: UploadedFile, content: AsyncIterator[bytes]) -> str:
        blob = await request.site.core.blobs.receive(request.identity, content, file.kind)
        files.append(RunFile(f"in/{file.name.replace(chr(92), '/').rpartition('/')[2]}", blob.blob_id))
        return blob.blob_id

    if is_multipart(request.headers):
        return await read_multipart(request, keep, MOST_UPLOAD), files
    return await request.form(1024 * 1024, _MOST_FIELDS), files


async def _declared(request: PageRequest, opened: Opened, tool: str) -> Declared:
    """Return the inputs of the skill, or of `tool` if it is not "". Raise NotFound if there is no such tool."""
    if not tool:
        manifest = opened.skill.manifest
        return Declared(manifest.get("inputs") or {}, (manifest.get("runtime") or {}).get("strict_inputs") is True)
    for row in await tools_of(request, opened):
        if row.name == tool:
            return Declared(inputs_of_schema(row.parameters), is_strict=False)
    raise NotFound(f"{opened.name} {opened.version} has no tool '{tool[:80]}'", hint="Open the page of the skill.")


async def _blob(request: PageRequest, opened: Opened, field: Field, form: Form) -> str:
    """Return the id of the chosen blob: an upload, a pasted text, a file of the skill, or an id. "" if none."""
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


async def _reach(request: PageRequest, opened: Opened) -> dict[str, Any]:
    """Return what a run may reach, as the template names it, and why it would not get its secrets, or ""."""
    hosts, names = permissions_of(opened.skill.manifest)
    problem = await request.site.core.runner.secrets_problem(opened.name, names) if names else ""
    return {"hosts": hosts, "secret_names": names, "secrets_problem": problem}


# -- `/s/{ref}/scripts/{path}`: a script with arguments, input and files -----------------------------------------------


async def show_script(request: PageRequest) -> Page:
    """Show the form of a script with the args of an earlier run. Raise FileNotInSkill if there is no such file."""
    opened, fields = await open_version(request), request.typed
    path = file_path_of(request, f"{opened.name} {opened.version}")
    await find_in_version(request, opened.name, opened.version, path)
    if not request.problems:
        args = await _args_of_run(request)
        argv, stdin = args.get("argv"), args.get("stdin")
        words = "\n".join(map(str, argv)) if isinstance(argv, list) else ""
        fields = Form((("argv", words), ("stdin", stdin if isinstance(stdin, str) else "")))
    described = or_none(opened.skill.scripts) or ()
    script = next((script for script in described if script.path == path), None) or Script(path, language_of(path))
    values = {"script": script, "fields": fields, "key": secrets.token_urlsafe(16)}
    return page_of(request, opened, "try", "runs_script.html", part=path, **values, **await _reach(request, opened))


async def start_script(request: PageRequest) -> SeeOther:
    """Start a run of a script, and redirect to its page."""
    form, files = await _read_form(request)
    opened = await open_version(request)
    path = file_path_of(request, f"{opened.name} {opened.version}")
    argv = ["--help"] if form.has("help") else [line for line in form.get("argv").split("\n") if line.strip()]
    args = {"argv": argv, "stdin": form.get("stdin")} if form.get("stdin") else {"argv": argv}
    params = ExecuteSkill(
        name=opened.name, version=opened.version, script=path, args=args, files=files, background=True
    )
    run = await request.do(execute_skill, params, key=form.get("key")[:64] or None)
    return SeeOther(path_of("runs", run.run_id))


# -- `/runs/new`: a run again, with other args or other code -----------------------------------------------------------


def again_of(run: RunRecord) -> str:
    """Return the address of the form that repeats a run, or "" if nothing of it can be repeated."""
    is_module = (or_none(run.script) or "").startswith("-m ")
    can_repeat = or_none(run.code) or (or_none(run.skill) and not is_module)
    return f"/runs/new?{urlencode({'run': run.run_id})}" if can_repeat else ""


async def show_new(request: PageRequest) -> Page | SeeOther:
    """Show a form for code. For an earlier run of a skill or tool, redirect to its form. Both have its args."""
    run_id = request.query.get("run", "")
    if not run_id:
        return _code_page(request.typed if request.problems else Form((("entrypoint", "main"),)))
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
    return _code_page(Form(tuple(fields.items())), is_cut=code.is_cut)


async def start_code(request: PageRequest) -> SeeOther:
    """Start a run of the code in the form, and redirect to its page. Raise FormRefused if the form is invalid."""
    form = await request.form(1024 * 1024)
    try:
        values = {"args": json_object(form.get("args")), "mount_skills": form.get("skills").split(), "background": True}
        texts = {name: form.get(name) for name in ("language", "entrypoint", "code")}
        params = msgspec.convert({**texts, **values}, RunCode)
    except ValueError as error:
        raise FormRefused({"": str(error)}) from None
    run = await request.do(run_code, params, key=form.get("key")[:64] or None)
    return SeeOther(path_of("runs", run.run_id))


def _code_page(fields: Form, *, is_cut: bool = False) -> Page:
    values = {"languages": get_args(Language), "fields": fields, "is_cut": is_cut, "key": secrets.token_urlsafe(16)}
    return Page("runs_new.html", "Run code", values, "runs")
