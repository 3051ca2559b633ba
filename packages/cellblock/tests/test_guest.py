"""The code of the owner inside runs: its five functions, its requests, and its failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cellblock import Guest, Host, Job, Limits, Mount, Result, Sandbox, Template, Unavailable

GUEST = """
import json, os, sys
from importlib.machinery import ModuleSpec
from . import _plain

class Loader:
    def create_module(self, spec): return None
    def exec_module(self, module): module.answer = module.__name__.upper()

def before(job, ask):
    global order
    order = job or {}
    if order.get("leaves"): os._exit(1)
    if order.get("asks"): order["answer"] = ask("double", {"by": 2}, b"ab").decode()
    if order.get("breaks"): raise OSError("there is no room")

def start(job):
    if order.get("looks"): order["answer"] = os.listdir("/data")
    if order.get("breaks_at_start"): raise OSError("there is no list")

def replace(value):
    if isinstance(value, set): return sorted(value)
    raise TypeError("no way for this: " + type(value).__name__)

def after(job, ask, failure):
    if order.get("breaks_after"): raise ValueError("the end failed")
    if order.get("tells"): ask("end", {"failure": type(failure).__name__, "main": _plain.NAME})

def modules(name):
    return ModuleSpec(name, Loader()) if name == "virtual" else None
"""
ORDER = "def main(args):\n from runtime import _owners\n return _owners.order.get('answer')"


class Owner(Host):
    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any], bytes]] = []

    async def ask(self, operation: str, header: Mapping[str, Any], body: bytes) -> bytes:
        self.asked.append((operation, dict(header), body))
        if operation == "fail":
            raise ValueError("the password is 1234")
        return body * int(header.get("by", 1))


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    folder = tmp_path_factory.mktemp("guest")
    (folder / "_owners.py").write_text(GUEST)
    (folder / "_plain.py").write_text("NAME = __name__")
    # A loaded machine may take longer than the usual ten seconds.
    with Sandbox(Template(guest=Guest(folder, "_owners")), limits=Limits(timeout_ms=300_000)) as made:
        yield made


def run(box: Sandbox, code: str, owner: Owner | None = None, **order: bool) -> Result:
    return box.run_job(Job(code, guest=json.dumps(order).encode()), owner)


def test_guest_replaces_values_and_provides_modules(box: Sandbox) -> None:
    assert run(box, "import virtual\ndef main(args): return {3, 1}, virtual.answer").value == [[1, 3], "VIRTUAL"]
    failure = run(box, "def main(args): return object()").failure
    assert failure is not None
    assert failure.message == "the output is not JSON: no way for this: object"


def test_the_mounts_of_a_run_are_there_at_its_start(box: Sandbox, tmp_path: Path) -> None:
    for number in range(8):
        (folder := tmp_path / f"folder{number}").mkdir()  # mounts that no earlier run has shared
        job = Job(ORDER, guest=b'{"looks": true}', mounts=(Mount(folder, "/data/mine"),))
        assert box.run_job(job).value == ["mine"]
    failure = run(box, ORDER, breaks_at_start=True).failure
    assert failure is not None
    assert failure.message == "there is no list"


def test_guest_asks_before_the_code_and_after_it(box: Sandbox) -> None:
    owner = Owner()
    assert run(box, ORDER, owner, asks=True, tells=True).value == "abab"
    assert run(box, "def main(args): 1 / 0", owner, tells=True).failure is not None
    assert owner.asked == [
        ("double", {"by": 2}, b"ab"),
        ("end", {"failure": "NoneType", "main": "runtime._plain"}, b""),
        ("end", {"failure": "ZeroDivisionError", "main": "runtime._plain"}, b""),
    ]


def test_log_stays_in_the_result_if_the_host_only_answers(box: Sandbox) -> None:
    assert run(box, "def main(args): print('here')", Owner()).log == b"here\n"


@pytest.mark.parametrize(
    ("order", "kind", "message"),
    [
        ("breaks", "sandbox", "there is no room"),
        ("leaves", "sandbox", "the sandbox ended while it was being set up"),
        ("breaks_after", "exception", "the end failed"),
    ],
)
def test_error_of_the_guest_fails_its_run_only(box: Sandbox, order: str, kind: str, message: str) -> None:
    failure = run(box, "def main(args): return 1", None, **{order: True}).failure
    assert failure is not None
    assert (failure.kind, failure.message) == (kind, message)
    assert run(box, "def main(args): return 1").value == 1


def test_failure_of_the_code_hides_a_failure_of_the_guest(box: Sandbox) -> None:
    failure = run(box, "def main(args): 1 / 0", breaks_after=True).failure
    assert failure is not None
    assert (failure.type, "_owners.py" in failure.traceback) == ("ZeroDivisionError", False)


ASK = "def main(args):\n from runtime import _host\n return _host.ask(*args).decode()"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["fail", {}, ""], "the host could not do this"),
        (["result", {}, ""], "an operation cannot have the name result"),
        (["big", {}, "x" * 1025], "a request has 1025 bytes; at most 1024"),
    ],
)
def test_refused_requests_raise_errors_without_secrets(box: Sandbox, args: list[Any], message: str) -> None:
    code = ASK.replace("*args", "args[0], args[1], args[2].encode()")
    job = Job(code, args=json.dumps(args).encode(), limits=Limits(result_kb=1))
    failure = box.run_job(job, Owner()).failure
    assert failure is not None
    assert failure.message == message


def test_requests_end_with_the_time_of_the_run(box: Sandbox) -> None:
    class Slow(Owner):
        async def ask(self, operation: str, header: Mapping[str, Any], body: bytes) -> bytes:
            await asyncio.Event().wait()  # until the run ends
            return b""

    job = Job(ASK, args=b'["wait"]', limits=Limits(timeout_ms=300))
    failure = box.run_job(job, Slow()).failure
    assert failure is not None
    assert failure.kind == "timeout"


def test_guest_must_have_its_module_and_get_json(box: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="guest is not JSON"):
        box.run_job(Job("1", guest=b"{"))
    with pytest.raises(Unavailable, match=r"the guest: ModuleNotFoundError: No module named 'runtime\.absent'"):
        Sandbox(Template(guest=Guest(tmp_path, "absent")))
