"""Methods that start, read and cancel runs."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from skillery.backends import Identity, Language
from skillery.errors import InvalidParams
from skillery.formats.names import parse_skill_name
from skillery.formats.paths import parse_path
from skillery.formats.wording import quoted
from skillery.method import or_none
from skillery.methods import params
from skillery.methods.calls.values import run_files
from skillery.methods.core import Core
from skillery.runs import CodeRequest, SkillRequest, parse_outputs, queries
from skillery.runs.queries import RunFilter
from skillery.runs.results import Run, RunLog, RunPage, RunRecord


async def execute_skill(core: Core, identity: Identity, asked: params.ExecuteSkill) -> Run:
    parse_skill_name(asked.name)
    # Instructions and tools.json often write the path with a leading ./.
    script = parse_path(asked.script) if asked.script else ""
    _check_what_starts(asked)
    request = SkillRequest(
        asked.name,
        asked.version,
        asked.args,
        asked.input_blobs,
        or_none(asked.timeout_ms),
        script,
        or_none(asked.environment),
        files=run_files(asked.files),
        outputs=parse_outputs(asked.outputs),
        workspace=asked.workspace,
        workspace_mode=asked.workspace_mode,
        module=asked.module,
        in_skill=asked.cwd == "skill",
        background=asked.background,
    )
    return await core.runner.execute_skill(identity, request)


async def run_code(core: Core, identity: Identity, asked: params.RunCode) -> Run:
    _check_entrypoint(asked.entrypoint, asked.language)
    request = CodeRequest(
        asked.code,
        asked.entrypoint,
        asked.args,
        asked.mount_skills,
        asked.input_blobs,
        asked.limits,
        asked.language,
        or_none(asked.environment),
        files=run_files(asked.files),
        outputs=parse_outputs(asked.outputs),
        workspace=asked.workspace,
        workspace_mode=asked.workspace_mode,
        background=asked.background,
    )
    return await core.runner.run_code(identity, request)


async def get_run(core: Core, identity: Identity, asked: params.GetRun) -> RunRecord:
    return await core.runner.get_run(identity, asked.run_id, asked.wait_ms)


async def read_run_log(core: Core, identity: Identity, asked: params.ReadRunLog) -> RunLog:
    return await core.runner.read_run_log(
        identity, asked.run_id, after=asked.after, max_bytes=asked.max_bytes, wait_ms=asked.wait_ms
    )


async def list_runs(core: Core, identity: Identity, asked: params.ListRuns) -> RunPage:
    skill = parse_skill_name(asked.skill) if asked.skill else ""
    if "\0" in asked.identity:
        raise InvalidParams("'identity' contains a NUL character", hint="Write the name of a token.", param="identity")
    status: Any = "" if asked.status is msgspec.UNSET else asked.status
    work = partial(
        queries.read_runs,
        identity=identity,
        key=core.registry.cursor_key,
        asked=RunFilter(skill, status, asked.since, asked.identity),
        limit=asked.limit,
        cursor=asked.cursor,
    )
    # Slow: with a filter, one page may read many rows.
    return await core.registry.read_page(work)


async def cancel_run(core: Core, identity: Identity, asked: params.CancelRun) -> RunRecord:
    return await core.runner.cancel_run(identity, asked.run_id)


def _check_what_starts(asked: params.ExecuteSkill) -> None:
    if asked.module and asked.script:
        raise InvalidParams("'script' and 'module' are both given", hint="Name one of them.", param="module")
    if asked.module and not (len(asked.module) <= 255 and all(map(str.isidentifier, asked.module.split(".")))):
        raise InvalidParams(
            f"'module' is {quoted(asked.module)}, which is not a name of a Python module",
            hint="Write scripts.package_skill for the file scripts/package_skill.py.",
            param="module",
        )
    if asked.cwd == "skill" and not (asked.module or asked.script):
        raise InvalidParams(
            "'cwd' is 'skill', but an entrypoint starts in /workspace",
            hint="Leave 'cwd' out, or name a 'script' or 'module' to run.",
            param="cwd",
        )


def _check_entrypoint(name: str, language: Language) -> None:
    """Raise InvalidParams if no function of the language can have this name. In Bash, only the default `main` is
    valid.
    """
    if language == "bash" and name != "main":
        raise InvalidParams(
            f"'entrypoint' is {name[:80]!r}, and bash code has none: it runs from its first line",
            hint="Leave 'entrypoint' out; the args are JSON on stdin, and what is printed is the output.",
            param="entrypoint",
        )
    if not (name.replace("$", "_") if language == "javascript" else name).isidentifier():
        called = {"javascript": "JavaScript", "python": "Python"}[language]
        raise InvalidParams(
            f"'entrypoint' is {name[:80]!r}, which is not a {called} identifier",
            hint="Name a function of the code, for example main.",
            param="entrypoint",
        )
