"""Scripts of skills without an entrypoint, for example of imported skills: execute_skill with `script`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server
from tests.runs.test_languages import with_node
from tests.support.people import Caller, Who

SHOW = """
import json, os, pathlib, sys
pathlib.Path("out").mkdir()
pathlib.Path("out/report.json").write_text(json.dumps({"argv": sys.argv[1:]}))
print(json.dumps([sys.argv[1:], sys.stdin.read(), os.environ.get("COLOUR"), os.getcwd()]))
print("noted", file=sys.stderr)
sys.exit(int(os.environ.get("STATUS", "0")))
"""
FILES = {
    "scripts/show.py": SHOW,
    "scripts/beside.py": "HERE = 'beside'",
    "scripts/uses.py": "import beside; print(beside.HERE)",
    "scripts/many.sh": "head -c \"$1\" /dev/zero | tr '\\0' x; head -c \"$2\" /dev/zero | tr '\\0' y >&2",
    "scripts/show.mjs": "console.log(process.argv.slice(2).join(' '))",
    "scripts/write.sh": 'echo here > "${2:-${TARGET:-$1/a.txt}}"',
    "data/notes.txt": "no script",
    "bin/tool": "#!/usr/bin/env bash\necho tool $1",
    "bin/closed": "#!/usr/bin/env -S uv run --script\nimport sys; print('closed', *sys.argv[1:])",
}

Publish = Callable[..., str]


@pytest.fixture
def skill(server: Server, new_name: str) -> str:
    return publish(server.rpc, new_name)


def publish(rpc: Rpc, name: str, **more: Any) -> str:
    files = [{"path": path, "content": text, "executable": path == "bin/tool"} for path, text in FILES.items()]
    manifest = {"name": name, "version": "1.0.0", "description": "What it does.", "kind": "instruction", **more}
    rpc("create_skill", manifest=manifest, skill_md=f"# {name}\n", files=files)
    return name


def run(rpc: Rpc, name: str, script: str, **args: Any) -> dict[str, Any]:
    answer: dict[str, Any] = rpc("execute_skill", name=name, script=script, args=args)
    return answer


def test_a_script_gets_argv_stdin_and_env_and_answers_how_it_ended(server: Server, skill: str) -> None:
    argv, env = ["a b", "--flag", "ü"], {"COLOUR": "red", "STATUS": "3"}
    answer = run(server.rpc, skill, "scripts/show.py", argv=argv, stdin="line\n", env=env)
    [blob] = answer["output_blobs"]
    assert answer["status"] == "completed"
    assert answer["output"]["exit_code"] == 3
    assert json.loads(answer["output"]["stdout"]) == [argv, "line\n", "red", "/workspace"]
    assert answer["output"]["stderr"] == "noted\n"
    assert answer["output"]["files"] == [{"path": "report.json", "blob_id": blob, "size_bytes": 37}]
    assert answer["files"] == [answer["output"]["files"][0] | {"kind": "application/json"}]
    assert server.rpc("read_blob", blob_id=blob, mode="full")["kind"] == "application/json"
    assert answer["summary"] == "scripts/show.py exited with status 3 and left 1 file in out."
    assert answer["skill"]["name"] == skill
    assert "noted" in answer["logs_preview"]
    recorded = server.rpc("get_run", run_id=answer["run_id"])
    assert (recorded["method"], recorded["output"]) == ("execute_skill", answer["output"])


@pytest.mark.parametrize(
    "args",
    [
        {"argv": ["-o", "out/a.txt"]},
        {"argv": ["--output=./out/a.txt", "/workspace/out/a.txt"]},
        {"env": {"TARGET": "/workspace/out/a.txt"}},
        {"argv": ["out"]},
    ],
)
def test_script_output_folder_exists_if_caller_names_file_in_it(
    server: Server, skill: str, args: dict[str, Any]
) -> None:
    answer = run(server.rpc, skill, "scripts/write.sh", **args)
    assert (answer["output"]["exit_code"], answer["output"]["stderr"]) == (0, "")
    assert [file["path"] for file in answer["output"]["files"]] == ["a.txt"]


def test_programs_that_draw_find_the_fonts(server: Server, new_name: str) -> None:
    script = 'test -r "${FONTCONFIG_FILE:-/etc/fonts/fonts.conf}" && echo readable\n'
    files = [{"path": "scripts/fonts.sh", "content": script}]
    manifest = {"name": new_name, "version": "1.0.0", "description": "What it does.", "kind": "instruction"}
    server.rpc("create_skill", manifest=manifest, skill_md="# Fonts\n", files=files)

    assert run(server.rpc, new_name, "scripts/fonts.sh")["output"]["stdout"] == "readable\n"


def test_the_hint_of_a_script_without_runtime_names_its_line(server: Server, new_name: str) -> None:
    files = [{"path": "scripts/log.py", "content": "import os\nfrom runtime import log\n"}]
    manifest = {"name": new_name, "version": "1.0.0", "description": "What it does.", "kind": "instruction"}
    server.rpc("create_skill", manifest=manifest, skill_md="# s\n", files=files)

    hint = run(server.rpc, new_name, "scripts/log.py")["output"]["hint"]

    assert hint.startswith("scripts/log.py:2: a script is a program and has no module runtime: print texts for the log")


FAILING = {
    "net.py": "import socket\ntry: socket.getaddrinfo('api.example.com', 443)\n"
    "except OSError as e: raise SystemExit(f\"Failed to resolve 'api.example.com' ({e})\")",
    "write.py": "open('out/a.txt', 'w')",
    "read.py": "open('out/a.txt')",
    "pip.sh": "echo ERROR: No matching distribution found for odd-frames >&2; exit $((1 + ${#PIP_NO_INDEX}))",
    "module.py": "import odd_frames",
    "own.sh": 'echo 1 > "$SKILL_DIR/state.txt"',
    "node.sh": "echo \"Error: ENOENT: no such file or directory, mkdir '/skills/a/state'\" >&2; exit 1",
}


def test_failed_scripts_get_hints_about_network_folder_and_packages(server: Server, new_name: str) -> None:
    files = [{"path": path, "content": code} for path, code in FAILING.items()]
    manifest = {"name": new_name, "version": "1.0.0", "description": "What it does.", "kind": "instruction"}
    server.rpc("create_skill", manifest=manifest, skill_md="# s\n", files=files)

    outputs = [run(server.rpc, new_name, path)["output"] for path in FAILING]
    network, writing, reading, pip, module, *own = (output.get("hint") for output in outputs)

    allowing = 'permissions.network = ["https://api.example.com"] in its skill.toml would allow api.example.com'
    assert network == f"'{new_name}' lists no host that it may reach; {allowing}"
    assert writing == "write.py:1: create the folder out before you write to it: mkdir -p out"
    assert reading is None
    assert outputs[3]["exit_code"] == 5
    assert pip == (
        "a run cannot install packages: declare odd-frames in runtime.dependencies, or import with --packages infer"
    )
    assert "a file may be missing, or its package may be called odd-frames" in module
    assert "--packages infer" not in module
    assert all("the folder of the skill is read-only: let the script write below /workspace" in hint for hint in own)


def test_scripts_and_code_can_call_exit_without_an_import(server: Server, new_name: str) -> None:
    sources = {"ends.py": "def main():\n    return 4\n\nexit(main())", "leaves.py": "quit()"}
    files = [{"path": path, "content": code} for path, code in sources.items()]
    manifest = {"name": new_name, "version": "1.0.0", "description": "What it does.", "kind": "instruction"}
    server.rpc("create_skill", manifest=manifest, skill_md="# s\n", files=files)

    codes = [run(server.rpc, new_name, script)["output"]["exit_code"] for script in sources]
    of_code = server.rpc("run_code", language="python", code="def main(args):\n    exit(4)\n")

    assert codes == [4, 0]
    assert of_code["error"]["message"].startswith("the code called sys.exit(4)")


def test_a_very_long_stream_shows_how_it_begins(server: Server, skill: str) -> None:
    answer = run(server.rpc, skill, "scripts/many.sh", argv=["300000", "300000"])
    for stream, letter in (("stdout", "x"), ("stderr", "y")):
        kept = answer["output"][stream]
        assert (kept["size_bytes"], kept["preview"]) == (300_000, letter * 1000)


def test_script_without_args_gets_empty_argv_stdin_and_env(server: Server, skill: str) -> None:
    answer = run(server.rpc, skill, "scripts/show.py")
    assert json.loads(answer["output"]["stdout"]) == [[], "", None, "/workspace"]
    assert answer["output"]["exit_code"] == 0


@with_node
def test_scripts_of_every_language_are_run(server: Server, skill: str) -> None:
    shown = {
        path: run(server.rpc, skill, path, argv=["x"])["output"]["stdout"]
        for path in ("scripts/show.mjs", "bin/tool", "bin/closed")
    }
    assert shown == {"scripts/show.mjs": "x\n", "bin/tool": "tool x\n", "bin/closed": "closed x\n"}
    assert run(server.rpc, skill, "./scripts/uses.py")["output"]["stdout"] == "beside\n"


def test_long_stream_becomes_blob_with_preview_of_its_start(server: Server, skill: str) -> None:
    output = run(server.rpc, skill, "scripts/many.sh", argv=["5000", "10"])["output"]
    assert (output["exit_code"], output["stderr"]) == (0, "y" * 10)
    assert (output["stdout"]["size_bytes"], output["stdout"]["preview"]) == (5000, "x" * 1000)
    assert server.rpc("read_blob", blob_id=output["stdout"]["blob_id"], mode="full")["content"] == "x" * 5000
    both = run(server.rpc, skill, "scripts/many.sh", argv=["4000", "4000"])["output"]
    assert both["stdout"]["preview"] == "x" * 1000
    assert both["stderr"]["preview"] == "y" * 1000
    longest = run(server.rpc, skill, "scripts/many.sh", argv=["200000", "0"])["output"]
    assert longest["stdout"]["size_bytes"] == 200_000
    assert run(server.rpc, skill, "scripts/many.sh", argv=["2000", "1500"])["output"]["stdout"] == "x" * 2000


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"argv": "a b"}, "'argv' is a string, and a list of strings is expected"),
        ({"argv": ["a", 1]}, "'argv[1]' is an integer"),
        ({"argv": ["a\0b"]}, "contains a NUL character"),
        ({"stdin": {"a": 1}}, "'stdin' is an object"),
        ({"env": ["A=b"]}, "'env' is an array"),
        ({"env": {"A": 1}}, "'env.A' is an integer"),
        ({"env": {"LD_PRELOAD": "/x.so"}}, "'LD_PRELOAD', which changes which code runs"),
        ({"env": {"path": "/x"}}, "'path', which changes which code runs"),
        ({"env": {"A-B": "x"}}, "'A-B', which is not a name of a variable"),
        ({"args": ["a"]}, "Unknown argument 'args'"),
    ],
)
def test_invalid_script_args_fail_run(server: Server, skill: str, args: dict[str, Any], words: str) -> None:
    answer = server.rpc("execute_skill", name=skill, script="scripts/show.py", args=args)
    assert (answer["status"], answer["error"]["type"]) == ("failed", "ValidationError")
    assert words in answer["error"]["message"]


def test_a_file_that_is_no_script_fails_the_run_and_says_why(server: Server, skill: str) -> None:
    answer = run(server.rpc, skill, "data/notes.txt")
    assert answer["status"] == "failed"
    assert "no '#!' line" in answer["error"]["message"]


def test_unknown_script_error_lists_available_scripts(server: Server, skill: str) -> None:
    error = server.rpc.error("execute_skill", name=skill, script="scripts/shows.py")
    assert (error["code"], error["data"]["type"]) == (-32003, "file_not_found")
    assert "scripts/show.py" in error["data"]["hint"]
    for path in ("../x.py", "/etc/passwd", "a\\b"):
        assert server.rpc.error("execute_skill", name=skill, script=path)["code"] == -32602


def test_a_skill_with_an_entrypoint_runs_nothing_else(server: Server) -> None:
    error = server.rpc.error("execute_skill", name="text.csv.profile", script="code/main.py")
    assert (error["code"], error["data"]["type"], error["data"]["hint"]) == (
        -32602,
        "not_executable",
        "Leave 'script' out.",
    )


def test_execute_skill_hints_at_script_if_skill_has_no_entrypoint(server: Server, skill: str) -> None:
    error = server.rpc.error("execute_skill", name=skill)
    assert error["code"] == -32602
    assert "'script'" in error["data"]["hint"]


def test_the_environment_of_a_skill_with_permissions_is_its_own(server: Server, new_name: str) -> None:
    """Otherwise, any authorised caller could run other code with the secrets and hosts of the skill."""
    name = publish(server.rpc, new_name, permissions={"network": ["https://example.com"]})
    answer = run(server.rpc, name, "scripts/show.py", env={"COLOUR": "red"})
    assert (answer["status"], answer["error"]["type"]) == ("failed", "ValidationError")
    assert "its environment is its own" in answer["error"]["message"]
    assert run(server.rpc, name, "scripts/show.py", argv=["x"])["status"] == "completed"


def test_execute_skill_hides_scripts_of_invisible_skill(org: Server, new_name: str) -> None:
    owner = Caller(org.url, Who("owner", "read run publish", f"{new_name}.*"))
    other = Caller(org.url, Who("other", "read run"))
    name = publish(owner, f"{new_name}.x")
    owner("set_visibility", name=name, visibility="private")
    assert run(owner, name, "scripts/uses.py")["output"]["stdout"] == "beside\n"
    assert other.error("execute_skill", name=name, script="scripts/uses.py")["data"]["type"] == "skill_not_found"


def test_the_command_line_runs_scripts(server: Server, skill: str) -> None:
    arguments = ("run", skill, "--script", "scripts/show.py", "--json", "--url", server.url)
    ran = skillery(*arguments, "--stdin", "-", "--", "a", "--b", stdin=b"piped")
    assert json.loads(ran.json["output"]["stdout"])[:2] == [["a", "--b"], "piped"]
    failing = ("run", skill, "--script", "scripts/show.py", "--arg", 'env={"STATUS": "3"}', "--url", server.url)
    failed = skillery(*failing)
    assert failed.code == 1
    assert "\nstdout: [[], " in failed.out
    assert "\nstderr: noted\nfile: report.json blob:" in failed.out
    assert skillery(*failing, "--json").code == 1
    refused = skillery("run", skill, "too", "much", "--url", server.url)
    assert refused.code == 2
    assert "'too' requires --script PATH or --module NAME" in refused.err


MODULES = {
    "scripts/package_skill.py": """
        import json, os, sys
        from scripts.shared import NAME
        from .shared import NAME as same
        print(json.dumps([__name__, NAME, same, os.getcwd(), os.environ["SKILL_DIR"], sys.argv[1:]]))
    """,
    "scripts/shared.py": "NAME = 'shared'",
    "scripts/show.py": """
        import os
        from scripts.shared import NAME
        print(NAME, os.getcwd(), os.path.exists("data.txt"))
    """,
    "tool/__main__.py": "print('tool')",
    "data.txt": "data",
}


def with_modules(rpc: Rpc, name: str, **more: Any) -> str:
    files = [{"path": path, "content": textwrap.dedent(text)} for path, text in MODULES.items()]
    manifest = {"name": name, "version": "1.0.0", "description": "What it does.", "kind": "instruction", **more}
    rpc("create_skill", manifest=manifest, skill_md=f"# {name}\n", files=files)
    return name


def test_modules_and_scripts_run_in_requested_cwd(server: Server, new_name: str) -> None:
    rpc, name = server.rpc, with_modules(server.rpc, new_name)
    root = f"/skills/{name}"
    for cwd, folder in (("workspace", "/workspace"), ("skill", root)):
        ran = rpc("execute_skill", name=name, module="scripts.package_skill", cwd=cwd, args={"argv": ["a"]})
        assert json.loads(ran["output"]["stdout"]) == ["__main__", "shared", "shared", folder, root, ["a"]]
        ran = rpc("execute_skill", name=name, script="scripts/show.py", cwd=cwd)
        assert ran["output"]["stdout"] == f"shared {folder} {folder == root}\n"
    assert rpc("execute_skill", name=name, module="tool")["output"]["stdout"] == "tool\n"
    assert rpc("execute_skill", name=name, module="tool")["summary"].startswith("tool/__main__.py exited with status 0")


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        ({"module": "scripts.absent"}, -32003, "scripts/absent.py"),
        ({"module": "scripts/show.py"}, -32602, "not a name of a Python module"),
        ({"module": "scripts..show"}, -32602, "not a name of a Python module"),
        ({"module": "tool", "script": "scripts/show.py"}, -32602, "both given"),
        ({"cwd": "skill"}, -32602, "an entrypoint starts in /workspace"),
        ({"script": "scripts/show.py", "cwd": "/"}, -32602, "cwd"),
    ],
)
def test_invalid_module_script_or_cwd_is_refused(
    sqlite_server: Server, new_name: str, asked: dict[str, str], code: int, words: str
) -> None:
    error = sqlite_server.rpc.error("execute_skill", name=with_modules(sqlite_server.rpc, new_name), **asked)
    assert error["code"] == code
    assert words in error["message"]


def test_the_command_line_runs_modules(sqlite_server: Server, new_name: str) -> None:
    name = with_modules(sqlite_server.rpc, new_name)
    arguments = ("run", name, "--module", "scripts.package_skill", "--cwd", "skill", "--json")
    ran = skillery(*arguments, "--url", sqlite_server.url, "--", "a", "-b")
    assert json.loads(ran.json["output"]["stdout"])[3:] == [f"/skills/{name}", f"/skills/{name}", ["a", "-b"]]
