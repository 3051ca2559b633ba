"""Stubs: mounted skills whose permissions the run does not have. Their functions are called through the host."""

from __future__ import annotations

import asyncio

import pytest

from skillery.backends import Limits
from skillery.errors import SkillFailed
from skillery.testing.sandbox.trial import SandboxCases, Trial, failure_type, log_of, value_of

STUB = {
    "code/main.py": """
        import os
        from subprocess import check_output
        from .sibling import taken, check_output as again
        print('ran')
        VALUE = 1
        class Thing: pass
        def f(a, *more, b=2, **rest):
            'Does it.'
            return [a, more, b, rest]
        async def g(): return 'g'
        def _hidden(): pass
        renamed = f
        if VALUE:
            def within(): return 'within'
    """,
    "code/sibling.py": "from subprocess import check_output\ndef taken(): return 'taken'\ndef not_taken(): pass",
}
OFFERED = ["f", "g", "renamed", "taken", "within"]
NOT_OFFERED = ["VALUE", "Thing", "_hidden", "os", "check_output", "again", "not_taken", "sibling", "print", "nothing"]


class StubCases(SandboxCases):
    async def test_a_stub_asks_the_host_and_runs_nothing_of_the_skill(self, trial: Trial) -> None:
        trial.host.callable["sales.mail-it", "f"] = lambda *args, **kwargs: [args, kwargs, None, "ä\U0001f600", 10**30]
        code = """
        import sys, skills.sales.mail_it as mail
        from skills.sales.mail_it import f
        def main(args):
            try:
                import sibling
            except ModuleNotFoundError:
                sibling = None
            return [f(1, [2.5], b={'c': None}), mail.f is f, [f.__name__, f.__doc__, f.__module__], sibling]
        """
        outcome = await trial.code(code, skills=(trial.skill("sales.mail-it", STUB, stub=True),))
        answer, same, named, sibling = value_of(outcome)
        assert answer == [[1, [2.5]], {"b": {"c": None}}, None, "ä\U0001f600", 10**30]
        assert (same, named, sibling) == (True, ["f", "Does it.", "skills.sales.mail_it"], None)
        assert log_of(outcome) == ""

    async def test_an_async_function_of_a_stub_is_awaited(self, trial: Trial) -> None:
        trial.host.callable["mail", "g"] = lambda: "from the host"
        code = """
        import asyncio
        from skills.mail import g
        async def main(args): return await asyncio.gather(g(), g())
        """
        skill = trial.skill("mail", STUB, stub=True)
        assert await trial.value(code, skills=(skill,)) == ["from the host"] * 2

    async def test_a_stub_has_the_functions_that_its_files_define_and_nothing_else(self, trial: Trial) -> None:
        code = """
        import skills.mail as mail
        def main(args):
            star = {}
            exec('from skills.mail import *', star)
            public = sorted(name for name in star if name != '__builtins__')
            return [[name for name in args['names'] if hasattr(mail, name)], public]
        """
        skill = trial.skill("mail", STUB, stub=True)
        names = await trial.value(code, {"names": [*OFFERED, *NOT_OFFERED]}, skills=(skill,))
        assert names == [OFFERED, OFFERED]

    async def test_all_lists_the_functions_of_a_stub(self, trial: Trial) -> None:
        trial.host.callable["mail", "_two"] = lambda: 2
        files = {"m.py": "__all__ = ['_two', 'VALUE']\ndef one(): pass\ndef _two(): pass\nVALUE = 1"}
        code = "import skills.mail as m\ndef main(args): return [m._two(), hasattr(m, 'one'), hasattr(m, 'VALUE')]"
        skill = trial.skill("mail", files, "m.py", stub=True)
        assert await trial.value(code, skills=(skill,)) == [2, False, False]

    @pytest.mark.parametrize(
        "line",
        [
            "from skills.mail import VALUE",
            "from skills.mail import sibling",
            "import skills.mail.sibling",
            "import skills.mail; skills.mail.Thing",
        ],
    )
    async def test_a_missing_function_of_a_stub_is_explained(self, trial: Trial, line: str) -> None:
        outcome = await trial.code(f"{line}\ndef main(args): pass", skills=(trial.skill("mail", STUB, stub=True),))
        assert failure_type(outcome) in {"ImportError", "AttributeError"}
        assert outcome.failure is not None
        assert "runs in its own sandbox" in outcome.failure.message
        assert ", ".join(OFFERED) in outcome.failure.message

    async def test_stubs_and_skills_mount_above_and_below_each_other(self, trial: Trial) -> None:
        trial.host.callable = {
            ("a", "f"): lambda: "a",
            ("b.c", "f"): lambda: "b.c",
            ("b.c.d.e", "f"): lambda: "b.c.d.e",
        }
        here = {"m.py": "def f(): return 'here'"}
        skills = (
            trial.skill("a", here, "m.py", stub=True),
            trial.skill("a.b", here, "m.py"),
            trial.skill("b", here, "m.py"),
            trial.skill("b.c", here, "m.py", stub=True),
            trial.skill("b.c.d.e", here, "m.py", stub=True),
        )
        code = """
        from skills.a import b as a_b, f as a
        from skills.b import c, f as b
        import skills.b.c.d.e as e
        def main(args): return [a(), a_b.f(), b(), c.f(), e.f()]
        """
        assert await trial.value(code, skills=skills) == ["a", "here", "here", "b.c", "b.c.d.e"]

    async def test_a_mounted_skill_meets_the_same_stub(self, trial: Trial) -> None:
        trial.host.callable["mail", "f"] = lambda: "from the host"
        pure = trial.skill("pure", {"m.py": "from skills.mail import f\ndef g(): return f()"}, "m.py")
        code = "from skills.pure import g\nfrom skills.mail import f\nimport skills.pure as p\n"
        code += "def main(args): return [g(), p.f is f]"
        assert await trial.value(code, skills=(pure, trial.skill("mail", STUB, stub=True))) == ["from the host", True]

    async def test_an_argument_without_json_raises_a_type_error_with_its_name(self, trial: Trial) -> None:
        calls = []
        trial.host.callable["mail", "f"] = lambda *args, **kwargs: calls.append((args, kwargs))
        code = "from skills.mail import f\ndef main(args): f(1, key={1, 2})"
        outcome = await trial.code(code, skills=(trial.skill("mail", STUB, stub=True),))
        assert outcome.failure is not None
        assert (failure_type(outcome), "the argument key of f() in mail" in outcome.failure.message) == (
            "TypeError",
            True,
        )
        assert calls == []

    @pytest.mark.parametrize(
        "kind", ["ValueError", "KeyError", "TimeoutError", "Own", "SystemExit", "UnicodeDecodeError"]
    )
    async def test_a_failure_of_the_called_is_an_exception(self, trial: Trial, kind: str) -> None:
        def fail() -> None:
            raise SkillFailed("no such sheet", failed_as=kind)

        trial.host.callable["mail", "f"] = fail
        code = """
        import runtime
        from skills.mail import f
        def main(args):
            try:
                f()
            except runtime.SkillError as error:
                return [error.type, str(error)]
            except Exception as error:
                return [type(error).__name__, str(error)]
        """
        seen, message = await trial.value(code, skills=(trial.skill("mail", STUB, stub=True),))
        assert seen == kind
        assert "f() in mail failed" in message
        assert "no such sheet" in message

    async def test_a_call_that_the_host_refuses_does_not_end_the_run(self, trial: Trial) -> None:
        code = """
        import runtime
        from skills.mail import f
        def main(args):
            try:
                f()
            except runtime.HostError as error:
                return str(error)
        """
        skill = trial.skill("mail", STUB, stub=True)
        assert await trial.value(code, skills=(skill,)) == "f of mail must not be called"

    async def test_the_number_and_the_size_of_calls_are_limited(self, trial: Trial) -> None:
        trial.host.callable["mail", "f"] = len
        code = """
        import runtime
        from skills.mail import f
        def main(args):
            seen = []
            for size in args['sizes']:
                try:
                    seen.append(f('x' * size))
                except runtime.HostError as error:
                    seen.append(str(error))
            return seen
        """
        skill, limits = trial.skill("mail", STUB, stub=True), Limits(timeout_ms=300_000, calls=3, result_mb=1)
        results = await trial.value(code, {"sizes": [5, 2 << 20, 900_000, 5]}, skills=(skill,), limits=limits)
        assert (results[0], results[2]) == (5, 900_000)
        assert "1 MiB" in results[1]
        assert "3 times" in results[3]

    @pytest.mark.parametrize("end", ["time.sleep(300)", "os._exit(3)", "os.kill(os.getpid(), 9)"])
    async def test_a_call_ends_with_the_run(self, trial: Trial, end: str) -> None:
        ended = []

        async def never() -> None:
            try:
                await asyncio.sleep(300)  # is cancelled
            finally:
                ended.append("ended")

        trial.host.callable["mail", "f"] = never
        code = f"""
        import os, threading, time
        from skills.mail import f
        def main(args):
            threading.Thread(target=f).start()
            time.sleep(args)
            {end}
        """
        skill = trial.skill("mail", STUB, stub=True)
        for seconds in (0.3, 3, 30):  # on a loaded machine, the call needs time until it reaches the host
            limits = Limits(timeout_ms=int(seconds * 1000) + 1_700)
            outcome = await trial.code(code, seconds, skills=(skill,), limits=limits)
            assert failure_type(outcome) in {"TimeoutError", "ProcessExited", "ProcessKilled"}
            if ended:
                break
        assert ended == ["ended"]

    async def test_a_function_is_called_as_a_stub_calls_it(self, trial: Trial) -> None:
        skill = trial.skill("mail", STUB)
        assert value_of(await trial.ask(skill, "f", 1, [2], b=3, c={"d": None})) == [1, [[2]], 3, {"c": {"d": None}}]
        assert value_of(await trial.ask(skill, "g")) == "g"
        assert value_of(await trial.ask(skill, "taken")) == "taken"

    @pytest.mark.parametrize("function", NOT_OFFERED)
    async def test_calling_a_missing_function_of_a_stub_runs_nothing(self, trial: Trial, function: str) -> None:
        outcome = await trial.ask(trial.skill("mail", STUB), function)
        assert (failure_type(outcome), log_of(outcome)) == ("AttributeError", "")
        assert outcome.failure is not None
        assert ", ".join(OFFERED) in outcome.failure.message
