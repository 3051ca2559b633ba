"""`make soak`: many runs of all kinds through one sandbox, with checks for growth.

`python -m bench.soak 20000`. The exit code is 1 if a measured quantity has grown, or if a run did not end as its kind
requires.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from skillery.backends import BlobMount, CodeCall, Job, Language, Limits, Outcome, Place, SkillMount
from skillery.builtin.linux_sandbox import LinuxSandboxSettings, open_sandbox
from skillery.builtin.linux_sandbox.sandbox import LinuxSandbox
from skillery.testing.sandbox import MemoryHost
from skillery.testing.sandbox.leftovers import descendants, traces
from skillery.testing.upstreams import upstream

AT_ONCE = 4
LOOKS = 10
SLACK = 24
"""Allowed growth in MiB of the memory of the server or a zygote, because of arenas, caches and young zygotes."""
SETTLE_SECONDS = 30.0
GROUPS_AHEAD = 24
"""Limit of cgroups prepared ahead: eight for each of three controllers."""
ROOMY = Limits(timeout_ms=30_000, memory_mb=128)


class Kind(msgspec.Struct, frozen=True):
    """A kind of run, and the allowed endings."""

    code: str
    ends: frozenset[str | None]
    limits: Limits = ROOMY
    network: tuple[str, ...] = ()
    language: Language = "python"
    environment: dict[str, str] = {}
    patience: float | None = None
    """Seconds after which the run is cancelled."""


def ends(*kinds: str | None) -> frozenset[str | None]:
    return frozenset(kinds)


FORK_BOMB = """
import os, time
def main(args):
    for count in range(1000):
        try:
            if os.fork() == 0: time.sleep(1e6)
        except BlockingIOError: return count
"""
REFUSED = """
import urllib.error, urllib.request
def main(args):
    try: urllib.request.urlopen('http://evil.test/', timeout=20)
    except urllib.error.HTTPError as error: return error.code
"""
ALLOWED = """
import urllib.request
def main(args): return urllib.request.urlopen(f"http://api.test:{args['port']}/x", timeout=20).status
"""
BLOBS = """
from runtime import blobs
def main(args):
    ids = [blobs.write_bytes(bytes(size)) for size in (0, 1000, 1 << 20)]
    return [len(blobs.read_bytes(ids[2])), blobs.read_text('blob:given')]
