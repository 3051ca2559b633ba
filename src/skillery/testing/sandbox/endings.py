"""The end of a run: exactly one outcome and no leftovers, for every way in which code can end."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillery.backends import Limits
from skillery.testing.sandbox.trial import SandboxCases, Trial, failure_type, log_of, value_of

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
