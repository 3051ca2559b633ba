"""Probes of this host and of the installed files, and the checks before a sandbox starts."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import platform
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from cellblock.host import probes as host
from cellblock.host.engine import Capabilities, look_around
from cellblock.host.plan import HERE, INSIDE
from cellblock.host.sessions import finish_whole
from cellblock.host.shares import Uids
from cellblock.host.sockets import SharedFolders, finding
from cellblock.host.succession import Warmth, in_words
from cellblock.host.zygote_answers import CannotStart, ZygoteLost
from cellblock.jobs import run_job
from cellblock.values import Busy, Job, Language, Limits, Probe, Result, Template, Unavailable

RECORD = INSIDE / "BUILD.json"
NATIVE = HERE.parents[1] / "native"
"""The sources of the helper in a checkout. An installed package does not have them."""
REINSTALL = "reinstall cellblock"
BELOW = "beneath /usr, or beneath the prefix of the Python that starts the sandbox"
# Each returns [path of its interpreter, its version].
WHO_ARE_YOU: dict[Language, str] = {
    "python": "import sys, platform\ndef main(args): return [sys.executable, platform.python_version()]",
    "javascript": "export const main = () => [process.execPath, process.versions.node];",
    "bash": 'printf \'["%s", "%s"]\' "$BASH" "$BASH_VERSION"',
}
FIXES: dict[Language, str] = {
    "python": "see what is missing above",
    "javascript": f"install Node.js 20.19 or later {BELOW}, or name one as `node`; only runs in that language need it",
    "bash": f"install bash {BELOW}; only runs in that language need it",
}
NO_OP = Job("def main(args): return True", limits=Limits(timeout_ms=10_000))
COLD = Warmth(prepared=0, recycle_runs=1, recycle_seconds=60.0)
T = TypeVar("T")
R = TypeVar("R")
RunJobs = Callable[[Sequence[Job]], Coroutine[Any, Any, list[Result]]]

# -- Before a sandbox starts -------------------------------------------------------------------------------------------


def refuse_machine(uids: Uids) -> None:
    """Raise Unavailable if this machine, its interpreter, its users or this installation prevent a sandbox."""
    for probe in (host.machine_probe(), host.interpreter_probe(), uids.probe()):
        if not probe.ok:
            raise Unavailable(f"{probe.name}: {probe.detail}: {probe.fix}", (probe,))
    if not RECORD.exists():
        probe = helper_probe()
        raise Unavailable(probe.detail, (probe,))


@contextlib.contextmanager
def named_unavailable() -> Iterator[None]:
    """Raise Unavailable in place of an error of the host at the start of a sandbox."""
    try:
        yield
    except (Busy, CannotStart, ZygoteLost, OSError) as error:
        raise Unavailable(f"the sandbox cannot start: {in_words(error)}") from error


def refuse_weak(capabilities: Capabilities) -> None:
    """Raise Unavailable if the host has no Landlock, or cannot limit the memory of a run."""
    if not capabilities.landlock:
        probe = Probe("landlock", False, "the kernel has none", host.LANDLOCK_FIX)
        raise Unavailable(f"the sandbox needs Landlock: {probe.fix}", (probe,))
    watchdog = host.watchdog_probe(held=capabilities.memory_held)
    if watchdog is not None and watchdog.required:
        raise Unavailable(f"this host cannot limit the memory of a run: {watchdog.fix}", (watchdog,))


async def start(capabilities: Capabilities, *, allow_degraded: bool) -> None:
    """Check the sandbox with a run that does nothing, and prepare its cells. Close it if an error is raised.

    Raise Unavailable if the host cannot keep the promises of the sandbox.
    """
    try:
        if not allow_degraded:
            refuse_weak(capabilities)
        await insist(capabilities)
        await capabilities.pool.start()
    except BaseException:
        await finish_whole(capabilities.close())
        raise


async def insist(capabilities: Capabilities) -> None:
    """Run a job that does nothing, which tests more than the probes do.

    If the job fails, raise Unavailable with the probes that fail.
    """
    result = await run_job(capabilities, Template(), NO_OP)
    if result.raw == b"true":
        return
    failure = result.failure.message if result.failure is not None else "a run that does nothing failed"
    raise await unavailable(failure)


async def unavailable(failure: str) -> Unavailable:
    """Return the error for a run that does nothing and failed, with the probes that fail."""
    probes = await asyncio.to_thread(host.host_probes, Uids())
    missing = tuple(probe for probe in [*probes, helper_probe()] if probe.required and not probe.ok)
    reasons = " | ".join(f"{probe.name}: {probe.detail}; {probe.fix}" for probe in missing)
    return Unavailable(f"the sandbox cannot run here: {reasons or failure}", missing)


# -- Probes ------------------------------------------------------------------------------------------------------------


def probes(
    run_jobs: RunJobs | None = None,
    uids: Uids | None = None,
    template: Template = Template(),  # noqa: B008 - frozen
) -> list[Probe]:
    """Return all probes. Any thread without a running event loop may call this function.

    `run_jobs` runs jobs in a sandbox, whose last result is that of a whole run. By default, this is a new sandbox with
    the template. `uids` are those of runs.
    """
    listed = host.host_probes(uids or Uids())
    if len(listed) == 1:
        return listed
    run_jobs = run_jobs or partial(run_in_new_sandbox, replace(template, guest=None))
    results, reason = run_apart(run_jobs, [*language_jobs(), NO_OP])
    outcomes = [(result.raw, result.failure.message if result.failure else "") for result in results]
    whole_run = whole_run_probe(*(outcomes or [(None, reason)])[-1], results[-1].duration_ms if results else 0.0)
    return [*listed, sockets_probe(template), helper_probe(), *language_probes(outcomes[:-1], reason), whole_run]


def sockets_probe(template: Template) -> Probe:
    """Scan the folders that all runs of the template see for sockets of the host."""
    socket = SharedFolders(host.probe_plan(Uids().first, template), template.packages).find()
    if socket is None:
        return Probe("sockets", True, "programs can have UNIX sockets of their own", required=False)
    return Probe("sockets", False, finding(socket), "move it below /run", required=False)


def language_jobs() -> list[Job]:
    limits = Limits(timeout_ms=20_000)
    return [Job(code, language=language, limits=limits) for language, code in WHO_ARE_YOU.items()]


def language_probes(outcomes: Sequence[tuple[bytes | None, str]], reason: str) -> list[Probe]:
    """Return the probes for the values and failures of the codes in WHO_ARE_YOU. `reason` says why outcomes lack."""
    filled = [*outcomes, *[(None, reason)] * len(WHO_ARE_YOU)]
    return [language_probe(language, *outcome) for language, outcome in zip(WHO_ARE_YOU, filled, strict=False)]


def language_probe(language: Language, value: bytes | None, failure: str) -> Probe:
    """Return the probe of a language: its interpreter and version, or how to install it."""
    name = f"language {language}"
    if value is None:
        return Probe(name, False, failure, FIXES[language], required=False)
    path, version = json.loads(value)
    return Probe(name, True, f"{path}, version {version}", required=False)


def whole_run_probe(value: bytes | None, failure: str, duration_ms: float) -> Probe:
    """Return the probe for a run that returned `value`; true is expected."""
    ok = value == b"true"
    detail = f"took {duration_ms:.1f} ms in the sandbox" if ok else failure or "returned another value"
    return Probe("a whole run", ok, detail, "" if ok else "see what is missing above")


def run_apart(
    run_jobs: Callable[[Sequence[T]], Coroutine[Any, Any, list[R]]], jobs: Sequence[T]
) -> tuple[list[R], str]:
    """Run the jobs in the event loop of a new thread. Return their results, or [] and the error of the sandbox."""
    with ThreadPoolExecutor(1) as thread:
        try:
            return thread.submit(lambda: asyncio.run(run_jobs(jobs))).result(), ""
        except Exception as error:  # noqa: BLE001 - the probes report it
            return [], in_words(error)


async def run_in_new_sandbox(template: Template, jobs: Sequence[Job]) -> list[Result]:
    capabilities = look_around(template, COLD, Uids())
    try:
        return [await run_job(capabilities, template, job) for job in jobs]
    finally:
        await capabilities.close()


def helper_probe() -> Probe:
    """Compare the compiled helper, and its sources if they are there, with the record of its build."""
    try:
        record = json.loads(RECORD.read_bytes())
        wrong = [name for name, digest in record["outputs"].items() if sha256(INSIDE / name) != digest]
    except (OSError, ValueError, KeyError) as error:
        reason = "" if isinstance(error, FileNotFoundError) else f" ({type(error).__name__})"
        detail = f"no helper for {platform.machine()}{reason}; cellblock supports x86_64 and aarch64"
        return Probe("helper", False, detail, f"{REINSTALL} from a wheel for this machine, or with a C compiler")
    if wrong:
        return Probe("helper", False, f"{', '.join(wrong)}: not the file that BUILD.json names", REINSTALL)
    sources = record["sources"] if NATIVE.is_dir() else {}
    older = [name for name, digest in sources.items() if sha256(NATIVE / name) != digest]
    if older:
        return Probe("helper", False, f"compiled from another {', '.join(older)}", REINSTALL, required=False)
    compared = f"{len(record['outputs'])} files" + (f" and {len(sources)} sources" if sources else "")
    return Probe("helper", True, f"{compared} as in BUILD.json, by {record['compiler']}")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
