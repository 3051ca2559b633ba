"""Unpacking in the sandbox without network. The files of a wheel and their compiled code are sent to the host as a
stream.

The host decides where it writes each file.
"""

from __future__ import annotations

import importlib._bootstrap_external as loading
import importlib.util
import json
import os
import stat
import sys
import zipfile
from pathlib import Path
from typing import Any

from runtime import _asking, _pictures, blobs  # type: ignore[attr-defined]

PIECE = 4 * 1024 * 1024
LARGEST_SOURCE = 16 * 1024 * 1024


class Stream:
    """A stream of files in pieces of about PIECE bytes. A line before each file describes the file."""

    def __init__(self, number: int) -> None:
        self._kind = f"x/{number}"
        self._parts: list[bytes] = []
        self._size = 0

    def begin(self, subject: str, name: str, size: int, *, executable: bool = False) -> None:
        self.add(json.dumps([subject, name, size, executable]).encode() + b"\n")

    def add(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        if self._size >= PIECE:
            self.flush()

    def flush(self) -> None:
        if self._parts:
            blobs.write_bytes(b"".join(self._parts), self._kind)
        self._parts, self._size = [], 0


def problem_of(entries: list[zipfile.ZipInfo], args: dict[str, Any]) -> dict[str, str]:
    """Return the problem in the file list of a wheel, or {} if there is none."""
    if len(entries) > args["max_files"]:
        return {"reason": "too_many_files", "detail": str(len(entries))}
    declared = sum(entry.file_size for entry in entries)
    if declared > args["max_bytes"]:
        return {"reason": "too_large", "detail": str(declared)}
    for entry in entries:
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if kind not in {0, stat.S_IFREG}:
            return {"reason": "no_file", "detail": entry.filename[:200]}
        if entry.flag_bits & 1:
            return {"reason": "encrypted", "detail": entry.filename[:200]}
    return {}


def compiled(name: str, source: bytes) -> bytes | None:
    """Return the compiled code of a module, or None if the module does not compile.

    The code is valid without a check of its source, so it may be written anywhere and with any timestamp.
    """
    try:
        code = compile(source, name, "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return None  # such a module cannot be imported
    return bytes(loading._code_to_hash_pyc(code, importlib.util.source_hash(source), checked=False))  # type: ignore[attr-defined]


def hand_out(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, stream: Stream) -> None:
    executable = bool((entry.external_attr >> 16) & 0o100)
    stream.begin("file", entry.filename, entry.file_size, executable=executable)
    source: list[bytes] | None = [] if entry.filename.endswith(".py") and entry.file_size <= LARGEST_SOURCE else None
    left = entry.file_size
    with archive.open(entry) as file:
        while piece := file.read(min(PIECE, left + 1)):
            left -= len(piece)
            if left < 0:
                raise zipfile.BadZipFile(f"{entry.filename[:200]} is longer than it says")
            stream.add(piece)
            if source is not None:
                source.append(piece)
    if left:
        raise zipfile.BadZipFile(f"{entry.filename[:200]} is shorter than it says")
    code = compiled(entry.filename, b"".join(source)) if source is not None else None
    if code is not None:
        stream.begin("code", entry.filename, len(code))
        stream.add(code)


def share(path: str, entries: list[zipfile.ZipInfo], number: int) -> None:
    stream = Stream(number)
    with zipfile.ZipFile(path) as archive:
        for entry in entries:
            hand_out(archive, entry, stream)
    stream.flush()


def unpack(args: dict[str, Any]) -> dict[str, str]:
    """Unpack and compile a wheel in parallel processes. Return the problem, or {} if there is none."""
    path = f"{_asking.blobs_folder()}/wheel"
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        return {"reason": "no_archive", "detail": str(error)[:200]}
    problem = problem_of(entries, args)
    if problem:
        return problem
    sys.setrecursionlimit(2000)
    workers = min(args["workers"], max(1, len(entries) // 50))
    children = [begin(path, entries[number::workers], number) for number in range(workers)]
    problems = [message for child in children if (message := end(child))]
    return {"reason": "broken", "detail": problems[0]} if problems else {}


def begin(path: str, entries: list[zipfile.ZipInfo], number: int) -> tuple[int, int]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    message = b""
    try:
        share(path, entries, number)
    except BaseException as error:  # noqa: BLE001 - the error is reported, and the process ends
        message = f"{type(error).__name__}: {error}"[:500].encode("utf-8", "replace")
    os.write(writing, message)
    os._exit(bool(message))


def end(child: tuple[int, int]) -> str:
    pid, reading = child
    with os.fdopen(reading, "rb") as file:
        message = file.read().decode("utf-8", "replace")
    _, status = os.waitpid(pid, 0)
    return message or (f"the process ended with status {status}" if status else "")


def warm(args: dict[str, Any]) -> dict[str, str]:
    """Import matplotlib, which lists the fonts of this host. Return the state of the fonts, and the list as a file."""
    folder = Path("/workspace/matplotlib")
    os.environ["MPLCONFIGDIR"] = str(folder)
    importlib.import_module("matplotlib.font_manager")
    [file] = folder.glob("fontlist*.json")
    return {"fonts": _pictures.state_of_fonts(), "name": file.name, "content": file.read_text("utf-8")}
