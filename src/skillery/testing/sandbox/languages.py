"""Results of code in JavaScript and bash. Cases that need Node.js are skipped if the host does not have it."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from skillery.backends import Outcome
from skillery.testing.sandbox.trial import SandboxCases, Trial, failure_type, log_of, value_of

INPUT = "blob:3kf9-_aZ"
with_node = pytest.mark.skipif(shutil.which("node") is None, reason="this host has no Node.js")
BIG = "ü" * 100_000
"""200 KB, more than the kernel accepts as one argument."""

THROWN = {
    "its own class": ("class Odd extends Error {}; throw new Odd('boo')", "Odd", "boo"),
    "a type error": ("null.x", "TypeError", "null"),
    "a promise that is rejected": ("return Promise.reject(new RangeError('far'))", "RangeError", "far"),
    "no error at all": ("throw 'words'", "Error", "words"),
    "later, in a callback": (
        "setTimeout(() => { throw new TypeError('late') }); return new Promise(() => {})",
        "TypeError",
        "late",
    ),
    "one that lies": ("throw { get message() { throw 1 }, toString() { throw 2 } }", "Error", "could not be read"),
}
NOT_JSON = {
    "a function": "() => 1",
    "a symbol": "Symbol()",
    "a big integer": "10n",
    "a circle": "(() => { const a = {}; a.a = a; return a })()",
    "a lone surrogate": "'\\ud800'",
    "too deep": "Array.from({ length: 250 }).reduce((a) => [a], 0)",
    "too large": "'x'.repeat(17 << 20)",
}


async def shell(trial: Trial, code: str, args: Any = None, **options: Any) -> Outcome:
    return await trial.code(code, args, language="bash", **options)


async def javascript(trial: Trial, code: str, args: Any = None, **options: Any) -> Outcome:
    return await trial.code(code, args, language="javascript", **options)


class JavaScriptCases(SandboxCases):
    @with_node
    async def test_javascript_gets_args_and_returns_a_value(self, trial: Trial) -> None:
        code = "export function main(args) { return { got: args, here: process.cwd() } }"
        result = value_of(await javascript(trial, code, {"a": [1, 2.5, None, "grüße"]}))
        assert result["got"] == {"a": [1, 2.5, None, "grüße"]}
        assert result["here"].endswith("/workspace")

    @with_node
    async def test_async_functions_of_javascript_are_awaited(self, trial: Trial) -> None:
        code = """
        import { setTimeout as sleep } from "node:timers/promises";
        export const main = async (args) => { await sleep(5); return args.n + 1 };
        """
        assert value_of(await javascript(trial, code, {"n": 1})) == 2

    @with_node
    async def test_any_export_can_be_the_entrypoint(self, trial: Trial) -> None:
        code = "export default () => 'default'; export const other$ = () => 'other'; export function main() {}"
        assert value_of(await javascript(trial, code, function="default")) == "default"
        assert value_of(await javascript(trial, code, function="other$")) == "other"
        assert value_of(await javascript(trial, code)) is None

    @with_node
    async def test_an_export_that_is_missing_is_named(self, trial: Trial) -> None:
        outcome = await javascript(trial, "function main() {}")
        assert failure_type(outcome) == "AttributeError"
        assert outcome.failure is not None
        assert "export function main" in outcome.failure.message

    @with_node
    async def test_javascript_that_does_not_compile_says_where(self, trial: Trial) -> None:
        outcome = await javascript(trial, "export function main() {\n}\nfunction (")
        assert failure_type(outcome) == "SyntaxError"
        assert "run_code.mjs:3" in log_of(outcome)

    @with_node
    async def test_a_package_that_is_not_there_is_named(self, trial: Trial) -> None:
        failure = (await javascript(trial, "import all from 'left-pad'; export const main = () => all")).failure
        assert failure is not None
        assert failure.message == "Cannot find package 'left-pad' imported from run_code.mjs"

    @with_node
    @pytest.mark.parametrize("thrown", THROWN)
    async def test_an_uncaught_error_of_javascript_is_the_failure(self, trial: Trial, thrown: str) -> None:
        code, type_, words = THROWN[thrown]
        outcome = await javascript(trial, f"export function main() {{ {code} }}")
        assert failure_type(outcome) == type_
        assert outcome.failure is not None
        assert words in outcome.failure.message

    @with_node
    async def test_the_stack_of_javascript_holds_frames_of_the_user_only(self, trial: Trial) -> None:
        code = "import fs from 'node:fs';\nexport function main() {\n  return fs.readFileSync('none');\n}"
        failure = (await javascript(trial, code)).failure
        assert failure is not None
        frames = [line for line in failure.traceback.splitlines() if line.startswith("    at ")]
        assert [frame.partition("(")[2] for frame in frames] == ["run_code.mjs:3:13)"]

    @with_node
    @pytest.mark.parametrize("result", NOT_JSON)
    async def test_javascript_values_without_json_are_invalid_output(self, trial: Trial, result: str) -> None:
        outcome = await javascript(trial, f"export const main = () => {NOT_JSON[result]}")
        assert failure_type(outcome) == "InvalidOutput"

    @with_node
    async def test_printed_lines_of_javascript_are_the_log(self, trial: Trial) -> None:
        code = "export function main() { console.log('one'); console.error('two'); console.log('three'); return 4 }"
        outcome = await javascript(trial, code)
        assert (value_of(outcome), log_of(outcome)) == (4, "one\ntwo\nthree\n")

    @with_node
    async def test_a_process_of_node_that_exits_has_no_result(self, trial: Trial) -> None:
        for status in (0, 3):
            outcome = await javascript(trial, f"export function main() {{ process.exit({status}) }}")
            assert failure_type(outcome) == "ProcessExited"
            assert outcome.failure is not None
            assert f"status {status}" in outcome.failure.message

    @with_node
    async def test_a_promise_that_nothing_can_settle_is_a_failure_at_once(self, trial: Trial) -> None:
        outcome = await javascript(trial, "export const main = () => new Promise(() => {})")
        assert failure_type(outcome) == "ProcessExited"
        assert outcome.failure is not None
        assert "pending" in outcome.failure.message

    @with_node
    async def test_large_args_and_values_pass_through_javascript(self, trial: Trial) -> None:
        code = "export const main = (args) => args.big.repeat(20)"
        assert value_of(await javascript(trial, code, {"big": BIG})) == BIG * 20

    @with_node
    async def test_programs_that_javascript_starts_work(self, trial: Trial) -> None:
        code = """
        import { execFile } from "node:child_process";
        import { Worker } from "node:worker_threads";
        import { createHash } from "node:crypto";
        import { readFile } from "node:fs/promises";
        import { promisify } from "node:util";
        export async function main() {
          const { stdout } = await promisify(execFile)("bash", ["-c", "echo from bash"]);
          const worker = new Worker("require('worker_threads').parentPort.postMessage(6 * 7)", { eval: true });
          const answer = await new Promise((resolve) => worker.on("message", resolve));
          const own = await readFile(process.execPath).then((content) => content.length > 1000);
          return [stdout, answer, own, createHash("sha256").update("x").digest("hex").length];
        }
        """
        assert value_of(await javascript(trial, code)) == ["from bash\n", 42, True, 64]

    async def test_a_language_that_the_host_lacks_is_the_fault_of_the_host(self, trial: Trial) -> None:
        nowhere = {"PATH": "/none"}
        outcome = await javascript(trial, "export const main = () => 1", environment=nowhere)
        assert failure_type(outcome) == "SandboxError"
        assert outcome.failure is not None
        assert "'node'" in outcome.failure.message
        assert "there is python" in outcome.failure.message
        assert await trial.value("def main(args): return 1", environment=nowhere) == 1

    @with_node
    async def test_a_node_that_is_too_old_is_named(self, trial: Trial) -> None:
        older = "data:text/javascript,Object.defineProperty(process,'versions',{value:{node:'18.19.1'}})"
        code = "export const main = () => 1"
        outcome = await javascript(trial, code, environment={"NODE_OPTIONS": f"--import={older}"})
        assert failure_type(outcome) == "SandboxError"
        assert outcome.failure is not None
        assert "18.19.1" in outcome.failure.message
        assert "20.19" in outcome.failure.message


class ShellCases(SandboxCases):
    async def test_bash_gets_args_on_stdin_and_prints_its_result(self, trial: Trial) -> None:
        outcome = await shell(trial, "cat; echo noted >&2", {"a": [1, "grüße"]})
        assert (value_of(outcome), log_of(outcome)) == ({"a": [1, "grüße"]}, "noted\n")

    async def test_bash_output_without_json_is_a_string(self, trial: Trial) -> None:
        assert value_of(await shell(trial, "echo hello; echo world")) == "hello\nworld"
        assert value_of(await shell(trial, "printf NaN")) == "NaN"
        assert value_of(await shell(trial, "printf '\\xff'")) == "\N{REPLACEMENT CHARACTER}"
        assert value_of(await shell(trial, "true")) == ""

    async def test_a_status_of_bash_that_is_not_zero_is_a_failure(self, trial: Trial) -> None:
        outcome = await shell(trial, "echo so far\nfor n in {1..2000}; do echo line $n >&2; done\nexit 7")
        assert failure_type(outcome) == "ProcessExited"
        assert outcome.failure is not None
        assert "status 7" in outcome.failure.message
        assert outcome.failure.message.endswith("line 2000")
        assert len(outcome.failure.message) <= 1000
        assert "so far\n" in log_of(outcome)

    async def test_killed_bash_names_the_signal(self, trial: Trial) -> None:
        outcome = await shell(trial, "kill -SEGV $$")
        assert failure_type(outcome) == "ProcessKilled"
        assert outcome.failure is not None
        assert "SIGSEGV" in outcome.failure.message

    async def test_errors_of_bash_name_the_line(self, trial: Trial) -> None:
        outcome = await shell(trial, "true\nno-such-command\nexit 1")
        assert "run_code.sh: line 2: no-such-command" in log_of(outcome)

    async def test_code_of_bash_may_be_of_any_length(self, trial: Trial) -> None:
        assert value_of(await shell(trial, f"# {BIG}\nread -r line; echo ${{#line}}", {"big": "x" * 200_000})) > 200_000

    async def test_a_flood_on_stdout_is_counted_and_refused(self, trial: Trial) -> None:
        outcome = await shell(trial, "head -c 40000000 /dev/urandom | base64 -w0")
        assert failure_type(outcome) == "InvalidOutput"
        assert outcome.failure is not None
        assert "53333336 bytes" in outcome.failure.message

    async def test_background_processes_of_bash_do_not_delay_the_end(self, trial: Trial) -> None:
        assert value_of(await shell(trial, "(sleep 1000; echo late) & echo now")) == "now"
