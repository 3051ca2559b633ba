"""Limits of a run, for all its processes together, and the end of a run."""
# ruff: noqa: S108 - the paths are those of the sandbox

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skillery.backends import Limits
from skillery.testing.sandbox.trial import SandboxCases, Trial, failure_type, log_of, value_of

SHORT = Limits(timeout_ms=400)
NEVER_ENDING = {
    "a busy loop": "while True: pass",
    "sleep": "time.sleep(1e6)",
    "a C loop that holds the interpreter": "10 ** 10 ** 8",
    "signals ignored and blocked": (
        "[signal.signal(s, signal.SIG_IGN) for s in (2, 14, 15)];"
        " signal.pthread_sigmask(0, range(1, 64)); time.sleep(1e6)"
    ),
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "waiting for a child": "os.fork() or time.sleep(1e6); os.wait()",
    "replaced by another program": "os.execv(sys.executable, ['python', '-c', 'import time; time.sleep(1e6)'])",
    "the default handler of SIGALRM": "signal.signal(signal.SIGALRM, signal.SIG_DFL); time.sleep(1e6)",
    "its own timer": "signal.setitimer(signal.ITIMER_REAL, 0.1); time.sleep(1e6)",
    "the streams closed": "os.close(1); os.close(2); time.sleep(1e6)",
}


class TimeCases(SandboxCases):
    @pytest.mark.parametrize("ending", NEVER_ENDING)
    async def test_whatever_the_code_does_its_time_ends(self, trial: Trial, ending: str) -> None:
        code = f"import os, signal, sys, time\ndef main(args):\n    {NEVER_ENDING[ending]}"
        outcome = await asyncio.wait_for(trial.code(code, limits=SHORT), timeout=300)
        assert failure_type(outcome) == "TimeoutError"
        assert outcome.duration_ms >= 400

    async def test_an_alarm_of_the_code_is_no_timeout(self, trial: Trial) -> None:
        code = "import signal, time\ndef main(args):\n    signal.signal(signal.SIGALRM, signal.SIG_DFL)\n"
        code += "    signal.setitimer(signal.ITIMER_REAL, 0.1)\n    time.sleep(1e6)"
        assert failure_type(await trial.code(code, limits=Limits(timeout_ms=300_000))) == "ProcessKilled"

    async def test_a_process_that_uses_its_cpu_time_up_says_so(self, trial: Trial) -> None:
        code = """
        import resource
        def main(args):
            resource.setrlimit(resource.RLIMIT_CPU, (1, resource.getrlimit(resource.RLIMIT_CPU)[1]))
            while True: pass
        """
        patient = Limits(timeout_ms=300_000)  # on a loaded machine, a second of processor time takes long
        assert failure_type(await trial.code(code, limits=patient)) == "CpuTimeExceeded"

    async def test_lines_printed_before_a_stop_are_kept(self, trial: Trial) -> None:
        code = "import time\ndef main(args): print('so far'); time.sleep(1e6)"
        for timeout_ms in (400, 4_000, 40_000):  # on a loaded machine, the code needs time until it prints
            outcome = await trial.code(code, limits=Limits(timeout_ms=timeout_ms))
            assert failure_type(outcome) == "TimeoutError"
            if log_of(outcome):
                break
        assert log_of(outcome) == "so far\n"

    async def test_cancelling_a_run_ends_it(self, trial: Trial) -> None:
        code = "import runtime, time\ndef main(args): runtime.blobs.write_text('begun'); time.sleep(1e6)"
        running = asyncio.ensure_future(trial.code(code))
        while not trial.host.blobs:  # noqa: ASYNC110 - the host of these cases has no event
            await asyncio.sleep(0.02)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    async def test_a_flood_of_calls_does_not_hold_up_other_runs(self, trial: Trial) -> None:
        code = "import runtime\ndef main(args):\n    while True: runtime.summary('again')"
        flood = asyncio.ensure_future(trial.code(code, limits=Limits(timeout_ms=300_000)))
        await asyncio.sleep(0.5)  # no event: the flood begins
        await trial.is_well()
        assert not flood.done()
        flood.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flood

    async def test_many_runs_at_a_time_do_not_disturb_each_other(self, trial: Trial) -> None:
        code = """
        import os
        def main(args):
            seen = os.listdir()
            open('mine', 'w').write(str(args['n']))
            return [seen, open('mine').read()]
        """
        results = await asyncio.gather(*(trial.value(code, {"n": n}) for n in range(8)))
        assert results == [[[], str(n)] for n in range(8)]


