"""Contract of a sandbox: input files, the layout of the mounted skills, and packages."""

from __future__ import annotations

import hashlib

import msgspec

from skillery.backends import CodeCall, HandlerCall, Limits, ScriptCall
from skillery.testing.sandbox.trial import QUICK, SandboxCases, Trial, failure_type, log_of, value_of

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
        files = (
            trial.file("a b.txt", b"one"),
            trial.file("in/deep/\u00fc.txt", b""),
            trial.file("t", b"x", executable=True),
        )
        assert value_of(await trial.code(TREE, files=files)) == {
            "a b.txt": ["one", True, "0o644"],
            "in/deep/\u00fc.txt": ["", True, "0o644"],
            "t": ["x", True, "0o755"],
        }
        assert files[0].source.read_bytes() == b"one"

    async def test_programs_find_their_input_files(self, trial: Trial) -> None:
        files = (
            trial.file("in/a.txt", b"content\n"),
            trial.file("tool.sh", b"#!/usr/bin/env bash\necho ran", executable=True),
        )
        skill = trial.skill("acme.files", {"s.sh": IN_BASH}, entrypoint=None)
        for call in (CodeCall(IN_BASH, "main", "bash"), HandlerCall("acme.files", "s.sh")):
            outcome = await trial.call(call, skills=(skill,), files=files)
            assert value_of(outcome) == "content\nran"
            assert trial.host.blobs[trial.host.paths["b.txt"]] == b"content\nmore\n"
        output = value_of(await trial.call(ScriptCall("acme.files", "s.sh"), skills=(skill,), files=files))
        assert (output["stdout"], [file["path"] for file in output["files"]]) == ("content\nran\n", ["b.txt"])

    async def test_an_input_file_below_out_is_changed_in_place(self, trial: Trial) -> None:
        files = (trial.file("out/report.txt", b"draft"),)
        skill = trial.skill("acme.files", {"s.sh": "printf ' final' >> $1"}, entrypoint=None)
        call = ScriptCall("acme.files", "s.sh", ("out/report.txt",))
        output = value_of(await trial.call(call, skills=(skill,), files=files))
        assert output["exit_code"] == 0
        assert trial.host.blobs[output["files"][0]["blob_id"]] == b"draft final"

    async def test_large_and_many_input_files_come_whole(self, trial: Trial) -> None:
        content = bytes(range(256)) * (100 << 10)
        files = (trial.file("large", content), *(trial.file(f"small/{number}", b"x") for number in range(300)))
        code = """
        import hashlib, os
        def main(args):
            return [hashlib.sha256(open('large', 'rb').read()).hexdigest(), len(os.listdir('small'))]
        """
        assert value_of(await trial.code(code, files=files)) == [hashlib.sha256(content).hexdigest(), 300]

    async def test_an_input_file_without_content_fails_the_run_by_name(self, trial: Trial) -> None:
        intact = (trial.file("first", b"x"), trial.file("in/gone.txt", b"content"))
        shorter = (intact[0], msgspec.structs.replace(intact[1], size_bytes=8))
        intact[1].source.write_bytes(b"cont")
        for files in (shorter, intact):
            outcome = await trial.code("print('ran')\ndef main(args): return 1", files=files)
            assert (failure_type(outcome), log_of(outcome)) == ("SandboxError", "")
            assert outcome.failure is not None
            assert "'in/gone.txt' is no longer there" in outcome.failure.message
            intact[1].source.unlink(missing_ok=True)


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
        limits = Limits(timeout_ms=300_000, memory_mb=256, disk_mb=4)
        code = """
        def main(args):
            try:
                open('more', 'wb').write(bytes(2 << 20))
            except OSError as error:
                return error.strerror
        """
        files = (trial.file("given", bytes(3 << 20)),)
        assert value_of(await trial.code(code, files=files, limits=limits)) == "No space left on device"


# -- Paths in a sandbox, which are the same for every backend ----------------------------------------------------------


INPUT = "blob:3kf9-_aZ"


