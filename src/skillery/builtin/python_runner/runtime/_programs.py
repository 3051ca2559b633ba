"""Programs of a run that are not a function in Python: code in another language, tool handlers, scripts.

The process that speaks for the run stays what it is, and starts the program as its child, locked in as it is itself.
The channel is not handed on. What a program answers comes on a pipe of its own, never out of the log.
"""

# ruff: noqa: PTH100, PTH102, PTH110, PTH113, PTH118, PTH119, PTH120, PTH123 - no pathlib: it costs every such run time
from __future__ import annotations

import binascii
import json
import os
import sys

from . import _children, _failure, _run
from ._children import Program, Sink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any

    Job = dict[str, Any]

HERE = os.path.dirname(os.path.abspath(__file__))
JAVASCRIPT = os.path.join(HERE, "_javascript.mjs")
FONTS, FONTS_OF_HOST = os.path.join(HERE, "_fonts.conf"), "/etc/fonts/fonts.conf"
NODE_ENDINGS, PYTHON_ENDING, SHELL_ENDING = (".js", ".mjs"), ".py", ".sh"
MOST_ARGUMENT = 128 * 1024 - 1
"""Bytes of one argument that the kernel takes (MAX_ARG_STRLEN, with its closing zero)."""
END_OF_STDERR = 700
ENVELOPE = 1024
STREAM = 64 * 1024
PREVIEW = 1000
"""Characters of a stream that is a blob."""
"""Bytes of stdout or stderr of a script that are answered as text."""
HEAP_SHARE = 0.75
"""Of a run's memory that V8 may fill with objects; the rest is for all that it needs besides."""
SHEBANG = 256


def told(type_: str, message: str, traceback: str = "") -> _failure.Told:
    clipped = _failure.clip(message, _failure.MESSAGE), _failure.clip(traceback, _failure.TRACEBACK)
    return _failure.Told({"type": type_, "message": clipped[0], "traceback": clipped[1]})


def run(job: Job, args: bytes) -> Any:
    """What the program answers. Raises Told for one that failed."""
    program = job["program"]
    if program["form"] != "code" and not is_file_of_skill(program):
        raise told("FileNotFoundError", f"the skill has no file '{program['name']}'")
    match program["form"]:
        case "code" if program["language"] == "javascript":
            return call_javascript(job, {"code": program["code"], "entrypoint": program["entrypoint"]}, args)
        case "code":
            return call_bash(job, program["code"], args)
        case "handler":
            return call_handler(job, with_folder(args, job["lock_folder"]))
        case "script":
            return run_script(job)
    raise AssertionError(program["form"])


def is_file_of_skill(program: dict[str, str]) -> bool:
    return not {"", ".", ".."}.intersection(program["name"].split("/")) and os.path.isfile(program["path"])


def with_folder(args: bytes, folder: str) -> bytes:
    """The args of a handler: `__workDir` is where it works, whatever the caller sent."""
    return json.dumps({**json.loads(args), "__workDir": folder}).encode()


# -- what there is to run them with --------------------------------------------------------------------------------


def find(name: str) -> str | None:
    """The program `name` among those of the host that can be seen from here."""
    folders = [*os.environ.get("PATH", "").split(":"), os.path.join(sys.base_prefix, "bin")]
    paths = (os.path.join(folder, name) for folder in folders if folder)
    return next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), None)


def needed(name: str, language: str) -> str:
    path = find(name)
    if path is None:
        there = ["python", *(other for other, program in (("bash", "bash"), ("javascript", "node")) if find(program))]
        raise told(
            "SandboxError",
            f"{language} cannot be run here: the host has no '{name}' where runs see it; there is {', '.join(there)}",
        )
    return path


def node(job: Job) -> list[str]:
    heap = max(16, int(job["program"]["memory_mb"] * HEAP_SHARE))
    return [needed("node", "javascript"), f"--max-old-space-size={heap}"]


def python() -> list[str]:
    """As the runtime's own, without anything that is installed beside the standard library."""
    return [sys.executable, "-E", "-s", "-S", "-B"]


def with_packages(folders: list[str]) -> list[str]:
    """Options that let the file find installed packages, after the standard library. No variable says that: one that
    does puts them before."""
    if not folders:
        return []
    start = "del sys.argv[0]; sys.path[0] = os.path.dirname(sys.argv[0])"
    run = "runpy.run_path(sys.argv[0], run_name='__main__')"
    return ["-c", f"import os, runpy, sys; {start}; sys.path += {folders!r}; {run}"]