class MemoryCases(SandboxCases):
    async def test_an_absurd_allocation_fails(self, trial: Trial) -> None:
        outcome = await trial.code("def main(args): return len(b'x' * 10**11)")
        assert failure_type(outcome) in {"MemoryError", "MemoryLimitExceeded"}

    async def test_growing_memory_ends_the_run(self, trial: Trial) -> None:
        code = "def main(args):\n    kept = []\n    while True: kept.append(bytes(range(256)) * 4096)"
        assert failure_type(await trial.code(code, limits=Limits(timeout_ms=300_000, memory_mb=96))) in {
            "MemoryError",
            "MemoryLimitExceeded",
        }

    async def test_the_memory_of_all_children_counts_together(self, trial: Trial) -> None:
        code = """
        import os, time
        def main(args):
            for _ in range(8):
                if os.fork() == 0:
                    kept = bytearray(os.urandom(1)) * (40 << 20)
                    time.sleep(1e6)
            time.sleep(100)
            return 'survived'
        """
        outcome = await trial.code(code, limits=Limits(timeout_ms=300_000, memory_mb=128))
        assert failure_type(outcome) == "MemoryLimitExceeded"

    @pytest.mark.parametrize("opening", ["os.memfd_create('x')", "os.open('/dev/shm/x', os.O_RDWR | os.O_CREAT)"])
    async def test_memory_that_is_a_file_is_held_too(self, trial: Trial, opening: str) -> None:
        code = f"""
        import os
        def main(args):
            file = {opening}
            for _ in range(512): os.write(file, b'x' * (1 << 20))
            return 'all of it'
        """
        outcome = await trial.code(code, limits=Limits(timeout_ms=300_000, memory_mb=128))
        assert failure_type(outcome) in {"OSError", "PermissionError", "MemoryLimitExceeded", "MemoryError"}

    async def test_endless_recursion_fails_in_band(self, trial: Trial) -> None:
        assert failure_type(await trial.code("def main(args): return main(args)")) == "RecursionError"
        code = """
        import sys
        sys.setrecursionlimit(10**9)
        class A:
            def __repr__(self): return repr([self])
        def main(args): return repr(A())
        """
        assert failure_type(await trial.code(code)) in {
            "ProcessKilled",
            "MemoryError",
            "RecursionError",
            "MemoryLimitExceeded",
        }


class ProcessCases(SandboxCases):
    async def test_a_fork_bomb_meets_its_limit(self, trial: Trial) -> None:
        code = """
        import os, time
        def main(args):
            for count in range(1000):
                try:
                    if os.fork() == 0: time.sleep(1e6)
                except BlockingIOError:
                    return count
        """
        assert 10 <= await trial.value(code, limits=Limits(timeout_ms=300_000, processes=20)) <= 20

    async def test_threads_count_as_processes(self, trial: Trial) -> None:
        code = """
        import threading, time
        def main(args):
            for count in range(1000):
                try:
                    threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
                except RuntimeError:
                    return count
        """
        assert 10 <= await trial.value(code, limits=Limits(timeout_ms=300_000, processes=20)) <= 20

    async def test_zombies_are_reaped(self, trial: Trial) -> None:
        code = """
        import os, time
        def main(args):
            for _ in range(200):
                if (child := os.fork()) == 0:
                    if os.fork() == 0: os._exit(0)
                    os._exit(0)
                os.waitpid(child, 0)
                time.sleep(0.002)
            return 'done'
        """
        assert await trial.value(code, limits=Limits(timeout_ms=300_000, processes=30)) == "done"

    async def test_daemons_end_with_the_run(self, trial: Trial) -> None:
        code = """
        import os, time
        def main(args):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0: time.sleep(1e6)
                os._exit(0)
            return 'left one behind'
        """
        assert await trial.value(code) == "left one behind"

    async def test_the_share_of_a_processor_is_held(self, trial: Trial) -> None:
        code = """
        import os, time
        def main(args):
            children, until = [], time.monotonic() + 1.5  # a slow machine forks the children later
            for _ in range(4):
                if (pid := os.fork()) == 0:
                    while time.monotonic() < until: pass
                    os._exit(0)
                children.append(pid)
            [os.waitpid(pid, 0) for pid in children]
            times = os.times()
            return times.children_user + times.children_system
        """
        assert await trial.value(code, limits=Limits(timeout_ms=300_000, cpus=1.0)) < 2.4


class DiskCases(SandboxCases):
    @pytest.mark.parametrize(("folder", "size"), [("/workspace", 8), ("/tmp", 4)])
    async def test_the_size_of_a_folder_is_held(self, trial: Trial, folder: str, size: int) -> None:
        code = f"""
        def main(args):
            with open('{folder}/big', 'wb', buffering=0) as file:
                for count in range(1000):
                    try:
                        if file.write(b'x' * (1 << 20)) < 1 << 20: return count
                    except OSError: return count
        """
        limits = Limits(timeout_ms=300_000, disk_mb=8, tmp_mb=4)
        assert await trial.value(code, limits=limits) <= size

    async def test_the_number_of_files_is_held(self, trial: Trial) -> None:
        code = """
        def main(args):
            for count in range(1000):
                try: open(f'/workspace/{count}', 'w').close()
                except OSError: return count
        """
        assert 90 <= await trial.value(code, limits=Limits(timeout_ms=300_000, disk_files=100)) <= 100

    async def test_sparse_and_preallocated_files_are_refused(self, trial: Trial) -> None:
        code = """
        import os
        def tried(act):
            file = os.open('/workspace/x', os.O_RDWR | os.O_CREAT)
            try: act(file)
            except OSError as error: return error.errno in (27, 28, 22)
            finally: os.close(file)
            return False
        def main(args):
            return [tried(lambda f: os.posix_fallocate(f, 0, 1 << 40)), tried(lambda f: os.ftruncate(f, 1 << 50))]
        """
        assert await trial.value(code) == [True, True]


