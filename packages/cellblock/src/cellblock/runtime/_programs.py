"""Programs of a run that are not Python functions: code in another language, and files.

The process of the run starts the program as a child; only a handler function in Python runs in that process itself. The
child is locked in like its parent, and does not get the channel to the server. A program sends its answer over a
separate pipe, never through the log.
"""

# ruff: noqa: PTH100, PTH113, PTH118, PTH119, PTH120, PTH123 - importing pathlib costs every such run time
from __future__ import annotations

import importlib
import json
import os
import sys

from . import _children, _failure, _importing, _run
from ._children import Program, Sink
from ._failure import failed
from ._interpreters import (
    HEAP_SHARE,
    NODE_ENDINGS,
    PYTHON_ENDING,
    check_types,
    interpreter,
    needed,
    node,
    preload_node,
    set_variables,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

    Job = dict[str, Any]

HERE = os.path.dirname(os.path.abspath(__file__))
JAVASCRIPT = os.path.join(HERE, "_javascript.mjs")
MOST_ARGUMENT = 128 * 1024 - 1
"""Most bytes of one argument (MAX_ARG_STRLEN of the kernel, without the final zero)."""
END_OF_STDERR = 700
ENVELOPE = 1024


def run(job: Job, args: bytes) -> Any:
    """Run the program of the job and return its answer. Raise Told if it failed."""
    program = job["program"]
    preload_node()
    if program["form"] != "code":
        set_variables(job)
    match program["form"]:
        case "code" if program["language"] == "javascript":
            return call_javascript(job, {"code": program["code"], "entrypoint": program["entrypoint"]}, args)
        case "code":
            return call_bash(job, program["code"], args)
        case "file":
            return call_handler(job, args)
        case "guest":
            return importlib.import_module(program["runner"]).run(job, args)
    raise AssertionError(program["form"])


def is_file(program: dict[str, str]) -> bool:
    return not {"", ".", ".."}.intersection(program["name"].split("/")) and os.path.isfile(program["path"])


def start(program: Program, job: Job, command: list[str], **streams: Any) -> int:
    """Run the program to its end, and return its wait status. Raise Told if it cannot be started."""
    _run.settle_address_space(room=os.path.basename(command[0]) == "node")
    _children.be_unreadable()
    try:
        status = program.run(command, alone=job["own_processes"], seconds=job["term_seconds"], **streams)
    except (OSError, ValueError) as error:  # too many arguments, or a NUL in one
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise failed("OSError", f"the program could not be started: {reason}") from None
    check_types(command, status)
    return status


# -- JavaScript ----------------------------------------------------------------------------------------------------


def call_javascript(job: Job, call: dict[str, str], args: bytes) -> Any:
    program = Program()
    answer = Sink(job["result_bytes"] + ENVELOPE)
    request = json.dumps(call)[:-1].encode() + b',"args":' + args + b"}"
    reading, writing = program.feed(request), program.drain(answer)
    command = [*node(job), "--experimental-vm-modules", JAVASCRIPT, str(reading), str(writing)]
    status = start(program, job, command)
    if answer.size > job["result_bytes"] + ENVELOPE:
        limit = job["result_bytes"]
        raise failed("InvalidOutput", f"the output is over {limit} bytes of JSON, which is the limit: make it shorter")
    record = answer_of(answer.content)
    if record is None:
        raise _failure.Told(heap_full(job, status) or _children.describe_end(status))
    if "failure" in record:
        failure = record["failure"]
        raise failed(failure.get("type", "Error"), failure.get("message", ""), failure.get("traceback", ""))
    return record["value"]


def answer_of(content: bytearray) -> dict[str, Any] | None:
    """Return the answer of the program, or None if the program ended before its answer was complete."""
    try:
        record = json.loads(content)
        failure = record.get("failure", {})
        described = all(isinstance(failure.get(name, ""), str) for name in ("type", "message", "traceback"))
    except (ValueError, RecursionError, AttributeError):
        return None
    return record if described and ("value" in record or failure) else None


def heap_full(job: Job, status: int) -> dict[str, Any] | None:
    """Return the failure if the heap of V8 was full, else None. V8 then aborts with only a line in the log."""
    import resource
    import signal

    limit = job["program"]["memory_mb"]
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in {signal.SIGABRT, signal.SIGTRAP} and most > limit * HEAP_SHARE:
        words = f"the heap of JavaScript was full; the run and its processes have {limit} MiB of memory"
        return {"type": "MemoryLimitExceeded", "message": words}
    return None


# -- programs that answer on stdout --------------------------------------------------------------------------------


def call_bash(job: Job, code: str, args: bytes) -> Any:
    """Run code in bash and return its answer.

    The code is passed through a pipe. So it can have any length, and is in no folder that the code can see.
    """
    program = Program()
    reading = program.feed(code.encode("utf-8", "replace"))
    wrapped = f'eval "exec {reading}<&-; $(cat <&{reading})"'
    return answer_on_stdout(program, job, [needed("bash", "bash"), "-c", wrapped, "run_code.sh"], args)


def call_handler(job: Job, args: bytes) -> Any:
    """Call the file of the job, and return its answer.

    Node imports a JavaScript file. If a Python file binds the name `handler`, this process calls it. Any other file
    runs as a program: it gets the args on stdin and, if they are short enough, also as an argument. Its stdout is the
    answer.
    """
    program = job["program"]
    if not is_file(program):
        raise failed("FileNotFoundError", f"there is no file '{program['name']}'")
    path = program["path"]
    if path.endswith(NODE_ENDINGS):
        return call_javascript(job, {"file": path}, args)
    if path.endswith(PYTHON_ENDING):
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        if "handler" in names_bound_by(code):
            return call_python(code, path, args, program["root"])
    command = interpreter(job, path) + ([args.decode()] if len(args) <= MOST_ARGUMENT else [])
    return answer_on_stdout(Program(), job, command, args)


def names_bound_by(code: CodeType) -> set[str]:
    """Return the names that a module defines, imports or assigns outside of functions and classes."""
    import dis

    return {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_NAME"}


def call_python(code: CodeType, path: str, args: bytes, root: str) -> Any:
    from types import ModuleType

    _run.settle_address_space(room=False)
    sys.path += [folder for folder in (os.path.dirname(path), root) if folder not in sys.path]
    module = ModuleType(_importing.ENTRY)
    module.__file__ = path
    sys.modules[module.__name__] = module
    exec(code, module.__dict__)  # noqa: S102 - runs the code of the file
    return _run.settled(module.__dict__["handler"](json.loads(args)))


def answer_on_stdout(program: Program, job: Job, command: list[str], stdin: bytes) -> Any:
    """Run a program, and return its stdout: as JSON if it is JSON, else as text without trailing line ends.

    stderr goes to the log.
    """
    printed = Sink(job["result_bytes"])
    errors = Sink(END_OF_STDERR, tail=True, copy_to=2)
    streams = {"stdin": program.feed(stdin), "stdout": program.drain(printed), "stderr": program.drain(errors)}
    status = start(program, job, command, **streams)
    if status:
        _children.pass_on(1, printed.content)  # the output may explain the failure
        raise _failure.Told(_children.describe_end(status, errors.content))
    if printed.size > job["result_bytes"]:
        limit = job["result_bytes"]
        raise failed("InvalidOutput", f"the program printed {printed.size} bytes; the limit is {limit}")
    return value_of(printed.content.decode("utf-8", "replace"))


def value_of(printed: str) -> Any:
    try:
        return json.loads(printed, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return printed.rstrip("\r\n")


def refuse_constant(name: str) -> Any:
    raise ValueError(name)
