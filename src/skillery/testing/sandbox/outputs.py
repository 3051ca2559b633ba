"""Files that a run leaves: all below /workspace/out, and others that match a glob of the caller."""

from __future__ import annotations

import asyncio

import pytest

from skillery.backends import CodeCall, HandlerCall, Limits
from skillery.testing.sandbox.trial import SandboxCases, Trial, failure_type, log_of, value_of

LEAVES = """
import os
def main(args):
    os.makedirs("out/deep")
    open("out/a.csv", "w").write("a,b")
    open("out/deep/b.png", "wb").write(b"x")
    open("out/no-ending", "w").close()
    os.symlink("/etc/passwd", "out/link")
    os.mkfifo("out/pipe")
    {end}
"""
LEFT = {"a.csv": "text/csv", "deep/b.png": "image/png", "no-ending": "application/octet-stream"}
IN_BASH = "mkdir out; printf x > out/bash.txt; echo 1"
IN_JAVASCRIPT = """
import {mkdirSync, writeFileSync} from "node:fs";
export function main() { mkdirSync("out"); writeFileSync("out/node.json", "{}"); return 1; }
"""


def kinds_of(trial: Trial) -> dict[str, str]:
    return {path: trial.host.kinds[blob_id] for path, blob_id in trial.host.paths.items()}


class OutputCases(SandboxCases):
    async def test_files_left_in_out_become_blobs_with_their_names_and_kinds(self, trial: Trial) -> None:
        outcome = await trial.code(LEAVES.replace("{end}", "return args['x']"), {"x": 1})
        assert (value_of(outcome), log_of(outcome), kinds_of(trial)) == (1, "", LEFT)
        assert trial.host.blobs[trial.host.paths["a.csv"]] == b"a,b"

    @pytest.mark.parametrize("end", ["raise KeyError('x')", "raise SystemExit(3)", "return b'bytes'"])
    async def test_files_of_a_run_that_failed_are_kept(self, trial: Trial, end: str) -> None:
        outcome = await trial.code(LEAVES.replace("{end}", end))
        assert failure_type(outcome) in {"KeyError", "SystemExit", "InvalidOutput"}
        assert kinds_of(trial) == LEFT

    async def test_files_of_a_skill_are_kept(self, trial: Trial) -> None:
        await trial.execute(trial.skill("greet", {"code/main.py": LEAVES.replace("{end}", "return 1")}))
        assert kinds_of(trial) == LEFT

    async def test_files_of_a_handler_are_kept(self, trial: Trial) -> None:
        source = LEAVES.replace("{end}", "return 1").replace("main", "handler")
        skill = trial.skill("acme.tool", {"scripts/t.py": source}, None)
        assert value_of(await trial.call(HandlerCall("acme.tool", "scripts/t.py"), skills=(skill,))) == 1
        assert kinds_of(trial) == LEFT

    async def test_files_of_bash_are_kept(self, trial: Trial) -> None:
        assert value_of(await trial.call(CodeCall(IN_BASH, "main", "bash"))) == 1
        assert kinds_of(trial) == {"bash.txt": "text/plain"}

    async def test_files_of_javascript_are_kept(self, trial: Trial) -> None:
        limits = Limits(timeout_ms=300_000, memory_mb=512)
        assert value_of(await trial.call(CodeCall(IN_JAVASCRIPT, "main", "javascript"), limits=limits)) == 1
        assert kinds_of(trial) == {"node.json": "application/json"}

    async def test_an_out_that_is_no_folder_is_none(self, trial: Trial) -> None:
        for line in ("os.symlink('/etc', 'out')", "open('out', 'w').close()", "os.mkfifo('out')"):
            outcome = await trial.code(f"import os\ndef main(args):\n    {line}\n    return 1")
            assert (value_of(outcome), log_of(outcome), trial.host.paths) == (1, "", {}), line

    async def test_files_above_the_maximum_number_are_reported(self, trial: Trial) -> None:
        code = """
        import os
        def main(args):
            os.mkdir("out")
            for number in range(112): open(f"out/{number:03}.txt", "w").close()
            return 1
        """
        outcome = await trial.code(code)
        assert (value_of(outcome), len(trial.host.paths)) == (1, 100)
        assert "/out: 100.txt, 101.txt, " in log_of(outcome)
        assert ", 109.txt, … (a run keeps 100 files" in log_of(outcome)

    async def test_files_above_the_maximum_bytes_are_reported(self, trial: Trial) -> None:
        code = """
        import os
        def main(args):
            os.mkdir("out")
            for name in "abc": open(f"out/{name}", "wb").write(b"x" * 600_000)
            return 1
        """
        outcome = await trial.code(code, limits=Limits(timeout_ms=300_000, memory_mb=256, blobs_mb=1))
        assert (value_of(outcome), list(trial.host.paths)) == (1, ["a"])
        assert "/out: b, c (" in log_of(outcome)

    async def test_names_of_any_bytes_do_no_harm(self, trial: Trial) -> None:
        code = r"""
        import os
        def main(args):
            os.mkdir("out")
            for name in (b"\xff\xfe.txt", b"new\nline.txt", b"x" * 251 + b".txt"):
                open(os.path.join(b"out", name), "w").close()
            return 1
        """
        assert value_of(await trial.code(code)) == 1
        assert set(kinds_of(trial).values()) == {"text/plain"}
        assert len(trial.host.paths) == 3

    async def test_code_that_breaks_the_keeper_of_files_loses_only_its_files(self, trial: Trial) -> None:
        code = """
        import os
        def main(args):
            os.mkdir("out")
            open("out/a", "w").close()
            os.listdir = os.mkdir = None
            return 1
        """
        assert value_of(await trial.code(code)) == 1

    async def test_a_child_that_runs_on_into_the_end_keeps_nothing(self, trial: Trial) -> None:
        code = """
        import os
        def main(args):
            os.mkdir("out")
            open("out/a.txt", "w").close()
            child = os.fork()
            if child: os.waitpid(child, 0)
            return 1
        """
        outcome = await trial.code(code)
        assert (value_of(outcome), len(trial.host.blobs)) == (1, 1)

    async def test_usual_objects_become_json(self, trial: Trial) -> None:
        code = """
        import datetime, decimal, pathlib, sys, types
        class generic:
            def __init__(self, value): self.value = value
            def item(self): return self.value
        class ndarray:
            def tolist(self): return [[float64(1.5)], datetime.date(2026, 1, 1)]
        class float64(generic): pass
        class Timestamp(datetime.datetime): pass
        for kind in (generic, ndarray, float64): kind.__module__ = 'numpy'
        def main(args):
            assert 'numpy' not in sys.modules
            return [decimal.Decimal('1.10'), pathlib.Path('/a/b'), float64(2), ndarray(),
                    Timestamp(2026, 1, 2), datetime.time(1, 2)]
        """
        texts = ["2026-01-02T00:00:00", "01:02:00"]
        assert await trial.value(code) == ["1.10", "/a/b", 2, [[1.5], "2026-01-01"], *texts]

    @pytest.mark.parametrize(
        ("value", "remedy"),
        [
            ("b'x'", "runtime.blobs.write_bytes"),
            ("{2, 1}", "sorted(…)"),
            ("(n for n in 'ab')", "list(…)"),
            ("float('nan')", "put None in the place of NaN"),
        ],
    )
    async def test_values_without_json_name_the_remedy(self, trial: Trial, value: str, remedy: str) -> None:
        outcome = await trial.code(f"def main(args): return {{'a': [{value}]}}")
        assert failure_type(outcome) == "InvalidOutput"
        assert outcome.failure is not None
        assert remedy in outcome.failure.message