def interpreter(job: Job, path: str) -> list[str]:
    """What the file is started with, by its ending; one that is executable starts itself, by its `#!` line."""
    if path.endswith(NODE_ENDINGS):
        return [*node(job), path]
    if path.endswith(PYTHON_ENDING):
        return [*python(), *with_packages(job["packages"]), path]
    if path.endswith(SHELL_ENDING):
        return [needed("bash", "bash"), path]
    return by_first_line(job, job["program"]["name"], path)


def by_first_line(job: Job, name: str, path: str) -> list[str]:
    with open(path, "rb") as file:
        words = file.read(SHEBANG).partition(b"\n")[0].decode("utf-8", "replace").strip()
    if not words.startswith("#!") or not words[2:].split():
        raise told("OSError", f"'{name}' has no ending that says how to run it (.py, .sh, .js, .mjs) and no '#!' line")
    if not os.access(path, os.X_OK):
        raise told("PermissionError", f"'{name}' is not executable; publish it with executable: true")
    program, *options = words[2:].split()
    named = [option for option in options if not option.startswith("-")]
    wanted = named[0] if os.path.basename(program) == "env" and named else program
    if not os.access(program, os.X_OK) or find(wanted) is None:
        raise told("OSError", f"'{name}' wants '{wanted}', and there is no such program in the sandbox")
    return [*node(job), path] if os.path.basename(wanted) == "node" and options in ([], named) else [path]


def start(program: Program, job: Job, command: list[str], **streams: Any) -> int:
    """Its wait status."""
    _run.settle_address_space(room=os.path.basename(command[0]) == "node")
    _children.be_unreadable()
    try:
        return program.run(command, alone=job["own_processes"], **streams)
    except (OSError, ValueError) as error:  # too long a list of arguments, a NUL in one
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        raise told("OSError", f"the program could not be started: {reason}") from None


# -- JavaScript ----------------------------------------------------------------------------------------------------


def call_javascript(job: Job, what: dict[str, str], args: bytes) -> Any:
    program = Program()
    answer = Sink(job["result_bytes"] + ENVELOPE)
    request = json.dumps(what)[:-1].encode() + b',"args":' + args + b"}"
    reading, writing = program.feed(request), program.drain(answer)
    command = [*node(job), "--experimental-vm-modules", JAVASCRIPT, str(reading), str(writing)]
    status = start(program, job, command)
    if answer.size > job["result_bytes"] + ENVELOPE:
        limit = job["result_bytes"]
        raise told("InvalidOutput", f"the output is over {limit} bytes of JSON, which is the limit: make it shorter")
    record = answer_of(answer.content)
    if record is None:
        raise _failure.Told(heap_full(job, status) or _children.describe_end(status))
    if "failure" in record:
        failure = record["failure"]
        raise told(failure.get("type", "Error"), failure.get("message", ""), failure.get("traceback", ""))
    return record["value"]


def answer_of(content: bytearray) -> dict[str, Any] | None:
    """None where the program ended before it had said all."""
    try:
        record = json.loads(content)
        failure = record.get("failure", {})
        described = all(isinstance(failure.get(name, ""), str) for name in ("type", "message", "traceback"))
    except (ValueError, RecursionError, AttributeError):
        return None
    return record if described and ("value" in record or failure) else None


def heap_full(job: Job, status: int) -> dict[str, Any] | None:
    """V8 aborts where its heap is full, with nothing but a line in the log that says so."""
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
    """From a pipe, so that it may be of any length and lies in no folder that the code sees."""
    program = Program()
    reading = program.feed(code.encode("utf-8", "replace"))
    wrapped = f'eval "exec {reading}<&-; $(cat <&{reading})"'
    return answer_on_stdout(program, job, [needed("bash", "bash"), "-c", wrapped, "run_code.sh"], args)


def call_handler(job: Job, args: bytes) -> Any:
    """A file of a skill as the Skill Tools convention has it for its language."""
    path = job["program"]["path"]
    if path.endswith(NODE_ENDINGS):
        return call_javascript(job, {"file": path}, args)
    if path.endswith(PYTHON_ENDING):
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        if "handler" in names_bound_by(code):
            return call_python(code, path, args)
    command = interpreter(job, path) + ([args.decode()] if len(args) <= MOST_ARGUMENT else [])
    return answer_on_stdout(Program(), job, command, args)


