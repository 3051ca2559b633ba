"""`cellblock` and Skillery: the library stands alone, the two tables are complete, and the old names still work."""

from __future__ import annotations

import ast
import dataclasses
import errno
import json
import re
import subprocess
import sys

import pytest

from cellblock.host.channel import parse_message
from cellblock.host.packets import Packets
from cellblock.host.plan import HERE
from cellblock.inside import kernel
from cellblock.values import Failure, FailureKind, Log, NetworkUse, Result, Used
from cellblock.values import Limits as CellLimits
from skillery import backends, sandboxing
from skillery.backends import FailureType, Limits
from skillery.jobs.outcomes import FAILURES, LIMITS, RunSession, failure_of, limits_of, outcome_of

OLD_NAMES = [
    "COLLECTING_LIMITS",
    "INSIDE",
    "PROXY_ENVIRONMENT",
    "PROXY_PORT",
    "RUNTIME",
    "BrokenSetup",
    "Channel",
    "Collection",
    "ControlGroup",
    "ControlGroups",
    "Dialogue",
    "Egress",
    "EgressBroken",
    "LogPipe",
    "NoHost",
    "Places",
    "Processors",
    "RunSession",
    "Session",
    "Uids",
    "call_filter",
    "cgroup_probes",
    "collect",
    "collecting_dialogue",
    "collection_of",
    "control_groups",
    "copy_seconds",
    "cpu_seconds",
    "exceeds_memory",
    "filling_seconds",
    "hidden",
    "idmap",
    "interpreter_probe",
    "is_open_to_all",
    "job_header",
    "kernel",
    "lockdown",
    "machine_probe",
    "namespace_fix",
    "outlet",
    "prefixes",
    "root",
    "run_probes",
    "run_whole",
    "running",
    "tree_limits",
    "try_to_collect",
    "watchdog_possible",
    "wire",
    "Course",
]
NOT_OF_CELLBLOCK = {
    FailureType.DEPENDENCY_GONE,
    FailureType.CALLER_ENDED,
    FailureType.CANCELLED,
    FailureType.VALIDATION_ERROR,
    FailureType.QUOTA_EXCEEDED,
    FailureType.SECRET_NOT_GRANTED,
    FailureType.SECRET_MISSING,
    FailureType.SECRET_UNAVAILABLE,
    FailureType.ENVIRONMENT_NOT_READY,
    FailureType.ENVIRONMENT_FAILED,
}
"""Failures that happen outside of a sandbox."""


def test_modules_of_cellblock_import_only_themselves_and_the_standard_library() -> None:
    imported = {
        name.split(".")[0]
        for path in HERE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        for name in _names(node)
    }
    # `runtime` and `blobs` are names inside a run, where `runtime` is a package of its own.
    assert imported - sys.stdlib_module_names <= {"cellblock", "runtime"}


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []


def test_cellblock_works_without_skillery_and_its_dependencies() -> None:
    code = "import sys; sys.path[:0] = [sys.argv[1]]; import cellblock.parts; print(*sorted(sys.modules))"
    command = [sys.executable, "-I", "-S", "-c", code, str(HERE.parent)]
    modules = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert {"cellblock.parts", "cellblock.egress.service"} <= set(modules)
    assert not [name for name in modules if name.startswith(("skillery", "msgspec"))]