ENDS = {
    "its time is over": ("os.fork(); time.sleep(1e6)", "TimeoutError"),
    "it is killed": ("os.kill(os.getpid(), 9)", "ProcessKilled"),
    "it exits": ("os._exit(3)", "ProcessExited"),
}
ENDED = """
import os, time
def main(args):
    os.makedirs("out/deep/closed")
    open("out/a.csv", "w").write("a,b")
    open("out/deep/closed/secret", "w").write("x")
    os.chmod("out/deep/closed", 0); os.chmod("out/a.csv", 0)
    os.symlink("/etc/passwd", "out/link")
    open("b.csv", "w").write("1")
    {end}
"""


class CollectedCases(SandboxCases):
    @pytest.mark.parametrize("why", ENDS)
    async def test_files_of_a_run_that_was_ended_are_kept(self, trial: Trial, why: str) -> None:
        end, failure = ENDS[why]
        for timeout_ms in (1_500, 15_000, 150_000):  # on a loaded machine, the code needs time until it has written
            limits = Limits(timeout_ms=timeout_ms, memory_mb=256)
            outcome = await trial.code(ENDED.replace("{end}", end), limits=limits, outputs=("*.csv",))
            if len(trial.host.paths) == 3 and failure_type(outcome) == failure:
                break
        assert failure_type(outcome) == failure
        kept = {path: trial.host.blobs[blob_id] for path, blob_id in trial.host.paths.items()}
        assert kept == {"a.csv": b"a,b", "deep/closed/secret": b"x", "b.csv": b"1"}

    async def test_files_of_a_cancelled_run_are_kept(self, trial: Trial) -> None:
        code = ENDED.replace("{end}", "__import__('runtime').blobs.write_text('x'); time.sleep(1e6)")
        run = asyncio.ensure_future(trial.code(code))
        while not trial.host.blobs:  # noqa: ASYNC110 - the host of these cases has no event
            await asyncio.sleep(0.02)
        run.cancel()
        await asyncio.wait({run})
        assert set(trial.host.paths) == {"a.csv", "deep/closed/secret"}

    async def test_files_that_a_glob_names_are_kept(self, trial: Trial) -> None:
        code = """
        import os
        def main(args):
            for folder in ("out", "report/deep"): os.makedirs(folder)
            for name in ("a.pdf", "report/a.pdf", "report/a.txt", "report/deep/b.pdf", "out/c.pdf", "out/d.txt"):
                open(name, "w").write(name)
            os.symlink("/etc/passwd", "report/link.pdf")
            return 1
        """
        for globs, matches in {
            ("report/*.pdf",): {"report/a.pdf"},
            ("**/*.pdf",): {"a.pdf", "report/a.pdf", "report/deep/b.pdf"},
            ("report/**", "*.pdf"): {"a.pdf", "report/a.pdf", "report/a.txt", "report/deep/b.pdf"},
            ("../*", "/etc/*"): set(),
        }.items():
            trial.host.paths.clear()
            assert value_of(await trial.code(code, outputs=globs)) == 1
            assert set(trial.host.paths) == matches | {"c.pdf", "d.txt"}

    async def test_a_glob_does_not_replace_a_file_of_out(self, trial: Trial) -> None:
        code = """
        import os
        def main(args):
            os.mkdir("out")
            for name in ("a", "out/a"): open(name, "w").write(name)
            return 1
        """
        outcome = await trial.code(code, outputs=("*",))
        assert trial.host.blobs[trial.host.paths["a"]] == b"out/a"
        assert "a (a run keeps 100 files with different paths" in log_of(outcome)