"""
GROWING = "def main(args):\n    kept = []\n    while True: kept.append(bytes(range(256)) * 4096)"
FLOOD = "import os\ndef main(args):\n    for n in range(40): os.write(1, b'x' * (1 << 18))"
SLEEP = "import time\ndef main(args): time.sleep(1e6)"
KINDS = {
    "returns": Kind("def main(args): return args", ends(None)),
    "imports a skill": Kind("from skills.kept import main", ends(None)),
    "raises": Kind("def main(args): raise ValueError('x' * 2000)", ends("ValueError")),
    "crashes": Kind("import ctypes\ndef main(args): ctypes.string_at(1)", ends("ProcessKilled")),
    "leaves": Kind("import os\ndef main(args): os._exit(3)", ends("ProcessExited")),
    "takes too long": Kind(SLEEP, ends("TimeoutError"), Limits(timeout_ms=40)),
    "takes too much memory": Kind(
        GROWING, ends("MemoryLimitExceeded", "MemoryError"), Limits(timeout_ms=30_000, memory_mb=48)
    ),
    "forks without end": Kind(FORK_BOMB, ends(None), Limits(timeout_ms=30_000, processes=20)),
    "prints without end": Kind(FLOOD, ends(None)),
    "writes blobs": Kind(BLOBS, ends(None)),
    "abuses its channel": Kind("import os\ndef main(args): os.write(3, b'\\xff' * 4096)", ends("InvalidOutput")),
    "is refused a host": Kind(REFUSED, ends(None), network=("http://api.test",)),
    "runs bash": Kind("cat; echo done >&2", ends(None), language="bash"),
    **(
        {"runs Node.js": Kind("export const main = (args) => args", ends(None), language="javascript")}
        if shutil.which("node")
        else {}
    ),
    "calls a stub": Kind("from skills.far import f\ndef main(args): return f(1)", ends(None)),
    "has a secret": Kind(
        "import os\ndef main(args): return len(os.environ['API_KEY'])", ends(None), environment={"API_KEY": "k" * 99}
    ),
    "is allowed a host": Kind(ALLOWED, ends(None), network=("http://api.test:PORT",)),
    "is cancelled": Kind(SLEEP, ends("CancelledError"), patience=0.02),
}


class Look(msgspec.Struct, frozen=True):
    """One measurement of the server between two runs."""

    runs: int
    seconds: float
    descriptors: int
    mounts: int
    groups: int
    processes: int
    files: int
    server: int
    """Memory in bytes."""
    zygote: int
    """Memory of the largest other process in bytes."""
    memory_groups: int
    """Memory cgroups of the whole machine, including those that the kernel has not released yet."""


def resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def memory_groups() -> int:
    lines = (line.split() for line in Path("/proc/cgroups").read_text().splitlines())
    return next((int(fields[2]) for fields in lines if fields[0] == "memory"), 0)


class Soak:
    """Run all kinds in turn, a few at a time, with periodic measurements."""

    def __init__(self, folder: Path, port: int) -> None:
        """Create a soak. `port` is the port of the allowed host."""
        self._folder = folder
        self._port = port
        self._sandbox = self._open()
        self._began = time.monotonic()
        self._skill = SkillMount("kept", folder / "kept", "main.py")
        self._stub = SkillMount("far", folder / "far", "main.py", stub=True)
        self._blob = BlobMount("blob:given", folder / "given")
        self.ended: dict[str, Counter[str | None]] = {name: Counter() for name in KINDS}
        self.looks: list[Look] = []

    def _open(self) -> LinuxSandbox:
        hosts: dict[str, tuple[str, ...]] = dict.fromkeys(("api.test", "evil.test"), ("127.0.0.1",))
        settings = LinuxSandboxSettings(hosts=hosts, allow_private=("127.0.0.1",))
        return open_sandbox(settings, Place(self._folder))

    async def go(self, runs: int, looks: int) -> None:
        self._skill.folder.mkdir()
        (self._skill.folder / "main.py").write_text("def main(args): return len(args)")
        self._stub.folder.mkdir()
        (self._stub.folder / "main.py").write_text("def f(number): pass")
        self._blob.path.write_text("given")
        await self._sandbox.start()
        for name in KINDS:  # one run of each kind, so that proxy, caches and arenas exist at the first measurement
            await self._one(name)
        await self._look(0)
        for sample in range(1, looks + 1):
            await self._some(runs * (sample - 1) // looks, runs * sample // looks)
            await self._closed_early()
            await self._look(runs * sample // looks)
        await self._sandbox.close()

    async def _some(self, start: int, stop: int) -> None:
        names = list(KINDS)
        numbers = iter(range(start, stop))

        async def work() -> None:
            for number in numbers:
                await self._one(names[number % len(names)])

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))

    async def _one(self, name: str) -> None:
        kind = KINDS[name]
        self.ended[name][await ending(self._run(self._sandbox, kind), kind.patience)] += 1

    def _run(self, sandbox: LinuxSandbox, kind: Kind) -> Awaitable[Outcome]:
        call = CodeCall(kind.code, "main", kind.language)
        skills, args = (self._skill, self._stub), b'{"port":%d}' % self._port
        network = tuple(entry.replace("PORT", str(self._port)) for entry in kind.network)
        job = Job("run_soak", call, args, skills, (self._blob,), kind.limits, kind.environment, network)
        host = MemoryHost()
        host.callable["far", "f"] = lambda number: number + 1
        return sandbox.run(job, host)

    async def _closed_early(self) -> None:
        """Close a sandbox while runs are active."""
        sandbox = self._open()
        await sandbox.start()
        running = [asyncio.ensure_future(self._run(sandbox, KINDS["is cancelled"])) for _ in range(3)]
        await asyncio.sleep(0.05)
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await sandbox.close()

    async def _look(self, runs: int) -> None:
        await settled()
        gc.collect()
        seen = traces()
        self.looks.append(
            Look(
                runs=runs,
                seconds=time.monotonic() - self._began,
                descriptors=seen.descriptors,
                mounts=seen.mounts,
                groups=len(seen.groups),
                processes=len(seen.processes),
                files=len(list(self._folder.iterdir())),
                server=resident(os.getpid()),
                zygote=max(map(resident, seen.processes), default=0),
                memory_groups=memory_groups(),
            )
        )

    def faults(self) -> list[str]:
        """Return the faults found."""
        found = [
            f"'{name}' ended with {sorted(map(str, unexpected))}"
            for name, kinds in self.ended.items()
            if (unexpected := set(kinds) - KINDS[name].ends)
        ]
        first, last = self.looks[0], self.looks[-1]
        for name in ("descriptors", "mounts", "processes", "files"):
            before, now = getattr(first, name), getattr(last, name)
            found += [f"{name}: {before} became {now}"] if now > before else []
        found += [f"cgroups: {first.groups} became {last.groups}"] if last.groups > first.groups + GROUPS_AHEAD else []
        for name in ("server", "zygote"):
            before, now = getattr(first, name) >> 20, getattr(last, name) >> 20
            found += [f"memory of the {name}: {before} MiB became {now} MiB"] if now > before + SLACK else []
        return found

    def table(self) -> str:
        head = "| runs | seconds | descriptors | mounts | cgroups | processes | files | server MiB | child MiB |"
        rows = [
            f"| {look.runs} | {look.seconds:.0f} | {look.descriptors} | {look.mounts} | {look.groups} | "
            f"{look.processes} | {look.files} | {look.server / 2**20:.1f} | {look.zygote / 2**20:.1f} |"
            for look in self.looks
        ]
        kinds = [f"{name}: {sum(counts.values())}" for name, counts in self.ended.items()]
        groups = f"memory cgroups of the machine: {self.looks[0].memory_groups} → {self.looks[-1].memory_groups}"
        return "\n".join([head, "|" + "---|" * 9, *rows, "", ", ".join(kinds), groups])


async def ending(running: Awaitable[Outcome], patience: float | None) -> str | None:
    try:
        outcome = await asyncio.wait_for(running, patience)
    except TimeoutError:
        return "CancelledError"
    return outcome.failure.type if outcome.failure else None


async def settled() -> None:
    """Wait until prepared cells exist and ended runs are cleaned up, so that the counts are stable."""
    before, since = descendants(os.getpid()), time.monotonic()
    deadline = since + SETTLE_SECONDS
    while time.monotonic() - since < 0.5 and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
        now = descendants(os.getpid())
        if now != before:
            before, since = now, time.monotonic()


async def soak(folder: Path, runs: int, looks: int = LOOKS) -> Soak:
    before, tempfile.tempdir = tempfile.tempdir, str(folder)  # the folder where temporary files are counted
    try:
        with upstream() as host:
            done = Soak(folder, host.port)
            await done.go(runs, looks)
    finally:
        tempfile.tempdir = before
    return done


def main(act: Callable[[str], object] = print) -> int:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    with tempfile.TemporaryDirectory(prefix="skillery-soak-") as folder:
        done = asyncio.run(soak(Path(folder), runs))
    act(done.table())
    for fault in done.faults():
        act(f"FAULT {fault}")
    return 1 if done.faults() else 0


if __name__ == "__main__":
    sys.exit(main())
