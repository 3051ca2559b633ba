"""Handlers of tools and scripts of a skill: start, input and result."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skillery.backends import HandlerCall, Limits, Outcome, ScriptCall
from skillery.testing.sandbox.languages import with_node
from skillery.testing.sandbox.trial import QUICK, SandboxCases, Trial, failure_type, log_of, value_of


class HandlerCases(SandboxCases):
    async def handled(self, trial: Trial, path: str, content: str, args: Any = None) -> Outcome:
        skill = trial.skill("acme.tool", {path: content, "scripts/sibling.py": "HERE = 'sibling'"}, entrypoint=None)
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
        import sibling
        if True:
            async def handler(args): print('called'); return [args['a'], sibling.HERE, __name__]
        if __name__ == '__main__': print('as a program')
        """
        outcome = await self.handled(trial, "scripts/t.py", code, {"a": 1})
        assert (value_of(outcome), log_of(outcome)) == ([1, "sibling", "entry"], "called\n")

    async def test_a_handler_in_python_that_raises_is_a_failure_with_its_frames(self, trial: Trial) -> None:
        outcome = await self.handled(trial, "scripts/t.py", "def handler(args): return args['none']")
        assert failure_type(outcome) == "KeyError"
        assert outcome.failure is not None
        assert "scripts/t.py" in outcome.failure.traceback

    async def test_python_without_a_handler_is_a_program(self, trial: Trial) -> None:
        code = """
        import sibling, json, sys
        def main(args): handler = 1; return [__name__, args == json.loads(sys.argv[1]), args['a'], sibling.HERE]
        print('noted', file=sys.stderr)
        print(json.dumps(main(json.load(sys.stdin))))
        """
        outcome = await self.handled(trial, "scripts/t.py", code, {"a": 1})
        assert (value_of(outcome), log_of(outcome)) == (["__main__", True, 1, "sibling"], "noted\n")

    async def test_shell_and_other_programs_get_stdin_and_a_single_argument(self, trial: Trial) -> None:
        outcome = await self.handled(trial, "scripts/t.sh", '[ "$(cat)" = "$1" ] && echo "$#$1"', {"a": "b c"})
        assert value_of(outcome).startswith('1{"a": "b c"')
        skill = trial.skill("acme.other", {"bin/tool": "#!/usr/bin/env bash\ncat"}, entrypoint=None)
        (skill.folder / "bin/tool").chmod(0o755)
        args = value_of(await trial.call(HandlerCall("acme.other", "bin/tool"), {"a": 1}, skills=(skill,)))
        assert args["a"] == 1

    async def test_args_that_are_no_argument_come_on_stdin_alone(self, trial: Trial) -> None:
        async def seen(length: int) -> list[int]:
            outcome = await self.handled(trial, "scripts/t.sh", "echo \\[$#, $(wc -c)]", {"big": "x" * length})
            counts: list[int] = value_of(outcome)
            return counts

        longest = 128 * 1024 - 1
        around = (await seen(0))[1]
        assert await seen(longest - around) == [1, longest]
        assert await seen(longest - around + 1) == [0, longest + 1]

    async def test_the_host_sets_the_working_folder(self, trial: Trial) -> None:
        code = "import os\ndef handler(args): return [args['__workDir'], os.getcwd()]"
        announced, real = value_of(await self.handled(trial, "scripts/t.py", code, {"__workDir": "/etc"}))
        assert announced == real != "/etc"

    async def test_a_handler_that_exits_with_a_status_is_a_failure(self, trial: Trial) -> None:
        outcome = await self.handled(trial, "scripts/t.sh", "echo why >&2; exit 2")
        assert failure_type(outcome) == "ProcessExited"
        assert outcome.failure is not None
        assert outcome.failure.message == "the program exited with status 2: why"

    @pytest.mark.parametrize(
        ("path", "content", "words"),
        [
            ("notes", "just text", "no '#!' line"),
            ("scripts/none.sh", None, "no file"),
            ("../../../usr/bin/env", None, "no file"),
            ("./x", None, "no file"),
        ],
    )
    async def test_programs_that_cannot_run_are_refused_by_name(
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

    async def test_a_script_gets_the_environment_of_programs(self, trial: Trial) -> None:
        content = 'cat; printf " %s" "$@" "$COLOUR"; echo oh >&2; exit 3'
        outcome = await self.ran(trial, "s.sh", content, "a b", "-c", stdin=b"\x01 in", environment={"COLOUR": "red"})
        assert value_of(outcome) == {"exit_code": 3, "stdout": "\x01 in a b -c red", "stderr": "oh\n", "files": []}
        assert "oh\n" in log_of(outcome)

    async def test_script_writes_results_when_its_time_ends(self, trial: Trial) -> None:
        content = "trap 'echo saved; exit 0' TERM; while :; do sleep 0.1; done"
        for timeout_ms in (5_000, 50_000, 250_000):  # on a loaded machine, the script needs time until it waits
            outcome = await self.ran(trial, "s.sh", content, limits=Limits(timeout_ms=timeout_ms))
            if outcome.failure is None:
                break
        assert value_of(outcome)["stdout"] == "saved\n"

    @with_node
    async def test_scripts_in_every_language_run(self, trial: Trial) -> None:
        scripts = {
            "s.py": "import sys; print(__name__, sys.argv[1])",
            "s.js": "console.log('__main__', process.argv[2])",
            "s.mjs": "import process from 'node:process'; console.log('__main__', process.argv[2])",
            "s.cjs": "const process = require('node:process'); console.log('__main__', process.argv[2])",
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

    async def test_a_script_starts_only_executable_files_of_its_skill(self, trial: Trial) -> None:
        script = 'cd "$SKILL_DIR"; ./tool; for file in tool text; do test -x $file && echo $file; done'
        files = {"s.sh": script, "tool": "#!/bin/sh\necho started", "text": "#!/bin/sh\necho started"}
        skill = trial.skill("acme.script", files, entrypoint=None)
        (skill.folder / "tool").chmod(0o755)
        outcome = await trial.call(ScriptCall("acme.script", "s.sh"), skills=(skill,))
        assert value_of(outcome)["stdout"] == "started\ntool\n"

    async def test_a_script_that_is_killed_has_the_status_of_shells(self, trial: Trial) -> None:
        assert value_of(await self.ran(trial, "s.sh", "kill -9 $$"))["exit_code"] == 137

    async def test_long_output_becomes_a_blob(self, trial: Trial) -> None:
        output = value_of(await self.ran(trial, "s.sh", "yes x | tr -d '\\n' | head -c 70000; echo short >&2"))
        assert trial.host.blobs[output["stdout"]["blob_id"]] == b"x" * 70_000
        assert output["stdout"]["size_bytes"] == 70_000
        assert output["stderr"] == "short\n"

    async def test_a_flood_of_output_is_cut_and_counted(self, trial: Trial) -> None:
        limits = Limits(timeout_ms=300_000, memory_mb=256, result_mb=1)
        stdout = value_of(await self.ran(trial, "s.sh", "yes | head -c 9000000", limits=limits))["stdout"]
        assert (stdout["size_bytes"], stdout["dropped_bytes"]) == (1 << 20, 9_000_000 - (1 << 20))

    async def test_files_left_in_out_become_blobs_with_their_kinds(self, trial: Trial) -> None:
        content = """
        mkdir -p out/deep; cd out
        printf '{}' > a.json; printf x > deep/b.png; : > empty.txt; printf x > c.tar.gz; printf y > no-ending
        ln -s /usr/bin/env link; mkfifo pipe; ln -s /usr deep/usr
        """
        output = value_of(await self.ran(trial, "s.sh", content))
        assert {file["path"]: trial.host.kinds[file["blob_id"]] for file in output["files"]} == {
            "a.json": "application/json",
            "c.tar.gz": "application/gzip",
            "deep/b.png": "image/png",
            "empty.txt": "text/plain",
            "no-ending": "application/octet-stream",
        }
        assert [file["size_bytes"] for file in output["files"]] == [2, 1, 1, 0, 1]
        assert trial.host.blobs[output["files"][0]["blob_id"]] == b"{}"
        assert "left_out" not in output

    async def test_an_out_that_is_a_link_is_not_followed(self, trial: Trial) -> None:
        assert value_of(await self.ran(trial, "s.sh", "mkdir d; echo x > d/f; ln -s d out"))["files"] == []

    async def test_more_files_than_are_kept_are_named(self, trial: Trial) -> None:
        output = value_of(await self.ran(trial, "s.sh", "mkdir out; for n in {100..209}; do echo x > out/$n; done"))
        assert len(output["files"]) == 100
        assert output["left_out"] == [str(number) for number in range(200, 210)]

    async def test_files_of_programs_above_the_maximum_bytes_are_left_out(self, trial: Trial) -> None:
        content = "mkdir out; yes | head -c 600000 | tee out/a out/b > out/c"
        limits = Limits(timeout_ms=300_000, memory_mb=256, blobs_mb=1)
        output = value_of(await self.ran(trial, "s.sh", content, limits=limits))
        assert [file["path"] for file in output["files"]] == ["a"]
        assert output["left_out"] == ["b", "c"]

    async def test_a_script_finds_its_skill(self, trial: Trial) -> None:
        files = {
            "shared.py": "HERE = 'root'",
            "scripts/inner.py": "HERE = 'inner'",
            "scripts/show.py": """
                import json, os, sys
                from scripts.inner import HERE as inner
                import shared, inner as sibling
                names = ("SKILL_DIR", "SKILL_ROOT", "CLAUDE_SKILL_DIR", "CLAUDE_SKILL_ROOT")
                root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
                print(json.dumps([inner, shared.HERE, sibling.HERE, [os.environ[name] for name in names] == [root] * 4,
                                  os.getcwd() == os.environ["HOME"], __name__, sys.argv[1:]]))
            """,
        }
        skill = trial.skill("acme.script", files, entrypoint=None)
        call = ScriptCall("acme.script", "scripts/show.py", ("x",))
        output = value_of(await trial.call(call, skills=(skill,)))
        assert output["stderr"] == ""
        assert json.loads(output["stdout"]) == ["inner", "root", "inner", True, True, "__main__", ["x"]]
        code = """
        import os
        from scripts.inner import HERE
        def handler(args): return [HERE, os.path.basename(os.environ['SKILL_DIR'])]
        """
        skill = trial.skill("acme.script", {"scripts/tool.py": code}, entrypoint=None)
        called = await trial.call(HandlerCall("acme.script", "scripts/tool.py"), skills=(skill,))
        assert value_of(called) == ["inner", "acme.script"]

    async def test_python_programs_that_a_script_starts_find_its_skill_and_packages(self, trial: Trial) -> None:
        files = {
            "lib/inner.py": "import frames; HERE = frames.VERSION",
            "child.py": "from lib.inner import HERE; import json; print(HERE, json.loads('true'))",
            "s.py": """
                import os, subprocess, sys
                subprocess.run([sys.executable, os.environ['SKILL_DIR'] + '/child.py'])
            """,
        }
        skill = trial.skill("acme.script", files, entrypoint=None)
        packages = (trial.packages({"frames.py": "VERSION = 'packed'", "json.py": "raise KeyError"}),)
        output = value_of(await trial.call(ScriptCall("acme.script", "s.py"), skills=(skill,), packages=packages))
        assert (output["stdout"], output["stderr"]) == ("packed True\n", "")

    async def test_a_module_of_the_skill_runs_as_python_m_does(self, trial: Trial) -> None:
        files = {
            "scripts/package.py": """
                import os, sys
                from . import sibling
                from scripts import sibling as same
                print(__name__, __package__, sibling is same, sys.argv[1:], os.path.basename(sys.argv[0]))
            """,
            "scripts/sibling.py": "",
            "tool/__main__.py": "import sys; print('tool', sys.argv[1:]); 1 / 0",
            "tool/__init__.py": "",
        }
        skill = trial.skill("acme.script", files, entrypoint=None)
        call = ScriptCall("acme.script", "scripts/package.py", ("a",), module="scripts.package")
        output = value_of(await trial.call(call, skills=(skill,)))
        assert (output["stdout"], output["stderr"]) == ("__main__ scripts True ['a'] package.py\n", "")
        call = ScriptCall("acme.script", "tool/__main__.py", ("b",), module="tool")
        output = value_of(await trial.call(call, skills=(skill,)))
        assert (output["exit_code"], output["stdout"]) == (1, "tool ['b']\n")
        assert output["stderr"].endswith("ZeroDivisionError: division by zero\n")
        assert "_start" not in output["stderr"]

    async def test_a_script_can_start_in_its_skill(self, trial: Trial) -> None:
        files = {"s.sh": 'cat data.txt; pwd; echo x > "$HOME/out/a.txt"', "data.txt": "sibling\n"}
        skill = trial.skill("acme.script", files, entrypoint=None)
        call = ScriptCall("acme.script", "s.sh", environment={"T": "../../workspace/out/x"}, in_skill=True)
        output = value_of(await trial.call(call, skills=(skill,)))
        assert [file["path"] for file in output["files"]] == ["a.txt"]
        assert output["stdout"].startswith("sibling\n")
        assert output["stdout"].endswith("/acme.script\n")

    async def test_a_script_that_raises_shows_its_own_frames_alone(self, trial: Trial) -> None:
        output = value_of(await self.ran(trial, "s.py", "def f():\n    return 1 / 0\nf()"))
        lines = output["stderr"].splitlines()
        assert (output["exit_code"], lines[0], lines[-1]) == (1, "Traceback (most recent call last):", lines[-1])
        assert [line.split(",")[-1] for line in lines if line.startswith("  File")] == [" in <module>", " in f"]
        output = value_of(await self.ran(trial, "s.py", "x = ("))
        assert "_start" not in output["stderr"]
        assert "SyntaxError" in output["stderr"]