def test_without_its_helper_the_library_imports_and_the_probe_names_the_remedy() -> None:
    code = (
        "import sys; sys.modules['cellblock.inside._cell'] = None\n"
        "from cellblock.host.probes import host_probes\nfrom cellblock.host.shares import Uids\n"
        "for probe in host_probes(Uids()): print(probe.name, probe.ok, probe.detail, probe.fix, sep='|')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    [line] = done.stdout.splitlines()
    assert re.fullmatch(r"machine\|False\|the helper for \w+ was not built\|reinstall .* C compiler .*", line)


def test_damaged_arguments_of_a_system_call_raise_an_error() -> None:
    unknown = 100_000
    assert kernel.syscall(unknown) == -errno.ENOSYS
    assert kernel.syscall(kernel.SYS_PRCTL, -1) == -errno.EINVAL
    for wrong in (None, "text", 1.5):
        with pytest.raises(TypeError):
            kernel.syscall(unknown, wrong)  # type: ignore[arg-type]


def test_every_limit_is_in_the_table() -> None:
    assert list(LIMITS) == list(Limits.__struct_fields__)
    # Skillery's dialogue limits results, in MiB.
    of_cellblock = {field.name for field in dataclasses.fields(CellLimits)} - {"result_kb"}
    assert {name for name in LIMITS.values() if name} == of_cellblock
    limits = Limits(timeout_ms=1, memory_mb=2, processes=3, cpus=4.0, disk_mb=5, disk_files=6, tmp_mb=7, log_kb=8)
    expected = CellLimits(timeout_ms=1, memory_mb=2, processes=3, cpus=4.0, disk_mb=5, disk_files=6, tmp_mb=7, log_kb=8)
    assert limits_of(limits) == expected


def test_every_kind_of_failure_is_in_the_table() -> None:
    assert set(FAILURES) == set(FailureKind)
    assert {each for each in FAILURES.values() if each} == set(FailureType) - NOT_OF_CELLBLOCK
    assert failure_of(Failure(FailureKind.EXCEPTION, "no", "KeyError", "at")) == backends.Failure(
        "KeyError", "no", "at"
    )
    timeout = Failure(FailureKind.TIMEOUT, "slow", "TimeoutError")
    assert failure_of(timeout) == backends.Failure(FailureType.TIMEOUT, "slow")


@pytest.mark.parametrize("kind", [*FailureType, "KeyError"])
def test_failures_that_a_backend_sets_stay_the_same(kind: str) -> None:
    session = RunSession(Limits())
    session.stopped = backends.Failure(kind, "why")
    assert session.stopped == backends.Failure(kind, "why")
    assert session.outcome(log=Log(), degraded=()).failure == backends.Failure(kind, "why")


def test_an_outcome_has_every_field_of_the_result() -> None:
    result = Result(
        b"1", None, "all", Log(b"a", b"b", 3), 4.0, ("x",), (NetworkUse("h", 1, True, "r", 2, 3, 4),), Used(5)
    )
    outcome = outcome_of(dataclasses.replace(result, used=Used(5.0, 6, 7, 8)))
    assert outcome == backends.Outcome(
        b"1",
        None,
        "all",
        backends.Log(b"a", b"b", 3),
        4.0,
        ("x",),
        (backends.NetworkUse("h", 1, True, "r", 2, 3, 4),),
        backends.Used(5.0, 6, 7, 8),
    )


@pytest.mark.parametrize("name", OLD_NAMES)
def test_old_names_work_with_a_warning(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"skillery\.sandboxing\.{name} is now "):
        assert getattr(sandboxing, name) is not None


def test_unknown_names_of_the_old_module_are_missing() -> None:
    for name in ("Sandbox", "_OF_JOBS2", "annotations2"):
        with pytest.raises(AttributeError, match="no attribute"):
            getattr(sandboxing, name)


REFUSED = {
    "no object": b"[]",
    "no op": b'{"text": "x"}',
    "a text that is a number": b'{"op": 1}',
    "a text that is null": b'{"op": "x", "text": null}',
    "half a character": b'{"op": "\\ud800"}',
    "bytes that are not UTF-8": b'{"op": "\xff"}',
    "another encoding": '{"op": "x"}'.encode("utf-16"),
    "NaN": b'{"op": "x", "done": NaN}',
    "an infinite number": b'{"op": "x", "done": 1e999}',
    "a number beyond a float": b'{"op": "x", "done": 1' + b"0" * 400 + b"}",
    "a number of many digits": b'{"op": "x", "disk": ' + b"1" * 5000 + b"}",
    "a boolean as a number": b'{"op": "x", "total": true}',
    "a fraction of bytes": b'{"op": "x", "disk": 1.5}',
    "deep nesting": b'{"op": "x", "more": ' + b"[" * 60_000,
}


@pytest.mark.parametrize("header", REFUSED.values(), ids=REFUSED.keys())
def test_headers_of_another_shape_are_refused(header: bytes) -> None:
    with pytest.raises((ValueError, OverflowError, RecursionError)):
        parse_message(header, 0)


def test_headers_may_have_unknown_fields_and_any_valid_text() -> None:
    header = {"op": "progress", "text": "größer \U0001f600", "done": 1, "total": None, "disk": 1 << 40, "new": [1]}
    for ascii_only in (True, False):
        message = parse_message(json.dumps(header, ensure_ascii=ascii_only).encode(), 7)
        assert (message.op, message.text, message.done, message.total, message.disk, message.body) == (
            "progress",
            "größer \U0001f600",
            1.0,
            None,
            1 << 40,
            7,
        )


async def test_the_last_message_of_a_process_that_left_messages_unread_is_received() -> None:
    """The kernel reports the unread messages first, as a reset connection."""
    link = Packets()
    link.send(b"unread")
    link.theirs.send(b"why it ended")
    link.theirs.close()
    last, end = await link.receive(), await link.receive()
    link.close()

    assert last is not None
    assert (last.raw, end) == (b"why it ended", None)
