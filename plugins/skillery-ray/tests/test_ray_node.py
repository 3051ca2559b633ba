"""The engine of a node, without Ray: its cache, its checks, and the end of connections."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from skillery.backends import CodeCall, Job, Limits, Outcome, SkillMount
from skillery.testing.sandbox import MemoryHost
from skillery.testing.sandbox.trial import Listening
from skillery_ray.actor import start_engine
from skillery_ray.cache import Cache, Pieces
from skillery_ray.channels import Door, connect
from skillery_ray.jobs import pack
from skillery_ray.members import Member
from skillery_ray.placement import matches
from skillery_ray.settings import RaySettings, Route
from skillery_ray.trees import Entry, Tree, Trees
from skillery_ray.wire import Broken
from tests.support.processes import eventually_async
from tests.support.ray_cluster import processes

READ = "from pathlib import Path\ndef main(args): return len(Path('/skills/a.b/data').read_bytes())"
StartEngine = Callable[..., Door]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartEngine]:
    with ExitStack() as stack:

        def started(folder: Path | None = None, cache_mb: int = 100) -> Door:
            where = folder or tmp_path_factory.mktemp("node")
            settings = RaySettings("unused:1", folder=str(where), cache_mb=cache_mb).of_nodes(allow_degraded=False)
            process, told = start_engine(msgspec.to_builtins(settings), "127.0.0.1")
            stack.callback(end, process)
            return msgspec.convert(told, Door)

        yield started


def end(process: subprocess.Popen[bytes]) -> None:
    """Close stdin, as the end of the actor does, and wait until the engine has ended."""
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(300) == 0
    assert process.stdout is not None
    process.stdout.close()


@pytest.fixture(scope="module")
def door(start: StartEngine) -> Door:
    return start()


@pytest.fixture
async def member(door: Door) -> AsyncIterator[Member]:
    member = await member_of(door)
    yield member
    await member.close()


async def member_of(door: Door) -> Member:
    member = Member("node", {}, door, lambda: None)
    await eventually_async(lambda: member.is_ready)
    return member


def skill(folder: Path, size: int) -> SkillMount:
    folder.mkdir(exist_ok=True)
    (folder / "data").write_bytes(os.urandom(size))
    return SkillMount("a.b", folder)


def job(mount: SkillMount, code: str = READ, seconds: str = "") -> Job:
    limits = Limits(timeout_ms=300_000)
    return Job("run_1", CodeCall(code, "main"), msgspec.json.encode({"seconds": seconds}), (mount,), limits=limits)


async def run(member: Member, given: Job) -> Outcome:
    return await member.run(given, await pack(given, Trees()), MemoryHost())


def message(outcome: Outcome) -> str:
    assert outcome.failure is not None
    assert outcome.failure.type == "SandboxError"
    return outcome.failure.message


async def test_files_changed_during_transfer_fail_the_run_and_mark_the_node(member: Member, tmp_path: Path) -> None:
    given = job(skill(tmp_path / "skill", 2_000_000))
    packed = await pack(given, Trees())
    (tmp_path / "skill" / "data").write_bytes(os.urandom(2_000_000))
    outcome = await member.run(given, packed, MemoryHost())

    assert "'data' does not match its digest" in message(outcome)
    assert member.is_marked
    assert (await run(member, given)).result == b"2000000", "the true files are fetched afterwards"


async def test_a_host_without_optional_methods_gets_their_defaults(member: Member, tmp_path: Path) -> None:
    class Reader:
        begin_blob, read_blob, call_skill = MemoryHost.begin_blob, MemoryHost.read_blob, MemoryHost.call_skill

    code = "import runtime\ndef main(args):\n    runtime.progress(1)\n    return 1"
    reporting = job(skill(tmp_path / "skill", 10), code)
    # Without the optional methods, `Reader` is no RunHost for mypy.
    outcome = await member.run(reporting, await pack(reporting, Trees()), Reader())  # type: ignore[arg-type]

    assert outcome.result == b"1"


async def test_log_arrives_while_the_code_runs(member: Member, tmp_path: Path) -> None:
    host = Listening()
    code = "import time\ndef main(args):\n print('up', flush=True)\n time.sleep(600)"
    endless = job(skill(tmp_path / "skill", 10), code)
    running = asyncio.ensure_future(member.run(endless, await pack(endless, Trees()), host))
    printing = asyncio.ensure_future(host.has_printed.wait())
    await asyncio.wait({running, printing}, return_when=asyncio.FIRST_COMPLETED)
    is_running = not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert (is_running, printing.done()) == (True, True)


async def test_the_cache_keeps_recent_files_within_its_limit(start: StartEngine, tmp_path: Path) -> None:
    member = await member_of(start(tmp_path / "small", cache_mb=3))
    for number in range(4):
        outcome = await run(member, job(skill(tmp_path / f"skill-{number}", 1_500_000)))
        assert outcome.result == b"1500000"
    trees = list((tmp_path / "small" / "node-0" / "trees").iterdir())
    await member.close()

    assert 1 <= len(trees) <= 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
async def test_a_full_disk_fails_the_run_and_marks_the_node(start: StartEngine, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], check=True)
    try:
        member = await member_of(start(disk))
        outcome = await run(member, job(skill(tmp_path / "skill", 4_000_000)))
        small = await run(member, job(skill(tmp_path / "other", 1000)))
        await member.close()
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)

    assert "the disk of the node is full" in message(outcome)
    assert member.is_marked
    assert small.result == b"1000", "an incomplete copy is removed"


async def test_a_closed_connection_ends_its_run_on_the_node(member: Member, door: Door, tmp_path: Path) -> None:
    sleep = "import subprocess\ndef main(args): subprocess.run(['sleep', args['seconds']])"
    given = job(skill(tmp_path / "skill", 10), sleep, "98201.5")
    wire, _ = await connect(door, "run")
    packed = await pack(given, Trees())
    sent = msgspec.to_builtins(msgspec.structs.replace(packed.job, skills=()))
    await wire.send({"op": "run", "job": sent, "host": []}, given.args)
    await eventually_async(lambda: processes("98201.5"))
    wire.close()
    await eventually_async(lambda: not processes("98201.5"))

    assert (await run(member, job(skill(tmp_path / "skill", 10)))).result == b"10"


async def test_a_wrong_token_or_another_certificate_gets_no_connection(door: Door) -> None:
    with pytest.raises(Broken):
        await connect(msgspec.structs.replace(door, token="wrong"), "run")
    with pytest.raises(Broken, match="certificate"):
        await connect(msgspec.structs.replace(door, fingerprint="0" * 64), "run")


@pytest.mark.parametrize(("namespace", "is_matched"), [("a", True), ("a.b", False), ("", False)])
def test_a_route_matches_the_skills_below_its_namespaces(tmp_path: Path, namespace: str, is_matched: bool) -> None:
    route = Route({"zone": "b"}, namespaces=("other", namespace))

    assert matches(route, job(SkillMount("a.b", tmp_path))) == is_matched
    assert not matches(route, job(SkillMount(f"{namespace}b.c", tmp_path)))


async def test_a_tree_that_is_used_stays_while_the_cache_makes_room(tmp_path: Path) -> None:
    cache, trees, over = Cache(tmp_path / "cache", 1000), Trees(), asyncio.Event()
    missing: list[str] = []
    (used, *others) = [tree_of(trees, tmp_path / f"skill-{number}", f"{number:0600}") for number in range(100)]

    async def use(tree: Tree) -> None:
        await cache.hold(tree.digest, lambda: fetched(tree))
        if not cache.folder(tree.digest).is_dir():
            missing.append(tree.digest)
        cache.release(tree.digest)

    async def use_again_and_again() -> None:
        while not over.is_set():
            await use(used)
            await asyncio.sleep(0)

    using = asyncio.ensure_future(use_again_and_again())
    for other in others:
        await use(other)
    over.set()
    await using

    assert missing == []


def tree_of(trees: Trees, folder: Path, content: str) -> Tree:
    folder.mkdir()
    (folder / "content.txt").write_text(content)
    return trees.of_folder(folder)


async def fetched(tree: Tree) -> tuple[tuple[Entry, ...], Pieces]:
    pieces = tree.pieces()

    async def piece() -> bytes:
        return next(pieces, b"")

    return tree.entries, piece
