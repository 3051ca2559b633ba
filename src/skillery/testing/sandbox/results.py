"""Arguments, results, and all failures of a run."""

from __future__ import annotations

import pytest

from skillery.testing.sandbox.trial import SandboxCases, Trial, failure_type, log_of, value_of

NOT_JSON = {
    "a set": "{1}",
    "bytes": "b'x'",
    "nan": "float('nan')",
    "infinity": "[float('inf')]",
    "an int key": "{1: 2}",
    "a None key": "[{None: 2}]",
    "a lone surrogate": "'\\ud800'",
    "an object": "object()",
    "too deep": "__import__('functools').reduce(lambda a, _: [a], range(250), 0)",
    "far too deep": "__import__('functools').reduce(lambda a, _: [a], range(5000), 0)",
    "too large": "'x' * (17 << 20)",
}
ABUSES = {
    "garbage": "b'garbage' * 1000",
    "a giant header": "b'\\xff' * 12 + b'x' * 1000",
    "a giant body": "struct.pack('>IQ', 15, 1 << 62) + b'{\"op\":\"result\"}' + b'x' * 1000",
    "deep JSON": "struct.pack('>IQ', 60000, 0) + b'[' * 60000",
    "an unknown word": "struct.pack('>IQ', 14, 0) + b'{\"op\":\"shell\"}'",
    "not UTF-8": "struct.pack('>IQ', 11, 0) + b'{\"op\":\"\\xff\\xfe\"}'",
    "a result that is NaN": "struct.pack('>IQ', 15, 3) + b'{\"op\":\"result\"}NaN'",
}
OPEN_CHANNEL = """
import os, socket, stat, struct
def channel():
    for number in range(3, 4096):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                return number
        except OSError:
            pass
"""


