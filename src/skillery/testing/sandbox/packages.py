"""Installed packages: their paths, their import order, and their preloading."""

from __future__ import annotations

from skillery.backends import HandlerCall
from skillery.testing.sandbox.base import SandboxCases
from skillery.testing.sandbox.trial import Trial, value_of

FRAMES = {
    "frames/__init__.py": "from frames.parts import VERSION",
    "frames/parts.py": "VERSION = '2.0'",
    "json.py": "raise ImportError('not the one of the standard library')",
    "util.py": "NAME = 'package'",
}


class PackageCases(SandboxCases):
    async def test_packages_are_found_after_the_standard_library_and_before_skills(self, trial: Trial) -> None:
        mount = trial.packages(FRAMES)
        skill = trial.skill("greet", {"main.py": "def main(args): pass", "util.py": "NAME = 'skill'"}, "main.py")
        code = """
        import frames, json, util
        def main(args): return [frames.VERSION, json.loads('1'), util.NAME, frames.__file__]
        """
        found = await trial.value(code, skills=(skill,), packages=(mount,))
        assert found[:3] == ["2.0", 1, "package"]
        assert found[3].endswith(f"/packages/{mount.lock}/frames/__init__.py")

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
        found = [
            await trial.value(code, {"x": 0}, packages=(mount,), preload=names)
            for names in ((), *(("frames", "state"),) * 6)
        ]
        assert found[0][:2] == ["2.0", [0]]
        assert all(one == found[0] for one in found)

    async def test_preloading_what_is_not_there_or_breaks_does_not_break_a_run(self, trial: Trial) -> None:
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
