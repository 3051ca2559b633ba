"""The import check: the entrypoint is imported in the sandbox before a version is published."""

from __future__ import annotations

import io
import json
import tomllib
import zipfile
from typing import Any

import pytest

from tests.conftest import IMPORT_CHECK, Rpc, Server, manifest, skill_files

REFUSED, NOT_FOUND = -32007, -32003
MAIN = "def main(args): return 1\n"
FOUND_EXAMPLE = '[[examples]]\nargs = { name = "Ada" }\nexpect = { greeting = "Hello, Ada!" }'


def asked(name: str, code: str, files: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    return {"manifest": manifest(name, **more), "skill_md": "# A\n", "files": skill_files(code, **(files or {}))}


def finding(rpc: Rpc, params: dict[str, Any]) -> tuple[str, str | None, int | None, str]:
    """Return severity, file, line and message of the only finding of the import check."""
    checked = rpc("check_skill", **params)
    (found,) = (one for one in checked["findings"] if one["rule"] == "entrypoint_import")
    assert checked["ok"] is (found["severity"] != "error")
    return found["severity"], found["file"], found["line"], found["message"]


@pytest.mark.parametrize(
    ("code", "line", "said"),
    [
        ("import os\n\n1 / 0\n" + MAIN, 3, "ZeroDivisionError: division by zero"),
        ("print('x' * 100_000)\nraise SystemExit(0)\n" + MAIN, 2, "calls sys.exit"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n" + MAIN, 1, "ProcessKilled"),
        ("import os\nos._exit(0)\n" + MAIN, 1, "ProcessExited"),
        ("import os\nos.closerange(3, 99)\n" + MAIN, 1, ""),
        ("from .helper import x\n" + MAIN, 1, "the bundle has no code/helper.py"),
        ("import os\nfrom ..up import x\n" + MAIN, 2, "outside the skill"),
        ("\ndef main(): return 1\n", 2, "main() takes no argument, but a run passes one argument"),
        ("\ndef main(a, b): return 1\n", 2, "missing a required argument: 'b'"),
        ("def main(*, a): return 1\n", 1, "def main(args):"),
        ("main = 3\n", 1, "main is not a function"),
        ("import no_such_thing_at_all\n" + MAIN, 1, "no_such_thing_at_all"),
    ],
)
def test_code_that_cannot_run_is_not_published(sqlite_rpc: Rpc, new_name: str, code: str, line: int, said: str) -> None:
    params = asked(f"{new_name}.a", code)
    error = sqlite_rpc.error("create_skill", **params)
    assert error["code"] == REFUSED, error
    first = error["data"]["findings"][0]
    assert (first["file"], first["line"]) == ("code/main.py", line), error
    assert said in first["message"]
    assert sqlite_rpc.error("describe_skill", name=f"{new_name}.a")["code"] == NOT_FOUND
    assert sqlite_rpc("check_skill", **params)["findings"] == error["data"]["findings"]


@pytest.mark.parametrize(
    ("code", "permissions", "line", "said"),
    [
        ("import os\nK = os.environ['API_KEY']\n" + MAIN, {"secrets": ["API_KEY"]}, 2, "needs the variable 'API_KEY'"),
        ("import os\nK = os.environ['API_KEY']\n" + MAIN, {}, 2, "permissions.secrets does not list it"),
        ("import os\nK = os.getenv('A_KEY').strip()\n" + MAIN, {"secrets": ["A_KEY"]}, 2, "it may need"),
        (
            "import urllib.request\n\nurllib.request.urlopen('https://example.com')\n" + MAIN,
            {"network": ["https://example.com"]},
            3,
            "needs the network",
        ),
        ("import socket\nsocket.create_connection(('example.com', 80))\n" + MAIN, {}, 2, "lists no host"),
        ("from skills.other_name import x\n" + MAIN, {}, 1, "mounts both skills"),
        ("def main(args):\n    from .late import x\n", {}, 2, "the bundle has no code/late.py"),
    ],
)
def test_code_that_needs_more_than_an_import_has_gets_a_warning(
    sqlite_rpc: Rpc, new_name: str, code: str, permissions: dict[str, Any], line: int, said: str
) -> None:
    params = asked(f"{new_name}.a", code, **({"permissions": permissions} if permissions else {}))
    severity, file, at, message = finding(sqlite_rpc, params)
    assert (severity, file, at) == ("warning", "code/main.py", line), message
    assert said in message
    assert sqlite_rpc("create_skill", **params)["status"] == "published"


@pytest.mark.parametrize(
    "code",
    [
        "import functools, os\nif os.fork() == 0: os._exit(0)\nprint('hello')\n" + MAIN,
        "import os\nos.fork()\n" + MAIN,
        "import os\nos.makedirs('out')\nopen('out/a.txt', 'w').write('a')\n" + MAIN,
        "from runtime import blobs\nID = blobs.write_text('x')\n" + MAIN,
        "def main(args, *, limit=3, **more): return 1\n",
        "class Main:\n    def __call__(self, args): return 1\nmain = Main()\n",
        "import functools\n@functools.cache\ndef inner(a, b): return 1\nmain = functools.partial(inner, 1)\n",
        "from .beside import x\nfrom .deep.er import y\nfrom . import deep\n" + MAIN,
        "try:\n    from ._fast import x\nexcept ImportError:\n    x = None\n" + MAIN,
    ],
)
def test_code_that_runs_has_no_finding(sqlite_rpc: Rpc, new_name: str, code: str) -> None:
    files = {"code/beside.py": "x = 1\n", "code/deep/er.py": "from ..beside import x as y\n"}
    assert sqlite_rpc("check_skill", **asked(f"{new_name}.a", code, files))["findings"] == []


def test_an_import_that_hangs_is_refused_in_bounded_time(start_server: Any, new_name: str) -> None:
    rpc = start_server(env={"SKILLERY_PUBLISHING_IMPORT_SECONDS": "0.5"}).rpc
    code = "while True: pass\n" + MAIN
    error = rpc.error("create_skill", **asked(f"{new_name}.a", code))
    assert error["data"]["findings"][0]["message"].startswith("the import takes longer than 0.5 s")
    network = {"network": ["https://example.com"]}
    assert finding(rpc, asked(f"{new_name}.a", code, permissions=network))[0] == "warning"


def test_an_import_has_the_packages_of_the_skill(start_server: Any, wheelhouse: Any, new_name: str) -> None:
    rpc = start_server(env={"SKILLERY_PACKAGES_WHEELHOUSE": str(wheelhouse), **IMPORT_CHECK}).rpc
    runtime = {"entrypoint": "code/main.py", "dependencies": ["figures==1.0"]}
    params = asked(f"{new_name}.a", "import figures\nfigures.nothing\n" + MAIN, runtime=runtime)
    assert finding(rpc, params)[:3] == ("error", "code/main.py", 2)
    params = asked(f"{new_name}.a", "import figures\n" + MAIN, runtime=runtime)
    assert rpc("create_skill", **params)["status"] == "published"
    assert rpc("describe_skill", name=f"{new_name}.a", detail="full")["skill"].get("findings", []) == []


def test_a_server_without_the_check_publishes(packages_sqlite: Server, new_name: str) -> None:
    rpc = packages_sqlite.rpc
    assert rpc("create_skill", **asked(f"{new_name}.a", "1 / 0\n" + MAIN))["status"] == "published"


def test_imports_of_public_skills_do_not_import_their_code(sqlite_rpc: Rpc, new_name: str) -> None:
    toml = f'name = "{new_name}.a"\nversion = "1.0.0"\ndescription = "A."\n[runtime]\nentrypoint = "main.py"\n'
    files = {"a/skill.toml": toml, "a/SKILL.md": "# A\n", "a/main.py": "1 / 0\n" + MAIN}
    with io.BytesIO() as archive:
        with zipfile.ZipFile(archive, "w") as opened:
            for path, content in files.items():
                opened.writestr(path, content)
        report = sqlite_rpc.http.post("/import", content=archive.getvalue()).json()
    assert [one["outcome"] for one in report["skills"]] == ["published"], report


FAULTY = """\
name = "Bad Name"
version = "1.0"
kind = "acton"
tags = ["ok",
  3]

[runtime]
language = "ruby"
entrypoint = "code/none.py"
dependencies = [
  "pandas>=2",
  "==3",
]
limits = { memory_mb = -1, cpus = 0 }

[inputs]
sheet = { type = "text" }

[permissions]
network = ["https://a.example.com", "*"]

[[examples]]
args = {}

[[examples]]
expct = 1
expect_error = "not a type"
"""


def test_all_manifest_problems_are_reported_with_line_and_toml(
    sqlite_rpc: Rpc,
) -> None:
    given = [{"path": "skill.toml", "content": FAULTY}, {"path": "code/main.py", "content": MAIN}]
    error = sqlite_rpc.error("create_skill", manifest=tomllib.loads(FAULTY), skill_md="# A\n", files=given)
    found = {one["path"]: (one.get("line"), one.get("toml")) for one in error["data"]["problems"]}
    assert found == {
        "name": (1, 'name = "bad-name"'),
        "version": (2, 'version = "0.1.0"'),
        "description": (1, 'description = "What the skill does."'),
        "kind": (3, 'kind = "action"'),
        "tags[1]": (5, 'tags = ["csv", "report"]'),
        "runtime.language": (8, 'language = "python"'),
        "runtime.entrypoint": (9, None),
        "runtime.dependencies[1]": (12, 'dependencies = ["pandas>=2,<3"]'),
        "runtime.limits.memory_mb": (14, "memory_mb = 512"),
        "runtime.limits.cpus": (14, "cpus = 1.0"),
        "examples[1].expct": (25, FOUND_EXAMPLE),
        "examples[1].expect_error": (25, 'expect_error = "ValueError"'),
    }


def tool_params(name: str, handler: str, expected: int = 2) -> dict[str, Any]:
    text = {"type": "string", "description": "The text"}
    tools = [
        {"name": "count", "description": "Counts words.", "script": "tools/count.mjs", "parameters": {"text": text}}
    ]
    example = {"tool": "count", "args": {"text": "a b"}, "expect": {"words": expected}}
    files = [{"path": "tools.json", "content": json.dumps(tools)}, {"path": "tools/count.mjs", "content": handler}]
    stated = {"name": name, "version": "1.0.0", "description": "Counts.", "tool_examples": [example]}
    return {"manifest": stated, "skill_md": "# A\n", "files": files}


def test_examples_of_tools_run_before_publication(sqlite_rpc: Rpc, new_name: str) -> None:
    handler = "export default async ({ text }) => ({ words: text.split(' ').length });\n"
    error = sqlite_rpc.error("create_skill", **tool_params(f"{new_name}.a", handler, expected=3))
    assert error["data"]["findings"][0]["message"].startswith("tool example 1: output.words: expected 3, got 2")
    assert sqlite_rpc("create_skill", **tool_params(f"{new_name}.a", handler))["status"] == "published"
    assert sqlite_rpc("describe_skill", name=f"{new_name}.a")["skill"]["verified"] is True

    wrong = tool_params(f"{new_name}.b", handler)
    wrong["manifest"]["tool_examples"][0]["tool"] = "cuont"
    problem = sqlite_rpc.error("create_skill", **wrong)["data"]["problems"][0]
    assert problem["message"].endswith("is 'cuont', which is not a tool of tools.json (did you mean 'count'?)")


@pytest.mark.parametrize(
    ("handler", "line", "said"),
    [
        ("\nexport default async () => { const x = ; };\n", 2, "SyntaxError: Unexpected token ';'"),
        ("export const count = 1;\n", 1, "has no default export that is a function"),
        ("\nimport x from 'no-such-package';\nexport default () => 1;\n", 2, "imports 'no-such-package'"),
        ("import x from './no.mjs';\nexport default () => 1;\n", 1, "the bundle has no such file"),
        ("const a = undefined;\na.x;\nexport default () => 1;\n", 2, "cannot be imported: TypeError: Cannot read"),
        ("process.exit(0);\nexport default () => 1;\n", 1, "cannot be checked: ProcessExited"),
    ],
)
@pytest.mark.full(after=2)
def test_a_javascript_handler_that_cannot_run_is_not_published(
    sqlite_rpc: Rpc, new_name: str, handler: str, line: int, said: str
) -> None:
    error = sqlite_rpc.error("create_skill", **tool_params(f"{new_name}.a", handler))
    assert error["code"] == REFUSED, error
    found = error["data"]["findings"][0]
    assert (found["rule"], found["file"], found["line"]) == ("script_check", "tools/count.mjs", line), error
    assert said in found["message"]


def test_a_shell_script_with_a_syntax_error_is_not_published(sqlite_rpc: Rpc, new_name: str) -> None:
    params = asked(f"{new_name}.a", MAIN, {"scripts/run.sh": "if true; then\n"})
    found = sqlite_rpc.error("create_skill", **params)["data"]["findings"][0]
    assert (found["rule"], found["file"], found["line"]) == ("script_check", "scripts/run.sh", 2)


def test_the_line_of_a_fault_is_never_a_huge_number(sqlite_rpc: Rpc, new_name: str) -> None:
    code = "error = SyntaxError('no')\nerror.filename = __file__\nerror.lineno = 10**30\nraise error\n" + MAIN
    assert finding(sqlite_rpc, asked(f"{new_name}.a", code))[2] == 1
