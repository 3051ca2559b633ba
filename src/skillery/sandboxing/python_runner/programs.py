"""The description of a program that is not a Python function, for the process inside the sandbox."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from skillery.backends import CodeCall, HandlerCall, Job, ScriptCall


def program_of(job: Job, skills: str) -> dict[str, Any] | None:
    """Return the description of the program; None if the run calls a Python function.

    `skills` is the folder of mounted skills inside the sandbox.
    """
    call = job.call
    told: dict[str, Any]
    match call:
        case CodeCall(language="javascript" | "bash"):
            told = {"form": "code", "language": call.language, "code": call.code, "entrypoint": call.function}
        case HandlerCall():
            told = {"form": "handler", **file_of(call, skills)}
        case ScriptCall():
            told = {
                "form": "script",
                **file_of(call, skills),
                "module": call.module,
                "in_skill": call.in_skill,
                "argv": list(call.argv),
                "stdin": b64encode(call.stdin).decode(),
                "environment": dict(call.environment),
            }
        case _:
            return None
    return {**told, "memory_mb": job.limits.memory_mb}


def file_of(call: HandlerCall | ScriptCall, skills: str) -> dict[str, str]:
    root = f"{skills}/{call.skill}"
    return {"name": call.path, "path": f"{root}/{call.path}", "root": root}
