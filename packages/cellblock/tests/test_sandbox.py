"""The public names of the library: sandboxes, jobs, mounts, limits, failures and errors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import cellblock
from cellblock import AsyncSandbox, Busy, Host, Job, Limits, Mount, Result, Sandbox, Template, Unavailable, doctor

ADD = "def main(args): return args['a'] + args['b']"
LOOP = "while True: pass"
PATIENT = Limits(timeout_ms=300_000)
"""A loaded machine may take longer than the usual ten seconds."""
SLEEPS = Job("import time\ndef main(args):\n print('now')\n time.sleep(3600)", limits=Limits(timeout_ms=3_600_000))


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox(limits=PATIENT) as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {
        "tool.py": "import near\ndef size(args): return len(near.TEXT)",
        "near.py": "TEXT = open('/data/tool/text.txt').read()",
        "text.txt": "twelve bytes",
        "tool.mjs": "export default (args) => args.a * 2;",
        "tool.sh": "#!/bin/bash\ncat\n",
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_at_most_twelve_names_are_public() -> None:
    assert len(cellblock.__all__) <= 12
    assert all(getattr(cellblock, name).__doc__ for name in cellblock.__all__)
    assert Path(cellblock.__file__).with_name("py.typed").exists()


def test_run_returns_value_of_function(box: Sandbox) -> None:
    done = box.run(ADD, {"a": 1, "b": 2})
    assert (done.ok, done.raw, done.value, done.failure) == (True, b"3", 3, None)
    assert done.value is done.value
    assert box.run("async def other(args): return args", [1, "ä"], function="other").value == [1, "ä"]
    assert box.run("def main(args): return args").value == {}


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("javascript", "export async function main(args) { return args.a; }"),
        ("bash", "cat"),
    ],
)
def test_other_languages_get_arguments_and_return_values(box: Sandbox, language: str, code: str) -> None:
    done = box.run(code, {"a": 1}, language=language)  # type: ignore[arg-type]
    assert done.value == (1 if language == "javascript" else {"a": 1})


def test_log_is_kept_up_to_its_limit(box: Sandbox) -> None:
    code = "def main(args):\n for n in range(4000): print(n)"
    done = box.run(code, limits=Limits(log_kb=1))
    assert done.log.startswith(b"0\n1\n")
    assert done.log.endswith(b"\n3999\n")
    assert done.log_dropped == sum(len(f"{n}\n") for n in range(4000)) - 1024
    assert box.run(code, limits=Limits(log_kb=0)).log == b""


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        ("def main(args): return 1 / 0", "exception", "division by zero"),
        ("def main(args): import os; os._exit(3)", "exited", "status 3"),
        ("def main(args): import os; os.kill(os.getpid(), 9)", "killed", "SIGKILL"),
        (LOOP, "timeout", "500 ms"),
        ("def main(args): x = bytearray(1 << 30); return len(x)", "memory", "64 MiB"),
        ("def main(args): return object()", "exception", "not JSON"),
        ("def main(args): return 'x' * (1 << 20)", "exception", "the limit is 1048576"),
    ],
)
def test_failures_of_code_are_results(box: Sandbox, code: str, kind: str, words: str) -> None:
    done = box.run(code, limits=Limits(timeout_ms=500 if code == LOOP else 60_000, memory_mb=64))
    assert done.failure is not None
    assert (done.ok, done.failure.kind) == (False, kind)
    assert words in done.failure.message
    with pytest.raises(ValueError, match=f"no value: {kind}"):
        _ = done.value


def test_code_cannot_forge_its_result(box: Sandbox) -> None:
    forged = box.run("def main(args):\n import os\n os.write(3, b'x' * 100)\n return 1")
    assert forged.failure is not None
    assert forged.failure.kind == "output"


SENDS_RESULT = """
import json, os, struct, time
def main(args):
    header = b'{"op": "result"}'
    left = struct.pack(">IQ", len(header), len(args)) + header + args.encode()
    while left:
        left = left[os.write(3, left):]
    time.sleep(3600)
