"""A run inside its sandbox: import the code, call its function, send the returned value."""

# ruff: noqa: SIM105 - importing contextlib costs every run milliseconds
from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` builds enums, which cost memory
import io
import json
import os
import sys
from types import ModuleType

from . import _failure, _guest, _host, _importing, _start, _wire

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

MAX_DEPTH = 200
REMEDIES: dict[str, Any] = {"large": "", "missing": lambda code, name: f"define it: def {name}(args): ..."}
"""Ends of messages that tell the author of the code what to do: for an output that is too large, and, as a function of
the code and of the name, for a function that the code does not define. A guest that knows more sets them.
"""


class InvalidOutput(Exception):
    """Raised if the returned value is not JSON."""


def open_streams() -> None:
    """Open stdout and stderr, line-buffered on one pipe, with unencodable characters escaped."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        raw = io.FileIO(descriptor, "w", closefd=False)
        stream = io.TextIOWrapper(
            io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def look_fresh() -> None:
    """Make the interpreter look as if it was started for the code alone.

    The function reads no data of a run, and does not change the environment variables.
    """
    open_streams()
    _start.add_builtins()
    sys.argv = [""]
    sys.orig_argv = [sys.executable]
    sys.modules["__main__"] = ModuleType("__main__")
    for name in [name for name in sys.modules if name == "inside" or name.startswith("inside.")]:
        del sys.modules[name]
    sys.path = [entry for entry in sys.path if entry not in {".", "", "/run/cellblock"}]
    sys.meta_path.insert(0, _importing.FINDER)


def rehearse() -> None:
    """Execute typical steps of a run once, so that the kernel copies the changed memory pages before the run begins."""
    exec(compile("def main(args):\n    return {**args}\n", "<rehearsal>", "exec"), {})  # noqa: S102 - our own line
    encode(json.loads('{"name": [1, 2.5, null, "text"]}'), 1000, default=_guest.USED["replace"])


def exported(module: ModuleType, name: str, code: str | None = None) -> Callable[..., Any]:
    """Return a function of the module. Raise AttributeError if there is none. `code` is that of the module, if the run
    got it as text.
    """
    try:
        export: Callable[..., Any] = getattr(module, name)
    except AttributeError:
        remedy = REMEDIES["missing"](code, name)
        raise AttributeError(f"{module.__name__} defines no function {name!r}; {remedy}") from None
    return export


def call(job: dict[str, Any], args: bytes) -> Any:
    if job["program"] is not None:
        from . import _programs  # imported late: most runs need none

        return _programs.run(job, args)
    if job["function"] is None:  # only the guest does something
        return None
    settle_address_space()
    export = exported(_importing.load(job), job["function"], job["code"])
    return settled(export(json.loads(args)))


def settle_address_space(*, room: bool = False) -> None:
    """Fix RLIMIT_AS, the limit on address space; with `room`, raise it to its hard limit before.

    Without a cgroup for memory, the address space of a process is little more than its memory limit. V8 reserves many
    times the memory that it uses, so a run of Node.js keeps the hard limit, and only the watchdog limits its memory.
    The hard limit cannot be raised again, so it is set here, when the program is known and no code has run.
    """
    import resource  # not on every system; a sandbox has imported it before

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    held = hard if room else soft
    resource.setrlimit(resource.RLIMIT_AS, (held, held))


def settled(returned: Any) -> Any:
    """Return the value. If it is awaitable, await it and return its result."""
    if not hasattr(type(returned), "__await__"):
        return returned
    import asyncio  # costs tens of milliseconds, only for async code

    async def awaited() -> Any:
        return await returned

    return asyncio.run(awaited())


def check_shape(value: Any, subject: str) -> None:
    """Raise InvalidOutput if a key is not a string, or if the value is nested deeper than MAX_DEPTH. `subject` names
    the value.
    """
    left = [(value, 1)]
    while left:
        item, depth = left.pop()
        if depth > MAX_DEPTH:
            raise InvalidOutput(f"{subject} is nested deeper than {MAX_DEPTH} levels")
        if isinstance(item, dict):
            wrong = next((key for key in item if not isinstance(key, str)), None)
            if wrong is not None or None in item:
                raise InvalidOutput(f"a key of {subject} is {type(wrong).__name__}, and JSON keys are strings")
            left += [(child, depth + 1) for child in item.values()]
        elif isinstance(item, list | tuple):
            left += [(child, depth + 1) for child in item]


def encode(
    value: Any, limit: int, subject: str = "the output", default: Callable[[Any], Any] = _guest.replace
) -> bytes:
    """Return a value as compact JSON in UTF-8. Raise InvalidOutput if it is not JSON or larger than `limit`.

    `default` returns a replacement for an object that is not JSON.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=default)
        encoded = text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        reason = _failure.message(error)
        remedy = ": put None in the place of NaN and infinity" if reason.startswith("Out of range float") else ""
        raise InvalidOutput(f"{subject} is not JSON: {reason}{remedy}") from None
    check_shape(value, subject)
    if len(encoded) > limit:
        raise InvalidOutput(f"{subject} is {len(encoded)} bytes of JSON; the limit is {limit}{REMEDIES['large']}")
    return encoded


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # noqa: BLE001, S110 - the code may have closed or replaced it
            pass


def finish(header: dict[str, Any], body: bytes, owner: int) -> NoReturn:
    flush()
    if os.getpid() != owner:  # a forked child of the code has returned here: it must not send a result
        os._exit(0 if header["op"] == "result" else 1)
    try:
        _host.tell(_host.with_disk(header), body)
    except OSError:  # the code has closed the channel; a traceback would show paths of the server
        os._exit(1)
    os._exit(0)


def serve(channel: int, job: dict[str, Any], args: bytes) -> NoReturn:
    """Serve one job in the locked and prepared process: wait for the start signal, run the code, send the result."""
    owner = os.getpid()
    _host.connect(channel, job["workspace"])
    if job["environment"]:
        os.environ.update(job["environment"])
    sys.path += [folder for folder in job["packages"] if folder not in sys.path]  # preloaded folders are present
    begin_guest(channel, job, owner)
    # The server may have set another handler, or have been started with blocked signals.
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    _wire.receive(channel)
    show_stack_after(job["stack_seconds"])
    try:
        _guest.USED["start"](job["guest"])
        result = encode(call(job, args), job["result_bytes"], default=_guest.USED["replace"])
    except:  # noqa: E722 - SystemExit is a failure too, and the code may have deleted the names
        error = sys.exc_info()[1]
        try:
            end_guest(job, owner, error)
        except:  # noqa: E722, S110 - the failure of the code counts
            pass
        fail(error, owner)
    try:
        end_guest(job, owner, None)
    except:  # noqa: E722 - as above
        fail(sys.exc_info()[1], owner)
    finish({"op": "result"}, result, owner)


def begin_guest(channel: int, job: dict[str, Any], owner: int) -> None:
    """Let the guest prepare the run. If it may ask the host, the host waits for the message `ready`."""
    try:
        _guest.USED["before"](job["guest"], _host.ask)
    except EOFError:
        os._exit(1)  # the server has closed the channel
    except Exception as error:  # noqa: BLE001 - the guest may raise anything
        if not job["waits"]:
            fail(error, owner)
        _wire.send(channel, {"op": "broken", "message": _failure.message(error)})
        os._exit(1)
    if job["waits"]:
        _wire.send(channel, {"op": "ready"})


def end_guest(job: dict[str, Any], owner: int, failure: BaseException | None) -> None:
    if os.getpid() == owner:  # not a forked child of the code that has returned here
        _guest.USED["after"](job["guest"], _host.ask, failure)


def show_stack_after(seconds: float) -> None:
    """Write the stack of the code to the log after `seconds`, shortly before the run is killed. 0 means never.

    Code that sets its own timer replaces this one.
    """
    if seconds:
        _signal.signal(_signal.SIGALRM, _show_stack)
        _signal.setitimer(_signal.ITIMER_REAL, seconds)


def _show_stack(_signal_number: int, frame: Any) -> None:
    try:
        note(_failure.stack(frame))
    except OSError:  # the code has closed its streams: the run has no log, and its end does not change
        pass


def note(line: str) -> None:
    """Write a line to the log, even if the code has closed or replaced its streams."""
    if line:
        flush()
        os.write(2, f"{line}\n".encode("utf-8", "replace"))


def fail(error: BaseException | None, owner: int) -> NoReturn:
    try:
        _failure.breathe()
        if error is not None:
            finish({"op": "failure", **_failure.describe(error)}, b"", owner)
    except:  # noqa: E722, S110 - the code has broken builtins: the host sees that the process ended
        pass
    os._exit(1)


def main(channel: int, *guest: str) -> NoReturn:
    """Serve a run in a process without isolation. `guest` are the folder and the module of a guest, if there is one."""
    job, args = _wire.receive(channel)
    os.chdir(job["workspace"])
    hold_memory(job["memory_bytes"])
    look_fresh()
    if guest:
        _guest.load(*guest)
    _wire.send(channel, {"op": "ready"})
    serve(channel, job, args)


def hold_memory(limit: int) -> None:
    """Limit the address space to `limit` bytes plus room for the interpreter, if the system supports that."""
    import resource  # not on every system

    try:
        _, ceiling = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (limit + 256 * 1024 * 1024, ceiling))
    except (AttributeError, ValueError, OSError):
        return