class ResultCases(SandboxCases):
    async def test_arguments_arrive_and_the_result_comes_back(self, trial: Trial) -> None:
        args = {"text": "grüße \U0001f600", "list": [1, 2.5, None, True], "big": 10**30}
        assert await trial.value("def main(args): return args", args) == args

    async def test_null_is_a_result(self, trial: Trial) -> None:
        outcome = await trial.code("def main(args): pass")
        assert (outcome.result, outcome.failure) == (b"null", None)

    async def test_a_tuple_counts_as_a_list_and_the_json_is_compact(self, trial: Trial) -> None:
        outcome = await trial.code("def main(args): return {'a': (1, 'ü'), 'b': ()}")
        assert outcome.result == '{"a":[1,"ü"],"b":[]}'.encode()

    async def test_another_function_can_be_called(self, trial: Trial) -> None:
        assert await trial.value("def other(args): return 'other'", function="other") == "other"

    async def test_a_summary_of_any_text_is_taken(self, trial: Trial) -> None:
        outcome = await trial.code("import runtime\ndef main(args): runtime.summary('a\\ud800' + 'b' * 9000)")
        assert failure_type(outcome) is None
        assert (outcome.summary or "").startswith("a")

    async def test_an_interrupt_that_the_code_sends_itself_is_a_keyboard_interrupt(self, trial: Trial) -> None:
        code = """
        import os, signal, time
        def main(args):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        """
        assert failure_type(await trial.code(code)) == "KeyboardInterrupt"

    async def test_the_code_signals_itself_as_any_process_does(self, trial: Trial) -> None:
        """The C library sends the signal to its stored thread id, which must be that of the forked process."""
        code = """
        import os, signal, threading, time
        def main(args):
            seen = []
            signal.signal(signal.SIGUSR1, lambda number, _: seen.append(number))
            signal.raise_signal(signal.SIGUSR1)
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
            default = signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
            assert time.clock_gettime(time.pthread_getcpuclockid(threading.get_ident())) > 0
            child = os.fork()
            if child == 0:
                os._exit(3)
            return [len(seen), default, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]
        """
        assert await trial.value(code) == [2, True, 3]

    async def test_the_code_can_abort(self, trial: Trial) -> None:
        failure = (await trial.code("import os\ndef main(args): os.abort()")).failure
        assert failure is not None
        assert (failure.type, "SIGABRT" in failure.message) == ("ProcessKilled", True)

    async def test_a_traceback_holds_the_frames_of_user_code_only(self, trial: Trial) -> None:
        outcome = await trial.code("import json\ndef main(args):\n    json.loads('{')\n")
        assert outcome.failure is not None
        assert "json.loads" in outcome.failure.traceback
        assert "decoder.py" not in outcome.failure.traceback

    @pytest.mark.parametrize("broken", ["len", "str", "isinstance", "open", "type", "BaseException", "getattr"])
    async def test_code_that_breaks_builtins_breaks_only_itself_and_shows_nothing_of_ours(
        self, trial: Trial, broken: str
    ) -> None:
        outcome = await trial.code(
            f"import builtins\ndef main(args):\n    builtins.{broken} = None\n    raise ValueError"
        )
        assert outcome.failure is not None
        shown = log_of(outcome) + outcome.failure.message + outcome.failure.traceback
        assert "skillery/builtin" not in shown
        assert "cellblock/" not in shown
        await trial.is_well()

    async def test_an_async_function_is_awaited(self, trial: Trial) -> None:
        code = """
        import asyncio
        async def main(args):
            await asyncio.sleep(0)
            return await asyncio.to_thread(lambda: 7)
        """
        assert await trial.value(code) == 7

    async def test_a_large_result_arrives_whole(self, trial: Trial) -> None:
        assert await trial.value("def main(args): return 'x' * (5 << 20)") == "x" * (5 << 20)

    async def test_large_arguments_arrive_whole(self, trial: Trial) -> None:
        assert await trial.value("def main(args): return len(args['x'])", {"x": "y" * (3 << 20)}) == 3 << 20

    async def test_a_summary_is_passed_on(self, trial: Trial) -> None:
        outcome = await trial.code(
            "import runtime\ndef main(args): runtime.summary('first'); runtime.summary('did it')"
        )
        assert outcome.summary == "did it"

    async def test_the_time_of_the_code_is_measured(self, trial: Trial) -> None:
        outcome = await trial.code("import time\ndef main(args): time.sleep(0.2)")
        assert 190 <= outcome.duration_ms < 300_000

    @pytest.mark.parametrize("shape", NOT_JSON)
    async def test_values_without_json_are_invalid_output(self, trial: Trial, shape: str) -> None:
        assert failure_type(await trial.code(f"def main(args): return {NOT_JSON[shape]}")) == "InvalidOutput"

    async def test_a_cycle_is_invalid_output(self, trial: Trial) -> None:
        outcome = await trial.code("def main(args):\n    args['me'] = args\n    return args")
        assert failure_type(outcome) == "InvalidOutput"