class LayoutCases(SandboxCases):
    async def test_the_files_of_a_skill_can_be_read(self, trial: Trial) -> None:
        skill = trial.skill("greet", {"resources/text.txt": "from the bundle"}, entrypoint=None)
        code = "def main(args): return open('/skills/greet/resources/text.txt').read()"
        assert await trial.value(code, skills=(skill,)) == "from the bundle"

    async def test_packages_have_a_fixed_path_and_are_read_only(self, trial: Trial) -> None:
        mount = trial.packages({"frames.py": "VERSION = 1"})
        code = """
        import errno, frames, os
        def main(args):
            errors = []
            for path in (frames.__file__, f'/packages/{args["lock"]}/new.py', '/packages/new.py'):
                try:
                    open(path, 'w')
                except OSError as error:
                    errors.append(errno.errorcode[error.errno])
            return [os.listdir('/packages'), frames.__file__, errors]
        """
        folders, file, errors = await trial.value(code, {"lock": mount.lock}, packages=(mount,))
        assert (folders, file) == ([mount.lock], f"/packages/{mount.lock}/frames.py")
        assert set(errors) <= {"EROFS", "EACCES", "EPERM"}
        assert len(errors) == 3

    async def test_an_instruction_skill_mounts_without_being_importable(self, trial: Trial) -> None:
        guide = trial.skill("docs.guide", {"SKILL.md": "read me"}, entrypoint=None)
        code = """
        def main(args):
            try:
                import skills.docs.guide
            except ModuleNotFoundError:
                return open('/skills/docs.guide/SKILL.md').read()
        """
        assert await trial.value(code, skills=(guide,)) == "read me"

    async def test_input_blobs_are_files_named_by_their_id(self, trial: Trial) -> None:
        code = "import os\ndef main(args): return [os.listdir('/blobs'), open('/blobs/' + args['id']).read()]"
        blobs = await trial.value(code, {"id": INPUT}, blobs=(trial.blob(INPUT, b"content"),))
        assert blobs == [[INPUT], "content"]

    async def test_the_workspace_is_home_and_empty_and_gone_afterwards(self, trial: Trial) -> None:
        code = """
        import os, tempfile
        def main(args):
            seen = [os.getcwd(), os.environ['HOME'], os.listdir('.'), os.listdir('/tmp'), os.path.expanduser('~')]
            open('left', 'w').write('x'); tempfile.mkstemp()
            return seen
        """
        for _ in range(2):
            assert value_of(await trial.code(code, limits=QUICK)) == ["/workspace", "/workspace", [], [], "/workspace"]


# -- Installed packages: their paths, their import order, and their preloading -----------------------------------------


FRAMES = {
    "frames/__init__.py": "from frames.parts import VERSION",
    "frames/parts.py": "VERSION = '2.0'",
    "json.py": "raise ImportError('not the one of the standard library')",
    "util.py": "NAME = 'package'",
}


class PackageCases(SandboxCases):
    async def test_imports_search_the_standard_library_then_packages_then_skills(self, trial: Trial) -> None:
        mount = trial.packages(FRAMES)
        skill = trial.skill("greet", {"main.py": "def main(args): pass", "util.py": "NAME = 'skill'"}, "main.py")
        code = """
        import frames, json, util
        def main(args): return [frames.VERSION, json.loads('1'), util.NAME, frames.__file__]
        """
        imported = await trial.value(code, skills=(skill,), packages=(mount,))
        assert imported[:3] == ["2.0", 1, "package"]
        assert imported[3].endswith(f"/packages/{mount.lock}/frames/__init__.py")

    async def test_several_environments_can_be_mounted_together(self, trial: Trial) -> None:
        first = trial.packages({"one.py": "X = 1"})
        second = trial.packages({"two.py": "import one\nX = one.X + 1"})
        assert await trial.value("import two\ndef main(args): return two.X", packages=(first, second)) == 2

    async def test_preloaded_modules_do_not_change_the_code(self, trial: Trial) -> None:
        files = FRAMES | {"state.py": "import os, random\nSEEN = []\nrandom.seed(1)\nopen('/tmp/state', 'w').close()"}
        mount = trial.packages(files)
        code = """
        import frames, os, random, state, sys
        def main(args):
            state.SEEN.append(args['x'])
            open('left', 'x').close()
            folders = [entry for entry in sys.path if entry.startswith('/packages/') or 'packages' in entry]
            return [frames.VERSION, state.SEEN, sys.argv, os.listdir(), len(folders), sorted(os.environ)]
        """
        results = [
            await trial.value(code, {"x": 0}, packages=(mount,), preload=names)
            for names in ((), *(("frames", "state"),) * 6)
        ]
        assert results[0][:2] == ["2.0", [0]]
        assert all(result == results[0] for result in results)

    async def test_preloading_a_missing_or_broken_module_breaks_no_run(self, trial: Trial) -> None:
        mount = trial.packages(FRAMES | {"broken.py": "raise SystemExit(3)"})
        code = "import frames\ndef main(args): return frames.VERSION"
        for names in (("no_such_module",), ("broken", "frames"), ("",), ("../frames",)):
            for _ in range(3):
                assert await trial.value(code, packages=(mount,), preload=names) == "2.0"

    async def test_a_run_without_packages_finds_none_of_another(self, trial: Trial) -> None:
        mount = trial.packages(FRAMES)
        code = """
        def main(args):
            try:
                import frames
            except ModuleNotFoundError:
                return 'none'
            return frames.VERSION
        """
        assert await trial.value(code, packages=(mount,)) == "2.0"
        assert await trial.value(code) == "none"

    async def test_a_handler_finds_packages_as_a_function_and_as_a_program(self, trial: Trial) -> None:
        mount = trial.packages(FRAMES)
        files = {
            "tools/function.py": "import frames\ndef handler(args): return frames.VERSION",
            "tools/program.py": """
                import sys, frames, sibling
                if __name__ == '__main__':
                    print(frames.VERSION, sibling.X, sys.argv[1][0], sys.argv[0].endswith('program.py'))
            """,
            "tools/sibling.py": "X = 'x'",
        }
        skill = trial.skill("tooled", files, entrypoint=None)
        for path, expected in (("tools/function.py", "2.0"), ("tools/program.py", "2.0 x { True")):
            outcome = await trial.call(HandlerCall("tooled", path), {}, skills=(skill,), packages=(mount,))
            assert value_of(outcome) == expected
