"""Other languages than Python, tool handlers and scripts: what they get, what comes back, and that they are held in
as Python is. Without Node.js on this host the cases that need it are skipped, and say so."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from skillery.backends import HandlerCall, Language, Limits, Outcome, ScriptCall
from skillery.testing.sandbox.base import SandboxCases
from skillery.testing.sandbox.trial import QUICK, Trial, failure_type, log_of, value_of

INPUT = "blob:3kf9-_aZ"
with_node = pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node.js on this host")
BIG = "ü" * 100_000
"""200 KB: more than the kernel takes as one argument."""

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
STATUS = "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status"
OPEN = "for n in {0..255}; do [ -e /proc/$$/fd/$n ] && printf '%s ' $n; done; true"


async def shell(trial: Trial, code: str, args: Any = None, **options: Any) -> Outcome:
    return await trial.code(code, args, language="bash", **options)


async def javascript(trial: Trial, code: str, args: Any = None, **options: Any) -> Outcome:
    return await trial.code(code, args, language="javascript", **options)


class JavaScriptCases(SandboxCases):
    @with_node
    async def test_javascript_gets_args_and_returns_a_value(self, trial: Trial) -> None:
        code = "export function main(args) { return { got: args, here: process.cwd() } }"
        found = value_of(await javascript(trial, code, {"a": [1, 2.5, None, "grüße"]}))
        assert found["got"] == {"a": [1, 2.5, None, "grüße"]}
        assert found["here"].endswith("/workspace")

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
    @pytest.mark.parametrize("way", THROWN)
    async def test_what_javascript_throws_is_the_failure(self, trial: Trial, way: str) -> None:
        code, type_, words = THROWN[way]
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
    @pytest.mark.parametrize("what", NOT_JSON)
    async def test_what_is_not_json_is_an_invalid_output_of_javascript(self, trial: Trial, what: str) -> None:
        outcome = await javascript(trial, f"export const main = () => {NOT_JSON[what]}")
        assert failure_type(outcome) == "InvalidOutput"

    @with_node
    async def test_what_javascript_prints_is_the_log(self, trial: Trial) -> None:
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

    async def test_what_bash_prints_is_a_string_where_it_is_no_json(self, trial: Trial) -> None:
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

    async def test_bash_that_is_killed_says_by_what(self, trial: Trial) -> None:
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

    async def test_what_is_left_running_does_not_hold_up_the_end(self, trial: Trial) -> None:
        assert value_of(await shell(trial, "(sleep 1000; echo late) & echo now")) == "now"


class HandlerCases(SandboxCases):
    async def handled(self, trial: Trial, path: str, content: str, args: Any = None) -> Outcome:
        skill = trial.skill("acme.tool", {path: content, "scripts/beside.py": "HERE = 'beside'"}, entrypoint=None)
        return await trial.call(HandlerCall("acme.tool", path), args, skills=(skill,))

    @with_node
    @pytest.mark.parametrize("ending", [".js", ".mjs"])
    async def test_a_handler_in_javascript_is_its_default_export(self, trial: Trial, ending: str) -> None:
        code = "export default async function handler(args) { return Object.keys(args) }"
        assert value_of(await self.handled(trial, f"scripts/t{ending}", code, {"a": 1})) == ["a", "__workDir"]

    @with_node
    async def test_a_handler_in_javascript_without_a_default_export_is_refused(self, trial: Trial) -> None:
        outcome = await self.handled(trial, "scripts/t.js", "export const handler = () => 1")
        assert failure_type(outcome) == "AttributeError"

    @with_node
    async def test_a_package_json_that_leaves_the_type_open_changes_nothing(self, trial: Trial) -> None:
        skill = trial.skill(
            "acme.tool", {"t.js": "export default () => 1", "package.json": '{"name": "x"}'}, entrypoint=None
        )
        outcome = await trial.call(HandlerCall("acme.tool", "t.js"), skills=(skill,))
        assert (value_of(outcome), log_of(outcome)) == (1, "")

    async def test_a_handler_in_python_is_called_and_its_program_part_is_not(self, trial: Trial) -> None:
        code = """
        import beside
        if True:
            async def handler(args): print('called'); return [args['a'], beside.HERE, __name__]
        if __name__ == '__main__': print('as a program')
        """
        outcome = await self.handled(trial, "scripts/t.py", code, {"a": 1})
        assert (value_of(outcome), log_of(outcome)) == ([1, "beside", "skill_handler"], "called\n")

    async def test_a_handler_in_python_that_raises_is_a_failure_with_its_frames(self, trial: Trial) -> None:
        outcome = await self.handled(trial, "scripts/t.py", "def handler(args): return args['none']")
        assert failure_type(outcome) == "KeyError"
        assert outcome.failure is not None
        assert "scripts/t.py" in outcome.failure.traceback

    async def test_python_without_a_handler_is_a_program(self, trial: Trial) -> None:
        code = """
        import beside, json, sys
        def main(args): handler = 1; return [__name__, args == json.loads(sys.argv[1]), args['a'], beside.HERE]
        print('noted', file=sys.stderr)
        print(json.dumps(main(json.load(sys.stdin))))
        """
        outcome = await self.handled(trial, "scripts/t.py", code, {"a": 1})
        assert (value_of(outcome), log_of(outcome)) == (["__main__", True, 1, "beside"], "noted\n")

    async def test_shell_and_other_programs_get_stdin_and_one_argument(self, trial: Trial) -> None:
        outcome = await self.handled(trial, "scripts/t.sh", '[ "$(cat)" = "$1" ] && echo "$#$1"', {"a": "b c"})
        assert value_of(outcome).startswith('1{"a": "b c"')
        skill = trial.skill("acme.other", {"bin/tool": "#!/usr/bin/env bash\ncat"}, entrypoint=None)
        (skill.folder / "bin/tool").chmod(0o755)
        found = value_of(await trial.call(HandlerCall("acme.other", "bin/tool"), {"a": 1}, skills=(skill,)))
        assert found["a"] == 1

    async def test_args_that_are_no_argument_come_on_stdin_alone(self, trial: Trial) -> None:
        async def seen(length: int) -> list[int]:
            outcome = await self.handled(trial, "scripts/t.sh", "echo \\[$#, $(wc -c)]", {"big": "x" * length})
            found: list[int] = value_of(outcome)
            return found

        longest = 128 * 1024 - 1
        around = (await seen(0))[1]
        assert await seen(longest - around) == [1, longest]
        assert await seen(longest - around + 1) == [0, longest + 1]

    async def test_the_working_folder_is_ours_to_say(self, trial: Trial) -> None:
        code = "import os\ndef handler(args): return [args['__workDir'], os.getcwd()]"
        told, real = value_of(await self.handled(trial, "scripts/t.py", code, {"__workDir": "/etc"}))
        assert told == real != "/etc"

    async def test_a_handler_that_exits_with_a_status_is_a_failure(self, trial: Trial) -> None:
        outcome = await self.handled(trial, "scripts/t.sh", "echo why >&2; exit 2")
        assert failure_type(outcome) == "ProcessExited"
        assert outcome.failure is not None
        assert outcome.failure.message == "the program exited with status 2: why"

    @pytest.mark.parametrize(
        ("path", "content", "words"),
        [
            ("notes", "just text", "no '#!' line"),
            ("notes.txt", "#!/usr/bin/env bash\n", "executable: true"),
            ("scripts/none.sh", None, "no file"),
            ("../../../usr/bin/env", None, "no file"),
            ("./x", None, "no file"),
        ],
    )
    async def test_what_cannot_be_run_is_refused_by_name(
        self, trial: Trial, path: str, content: str | None, words: str
    ) -> None:
        skill = trial.skill("acme.tool", {path: content} if content else {"x": ""}, entrypoint=None)
        for call in (HandlerCall("acme.tool", path), ScriptCall("acme.tool", path)):
            failure = (await trial.call(call, skills=(skill,))).failure
            assert failure is not None
            assert words in failure.message
            assert path in failure.message

    async def test_an_interpreter_that_is_not_there_is_named(self, trial: Trial) -> None:
        skill = trial.skill("acme.tool", {"run": "#!/usr/bin/env fortran-77\n"}, entrypoint=None)
        (skill.folder / "run").chmod(0o755)
        failure = (await trial.call(ScriptCall("acme.tool", "run"), skills=(skill,))).failure
        assert failure is not None
        assert "'fortran-77'" in failure.message


class ScriptCases(SandboxCases):
    async def ran(self, trial: Trial, path: str, content: str, *argv: str, **options: Any) -> Outcome:
        skill = trial.skill("acme.script", {path: content}, entrypoint=None)
        limits: Limits = options.pop("limits", QUICK)
        return await trial.call(ScriptCall("acme.script", path, argv, **options), skills=(skill,), limits=limits)

    async def test_a_script_gets_what_programs_get(self, trial: Trial) -> None:
        content = 'cat; printf " %s" "$@" "$COLOUR"; echo oh >&2; exit 3'
        outcome = await self.ran(trial, "s.sh", content, "a b", "-c", stdin=b"\x01 in", environment={"COLOUR": "red"})
        assert value_of(outcome) == {"exit_code": 3, "stdout": "\x01 in a b -c red", "stderr": "oh\n", "files": []}
        assert "oh\n" in log_of(outcome)

    @with_node
    async def test_scripts_in_every_language_run(self, trial: Trial) -> None:
        scripts = {
            "s.py": "import sys; print(__name__, sys.argv[1])",
            "s.js": "console.log('__main__', process.argv[2])",
            "s.mjs": "import process from 'node:process'; console.log('__main__', process.argv[2])",
            "esm.js": "import process from 'node:process'; console.log('__main__', process.argv[2])",
            "s.sh": "echo __main__ $1",
            "node": "#!/usr/bin/env node\nconsole.log('__main__', process.argv[2])",
            "flagged": "#!/usr/bin/env -S bash -e\necho __main__ $1",
        }
        skill = trial.skill("acme.script", scripts, entrypoint=None)
        for path in scripts:
            (skill.folder / path).chmod(0o755)
            outcome = await trial.call(ScriptCall("acme.script", path, ("x",)), skills=(skill,))
            assert value_of(outcome)["stdout"] == "__main__ x\n", path

    async def test_a_script_that_is_killed_has_the_status_of_shells(self, trial: Trial) -> None:
        assert value_of(await self.ran(trial, "s.sh", "kill -9 $$"))["exit_code"] == 137

    async def test_long_output_becomes_a_blob(self, trial: Trial) -> None:
        found = value_of(await self.ran(trial, "s.sh", "yes x | tr -d '\\n' | head -c 70000; echo short >&2"))
        assert trial.host.blobs[found["stdout"]["blob_id"]] == b"x" * 70_000
        assert found["stdout"]["size_bytes"] == 70_000
        assert found["stderr"] == "short\n"

    async def test_a_flood_of_output_is_cut_and_counted(self, trial: Trial) -> None:
        limits = Limits(timeout_ms=20_000, memory_mb=256, result_mb=1)
        found = value_of(await self.ran(trial, "s.sh", "yes | head -c 9000000", limits=limits))["stdout"]
        assert (found["size_bytes"], found["dropped_bytes"]) == (1 << 20, 9_000_000 - (1 << 20))

    async def test_files_left_in_out_become_blobs_with_their_kinds(self, trial: Trial) -> None:
        content = """
        mkdir -p out/deep; cd out
        printf '{}' > a.json; printf x > deep/b.png; : > empty.txt; printf x > c.tar.gz; printf y > no-ending
        ln -s /usr/bin/env link; mkfifo pipe; ln -s /usr deep/usr
        """
        found = value_of(await self.ran(trial, "s.sh", content))
        assert {file["path"]: trial.host.kinds[file["blob_id"]] for file in found["files"]} == {
            "a.json": "application/json",
            "c.tar.gz": "application/gzip",
            "deep/b.png": "image/png",
            "empty.txt": "text/plain",
            "no-ending": "application/octet-stream",
        }
        assert [file["size_bytes"] for file in found["files"]] == [2, 1, 1, 0, 1]
        assert trial.host.blobs[found["files"][0]["blob_id"]] == b"{}"
        assert "left_out" not in found

    async def test_an_out_that_is_a_link_is_not_followed(self, trial: Trial) -> None:
        assert value_of(await self.ran(trial, "s.sh", "mkdir d; echo x > d/f; ln -s d out"))["files"] == []

    async def test_more_files_than_are_kept_are_named(self, trial: Trial) -> None:
        found = value_of(await self.ran(trial, "s.sh", "mkdir out; for n in {100..209}; do echo x > out/$n; done"))
        assert len(found["files"]) == 100
        assert found["left_out"] == [str(number) for number in range(200, 210)]

    async def test_files_past_what_a_run_may_write_are_left_out(self, trial: Trial) -> None:
        content = "mkdir out; yes | head -c 600000 | tee out/a out/b > out/c"
        limits = Limits(timeout_ms=20_000, memory_mb=256, blobs_mb=1)
        found = value_of(await self.ran(trial, "s.sh", content, limits=limits))
        assert [file["path"] for file in found["files"]] == ["a"]
        assert found["left_out"] == ["b", "c"]


class LanguageIsolation(SandboxCases):
    """The walls around a program that is no Python are the same ones."""

    async def test_a_shell_has_no_capability_and_gains_none(self, trial: Trial) -> None:
        lines = value_of(await shell(trial, STATUS)).splitlines()
        status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
        assert {int(status.pop(name), 16) for name in list(status) if name.startswith("Cap")} == {0}
        assert status == {"NoNewPrivs": "1", "Seccomp": "2"}

    async def test_a_shell_holds_its_streams_and_no_channel(self, trial: Trial) -> None:
        assert value_of(await shell(trial, OPEN)) == "0 1 2 "

    @with_node
    async def test_node_holds_no_socket(self, trial: Trial) -> None:
        code = """
        import fs from "node:fs";
        const link = (n) => { try { return fs.readlinkSync(`/proc/self/fd/${n}`) } catch { return "gone" } };
        export const main = () => fs.readdirSync("/proc/self/fd").map(link).filter((to) => to.startsWith("socket"));
        """
        assert value_of(await javascript(trial, code)) == []

    async def test_the_process_that_speaks_for_the_run_cannot_be_read_or_written(self, trial: Trial) -> None:
        code = """
        opened=""
        for name in mem environ maps fd/3 root/usr; do
            if [ -e /proc/$PPID/$name ] || { : < /proc/$PPID/$name; } 2>/dev/null; then opened="$opened $name"; fi
        done
        if { : >> /proc/$PPID/mem; } 2>/dev/null; then opened="$opened writing"; fi
        echo "opened:$opened"
        """
        assert value_of(await shell(trial, code)) == "opened:"

    @with_node
    async def test_node_sees_no_more_of_the_host(self, trial: Trial, tmp_path: Path) -> None:
        secret = tmp_path / "registry.db"
        secret.write_text("secret")
        code = """
        import fs from "node:fs";
        const PLACES = ["/etc/passwd", "/sys", "/home", "/var", "/proc/sys", "/dev/kvm"];
        const done = (act) => { try { act(); return true } catch { return false } };
        const written = (folder) => done(() => fs.writeFileSync(`${folder}/.x`, ""));
        export const main = (args) => [
          [...PLACES, args.secret].filter((path) => fs.existsSync(path)),
          ["/", "/usr", "/skills", "/run"].filter(written),
          fs.readdirSync("/workspace").concat(fs.readdirSync("/tmp")),
        ];
        """
        assert value_of(await javascript(trial, code, {"secret": str(secret)})) == [[], [], []]

    @with_node
    async def test_no_limit_can_be_raised_from_any_language(self, trial: Trial) -> None:
        compare = '[ "$(ulimit -Sa)" = "$(ulimit -Ha)" ] && echo fixed'
        python = """
        import resource
        NAMES = [name for name in dir(resource) if name.startswith('RLIMIT_')]
        def main(args):
            return [name for name in NAMES if len(set(resource.getrlimit(getattr(resource, name)))) > 1]
        """
        node = f"""
        import {{ execFileSync }} from "node:child_process";
        export const main = () => execFileSync("bash", ["-c", {compare!r}]).toString();
        """
        handler = trial.skill("acme.tool", {"t.py": python.replace("main", "handler")}, entrypoint=None)
        assert await trial.value(python) == []
        assert value_of(await trial.call(HandlerCall("acme.tool", "t.py"), skills=(handler,))) == []
        assert value_of(await shell(trial, compare)) == "fixed"
        assert value_of(await javascript(trial, node)) == "fixed\n"

    async def test_a_shell_starts_in_empty_folders(self, trial: Trial) -> None:
        code = "ls -A /workspace /tmp /dev/shm | grep -v ':$' | tr -d '\\n'; env | cut -d= -f1 | sort | tr '\\n' ' '"
        assert value_of(await shell(trial, code)) == "HOME LANG PATH PWD SHLVL _ "

    @with_node
    async def test_javascript_reads_skills_blobs_and_its_own_files(self, trial: Trial) -> None:
        skill = trial.skill("tools.js", {"lib/twice.js": "export const twice = (n) => 2 * n;"}, entrypoint=None)
        code = """
        import fs from "node:fs";
        import { twice } from "/skills/tools.js/lib/twice.js";
        export async function main(args) {
          fs.writeFileSync("own.mjs", "export const own = 'mine'");
          const { own } = await import("./own.mjs");
          fs.writeFileSync("data.json", "[1]");
          const { default: data } = await import("./data.json", { with: { type: "json" } });
          return [twice(args.n), fs.readFileSync(`/blobs/${args.id}`, "utf8"), own, data];
        }
        """
        blobs = (trial.blob(INPUT, b"content"),)
        outcome = await javascript(trial, code, {"n": 4, "id": INPUT}, skills=(skill,), blobs=blobs)
        assert value_of(outcome) == [8, "content", "mine", [1]]

    @with_node
    async def test_node_reaches_no_network(self, trial: Trial) -> None:
        code = """
        import net from "node:net";
        import dns from "node:dns/promises";
        import dgram from "node:dgram";
        const failed = (promise) => promise.then(() => false, () => true);
        const connect = (port, host) => new Promise((resolve, reject) =>
          net.connect({ port, host }).on("connect", resolve).on("error", reject));
        const send = (port, host) => new Promise((resolve, reject) => {
          const s = dgram.createSocket("udp4").on("error", reject);
          s.send("x", port, host, (error) => error ? reject(error) : resolve());
        });
        export const main = (args) => Promise.all([
          failed(connect(args.port, "127.0.0.1")), failed(connect(80, "169.254.169.254")),
          failed(dns.lookup("example.com")), failed(fetch(`http://127.0.0.1:${args.port}`)),
          failed(send(53, "1.1.1.1")),
        ]);
        """
        with socket.create_server(("127.0.0.1", 0)) as server:
            assert value_of(await javascript(trial, code, {"port": server.getsockname()[1]})) == [True] * 5

    @with_node
    @pytest.mark.parametrize(
        "growing",
        [
            "kept.push(new Array(1000).fill({}))",
            "kept.push(Buffer.alloc(1 << 20, 1))",
            "kept.push('x'.repeat(1000) + 1)",
        ],
    )
    async def test_the_memory_of_node_is_held(self, trial: Trial, growing: str) -> None:
        code = f"export function main() {{ const kept = []; for (;;) {growing} }}"
        outcome = await javascript(trial, code, limits=Limits(timeout_ms=30_000, memory_mb=128))
        assert failure_type(outcome) == "MemoryLimitExceeded"

    async def test_the_memory_of_a_shell_is_held(self, trial: Trial) -> None:
        code = 'kept=xxxxxxxxxxxxxxxx; while true; do kept="$kept$kept"; done'
        outcome = await shell(trial, code, limits=Limits(timeout_ms=30_000, memory_mb=96))
        assert failure_type(outcome) in {"MemoryLimitExceeded", "ProcessExited"}  # its own malloc may fail first

    @with_node
    async def test_the_processes_of_node_are_held(self, trial: Trial) -> None:
        code = """
        import { spawn } from "node:child_process";
        export async function main() {
          for (let count = 0; count < 200; count++) {
            const error = await new Promise((resolve) =>
              spawn("sleep", ["1000"]).on("spawn", () => resolve(null)).on("error", resolve));
            if (error) return [error.code, count < 40];
          }
        }
        """
        limits = Limits(timeout_ms=30_000, processes=40)
        assert value_of(await javascript(trial, code, limits=limits)) == ["EAGAIN", True]

    async def test_a_fork_bomb_of_a_shell_ends_with_its_run(self, trial: Trial) -> None:
        limits = Limits(timeout_ms=1500, processes=20)
        outcome = await shell(trial, "bomb() { bomb | bomb & }; bomb; sleep 1000", limits=limits)
        assert failure_type(outcome) in {"TimeoutError", "ProcessExited"}

    @with_node
    @pytest.mark.parametrize("language", ["bash", "javascript"])
    async def test_the_time_of_other_languages_ends(self, trial: Trial, language: Language) -> None:
        endless = {
            "bash": "trap '' TERM INT; while :; do :; done",
            "javascript": "export function main() { for (;;); }",
        }
        outcome = await trial.code(endless[language], language=language, limits=Limits(timeout_ms=600))
        assert failure_type(outcome) == "TimeoutError"

    async def test_whatever_a_shell_kills_the_next_run_is_clean(self, trial: Trial) -> None:
        await shell(trial, "echo x > /workspace/left; echo x > /tmp/left; (setsid sleep 1000 &); kill -9 -1")
        look = "for pid in /proc/[0-9]*; do cat $pid/comm; done; ls -A /workspace /tmp /dev/shm"
        seen = value_of(await shell(trial, look)).split()
        assert "left" not in seen
        assert "sleep" not in seen