class FailureCases(SandboxCases):
    async def test_an_exception_is_reported_with_the_frames_of_the_code(self, trial: Trial) -> None:
        code = """
        def inner():
            raise ValueError("no such customer")
        def main(args):
            inner()
        """
        failure = (await trial.code(code)).failure
        assert failure is not None
        assert (failure.type, failure.message) == ("ValueError", "no such customer")
        assert 'raise ValueError("no such customer")' in failure.traceback
        assert failure.traceback.count("  File ") == 2
        assert "_run.py" not in failure.traceback

    async def test_an_exception_class_of_the_code_keeps_its_name(self, trial: Trial) -> None:
        code = "class NoStock(Exception): pass\ndef main(args): raise NoStock('x' * 5000)"
        failure = (await trial.code(code)).failure
        assert failure is not None
        assert failure.type == "NoStock"
        assert len(failure.message) <= 1000
        assert len(failure.traceback) <= 4000

    @pytest.mark.parametrize("method", ["__str__", "__repr__", "__getattribute__"])
    @pytest.mark.parametrize("raised", ["SystemExit(0)", "RecursionError()", "KeyboardInterrupt()"])
    async def test_a_hostile_exception_breaks_nothing(self, trial: Trial, method: str, raised: str) -> None:
        code = f"""
        class Hostile(Exception):
            def {method}(self, *rest):
                raise {raised}
        def main(args):
            raise Hostile()
        """
        assert failure_type(await trial.code(code)) == "Hostile"

    @pytest.mark.parametrize("raised", ["SystemExit", "SystemExit(0)", "SystemExit('x')", "KeyboardInterrupt"])
    async def test_leaving_by_exception_is_a_failure(self, trial: Trial, raised: str) -> None:
        assert failure_type(await trial.code(f"def main(args): raise {raised}")) == raised.partition("(")[0]

    async def test_a_syntax_error_names_the_line(self, trial: Trial) -> None:
        failure = (await trial.code("def main(args):\n    return (\n")).failure
        assert failure is not None
        assert failure.type == "SyntaxError"
        assert "line 2" in failure.message

    @pytest.mark.parametrize("code", ["def main(args): return '\0'", "# coding: nonsense\ndef main(args): pass"])
    async def test_code_that_cannot_be_read_is_a_syntax_error(self, trial: Trial, code: str) -> None:
        assert failure_type(await trial.code(code)) == "SyntaxError"

    async def test_deeply_nested_code_fails_in_band(self, trial: Trial) -> None:
        outcome = await trial.code("x = " + "(" * 100_000 + ")" * 100_000)
        assert failure_type(outcome) in {"SyntaxError", "ProcessKilled"}

    async def test_a_missing_function_is_an_attribute_error(self, trial: Trial) -> None:
        failure = (await trial.code("def other(args): pass")).failure
        assert failure is not None
        assert failure.type == "AttributeError"
        assert "'main'" in failure.message

    async def test_leaving_without_a_result_is_process_exited(self, trial: Trial) -> None:
        failure = (await trial.code("import os\ndef main(args): os._exit(0)")).failure
        assert failure is not None
        assert (failure.type, "status 0" in failure.message) == ("ProcessExited", True)

    @pytest.mark.parametrize("signal", ["SIGSEGV", "SIGKILL", "SIGTERM"])
    async def test_a_signal_is_named(self, trial: Trial, signal: str) -> None:
        code = f"import os, signal\ndef main(args): os.kill(os.getpid(), signal.{signal})"
        failure = (await trial.code(code)).failure
        assert failure is not None
        assert (failure.type, signal in failure.message) == ("ProcessKilled", True)

    async def test_a_crash_in_c_is_process_killed(self, trial: Trial) -> None:
        code = "import ctypes\ndef main(args): ctypes.string_at(1)"
        assert failure_type(await trial.code(code)) == "ProcessKilled"

    async def test_a_forked_child_that_returns_has_no_say_in_the_result(self, trial: Trial) -> None:
        code = """
        import os
        def main(args):
            child = os.fork()
            if child == 0:
                return 'the child'
            os.waitpid(child, 0)
            return 'the parent'
        """
        assert await trial.value(code) == "the parent"

    @pytest.mark.parametrize("abuse", ABUSES)
    async def test_abuse_of_the_result_channel_ends_the_run(self, trial: Trial, abuse: str) -> None:
        code = f"{OPEN_CHANNEL}\ndef main(args):\n    os.write(channel(), {ABUSES[abuse]})\n    return 1"
        assert failure_type(await trial.code(code)) == "InvalidOutput"

    async def test_closing_the_result_channel_is_no_success(self, trial: Trial) -> None:
        code = f"{OPEN_CHANNEL}\ndef main(args):\n    os.close(channel())\n    return 1"
        assert failure_type(await trial.code(code)) == "ProcessExited"

    async def test_a_result_printed_to_stdout_is_only_text(self, trial: Trial) -> None:
        # The bytes are a complete message of the result channel: 4 bytes with the size of its JSON (15), 8 bytes with
        # the size of its body (1), the JSON, and the body: the forged result 1.
        code = """
        import os
        def main(args):
            os.write(1, b'\\0\\0\\0\\x0f\\0\\0\\0\\0\\0\\0\\0\\x01{"op":"result"}1')
            return 'mine'
        """
        outcome = await trial.code(code)
        assert value_of(outcome) == "mine"
        assert '{"op":"result"}1' in log_of(outcome)

    async def test_broken_builtins_harm_only_the_run_itself(self, trial: Trial) -> None:
        code = """
        import builtins, json, os, sys
        def main(args):
            json.dumps = lambda *a, **k: '"forged"'
            sys.stdout = None
            os.write = None
            builtins.len = None
        """
        await trial.code(code)