"""


@pytest.mark.full
@pytest.mark.parametrize(("end", "kind"), [("]", None), ("}", "output"), (", NaN]", "output")])
def test_large_result_is_checked_in_another_process(end: str, kind: str | None) -> None:
    async def run() -> tuple[Result, bool]:
        async with AsyncSandbox(prepared=0, limits=Limits(result_kb=8192, timeout_ms=300_000)) as own:
            running = asyncio.create_task(own.run(SENDS_RESULT, "[" + "[ ], " * 1_000_000 + "1" + end))
            is_apart = False
            while not running.done():
                is_apart = is_apart or any("json.load" in command_of(pid) for pid in children())
                await asyncio.sleep(0.001)
            return await running, is_apart

    done, is_apart = asyncio.run(run())
    assert is_apart
    assert (done.failure and done.failure.kind) == kind
    assert done.raw == (None if kind else b"[" + b"[]," * 1_000_000 + b"1]")


@pytest.mark.full
def test_check_of_a_large_result_uses_no_more_memory_than_the_run(box: Sandbox) -> None:
    result = "[" + "[]," * 3_000_000 + "1]"  # as values of Python: 190 MB
    limits = Limits(memory_mb=64, result_kb=16 * 1024, timeout_ms=300_000)
    done = box.run(SENDS_RESULT, result, limits=limits)
    assert done.failure is not None
    assert done.failure.kind == "output"
    assert "a result that needs more memory than the run may use" in done.failure.message


def test_runs_see_only_the_code_of_an_npm_next_to_its_node(tmp_path: Path) -> None:
    npm = tmp_path / "lib/node_modules/npm"
    for path in ("bin/npm-cli.js", "lib/npm.js", "npmrc", ".npmrc", "package.json"):
        (npm / path).parent.mkdir(parents=True, exist_ok=True)
        (npm / path).write_text("//registry.example.org/:_authToken=secret")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/node").write_text("#!/bin/sh\necho node")
    (tmp_path / "bin/node").chmod(0o755)
    with Sandbox(Template(node=tmp_path / "bin/node"), prepared=0, allow_degraded=True) as own:
        listed = own.run("node; cd /run/cellblock/node; find . -type f | sort", language="bash")
    assert str(listed.value).split() == [
        "node",
        "./bin/node",
        "./bin/npm",
        "./lib/node_modules/npm/bin/npm-cli.js",
        "./lib/node_modules/npm/lib/npm.js",
        "./lib/node_modules/npm/package.json",
    ]


def test_requests_to_the_host_are_refused(box: Sandbox) -> None:
    done = box.run("from runtime import _host, progress\ndef main(args): progress(1); return _host.ask('anything')")
    assert done.failure is not None
    assert done.failure.type == "HostError"


def test_mounts_are_read_only_and_belong_to_a_single_run(box: Sandbox, folder: Path) -> None:
    code = "import os\ndef main(args):\n t = open('/data/t/text.txt').read()\n open('/data/t/new', 'w')"
    first = box.run(code, mounts=[Mount(folder, "/data/t")])
    assert first.failure is not None
    assert first.failure.type == "OSError"
    listed = box.run("import os\ndef main(args): return os.listdir('/data')")
    assert listed.value == []
    file = box.run("def main(args): return open('/data/one').read()", mounts=[Mount(folder / "text.txt", "/data/one")])
    assert file.value == "twelve bytes"


@pytest.mark.parametrize(
    ("entry", "function", "value"), [("tool.py", "size", 12), ("tool.mjs", "main", 8), ("tool.sh", "main", {"a": 4})]
)
def test_entry_is_a_file_below_a_mount(box: Sandbox, folder: Path, entry: str, function: str, value: object) -> None:
    mounts = (Mount(folder, "/data/tool"),)
    done = box.run_job(Job(entry=f"/data/tool/{entry}", function=function, args=b'{"a": 4}', mounts=mounts))
    assert done.failure is None
    assert done.value == value


def test_code_in_the_process_with_the_channel_has_no_server(box: Sandbox, folder: Path) -> None:
    """The name `.py` has no suffix, and its code is called like that of every other Python file."""
    code = "import socket\ndef handler(args): socket.create_server(('127.0.0.1', 0))"
    (folder / ".py").write_text(code)
    done = box.run_job(Job(entry="/data/tool/.py", function="handler", mounts=(Mount(folder, "/data/tool"),)))
    assert done.failure is not None
    assert done.failure.type == "PermissionError"


def test_template_has_packages_and_points(folder: Path) -> None:
    (folder / "small").mkdir()
    (folder / "small" / "__init__.py").write_text("NAME = 'small'")
    with Sandbox(Template(points=("/in", "/models"), packages=folder), prepared=0) as own:
        code = "import small\ndef main(args): return [small.NAME, open('/models/m').read(), open('/in/m').read()]"
        source = folder / "text.txt"
        done = own.run(code, mounts=[Mount(source, "/models/m"), Mount(folder / "near.py", "/in/m")])
    assert done.value == ["small", "twelve bytes", (folder / "near.py").read_text()]


def test_network_reaches_listed_hosts_only(box: Sandbox) -> None:
    code = "import urllib.request\ndef main(args): return urllib.request.urlopen('https://example.org').status"
    done = box.run(code, network=["https://example.com"], limits=Limits(timeout_ms=300_000))
    assert done.failure is not None
    assert "https://example.org is not in the network list of this run" in done.failure.message
    assert [(use.host, use.allowed) for use in done.network] == [("example.org", False)]


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (Job(), "`code` or `entry`"),
        (Job("1", "2"), "`code` or `entry`"),
        (Job("1", language="ruby"), "language is 'ruby'"),  # type: ignore[arg-type]
        (Job("1", args=b"{"), "args are not JSON"),
        (Job("1", limits=Limits(memory_mb=0)), "memory_mb is 0"),
        (Job("1", limits=Limits(cpus=float("nan"))), "cpus is nan"),
        (Job("1", limits=Limits(timeout_ms=1.5)), "timeout_ms is 1.5"),  # type: ignore[arg-type]
        (Job("1", mounts=(Mount(Path("/usr"), "/else/x"),)), "the points are /data"),
        (Job("1", mounts=(Mount(Path("/usr"), "/data/.."),)), "the points are /data"),
        (Job("1", mounts=(Mount(Path("/missing"), "/data/x"),)), "'/missing' does not exist"),
        (Job("1", mounts=(Mount(Path("/missing" * 100), "/data/x"),)), "does not exist"),
        (Job("1", mounts=(Mount(Path("/usr"), "/data/x"),) * 2), "the same target"),
        (Job(entry="/data/x/a.py"), "not below the target"),
        (Job(entry="/data/x/../a.py", mounts=(Mount(Path("/usr"), "/data/x"),)), "not below the target"),
        (Job("1", environment={"A=B": "1"}), "'A=B' is not a name"),
        (Job("1", network=("https://*",)), "network: "),
    ],
)
def test_wrong_arguments_raise_value_error(box: Sandbox, job: Job, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        box.run_job(job)


@pytest.mark.parametrize("point", ["data", "/usr", "/a/b", "/", "/workspace"])
def test_mount_points_of_the_sandbox_are_refused(point: str) -> None:
    with pytest.raises(ValueError, match="mount point"):
        Sandbox(Template(points=(point,)))


def test_arguments_that_are_not_json_raise_value_error(box: Sandbox) -> None:
    for args in (object(), {"a": float("nan")}, "\ud800"):
        with pytest.raises(ValueError, match="args are not JSON"):
            box.run(ADD, args)


def test_host_gets_log_while_code_runs(box: Sandbox, tmp_path: Path) -> None:
    printed = threading.Event()

    class Owner(Host):
        def log(self, piece: bytes) -> None:
            assert piece == b"now\n"
            printed.set()

    code = "import os, time\ndef main(args):\n print('now')\n while not os.listdir('/data/go'): time.sleep(0.02)"
    ended: list[object] = []
    job = Job(code, mounts=(Mount(tmp_path, "/data/go"),))
    runner = threading.Thread(target=lambda: ended.append(box.run_job(job, Owner())))
    runner.start()
    assert printed.wait(300)
    (tmp_path / "on").touch()
    runner.join()
    assert isinstance(ended[0], cellblock.Result)
    assert ended[0].log == b""


def test_runs_at_the_same_time_are_separate(box: Sandbox) -> None:
    code = "import os\ndef main(args):\n open('/workspace/f', 'x').close()\n return os.listdir('.')"
    values: list[object] = []
    threads = [threading.Thread(target=lambda: values.append(box.run(code).value)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == [["f"]] * 6


def test_async_sandbox_ends_a_cancelled_run() -> None:
    async def cancelled() -> object:
        others = children()
        async with AsyncSandbox(prepared=0, limits=PATIENT) as own:
            zygotes = children() - others
            started, idle = asyncio.Event(), below(zygotes)

            class Owner(Host):
                def log(self, piece: bytes) -> None:
                    started.set()

            running = asyncio.create_task(own.run_job(SLEEPS, Owner()))
            await started.wait()
            assert below(zygotes) > idle
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert below(zygotes) == idle
            return (await own.run(ADD, {"a": 1, "b": 1})).value

    assert asyncio.run(cancelled()) == 2


def test_closed_sandbox_is_unavailable() -> None:
    own = Sandbox(prepared=0)
    own.close()
    own.close()
    with pytest.raises(Unavailable, match="closed"):
        own.run(ADD)


def test_close_ends_runs_of_other_threads() -> None:
    own, begun, errors = Sandbox(prepared=0), threading.Event(), []

    class Owner(Host):
        def log(self, piece: bytes) -> None:
            begun.set()

    def wait_for_run() -> None:
        try:
            own.run_job(SLEEPS, Owner())
        except Unavailable as error:
            errors.append(str(error))

    runner = threading.Thread(target=wait_for_run, daemon=True)
    runner.start()
    assert begun.wait(300)
    closers = [threading.Thread(target=own.close, daemon=True) for _ in range(2)]
    for thread in closers:
        thread.start()
    for thread in (*closers, runner):
        thread.join(300)
        assert not thread.is_alive()
    assert errors == ["the sandbox is closed"]


def test_cancelled_close_ends_the_sandbox() -> None:
    async def processes_left() -> tuple[BaseException | None, set[str]]:
        own, begun = AsyncSandbox(), asyncio.Event()
        await own.start()

        class Owner(Host):
            def log(self, piece: bytes) -> None:
                begun.set()

        running = asyncio.create_task(own.run_job(SLEEPS, Owner()))
        await begun.wait()
        closing = asyncio.create_task(own.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait({closing, running})
        assert closing.cancelled()
        return running.exception(), children()

    before = children()
    error, left = asyncio.run(processes_left())
    assert isinstance(error, Unavailable)
    assert left <= before


FEW_DESCRIPTORS = """
import cellblock, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (300, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
try:
    cellblock.Sandbox(prepared=300)
except cellblock.Unavailable as error:
    print(error)
"""


def test_start_fails_if_a_cell_cannot_be_prepared() -> None:
    command = [sys.executable, "-c", FEW_DESCRIPTORS]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    assert shown.startswith("the sandbox cannot start: ")


LISTENERS = """
import asyncio, os, resource, socket
from cellblock import Busy
from cellblock.parts import receive_listener

async def main():
    ours, theirs = socket.socketpair()
    listener = socket.create_server(("127.0.0.1", 0))
    socket.send_fds(theirs, [b"d"], [listener.fileno()])
    received = await receive_listener(ours)
    print("inheritable" if received.get_inheritable() else "closed on exec")
    socket.send_fds(theirs, [b"d"], [listener.fileno()])
    resource.setrlimit(resource.RLIMIT_NOFILE, (os.dup(0) + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    try:
        await receive_listener(ours)
    except Busy:
        print("busy")

asyncio.run(main())
"""


def test_listener_is_closed_on_exec_and_its_loss_is_busy() -> None:
    command = [sys.executable, "-c", LISTENERS]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    assert shown == "closed on exec\nbusy\n"


def test_start_prepares_no_more_cells_than_there_are_uids() -> None:
    Sandbox(prepared=2, uids=range(200_000, 200_001)).close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only the sandboxes of root have uids of their own")
def test_two_sandboxes_of_a_process_share_no_uid() -> None:
    few = range(200_000, 200_006)
    with Sandbox(prepared=2, uids=few), Sandbox(prepared=2, uids=few):
        processes = Counter(uid for uid in host_uids() if uid in few)
    assert len(processes) >= 4
    assert max(processes.values()) == 2  # pid 1 and pid 2 of one cell


@pytest.mark.skipif(os.geteuid() != 0, reason="only the sandboxes of root have uids of their own")
@pytest.mark.parametrize(("file", "line"), [("subuid", "ada:2100019999:65536"), ("group", "ada:x:2100000000:")])
def test_sandbox_refuses_uids_that_a_user_of_the_host_has(tmp_path: Path, file: str, line: str) -> None:
    etc = tmp_path / "etc"
    etc.write_text(f"# comment\n\n{line}\n")
    script = f"""
from cellblock import Sandbox, Unavailable
from cellblock.inside import kernel

kernel.unshare(kernel.NEWNS)
kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
kernel.mount({str(etc)!r}, "/etc/{file}", None, kernel.MS_BIND)
try:
    Sandbox()
except Unavailable as error:
    print(error)
with Sandbox(prepared=0, uids=range(300_000, 300_010)) as box:
    print(box.run("def main(args): return 1").value)
"""
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300
    ).stdout
    assert f"/etc/{file} gives" in shown
    assert "to ada: choose uids that no user has" in shown
    assert shown.endswith("\n1\n")


def host_uids() -> Iterator[int]:
    """Yield the uid of each process of the host."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            yield int((folder / "status").read_text().partition("\nUid:")[2].split()[0])


def test_error_of_the_host_ends_its_run_whole() -> None:
    class Owner(Host):
        def log(self, piece: bytes) -> None:
            raise LookupError("no log")

    async def run() -> None:
        async with AsyncSandbox(prepared=0, limits=PATIENT) as own:
            with contextlib.suppress(LookupError):  # raised here only for the output that is read at the end
                await own.run_job(Job("def main(args): print('now')"), Owner())

    before = descriptors()
    asyncio.run(run())
    assert descriptors() <= before


def children(of: str = "self") -> set[str]:
    """Return the child processes of a process, by default of this one. Those of other tests may end at any time."""
    with contextlib.suppress(OSError):  # the process has ended
        return {pid for path in Path(f"/proc/{of}/task").glob("*/children") for pid in path.read_text().split()}
    return set()


def below(pids: set[str]) -> set[str]:
    """Return the descendants of processes."""
    direct = {child for pid in pids for child in children(pid)}
    return direct | below(direct) if direct else direct


def descriptors() -> set[tuple[str, str]]:
    """Return the descriptors of this process, with their files. Those of other tests may be closed at any time."""
    opened = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed
            opened.add((path.name, str(path.readlink())))
    return opened


def command_of(pid: str) -> str:
    """Return the command line of a process, or "" if it has ended."""
    try:
        return Path("/proc", pid, "cmdline").read_text()
    except OSError:
        return ""


def test_sandbox_without_free_uid_is_busy() -> None:
    if os.geteuid() != 0:
        pytest.skip("only the sandboxes of root have uids of their own")
    job = Job("import time\ndef main(args): time.sleep(3600)", limits=Limits(timeout_ms=3_600_000))

    async def first_error() -> BaseException | None:
        async with AsyncSandbox(prepared=0, uids=range(200_000, 200_002)) as own:
            running = [asyncio.create_task(own.run_job(job)) for _ in range(3)]
            ended, rest = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
            return ended.pop().exception()

    error = asyncio.run(first_error())
    assert isinstance(error, Busy)
    assert "all 2 host uids" in str(error)


OTHER_SYSTEM = """
import asyncio, json, pathlib, sys, threading  # as they are here
sys.platform = "win32"
sys.modules.update(dict.fromkeys(["fcntl", "resource", "pwd", "grp", "termios"]))
import cellblock
assert "cellblock.host.engine" not in sys.modules
try:
    cellblock.Sandbox()
except cellblock.Unavailable as error:
    print(error.probes[0].name, error)
"""


def test_other_systems_can_import_the_package_but_have_no_sandbox() -> None:
    command = [sys.executable, "-c", OTHER_SYSTEM]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown.startswith("machine ")
    assert "use Linux on x86_64 or aarch64" in shown


def test_unavailable_lists_probes_that_fail() -> None:
    code = (
        "import cellblock, cellblock.doctor, pathlib\ncellblock.doctor.RECORD = pathlib.Path('/missing')\n"
        "try: cellblock.Sandbox()\nexcept cellblock.Unavailable as e: print([x.name for x in e.probes], e)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.startswith("['helper'] no helper for ")
    assert "cellblock supports x86_64 and aarch64" in shown


def test_doctor_reports_why_nothing_could_be_run() -> None:
    async def run(jobs: Sequence[Job]) -> list[Result]:
        raise Busy("all uids are in use")

    *_, bash, whole_run = doctor.probes(run)
    assert (bash.detail, whole_run.detail) == ("all uids are in use",) * 2


@pytest.mark.full
@pytest.mark.full
def test_doctor_finds_sockets_in_all_folders_of_the_template(tmp_path: Path) -> None:
    python, node = tmp_path / "python/bin/python3.13", tmp_path / "node/bin/node"
    npm = tmp_path / "node/lib/node_modules/npm"
    for folder in (python.parent, node.parent, npm / "bin", npm / "lib", tmp_path / "packages"):
        folder.mkdir(parents=True)
    for file in (python, node, npm / "bin/npm-cli.js"):
        file.write_text("#!/bin/sh")
        file.chmod(0o755)
    templates = {
        tmp_path / "python": Template(pythons=(python,)),
        npm / "lib": Template(node=node),
        tmp_path / "packages": Template(packages=tmp_path / "packages"),
    }
    for folder, template in templates.items():
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "s"))
        probes = asyncio.run(AsyncSandbox(template).doctor())
        details = [probe.detail for probe in probes if probe.name == "sockets"]
        assert details == [f"runs could reach {folder}/s, so they get no UNIX sockets"]


@pytest.mark.full
def test_doctor_lists_helper_languages_and_whole_run(box: Sandbox) -> None:
    probes = {probe.name: probe for probe in box.doctor()}
    assert [name for name, probe in probes.items() if probe.required and not probe.ok] == []
    assert list(probes)[-1] == "a whole run"
    assert {"machine", "seccomp", "helper", "language python"} <= set(probes)
    assert "as in BUILD.json" in probes["helper"].detail
