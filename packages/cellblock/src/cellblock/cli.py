"""The command `cellblock`: `cellblock run FILE` and `cellblock doctor`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cellblock.sandbox import AsyncSandbox, Sandbox
from cellblock.values import Busy, FailureKind, Host, Job, Language, Limits, Mount, Probe, Result, Template, Unavailable

OK, FAILED, USAGE, UNAVAILABLE, TIMEOUT = 0, 1, 2, 3, 124
"""The exit codes. 1: the code failed, or a probe did."""
LANGUAGES: dict[str, Language] = {".py": "python", ".js": "javascript", ".mjs": "javascript", ".sh": "bash"}
USUAL = Limits()


class Printer(Host):
    """The owner of a run, who prints its log to stderr."""

    def log(self, piece: bytes) -> None:
        sys.stderr.buffer.write(piece)
        sys.stderr.buffer.flush()


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser("cellblock", description="Run foreign code in a sandbox.")
    commands = top.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run a file, print its value to stdout and its log to stderr")
    run.add_argument("file", type=Path, help="its suffix is .py, .js, .mjs or .sh")
    run.add_argument("--args", default="{}", metavar="JSON", help="arguments of the function `main`, or stdin of a .sh")
    run.add_argument("--timeout-ms", type=int, default=USUAL.timeout_ms, metavar="N")
    run.add_argument("--memory-mb", type=int, default=USUAL.memory_mb, metavar="N")
    run.add_argument("--network", action="append", default=[], metavar="URL", help="a host to reach: https://HOST")
    run.add_argument("--mount", action="append", default=[], metavar="SOURCE:TARGET", help="TARGET is /NAME/NAME")
    run.add_argument("--json", action="store_true", help="print the whole result as JSON")
    doctor = commands.add_parser("doctor", help="test this host; the last probe is a whole run")
    doctor.add_argument("--json", action="store_true", help="print the probes as JSON")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit code."""
    options = parser().parse_args(arguments)
    try:
        code = run(options) if options.command == "run" else doctor(as_json=options.json)
        sys.stdout.flush()
        return code
    except Unavailable as error:
        return complain(str(error), UNAVAILABLE)
    except (ValueError, Busy) as error:
        return complain(str(error), USAGE if isinstance(error, ValueError) else FAILED)
    except BrokenPipeError:  # the reader of the output has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        return complain(f"{error.filename}: {error.strerror}" if error.filename else str(error), USAGE)


def complain(message: str, code: int) -> int:
    print(f"cellblock: {message}", file=sys.stderr)
    return code


def run(options: argparse.Namespace) -> int:
    """Run a file. Raise OSError if it cannot be read, ValueError for a wrong option, Unavailable or Busy."""
    language = LANGUAGES.get(options.file.suffix)
    if language is None:
        raise ValueError(f"{options.file}: the suffix must be one of {', '.join(LANGUAGES)}")
    mounts = tuple(mount_of(text) for text in options.mount)
    job = Job(
        code=options.file.read_text("utf-8"),
        language=language,
        args=options.args.encode(),
        limits=Limits(timeout_ms=options.timeout_ms, memory_mb=options.memory_mb),
        mounts=mounts,
        network=tuple(options.network),
    )
    points = tuple(dict.fromkeys(f"/{mount.point}" for mount in mounts))
    with Sandbox(Template(points=points), prepared=0) as box:
        result = box.run_job(job, None if options.json else Printer())
    if options.json:
        print(json.dumps(described(result), ensure_ascii=False))
    elif result.raw is not None:
        print(result.raw.decode())
    elif result.failure is not None:
        text = result.failure.traceback or f"{result.failure.kind}: {result.failure.message}"
        print(text.rstrip("\n"), file=sys.stderr)
    if result.failure is None:
        return OK
    return TIMEOUT if result.failure.kind is FailureKind.TIMEOUT else FAILED


def mount_of(text: str) -> Mount:
    source, _, target = text.rpartition(":")
    if not source or target.count("/") != 2:
        raise ValueError(f"--mount {text!r}: write SOURCE:TARGET, with a target such as /data/NAME")
    return Mount(Path(source), target)


def described(result: Result) -> dict[str, Any]:
    """Return the result as a JSON object."""
    fields = asdict(result)
    log = fields.pop("log_parts")
    value = json.loads(fields.pop("raw") or b"null")
    kept = (log["head"] + log["tail"]).decode("utf-8", "replace")
    return {"ok": result.ok, "value": value, **fields, "log": kept, "log_dropped": log["dropped"]}


def doctor(*, as_json: bool) -> int:
    """Print the probes. Return FAILED if a required one fails."""
    probes = asyncio.run(AsyncSandbox().doctor())
    if as_json:
        print(json.dumps([asdict(probe) for probe in probes], ensure_ascii=False))
    else:
        for probe in probes:
            print(line_of(probe))
    return FAILED if any(probe.required and not probe.ok for probe in probes) else OK


def line_of(probe: Probe) -> str:
    if probe.ok:
        return f"{probe.name}: ok: {probe.detail}"
    return f"{probe.name}: {'missing' if probe.required else 'missing (optional)'}: {probe.detail}: {probe.fix}"
