"""Scripts of a skill: the args of a run as argv, stdin and environment, and what is answered of one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from skillery.backends import Failure, FailureType, ScriptCall
from skillery.context.threads import BIG_TEXT
from skillery.formats.json_values import kind_of
from skillery.formats.manifest import Permissions
from skillery.formats.secret_names import changes_what_runs, is_variable_name
from skillery.formats.wording import did_you_mean, quoted
from skillery.runs.answering import OUTPUT_BYTES

ARGS = ("argv", "stdin", "env")
INLINE_CHARACTERS = 1000
"""What is answered of a stream beside its blob, where both together would be too large: its beginning."""
MOST_SUMMARY = 500

Keep = Callable[[bytes, str], Awaitable[str | None]]


class _Invalid(ValueError):
    pass


def script_call(
    script: ScriptCall, args: Mapping[str, Any], permissions: Permissions
) -> tuple[ScriptCall, Failure | None]:
    """Return `script` with the args that it is started with; a failure if they are not what a script can be given."""
    try:
        _check_names(args)
        argv = _texts(args.get("argv", []))
        stdin = _text("stdin", args.get("stdin", "")).encode()
        environment = _variables(args.get("env", {}), permissions)
    except _Invalid as error:
        return script, Failure(FailureType.VALIDATION_ERROR, str(error))
    return msgspec.structs.replace(script, argv=argv, stdin=stdin, environment=environment), None


def _check_names(args: Mapping[str, Any]) -> None:
    for name in args:
        if name not in ARGS:
            near = did_you_mean(name, ARGS)
            raise _Invalid(f"Unknown argument {quoted(name)}: a script takes argv, stdin and env{near}.")


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _Invalid(f"The argument 'argv' is {kind_of(value)}, and a list of strings is expected.")
    return tuple(_text(f"argv[{place}]", one) for place, one in enumerate(value))


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise _Invalid(f"The argument '{name}' is {kind_of(value)}, and a string is expected.")
    if "\0" in value and name != "stdin":
        raise _Invalid(f"The argument '{name}' holds a NUL, which no program can be given there.")
    return value


def _variables(value: object, permissions: Permissions) -> dict[str, str]:
    """Raises for names that would change which code runs: a caller could make a script say what only it was granted."""
    if not isinstance(value, dict):
        raise _Invalid(f"The argument 'env' is {kind_of(value)}, and an object of strings is expected.")
    if value and (permissions.secrets or permissions.network):
        raise _Invalid(
            "The argument 'env' is not for a skill with permissions: its environment is its own. Use argv or stdin."
        )
    for name in value:
        if not is_variable_name(name) or changes_what_runs(name):
            reason = "changes which code runs" if is_variable_name(name) else "is no name of a variable"
            raise _Invalid(f"The argument 'env' sets {quoted(name)}, which {reason}; take another name.")
    return {name: _text(f"env.{name}", one) for name, one in value.items()}


async def fitting(result: bytes, keep: Keep) -> bytes:
    """The result of a script, small enough to be answered where that can be: long streams are blobs and begin here."""
    said = said_of_script(result)
    if len(result) <= OUTPUT_BYTES or said is None:
        return result
    # The longer one first: the other may then stay as it is.
    for stream in sorted(("stdout", "stderr"), key=lambda name: -len(str(said.get(name)))):
        text = said.get(stream)
        if isinstance(text, str) and len(text) > INLINE_CHARACTERS and len(msgspec.json.encode(said)) > OUTPUT_BYTES:
            content = text.encode()
            blob_id = await keep(content, "text/plain")
            preview = text[:INLINE_CHARACTERS]
            said[stream] = {"blob_id": blob_id, "size_bytes": len(content), "preview": preview}
    return msgspec.json.encode(said)


def script_summary(path: str, result: bytes) -> str:
    """A sentence on how it ended, for who reads no further."""
    said = said_of_script(result)
    if said is None:
        return f"{path} has ended."
    files = len(said.get("files", ()))
    left = f" and left {files} file{'s' * (files != 1)} in out" if files else ""
    hint = said.get("hint")
    why = f" Hint: {hint}." if isinstance(hint, str) else ""
    return f"{path} exited with status {said.get('exit_code')}{left}.{why}"[:MOST_SUMMARY]


def said_of_script(result: bytes) -> dict[str, Any] | None:
    """Return what a script run answered, None if it is nothing that one can answer: a sandbox is not trusted."""
    said = msgspec.json.decode(result) if len(result) <= BIG_TEXT else None
    return said if isinstance(said, dict) and isinstance(said.get("files", []), list) else None
