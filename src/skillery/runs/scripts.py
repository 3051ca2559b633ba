"""Scripts of a skill: argv, stdin and environment from the args of a run, and the result of a script."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from skillery.backends import Failure, FailureType, Job, PublishedFile, ScriptCall
from skillery.context.threads import BIG_TEXT
from skillery.environments.definitions import fits_this_python, fitting_python, missing_python
from skillery.formats.json_values import kind_of
from skillery.formats.manifest import Permissions
from skillery.formats.names import changes_what_runs, is_variable_name
from skillery.formats.requirements import LOCK, InvalidLock, read_lock
from skillery.formats.script_blocks import lock_path, python_of, required_python
from skillery.formats.tools import WORK_DIR
from skillery.formats.wording import did_you_mean, quoted

if TYPE_CHECKING:
    from skillery.tools.tool_lookup import SessionTool


ARGS = ("argv", "stdin", "env")


class _Invalid(ValueError):
    """Raised if the args of a script are invalid. The text is the message of the failure."""


def script_call(
    script: ScriptCall, args: Mapping[str, Any], permissions: Permissions
) -> tuple[ScriptCall, Failure | None]:
    """Return `script` with argv, stdin and environment from `args`, and None.

    If `args` are not valid for a script, return `script` unchanged and the failure.
    """
    try:
        _check_names(args)
        argv = _texts(args.get("argv", []))
        stdin = _text("stdin", args.get("stdin", "")).encode()
        environment = _variables(args.get("env", {}), permissions)
    except _Invalid as error:
        return script, Failure(FailureType.VALIDATION_ERROR, str(error))
    return msgspec.structs.replace(script, argv=argv, stdin=stdin, environment=environment), None


def _check_names(args: Mapping[str, Any]) -> None:
    """Raise _Invalid if an argument is not one of ARGS."""
    for name in args:
        if name not in ARGS:
            near = did_you_mean(name, ARGS)
            raise _Invalid(f"Unknown argument {quoted(name)}: a script takes argv, stdin and env{near}.")


def _texts(value: object) -> tuple[str, ...]:
    """Return the argument `argv` as a tuple. Raise _Invalid if it is not a list of strings."""
    if not isinstance(value, list):
        raise _Invalid(f"The argument 'argv' is {kind_of(value)}, and a list of strings is expected.")
    return tuple(_text(f"argv[{number}]", argument) for number, argument in enumerate(value))


def _text(name: str, value: object) -> str:
    """Return the argument `name`. Raise _Invalid if it is not a string or contains a NUL."""
    if not isinstance(value, str):
        raise _Invalid(f"The argument '{name}' is {kind_of(value)}, and a string is expected.")
    if "\0" in value and name != "stdin":
        raise _Invalid(f"The argument '{name}' contains a NUL character, which no argument or variable can have.")
    return value


def _variables(value: object, permissions: Permissions) -> dict[str, str]:
    """Return the environment variables for the script from the argument `env`.

    Raise _Invalid if a name or a value is not allowed. A skill with permissions takes no variables, because a caller
    could use some of them to read its secrets. No skill takes variables that change which code runs.
    """
    if not isinstance(value, dict):
        raise _Invalid(f"The argument 'env' is {kind_of(value)}, and an object of strings is expected.")
    if value and (permissions.secrets or permissions.network):
        raise _Invalid(
            "The argument 'env' is not for a skill with permissions: its environment is its own. Use argv or stdin."
        )
    for name in value:
        if not is_variable_name(name) or changes_what_runs(name):
            reason = "changes which code runs" if is_variable_name(name) else "is not a name of a variable"
            raise _Invalid(f"The argument 'env' sets {quoted(name)}, which {reason}; take another name.")
    return {name: _text(f"env.{name}", variable) for name, variable in value.items()}


def args_of(job: Job) -> bytes:
    """Return the args of a run for its record, as JSON. Those of a script are in its call."""
    call = job.call
    if not isinstance(call, ScriptCall):
        return job.args
    args = {"argv": call.argv, "stdin": str(call.stdin, "utf-8"), "env": call.environment}
    return msgspec.json.encode({name: value for name, value in args.items() if value})


class OwnNeeds(NamedTuple):
    """The interpreter and the lock of a script. `python` is "" for that of the sandbox, and `lock` is the path of a
    lock, or "" for no packages. `failure` says why the script cannot run.
    """

    python: str = ""
    lock: str = LOCK
    failure: Failure | None = None


def own_needs(folder: Path, path: str, pythons: Mapping[str, str]) -> OwnNeeds:
    """Return the needs of a Python script of the skill in `folder` that differ from those of the skill, by its block
    `# /// script` and its lock. `pythons` are the other interpreters of this sandbox, by version.
    """
    requires, locked_for = _stated(folder, path)
    lock = lock_path(path) if locked_for is not None else ""
    if locked_for:
        python = "" if fits_this_python(f"=={locked_for}.*") else locked_for if locked_for in pythons else None
        requires = requires or f"=={locked_for}.*"
    else:
        python = fitting_python(requires, pythons if locked_for is None else ())
    if python is None:
        return OwnNeeds(failure=Failure(FailureType.ENVIRONMENT_FAILED, f"'{path}' {missing_python(requires)}"))
    return OwnNeeds(pythons[python], lock) if python else OwnNeeds("", lock or LOCK)


@lru_cache(maxsize=512)
def _stated(folder: Path, path: str) -> tuple[str, str | None]:
    """Return `requires-python` of a Python file, and the Python of its lock, or None if it has no lock.

    The result is cached, because the folder of a version never changes.
    """
    try:
        requires = required_python((folder / path).read_bytes())
    except OSError:  # the run says that the file is missing
        return "", None
    try:
        content = (folder / lock_path(path)).read_bytes()
        return requires, python_of(content) if read_lock(content) else None
    except (OSError, InvalidLock):
        return requires, None


def script_answer(result: bytes) -> dict[str, Any] | None:
    """Return the decoded result of a script, or None if the result is too large or malformed.

    The code in the sandbox may have written any bytes.
    """
    answer = msgspec.json.decode(result) if len(result) <= BIG_TEXT else None
    return answer if isinstance(answer, dict) and isinstance(answer.get("files", []), list) else None


# -- call_tool: the args and the files of a handler --------------------------------------------------------------------


SESSION_SKILL = "session-tools"
"""The skill name under which the tool of a session is mounted."""


def tool_args(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a tool without `__workDir`, because only the sandbox sets this argument."""
    return {name: value for name, value in args.items() if name != WORK_DIR}


def session_files(tool: SessionTool) -> tuple[PublishedFile, ...]:
    """Return the file of the handler of a tool of a session."""
    return (PublishedFile(tool.script, tool.content.encode()),)
