"""Environments on one server's disk: shared, bounded, rebuilt, and never deleted while in use."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from skillery.backends import Failure, PackageMount, Place, Sandbox
from skillery.builtin.linux_sandbox import LinuxSandboxSettings, open_sandbox
from skillery.builtin.unsafe_subprocess import UnsafeSubprocess
from skillery.context.queue import BuildProgress, BuildQueue, Queue
from skillery.database import Database
from skillery.environments.builder import Builder
from skillery.environments.dependency_locks import Locks
from skillery.environments.jobs import BuildFailed, Jobs
from skillery.environments.sources import PackageSources
from skillery.environments.store import Environments
from skillery.errors import PackageIndexUnavailable, Unavailable
from tests.support.package_index import PackageIndex
from tests.support.processes import eventually_async
from tests.support.templates import sqlite_template
from tests.support.wheels import make_wheel

MIB = 1024 * 1024
pytestmark = pytest.mark.asyncio(loop_scope="module")


class Keeping:
    """Locks and environments of one server with its own wheelhouse."""

    def __init__(
        self,
        folder: Path,
        sandbox: Sandbox,
        database: Database,
        total_mb: int = 1024,
        sources: PackageSources | None = None,
    ) -> None:
        self.house, self.folder = folder / "house", folder / "environments"
        self.house.mkdir(exist_ok=True)
        self.sandbox = sandbox
        sources = sources or PackageSources(wheelhouse=self.house)
        jobs = Jobs(sandbox, sources, 2)
        self.locks = Locks(database, jobs, sources, 60, timedelta(0), Queue(2, 1000, MIB))
        self.builder = Builder(self.folder, jobs, sources, 60, 512)
        self.environments = Environments(self.folder, database, self.builder, "here", total_mb)

    async def built(self, *requirements: str) -> PackageMount:
        found = await self.environments.ready(await self.locks.make(requirements), 300)
        assert isinstance(found, PackageMount), found
        return found

    def trees(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "trees").iterdir())

    def ready(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "ready").iterdir())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def linux(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Sandbox]:
    sandbox = open_sandbox(LinuxSandboxSettings(), Place(tmp_path_factory.mktemp("sandbox")))
    yield sandbox
    await sandbox.close()


@pytest.fixture
def database(tmp_path: Path) -> Database:
    shutil.copyfile(sqlite_template(), tmp_path / "x.db")
    return Database(f"sqlite:///{tmp_path / 'x.db'}")


@pytest_asyncio.fixture(loop_scope="module")
async def keeping(tmp_path: Path, linux: Sandbox, database: Database) -> AsyncIterator[Keeping]:
    made = Keeping(tmp_path, linux, database)
    await made.environments.start()
    yield made
    await made.environments.close()


def inode(mount: PackageMount, name: str) -> int:
    return (mount.folder / name).stat().st_ino


@pytest.mark.full
async def test_environments_share_the_files_of_their_wheels(keeping: Keeping) -> None:
    for name in ("shared", "one", "two"):
        make_wheel(keeping.house, name, "1.0")

    one, two = await keeping.built("shared", "one"), await keeping.built("shared", "two")

    assert inode(one, "shared.py") == inode(two, "shared.py")
    [cached] = [path.name for path in (one.folder / "__pycache__").iterdir() if path.name.startswith("shared.")]
    assert inode(one, f"__pycache__/{cached}") == inode(two, f"__pycache__/{cached}")
    assert len(keeping.trees()) == 3


async def test_a_build_that_fails_leaves_another_build_in_use(keeping: Keeping, tmp_path: Path) -> None:
    make_wheel(keeping.house, "one", "1.0")
    waits, goes_on = threading.Event(), threading.Event()

    def make_room(_bytes: int, _needed: frozenset[str]) -> None:
        waits.set()
        goes_on.wait(300)

    lock = await keeping.locks.make(("one",))
    slow = asyncio.create_task(keeping.builder.build(lock, tmp_path / "slow", BuildProgress(), make_room))
    await asyncio.to_thread(waits.wait, 300)
    # Both builds have no tree yet, so their entries are equal.
    with pytest.raises(BuildFailed):
        await keeping.builder.build(b"no lock", tmp_path / "failed", BuildProgress(), make_room)
    goes_on.set()

    assert len((await slow).trees) == 1
    assert keeping.builder.busy == {}


@pytest.mark.parametrize("first", [0, 1])
async def test_a_sweep_keeps_the_trees_of_the_build_that_goes_on(keeping: Keeping, tmp_path: Path, first: int) -> None:
    make_wheel(keeping.house, "one", "1.0")
    lock = await keeping.locks.make(["one"])
    await keeping.builder.build(lock, tmp_path / "before", BuildProgress(), lambda *_: None)
    waits, goes_on = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]

    def held(number: int) -> Callable[[int, frozenset[str]], None]:
        def make_room(_bytes: int, _needed: frozenset[str]) -> None:
            waits[number].set()
            goes_on[number].wait(300)

        return make_room

    builds = [
        asyncio.create_task(keeping.builder.build(lock, tmp_path / str(number), BuildProgress(), held(number)))
        for number in (0, 1)
    ]
    for event in waits:
        await asyncio.to_thread(event.wait, 300)
    goes_on[first].set()
    await builds[first]
    list(keeping.environments.drop_unused(datetime.now(UTC) + timedelta(hours=1), None, dry_run=False))
    goes_on[1 - first].set()

    assert (await builds[1 - first]).trees == (await builds[first]).trees
    assert (tmp_path / str(1 - first) / "packages" / "one.py").is_file()


async def test_a_build_with_a_caller_uses_the_reserved_slot() -> None:
    queue, started, goes_on = BuildQueue(3, 1), list[int](), asyncio.Event()
    builds = [BuildProgress() for _ in range(35)]

    async def build(number: int) -> None:
        async with queue.slot(builds[number]):
            started.append(number)
            await goes_on.wait()

    tasks = [asyncio.create_task(build(number)) for number in range(35)]
    await asyncio.sleep(0)
    without_callers = list(started)
    ahead = queue.ahead(builds[34])
    builds[34].callers = 1
    queue.offer()
    await asyncio.sleep(0)
    first_ahead, reserved = queue.ahead(builds[2]), list(started)
    builds[33].callers = 1
    queue.offer()
    tasks[2].cancel()
    goes_on.set()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert (without_callers, ahead) == ([0, 1], 34)
    assert (reserved, first_ahead, queue.ahead(builds[34])) == ([0, 1, 34], 3, 0)
    assert started == [0, 1, 34, 33, *range(3, 33)]


async def test_a_cancelled_build_gives_its_slot_back() -> None:
    queue = BuildQueue(1)
    build = BuildProgress()

    async def hold() -> None:
        async with queue.slot(build):
            await asyncio.Event().wait()

    holder, waiter = asyncio.create_task(hold()), asyncio.create_task(hold())
    await asyncio.sleep(0)
    holder.cancel()
    waiter.cancel()
    await asyncio.gather(holder, waiter, return_exceptions=True)

    async with asyncio.timeout(300), queue.slot(build):
        assert queue.ahead(build) == 0


async def test_where_links_are_impossible_files_are_copied(keeping: Keeping, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(keeping.house, "one", "1.0")

    def no_links(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    mount = await keeping.built("one")

    assert (mount.folder / "one.py").read_text() == "VERSION = '1.0'\n"


@pytest.mark.full
async def test_the_first_package_provides_a_shared_file_and_its_bytecode(keeping: Keeping) -> None:
    make_wheel(keeping.house, "aa", "1.0", {"same.py": "WHO = 'aa'\n", "only.py": "X = 1\n"})
    make_wheel(keeping.house, "bb", "1.0", {"same.py": "WHO = 'bb'\n"})
    first = await keeping.built("aa")

    both = await keeping.built("bb", "aa")

    names = [path.name for path in (first.folder / "__pycache__").iterdir() if path.name.startswith("same.")]
    assert (both.folder / "same.py").read_text() == "WHO = 'aa'\n"
    assert inode(both, f"__pycache__/{names[0]}") == inode(first, f"__pycache__/{names[0]}")


async def test_a_build_fails_if_a_file_and_a_folder_clash(keeping: Keeping) -> None:
    make_wheel(keeping.house, "aa", "1.0", {"same": "a file"})
    make_wheel(keeping.house, "bb", "1.0", {"same/x.py": "X = 1\n"})

    found = await keeping.environments.ready(await keeping.locks.make(["aa", "bb"]), 300)

    assert isinstance(found, Failure)
    assert "'same', one as a file, one as a folder" in found.message


@pytest.mark.full
async def test_a_rebuild_creates_a_new_environment_and_runs_keep_the_old(keeping: Keeping) -> None:
    make_wheel(keeping.house, "one", "1.0")
    lock = await keeping.locks.make(["one"])
    old = await keeping.environments.ready(lock, 300)
    assert isinstance(old, PackageMount)
    before = inode(old, "one.py")

    new = await keeping.environments.rebuild(lock)

    assert isinstance(new, PackageMount)
    assert (new.lock, new.folder != old.folder) == (old.lock, True)
    assert inode(new, "one.py") != before
    assert (old.folder / "one.py").is_file()
    assert keeping.environments.find(old.lock) is new
    left = old.folder
    del old
    gc.collect()
    await eventually_async(lambda: not left.exists())
    assert len(keeping.ready()) == 1


async def test_a_failed_rebuild_keeps_the_environment(keeping: Keeping) -> None:
    wheel = make_wheel(keeping.house, "one", "1.0")
    lock = await keeping.locks.make(["one"])
    old = await keeping.environments.ready(lock, 300)
    wheel.unlink()

    failure = await keeping.environments.rebuild(lock)

    assert isinstance(failure, Failure)
    assert "one 1.0 has no wheel" in failure.message
    assert keeping.environments.find(old.lock if isinstance(old, PackageMount) else "") is old


async def test_a_restarted_server_uses_the_newest_environment(
    keeping: Keeping, tmp_path: Path, linux: Sandbox, database: Database
) -> None:
    make_wheel(keeping.house, "one", "1.0")
    lock = await keeping.locks.make(["one"])
    old = await keeping.environments.ready(lock, 300)
    new = await keeping.environments.rebuild(lock)
    assert isinstance(old, PackageMount)
    assert isinstance(new, PackageMount)

    again = Keeping(tmp_path, linux, database)
    await again.environments.start()

    found = again.environments.find(old.lock)
    assert found is not None
    assert found.folder == new.folder
    assert len(again.ready()) == 1


@pytest.mark.full
async def test_installed_reports_lock_size_and_use_of_each_environment(keeping: Keeping) -> None:
    make_wheel(keeping.house, "one", "1.0")
    make_wheel(keeping.house, "two", "1.0")
    one, two = await keeping.built("one"), (await keeping.built("two")).lock
    gc.collect()

    shown = {found.lock: found for found in keeping.environments.installed()}

    assert shown.keys() == {one.lock, two}
    assert (shown[one.lock].in_use, shown[two].in_use) == (True, False)
    assert all(found.size_bytes > 0 for found in shown.values())
    assert all(abs(found.used_at - datetime.now(UTC)) < timedelta(minutes=30) for found in shown.values())


@pytest.mark.full
async def test_locks_of_several_callers_are_resolved_in_turns(keeping: Keeping) -> None:
    made: list[str] = []

    async def make(caller: str, package: str) -> None:
        await keeping.locks.make([package], caller)
        made.append(caller)

    for name in "abcdefgh":
        make_wheel(keeping.house, name, "1.0")
    await asyncio.gather(*(make("greedy", name) for name in "abcdefg"), make("other", "h"))

    # Two locks resolve at a time. The first two calls began before, then `other` takes turns with `greedy`. While it
    # resolves, others may end.
    assert made.index("other") <= 5


def big(house: Path, name: str, version: str = "1.0") -> None:
    make_wheel(house, name, version, {f"{name}.py": f"VERSION = {version!r}\n", f"{name}.txt": "x" * (600 * 1024)})


@pytest.mark.full
async def test_folders_of_environments_count_like_their_wheels(
    tmp_path: Path, linux: Sandbox, database: Database
) -> None:
    keeping = Keeping(tmp_path, linux, database, total_mb=1)
    make_wheel(keeping.house, "folders", "1.0", {f"folders/f{number}/x": "" for number in range(65)})
    for name in ("a", "b", "c"):
        make_wheel(keeping.house, name, "1.0")
    gc.collect()

    for name in ("a", "b", "c"):
        await keeping.built("folders", name)
        gc.collect()

    # The environments share the files of the wheel, but each needs its own folders, which take a quarter of a MiB.
    assert 1 <= len(keeping.environments.installed()) < 3


@pytest.mark.full
async def test_the_total_limit_evicts_the_least_recently_used_idle_environment(
    tmp_path: Path, linux: Sandbox, database: Database
) -> None:
    keeping = Keeping(tmp_path, linux, database, total_mb=2)
    for name in ("one", "two", "three", "four"):
        big(keeping.house, name)
    first = (await keeping.built("one")).lock
    second, third = await keeping.built("two"), (await keeping.built("three")).lock
    for days, lock in ((3, second.lock), (2, first), (1, third)):
        [found] = [one for one in keeping.environments.installed() if one.lock == lock]
        os.utime(found.folder, (time.time() - days * 86_400,) * 2)
    gc.collect()

    fourth = await keeping.built("four")

    # The sweep deleted the first environment. The second was used even longer ago, but it is in use.
    assert {one.lock for one in keeping.environments.installed()} == {second.lock, third, fourth.lock}
    assert len(keeping.trees()) == 3


async def test_a_build_over_the_total_limit_names_the_setting(
    tmp_path: Path, linux: Sandbox, database: Database
) -> None:
    keeping = Keeping(tmp_path, linux, database, total_mb=1)
    big(keeping.house, "one")
    big(keeping.house, "two")
    kept = await keeping.built("one")

    found = await keeping.environments.ready(await keeping.locks.make(["two"]), 300)

    assert isinstance(found, Failure)
    assert "packages.total_mb" in found.message
    assert (kept.folder / "one.py").is_file()


@pytest.mark.full
async def test_a_sweep_deletes_unused_environments_and_their_wheels(keeping: Keeping) -> None:
    for name in ("shared", "one", "two"):
        make_wheel(keeping.house, name, "1.0")
    one = await keeping.built("shared", "one")
    await keeping.built("shared", "two")
    gc.collect()
    later = datetime.now(UTC) + timedelta(minutes=1)

    counted = list(keeping.environments.drop_unused(later, later, dry_run=True))
    swept = list(keeping.environments.drop_unused(later, later, dry_run=False))

    assert len(counted) == len(swept) == 1
    assert [found.lock for found in keeping.environments.installed()] == [one.lock]
    assert len(keeping.trees()) == 2
    assert (one.folder / "shared.py").is_file()


async def test_the_unsafe_sandbox_locks_and_builds_as_well(tmp_path: Path, database: Database) -> None:
    keeping = Keeping(tmp_path, UnsafeSubprocess(), database)
    make_wheel(keeping.house, "one", "1.0")

    mount = await keeping.built("one")

    assert sorted(path.name for path in mount.folder.iterdir()) == ["__pycache__", "one-1.0.dist-info", "one.py"]
    await keeping.environments.close()


# -- indexes -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def index(tmp_path: Path) -> Iterator[PackageIndex]:
    house = tmp_path / "house"
    house.mkdir()
    make_wheel(house, "one", "1.0")
    made = PackageIndex(house)
    yield made
    made.close()


@pytest.mark.full
async def test_a_login_is_sent_only_to_its_index(
    tmp_path: Path, linux: Sandbox, database: Database, index: PackageIndex
) -> None:
    index.login = "ann:ge-heim"
    good = Keeping(tmp_path, linux, database, sources=PackageSources((index.url,)))
    bad = Keeping(tmp_path, linux, database, sources=PackageSources((index.url.replace("ge-heim", "falsch"),)))

    mount = await good.built("one")
    with pytest.raises(PackageIndexUnavailable, match="does not accept the login"):
        await bad.locks.make(["one"])

    assert (mount.folder / "one.py").is_file()


@pytest.mark.full
async def test_files_on_another_host_need_a_setting(tmp_path: Path, database: Database, index: PackageIndex) -> None:
    sandbox = open_sandbox(LinuxSandboxSettings(hosts={"files.test": ("127.0.0.1",)}), Place(tmp_path))
    index.files_at = f"http://files.test:{index.port}"
    closed = Keeping(tmp_path, sandbox, database, sources=PackageSources((index.url,)))
    opened = Keeping(tmp_path, sandbox, database, sources=PackageSources((index.url,), file_hosts=(index.files_at,)))

    with pytest.raises(Unavailable, match=r"files\.test") as refusal:
        await closed.locks.make(["one"])
    failure = await closed.environments.ready(await opened.locks.make(["one"]), 300)
    mount = await opened.built("one")
    await sandbox.close()

    assert "packages.file_hosts" in (refusal.value.hint or "")
    assert isinstance(failure, Failure)
    assert "packages.file_hosts" in failure.message
    assert (mount.folder / "one.py").is_file()
