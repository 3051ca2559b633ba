"""Programs of skills: handlers of tools, and scripts with input, output and an exit code."""

# ruff: noqa: PTH100, PTH103, PTH118 - importing pathlib costs every such run time
from __future__ import annotations

import binascii
import json
import os

from . import _gathering

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cellblock.runtime._children import Program, Sink
    from cellblock.runtime._failure import failed
    from cellblock.runtime._interpreters import interpreter
    from cellblock.runtime._programs import call_handler, is_file, start

    Job = dict[str, Any]
else:
    from ._children import Program, Sink
    from ._failure import failed
    from ._interpreters import interpreter
    from ._programs import call_handler, is_file, start

STREAM = 64 * 1024
"""Most bytes of a stream that are returned as text. A longer stream becomes a blob."""
PREVIEW = 1000
"""Characters of the preview of a stream that is a blob."""


def run(job: Job, args: bytes) -> Any:
    """Run the file of a skill, and return its answer. A script gets no args."""
    call = job["program"]
    if not is_file(call):
        raise failed("FileNotFoundError", f"the skill has no file '{call['name']}'")
    return run_script(job, call) if call["is_script"] else call_handler(job, with_folder(args, job["workspace"]))


def with_folder(args: bytes, folder: str) -> bytes:
    """Return the args of a handler with its working directory as `__workDir`. A value from the caller is replaced."""
    return json.dumps({**json.loads(args), "__workDir": folder}).encode()


def run_script(job: Job, call: dict[str, Any]) -> dict[str, Any]:
    """Run the script. Return its exit code, its output, and the files below `out` in the workspace."""
    out_folder = os.path.join(job["workspace"], "out")
    folder = call["root"] if call["in_skill"] else job["workspace"]
    if any(names_file_in(out_folder, text, folder) for text in (*call["argv"], *call["environment"].values())):
        os.makedirs(out_folder, exist_ok=True)
    program = Program()
    out, err = (Sink(job["result_bytes"], copy_to=descriptor) for descriptor in (1, 2))
    streams = {
        "stdin": program.feed(binascii.a2b_base64(call["stdin"])),
        "stdout": program.drain(out),
        "stderr": program.drain(err),
        "environment": {**os.environ, **call["environment"]},
        "folder": folder,
    }
    status = start(program, job, [*interpreter(job, call["path"]), *call["argv"]], **streams)
    signalled = os.WIFSIGNALED(status)
    return {
        "exit_code": 128 + os.WTERMSIG(status) if signalled else os.WEXITSTATUS(status),
        "stdout": printed_by(out),
        "stderr": printed_by(err),
        **_gathering.gather(out_folder),
    }


def names_file_in(folder: str, text: str, start: str) -> bool:
    """Return whether `text` is `folder` or a path in it, or an option such as `--output=PATH` with such a path.

    `start` is the folder that relative paths begin at. The caller creates `folder` for such a script, because most
    scripts do not create their output folder.
    """
    value = text.partition("=")[2] if text.startswith("-") else text
    return (os.path.abspath(os.path.join(start, value)) + os.sep).startswith(folder + os.sep)


def printed_by(sink: Sink) -> str | dict[str, Any]:
    """Return the text of a stream, or a reference to a blob if the text is long.

    Output above the limit of a result is only counted.
    """
    if sink.size <= STREAM:
        return sink.content.decode("utf-8", "replace")
    from . import blobs

    content = bytes(sink.content)
    preview = content[: 4 * PREVIEW].decode("utf-8", "replace")[:PREVIEW]
    kept = {"blob_id": blobs.write_bytes(content, "text/plain"), "size_bytes": len(content), "preview": preview}
    dropped = sink.size - len(content)
    return {**kept, "dropped_bytes": dropped} if dropped else kept
