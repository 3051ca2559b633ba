"""Mounting and importing of skills. Modules of the server or of the workspace cannot be imported."""

from __future__ import annotations

import pytest

from skillery.testing.sandbox.trial import SandboxCases, Trial, failure_type, log_of, value_of

GREET = {
    "code/main.py": """
        import util
        from . import wording
        def main(args): return [__name__, wording.HELLO, util.NAME]
        def greet(name): return wording.HELLO + name
    """,
    "code/wording.py": "HELLO = 'hello '",
    "code/util.py": "NAME = 'greet'",
    "resources/text.txt": "from the bundle",
}


class ImportCases(SandboxCases):
    async def test_a_skill_runs_under_its_import_name(self, trial: Trial) -> None:
        outcome = await trial.execute(trial.skill("sales.greet-people", GREET))
        assert value_of(outcome) == ["skills.sales.greet_people", "hello ", "greet"]

    async def test_code_composes_mounted_skills(self, trial: Trial) -> None:
        code = """
        from skills.sales.greet_people import greet
        import skills.text.upper as upper
        def main(args): return upper.main(greet('ada'))
        """
        skills = (
            trial.skill("sales.greet-people", GREET),
            trial.skill("text.upper", {"main.py": "def main(s): return s.upper()"}, entrypoint="main.py"),
        )
        assert await trial.value(code, skills=skills) == "HELLO ADA"

    async def test_a_skill_and_a_nested_skill_mount_together(self, trial: Trial) -> None:
        upper = trial.skill("a.b", {"main.py": "print('a.b ran')\ndef f(): return 'b'"}, entrypoint="main.py")
        lower = trial.skill("a.b.c", {"main.py": "def f(): return 'c'"}, entrypoint="main.py")
        code = "from skills.a.b.c import f\nfrom skills.a.b import f as g\ndef main(args): return [f(), g()]"
        assert await trial.value(code, skills=(upper, lower)) == ["c", "b"]

    async def test_importing_a_nested_skill_does_not_run_its_parent(self, trial: Trial) -> None:
        upper = trial.skill("a.b", {"main.py": "raise RuntimeError('a.b ran')"}, entrypoint="main.py")
        lower = trial.skill("a.b.c", {"main.py": "def f(): return 'c'"}, entrypoint="main.py")
        for line in (
            "from skills.a.b.c import f",
            "from skills.a.b import c; f = c.f",
            "import skills.a.b.c as c; f = c.f",
        ):
            outcome = await trial.code(f"{line}\ndef main(args): return f()", skills=(upper, lower))
            assert value_of(outcome) == "c"
        outcome = await trial.code("from skills.a.b import f\ndef main(args): pass", skills=(upper, lower))
        assert failure_type(outcome) == "RuntimeError"

    async def test_a_mounted_skill_wins_over_a_submodule(self, trial: Trial) -> None:
        files = {
            "main.py": "from . import c\nfrom .d import D\ndef main(args): return [c.WHO, D]",
            "c.py": "WHO = 'sub'",
        }
        upper = trial.skill("a.b", files | {"d.py": "D = 'd'"}, entrypoint="main.py")
        lower = trial.skill("a.b.c", {"main.py": "WHO = 'mount'"}, entrypoint="main.py")
        assert value_of(await trial.execute(upper, {}, lower)) == ["mount", "d"]

    async def test_a_skill_with_a_nested_skill_runs_once(self, trial: Trial) -> None:
        upper = trial.skill("a.b", {"main.py": "print('ran')\nX = 1\ndef main(args): return X"}, entrypoint="main.py")
        lower = trial.skill("a.b.c", {"main.py": "from skills.a.b import X"}, entrypoint="main.py")
        code = (
            "import skills.a.b as b\nfrom skills.a.b import X\nimport skills.a.b.c\ndef main(args): return b.main(args)"
        )
        outcome = await trial.code(code, skills=(upper, lower))
        assert (value_of(outcome), log_of(outcome)) == (1, "ran\n")

    async def test_imports_search_the_executed_skill_first_for_siblings(self, trial: Trial) -> None:
        first = trial.skill(
            "one", {"m.py": "import util\ndef main(args): return util.NAME", "util.py": "NAME = 1"}, "m.py"
        )
        second = trial.skill(
            "two", {"m.py": "import util", "util.py": "NAME = 2", "json.py": "raise ValueError"}, "m.py"
        )
        assert value_of(await trial.execute(first, {}, second)) == 1
        assert await trial.value("import util, json\ndef main(args): return util.NAME", skills=(second, first)) == 2

    async def test_an_entrypoint_that_raises_reports_its_own_lines(self, trial: Trial) -> None:
        outcome = await trial.execute(trial.skill("bad", {"code/main.py": "x = 1\nraise KeyError('nothing')"}))
        assert outcome.failure is not None
        assert outcome.failure.type == "KeyError"
        assert "raise KeyError('nothing')" in outcome.failure.traceback

    async def test_importing_an_unknown_skill_fails(self, trial: Trial) -> None:
        outcome = await trial.code("import skills.unknown.name\ndef main(args): pass")
        assert failure_type(outcome) == "ModuleNotFoundError"

    @pytest.mark.parametrize(
        "module", ["skillery", "cellblock", "msgspec", "pluggy", "litestar", "inside", "_run", "site_packages"]
    )
    async def test_the_packages_of_the_server_are_not_there(self, trial: Trial, module: str) -> None:
        assert failure_type(await trial.code(f"import {module}\ndef main(args): pass")) == "ModuleNotFoundError"

    async def test_the_standard_library_is_complete_also_for_late_imports(self, trial: Trial) -> None:
        code = """
        def main(args):
            import bz2, csv, ctypes, decimal, email, hashlib, http.client, lzma, multiprocessing, sqlite3, ssl, xml.dom
            import encodings.idna, zoneinfo
            sqlite3.connect(':memory:').close()
            return [str(decimal.Decimal('0.1') * 3), 'ä.de'.encode('idna').decode()]
        """
        assert await trial.value(code) == ["0.3", "xn--4ca.de"]

    async def test_functions_fork_their_worker_processes(self, trial: Trial) -> None:
        code = """
        import multiprocessing
        def main(args):
            with multiprocessing.Pool(2) as pool: return [multiprocessing.get_start_method(), pool.map(abs, [-1, 2])]
        """
        assert await trial.value(code) == ["fork", [1, 2]]

    async def test_files_of_the_workspace_are_not_imported_by_the_runner(self, trial: Trial) -> None:
        code = """
        import os, sys
        for name in ('json', 'traceback', 'sitecustomize', 'asyncio'):
            open(f'{name}.py', 'w').write('raise SystemExit("taken over")')
        async def main(args):
            return [entry for entry in sys.path if entry in ('', '.', os.getcwd(), '/tmp')]
        """
        assert await trial.value(code) == []

    async def test_the_code_is_a_module_with_a_file_and_lines(self, trial: Trial) -> None:
        code = """
        import inspect, os, sys
        def main(args):
            lies_in_the_open = os.path.dirname(__file__) in (os.getcwd(), '/tmp')
            return [__name__ == '__main__', lies_in_the_open, inspect.getsource(main)[:8], sys.argv]
        """
        assert await trial.value(code) == [False, False, "def main", [""]]
