"""The header of a job: the description of a run for the process inside the sandbox."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from cellblock.egress.policy import ListNames
from cellblock.host.dialogue import header
from cellblock.values import Guest, Mount
from skillery.backends import CodeCall, HandlerCall, Job, PackageMount, ScriptCall, SkillCall

# -- The description of a program that is not a Python function, for the process inside the sandbox --------------------


def program_of(job: Job, skills: str) -> dict[str, Any] | None:
    """Return the description of the program to run, or None if the run calls a Python function.

    `skills` is the folder of mounted skills inside the sandbox.
    """
    call = job.call
    program: dict[str, Any]
    match call:
        case CodeCall(language="javascript" | "bash"):
            program = {"form": "code", "language": call.language, "code": call.code, "entrypoint": call.function}
        case HandlerCall():
            program = {"form": "guest", "runner": "runtime._scripts", "is_script": False, **file_of(call, skills)}
        case ScriptCall():
            program = {
                "form": "guest",
                "runner": "runtime._scripts",
                "is_script": True,
                **file_of(call, skills),
                "module": call.module,
                "python": call.python,
                "in_skill": call.in_skill,
                "argv": list(call.argv),
                "stdin": b64encode(call.stdin).decode(),
                "environment": dict(call.environment),
            }
        case _:
            return None
    return {**program, "memory_mb": job.limits.memory_mb}


def file_of(call: HandlerCall | ScriptCall, skills: str) -> dict[str, str]:
    root = f"{skills}/{call.skill}"
    return {"name": call.path, "path": f"{root}/{call.path}", "root": root}


MEBIBYTE = 1 << 20
GUEST = Guest(Path(__file__).parent / "in_sandbox", "_skillery")
"""The code of Skillery inside each run."""
SKILL_FOLDER = ("SKILL_DIR", "SKILL_ROOT", "CLAUDE_SKILL_DIR", "CLAUDE_SKILL_ROOT")
"""Environment variables in which public skills expect the folder of the skill."""


PROGRAMS = Path(__file__).parent / "programs"
"""A folder with programs of every run, such as `pip`. They explain what a run cannot do."""

POINTS = ("/skills", "/blobs")
"""The folders in which runs see skills and blobs."""


def list_names(backend: str) -> ListNames:
    """Return the words for the lists of a sandbox backend in messages to the code."""
    private = f"backends.sandbox.{backend}.allow_private"
    return ListNames("permissions.network of this skill", "permissions.network of skill.toml", private)


class Places(msgspec.Struct, frozen=True):
    """Paths in the sandbox, as the code sees them."""

    skills: str = "/skills"
    blobs: str = "/blobs"
    packages: str = "/packages"
    lock: str = "/workspace"
    home: str = "/tmp/home"  # noqa: S108 - a path of the sandbox
    """The home of a run with a workspace: programs must not read settings that another run has left."""
    code: str = "/run/code/run_code.py"
    own_processes: bool = True
    """Whether the run has its own pid namespace, so that the code can signal only processes of the run."""


def mounts_of(job: Job, *, packages: bool = True) -> list[Mount]:
    """Return the mounts of a job. If `packages` is False, its packages are mounted already."""
    mounts = [Mount(skill.folder, f"/skills/{skill.name}", digest=skill.folder.name) for skill in job.skills]
    if packages:
        mounts += [Mount(each.folder, f"/packages/{each.name}", digest=digest_of(each)) for each in job.packages]
    return mounts + [Mount(blob.path, f"/blobs/{blob.blob_id}") for blob in job.blobs]


def digest_of(packages: PackageMount) -> str:
    """Return the lock of packages if it is a digest: such packages never change. Return "" for other folders."""
    return packages.lock if len(packages.lock) == 64 else ""


def job_header(job: Job, environment: Mapping[str, str], places: Places) -> dict[str, Any]:
    """Return the description of a job for the process inside the sandbox, without the arguments.

    `environment` has variables in addition to those of the process. `places` are the paths in this sandbox.
    """
    call = job.call
    program = program_of(job, places.skills)
    module, function = "", None
    if isinstance(call, SkillCall):
        spread = ("runtime._functions", "call_offered")
        module, function = spread if call.spread else (import_name(call.skill), call.function)
    elif isinstance(call, CodeCall):
        function = call.function
    return header(
        timeout_ms=job.limits.timeout_ms,
        result_bytes=job.limits.result_mb * MEBIBYTE,
        code=call.code if isinstance(call, CodeCall) and program is None else None,
        code_path=places.code,
        module=module,
        function=function,
        program=program,
        workspace=places.lock,
        own_processes=places.own_processes,
        environment={**folder_variables(program), **environment},
        packages=folders_of_packages(job, places),
        guest=guest_job(job, places),
        waits=waits(job),
    )


def folders_of_packages(job: Job, places: Places) -> list[str]:
    return [f"{places.packages}/{packages.lock}" for packages in job.packages if packages.kind == "python"]


def folder_variables(program: dict[str, Any] | None) -> dict[str, str]:
    """Return the variables of a file of a skill. `environment` of a job may replace them."""
    return dict.fromkeys(SKILL_FOLDER, program["root"]) if program is not None and "root" in program else {}


def import_name(skill: str) -> str:
    """Return the name with which code imports a skill."""
    return "skills." + skill.replace("-", "_")


def waits(job: Job) -> bool:
    """Return whether the guest receives files before the code starts."""
    return bool(job.files or job.workspace is not None)


def guest_job(job: Job, places: Places) -> dict[str, Any]:
    """Return the description of a job for the guest."""
    call = job.call
    return {
        "workspace": places.lock,
        "packages": folders_of_packages(job, places),
        "files": [{"path": file.path, "executable": file.executable} for file in job.files],
        "home": places.home if job.workspace is not None else "",
        "outputs": list(job.outputs),
        "is_script": isinstance(job.call, ScriptCall),
        "blobs": places.blobs,
        "skill": call.skill if isinstance(call, SkillCall) else None,
        "function": call.function if isinstance(call, SkillCall) else None,
        "spread": isinstance(call, SkillCall) and call.spread,
        "skills": [
            {
                "name": skill.name,
                "module": import_name(skill.name),
                "folder": f"{places.skills}/{skill.name}",
                "entrypoint": skill.entrypoint,
                "stub": skill.stub,
            }
            for skill in job.skills
        ],
    }