def names_bound_by(code: CodeType) -> set[str]:
    """What a module defines, imports or assigns, wherever it does so at its own level."""
    import dis

    return {step.argval for step in dis.get_instructions(code) if step.opname == "STORE_NAME"}


def call_python(code: CodeType, path: str, args: bytes) -> Any:
    from types import ModuleType

    _run.settle_address_space(room=False)
    folder = os.path.dirname(path)
    if folder not in sys.path:
        sys.path.append(folder)
    module = ModuleType("skill_handler")
    module.__file__ = path
    sys.modules[module.__name__] = module
    exec(code, module.__dict__)  # noqa: S102 - that is what a run is for
    return _run.settled(module.__dict__["handler"](json.loads(args)))


def answer_on_stdout(program: Program, job: Job, command: list[str], stdin: bytes) -> Any:
    """JSON where it is JSON, else a string without the line ends at its end. stderr is the log."""
    printed = Sink(job["result_bytes"])
    said = Sink(END_OF_STDERR, tail=True, copy_to=2)
    streams = {"stdin": program.feed(stdin), "stdout": program.drain(printed), "stderr": program.drain(said)}
    status = start(program, job, command, **streams)
    if status:
        _children.pass_on(1, printed.content)  # it is no answer, but may say what went wrong
        raise _failure.Told(_children.describe_end(status, said.content))
    if printed.size > job["result_bytes"]:
        limit = job["result_bytes"]
        raise told("InvalidOutput", f"the program printed {printed.size} bytes; the limit is {limit}")
    return value_of(printed.content.decode("utf-8", "replace"))


def value_of(printed: str) -> Any:
    try:
        return json.loads(printed, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return printed.rstrip("\r\n")


def refuse_constant(name: str) -> Any:
    raise ValueError(name)


# -- scripts -------------------------------------------------------------------------------------------------------


def run_script(job: Job) -> dict[str, Any]:
    """How it ended, what it printed, and what it left below `out` in the working directory."""
    from . import _gathering

    asked = job["program"]
    out_folder = os.path.join(job["lock_folder"], "out")
    if any(names_file_in(out_folder, text) for text in (*asked["argv"], *asked["environment"].values())):
        os.mkdir(out_folder)
    program = Program()
    out, err = (Sink(job["result_bytes"], copy_to=descriptor) for descriptor in (1, 2))
    streams = {
        "stdin": program.feed(binascii.a2b_base64(asked["stdin"])),
        "stdout": program.drain(out),
        "stderr": program.drain(err),
        "environment": {**fonts(), **os.environ, **asked["environment"]},
    }
    status = start(program, job, [*interpreter(job, asked["path"]), *asked["argv"]], **streams)
    signalled = os.WIFSIGNALED(status)
    return {
        "exit_code": 128 + os.WTERMSIG(status) if signalled else os.WEXITSTATUS(status),
        "stdout": printed_by(out),
        "stderr": printed_by(err),
        **_gathering.gather(out_folder),
    }


def fonts() -> dict[str, str]:
    """What tells programs that draw where fonts lie: a sandbox may show those of the host and not the host's settings,
    without which they complain on stderr."""
    return {} if os.path.exists(FONTS_OF_HOST) else {"FONTCONFIG_FILE": FONTS}


def names_file_in(folder: str, text: str) -> bool:
    """Whether an argument, or the value in `--output=value`, is a path in the folder: few scripts make the folder that
    they are told to write to. One that is not told finds its working directory empty."""
    value = text.partition("=")[2] if text.startswith("-") else text
    return os.path.abspath(value).startswith(folder + os.sep)


def printed_by(sink: Sink) -> str | dict[str, Any]:
    """A text; a longer one is a blob, and what went past the limit of a result is only counted."""
    if sink.size <= STREAM:
        return sink.content.decode("utf-8", "replace")
    from . import blobs

    content = bytes(sink.content)
    preview = content[: 4 * PREVIEW].decode("utf-8", "replace")[:PREVIEW]
    kept = {"blob_id": blobs.write_bytes(content, "text/plain"), "size_bytes": len(content), "preview": preview}
    dropped = sink.size - len(content)
    return {**kept, "dropped_bytes": dropped} if dropped else kept