LAST_ACTS = {
    "an exit handler that raises": "atexit.register(lambda: 1 / 0)",
    "an exit handler that hangs": "atexit.register(lambda: time.sleep(1e6))",
    "an exit handler that leaves": "atexit.register(lambda: os._exit(7))",
    "a finaliser that raises": "kept.append(type('D', (), {'__del__': lambda self: 1 / 0})())",
    "a thread that goes on": "threading.Thread(target=time.sleep, args=(1e6,)).start()",
    "a child that keeps the streams": "os.fork() or time.sleep(1e6)",
    "streams that are closed": "sys.stdout.close(); sys.stderr.close()",
    "streams that are something else": "sys.stdout = sys.stderr = None",
}
LITTER = """
import os, socket
NAMES = (b'a\\xff\\xfe', b'line\\nbreak', b'-rf', b' ', b'x' * 255, 'ä\\u0308'.encode(), b'$(id)', b'..x', b'\\x1b[2J')
def main(args):
    for folder in ('/workspace', '/tmp'):
        os.chdir(folder)
        for name in NAMES: open(name, 'w').close()
        os.symlink('/etc/shadow', 'shadow'); os.symlink('/dev/urandom', 'endless'); os.symlink('loop', 'loop')
        os.symlink('../../../../..', 'up'); os.mkfifo('fifo'); os.link(NAMES[0], 'hard')
        for number in range(100): os.symlink('/' + 'x' * 200, f'link{number}')
        for _ in range(1000):
            os.mkdir('d', 0o000 if _ == 999 else 0o700)
            if _ < 999: os.chdir('d')
        os.chdir(folder)
        for name in ('shadow', 'fifo'): os.chmod(NAMES[0], 0)
    return len(os.listdir('/workspace'))
"""


class EndingCases(SandboxCases):
    @pytest.mark.parametrize("act", LAST_ACTS)
    async def test_a_result_is_a_result_whatever_was_to_come_after_it(self, trial: Trial, act: str) -> None:
        code = f"""
        import atexit, os, sys, threading, time
        kept = []
        def main(args):
            {LAST_ACTS[act]}
            return 'done'
        """
        assert await trial.value(code) == "done"

    @pytest.mark.parametrize("sleep", [0.08, 0.095, 0.1, 0.105, 0.12])
    async def test_a_run_that_ends_as_its_time_does_ends_once(self, trial: Trial, sleep: float) -> None:
        code = "import time\ndef main(args): time.sleep(args['s']); return 1"
        outcome = await trial.code(code, {"s": sleep}, limits=Limits(timeout_ms=100))
        assert (outcome.result, failure_type(outcome)) in {(b"1", None), (None, "TimeoutError")}

    async def test_the_files_of_a_run_are_removed_with_it(self, trial: Trial) -> None:
        """The host need not read the names or walk the folders. The fixture `whole` checks for leftovers."""
        assert await trial.value(LITTER) > 100
        assert (
            await trial.value("import os\ndef main(args): return [*os.listdir('/workspace'), *os.listdir('/tmp')]")
            == []
        )

    async def test_importing_writes_nothing_next_to_a_skill(self, trial: Trial) -> None:
        files = {"code/main.py": "import more\ndef main(args): return more.X", "code/more.py": "X = 1"}
        skill = trial.skill("mine", files)
        assert value_of(await trial.execute(skill)) == 1
        assert everything_in(skill.folder) == ["code", "main.py", "more.py"]

    async def test_much_code_is_code(self, trial: Trial) -> None:
        lines = "".join(f"x{number} = {number}\n" for number in range(50_000))
        outcome = await trial.code(f"{lines}def main(args): return x49999", limits=Limits(timeout_ms=300_000))
        assert value_of(outcome) == 49_999

    async def test_the_log_of_an_orphan_ends_with_the_run(self, trial: Trial) -> None:
        code = """
        import os, time
        def main(args):
            if os.fork() == 0:
                while True: os.write(1, b'x' * 1000)
            time.sleep(0.2)
            return 'done'
        """
        outcome = await trial.code(code)
        assert value_of(outcome) == "done"
        assert set(log_of(outcome)) <= {"x"}


def everything_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))
