"""Input files of a run in its workspace."""

from __future__ import annotations

import hashlib

import msgspec

from skillery.backends import CodeCall, HandlerCall, Limits, ScriptCall
from skillery.testing.sandbox.base import SandboxCases
from skillery.testing.sandbox.trial import QUICK, Trial, failure_type, log_of, value_of

TREE = """
import os, pathlib
def main(args):
    found = {}
    for path in sorted(pathlib.Path().rglob("*")):
        seen = path.lstat()
        if path.is_file():
            found[str(path)] = [path.read_text(), seen.st_uid == os.getuid(), oct(seen.st_mode & 0o777)]
            path.write_text("changed")
            path.rename(str(path) + ".old")
            open(str(path.parent / "sibling"), "w").close()
    return found
"""
IN_BASH = "cat in/a.txt; ./tool.sh; echo more >> in/a.txt; mkdir out; mv in/a.txt out/b.txt"


class FileCases(SandboxCases):
    async def test_input_files_are_the_runs_own(self, trial: Trial) -> None:
        given = (
            trial.file("a b.txt", b"one"),
            trial.file("in/deep/\u00fc.txt", b""),
            trial.file("t", b"x", executable=True),
        )
        assert value_of(await trial.code(TREE, files=given)) == {
            "a b.txt": ["one", True, "0o644"],
            "in/deep/\u00fc.txt": ["", True, "0o644"],
            "t": ["x", True, "0o755"],
        }
        assert given[0].source.read_bytes() == b"one"

    async def test_programs_find_their_input_files(self, trial: Trial) -> None:
        given = (
            trial.file("in/a.txt", b"content\n"),
            trial.file("tool.sh", b"#!/usr/bin/env bash\necho ran", executable=True),
        )
        skill = trial.skill("acme.files", {"s.sh": IN_BASH}, entrypoint=None)
        for call in (CodeCall(IN_BASH, "main", "bash"), HandlerCall("acme.files", "s.sh")):
            outcome = await trial.call(call, skills=(skill,), files=given)
            assert value_of(outcome) == "content\nran"
            assert trial.host.blobs[trial.host.paths["b.txt"]] == b"content\nmore\n"
        found = value_of(await trial.call(ScriptCall("acme.files", "s.sh"), skills=(skill,), files=given))
        assert (found["stdout"], [file["path"] for file in found["files"]]) == ("content\nran\n", ["b.txt"])

    async def test_an_input_file_below_out_is_changed_in_place(self, trial: Trial) -> None:
        given = (trial.file("out/report.txt", b"draft"),)
        skill = trial.skill("acme.files", {"s.sh": "printf ' final' >> $1"}, entrypoint=None)
        call = ScriptCall("acme.files", "s.sh", ("out/report.txt",))
        found = value_of(await trial.call(call, skills=(skill,), files=given))
        assert found["exit_code"] == 0
        assert trial.host.blobs[found["files"][0]["blob_id"]] == b"draft final"

    async def test_large_and_many_input_files_come_whole(self, trial: Trial) -> None:
        content = bytes(range(256)) * (100 << 10)
        given = (trial.file("large", content), *(trial.file(f"small/{number}", b"x") for number in range(300)))
        code = """
        import hashlib, os
        def main(args):
            return [hashlib.sha256(open('large', 'rb').read()).hexdigest(), len(os.listdir('small'))]
        """
        assert value_of(await trial.code(code, files=given)) == [hashlib.sha256(content).hexdigest(), 300]

    async def test_an_input_file_whose_content_is_gone_fails_the_run_by_name(self, trial: Trial) -> None:
        given = (trial.file("first", b"x"), trial.file("in/gone.txt", b"content"))
        shorter = (given[0], msgspec.structs.replace(given[1], size_bytes=8))
        given[1].source.write_bytes(b"cont")
        for files in (shorter, given):
            outcome = await trial.code("print('ran')\ndef main(args): return 1", files=files)
            assert (failure_type(outcome), log_of(outcome)) == ("SandboxError", "")
            assert outcome.failure is not None
            assert "'in/gone.txt' is no longer there" in outcome.failure.message
            given[1].source.unlink(missing_ok=True)


class FileLimitCases(SandboxCases):
    """Input files count towards the limits of the workspace."""

    async def test_input_files_that_do_not_fit_fail_the_run_by_name(self, trial: Trial) -> None:
        limits = msgspec.structs.replace(QUICK, disk_mb=2, disk_files=5)
        large = (trial.file("first", b"x"), trial.file("in/large.bin", bytes(3 << 20)), trial.file("last", b"x"))
        many = tuple(trial.file(f"{number}", b"") for number in range(6))
        for files, name in ((large, "in/large.bin"), (many, "5")):
            outcome = await trial.code("print('ran')\ndef main(args): return 1", files=files, limits=limits)
            assert (failure_type(outcome), log_of(outcome)) == ("SandboxError", "")
            assert outcome.failure is not None
            assert f"'{name}' could not be copied to the workspace: No space left" in outcome.failure.message

    async def test_input_files_leave_the_rest_of_the_disk_to_the_code(self, trial: Trial) -> None:
        limits = Limits(timeout_ms=20_000, memory_mb=256, disk_mb=4)
        code = """
        def main(args):
            try:
                open('more', 'wb').write(bytes(2 << 20))
            except OSError as error:
                return error.strerror
        """
        files = (trial.file("given", bytes(3 << 20)),)
        assert value_of(await trial.code(code, files=files, limits=limits)) == "No space left on device"
