"""The texts that teach a model to write code: a scripted agent that knows only these texts solves ten tasks.

Each task has the code that a reader of the texts would write, and a wrong first attempt. The error message is enough to
correct the attempt. If the message contains the correction, the test uses it unchanged.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from skillery.client_source.model_tools import CONTRACT
from skillery.methods.table import METHODS
from tests.conftest import Rpc
from tests.support.mcp_client import Mcp

Call = dict[str, Any]
Correct = Callable[[Call, str, "Agent"], Call]
Publish = Callable[..., dict[str, Any]]


class Agent:
    """A client that creates a blob and runs code with it."""

    def __init__(self, rpc: Rpc) -> None:
        self.rpc = rpc
        self.blob_id: str = rpc("create_blob", content="a,b\n1,2\n3,4\n", kind="text/csv")["blob_id"]

    def run(self, asked: Call) -> Call:
        filled = {"language": "python", **asked, "args": {**asked.get("args", {}), "blob_id": self.blob_id}}
        ran: Call = self.rpc("run_code", **filled)
        return ran


class Task(NamedTuple):
    """One task. `told` lists texts that the correct code needs, `said` lists texts in the error of the first
    attempt.
    """

    told: tuple[str, ...]
    first: Call | None
    said: tuple[str, ...]
    correct: Correct
    output: Any


def write(**asked: Any) -> Correct:
    """Return a function that makes the correct call, as a reader of the texts writes it."""
    return lambda first, message, agent: {**(first or {}), **asked}


def as_told(first: Call, message: str, agent: Agent) -> Call:
    """Return the call with the code lines that the error message contains."""
    return {**first, "code": message.partition("these three lines:\n")[2]}


def mounted(first: Call, message: str, agent: Agent) -> Call:
    found = re.search(r"mount_skills=(\[[^]]*\])", message)
    assert found is not None
    return {**first, "mount_skills": ast.literal_eval(found[1])}


def with_blob(first: Call, message: str, agent: Agent) -> Call:
    return {**first, "input_blobs": [agent.blob_id]}


def with_file(first: Call, message: str, agent: Agent) -> Call:
    found = re.search(r"files=\[\{'path': '([^']*)'", message)
    assert found is not None
    return {**first, "files": [{"path": found[1], "blob_id": agent.blob_id}]}


REPORT = "def main(args):\n    {}open('{}', 'w').write('done')\n    return True"
TASKS = {
    "add two numbers": Task(
        ("def main(args):",),
        {"code": "print(2+2)"},
        ("def main(args):\n    result = 2+2\n    return result",),
        as_told,
        4,
    ),
    "use the arguments": Task(
        ("`args` is the object `args` of the call",),
        {"code": "def main(a, b):\n    return a + b", "args": {"a": 1, "b": 2}},
        ("one argument, the object args: def main(args):",),
        write(code="def main(args):\n    return args['a'] + args['b']"),
        3,
    ),
    "return unique words": Task(
        ("Turn sets into lists",),
        {"code": "def main(args):\n    return set('b a b'.split())"},
        ("is not JSON", "sorted(…)"),
        write(code="def main(args):\n    return sorted(set('b a b'.split()))"),
        ["a", "b"],
    ),
    "profile a table with a skill": Task(
        ("`mount_skills`", "from skills.text.csv.profile import main as profile"),
        {
            "code": "from skills.text.csv.profile import main as profile\n"
            "def main(args):\n    return profile({'sample': True})['rows'] > 0"
        },
        ("mount the skill",),
        mounted,
        True,
    ),
    "read a blob": Task(
        ("`input_blobs`", 'open("/blobs/" + args["blob_id"]).read()'),
        {"code": "def main(args):\n    return open('/blobs/' + args['blob_id']).read().count('\\n')"},
        ("input_blobs",),
        with_blob,
        3,
    ),
    "read a file by name": Task(
        (),
        {"code": "def main(args):\n    return open('in/data.csv').readline().strip()"},
        ("the workspace starts empty",),
        with_file,
        "a,b",
    ),
    "leave a report": Task(
        ('os.makedirs("out", exist_ok=True)', "`/workspace/out`"),
        {"code": REPORT.format("", "/output/report.txt")},
        ("/workspace", "os.makedirs('out', exist_ok=True)"),
        write(code="import os\n" + REPORT.format("os.makedirs('out', exist_ok=True)\n    ", "out/report.txt")),
        True,
    ),
    "write a blob": Task(
        ("from runtime import blobs", "blobs.write_text(text)"),
        None,
        (),
        write(code="from runtime import blobs\ndef main(args):\n    return blobs.write_text('x' * 9000)[:5]"),
        "blob:",
    ),
    "stop early": Task(
        ("`sys.exit`",),
        {"code": "import sys\ndef main(args):\n    print(42)\n    sys.exit()"},
        ("return a value from main instead",),
        write(code="def main(args):\n    return 42"),
        42,
    ),
    "fetch a page": Task(
        ("There is no network",),
        {
            "code": "import urllib.request\ndef main(args):\n    return urllib.request.urlopen('https://example.com').status"
        },
        ("no network", "mounted skill"),
        write(code="def main(args):\n    return 'there is no network'"),
        "there is no network",
    ),
}


@pytest.mark.parametrize("name", TASKS)
def test_an_agent_that_knows_only_the_texts_solves_the_task(sqlite_rpc: Rpc, name: str) -> None:
    task, agent, message = TASKS[name], Agent(sqlite_rpc), ""
    guide = sqlite_rpc("load_skills_protocol_guide")["content"]
    assert [words for words in task.told if words not in guide] == []

    if task.first is not None:
        failed = agent.run(task.first)
        message = failed["error"]["message"]
        assert failed["status"] == "failed"
        assert [words for words in task.said if words not in message] == [], message
    ran = agent.run(task.correct(task.first or {}, message, agent))

    assert (ran["status"], ran["output"]) == ("completed", task.output), ran
    if name == "leave a report":
        assert [file["path"] for file in ran["files"]] == ["report.txt"]


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("total = 3", "def main(args):\n    total = 3\n    return total"),
        ("a = 1\nprint(a + 1)", "def main(args):\n    ...  # your code, indented by four spaces\n    return a + 1"),
        ("import os", "def main(args):\n    ...  # your code, indented by four spaces\n    return result"),
        (
            "import json\nprint(json.dumps([1, 2]))",
            "def main(args):\n    ...  # your code, indented by four spaces\n    return [1, 2]",
        ),
    ],
)
def test_a_forgotten_function_gets_three_lines(sqlite_rpc: Rpc, code: str, lines: str) -> None:
    error = sqlite_rpc("run_code", language="python", code=code)["error"]
    assert (error["type"], error["message"].partition("lines:\n")[2]) == ("AttributeError", lines)


@pytest.mark.parametrize(
    ("code", "skill"),
    [
        ("from skills import mounted\nfrom skills import other", "other"),
        ("from skills import mounted, other", "other"),
        ("from skills import mounted\nimport skills.other.part", "other.part"),
        ("from skills import mounted\n__import__('skills.other')", "other"),
        ("from skills.text import lines", "text.lines"),
    ],
)
def test_a_failed_import_names_the_skill_to_mount(
    sqlite_rpc: Rpc, sqlite_publish: Publish, code: str, skill: str
) -> None:
    skills = ["mounted", "text.words"]
    for name in skills:
        sqlite_publish(name)
    error = sqlite_rpc("run_code", language="python", code=code, mount_skills=skills)["error"]
    assert f"mount_skills=['{skill}']" in error["message"]


@pytest.mark.parametrize("path", ["/etc/a", "/a.txt", "/skills/a", "/mnt/data/a", "/blobs/../a"])
def test_a_write_to_a_read_only_path_names_the_workspace(sqlite_rpc: Rpc, path: str) -> None:
    code = f"def main(args):\n    open({path!r}, 'w')"
    assert "below /workspace" in sqlite_rpc("run_code", language="python", code=code)["error"]["message"]


def test_errors_of_code_name_the_remedy(sqlite_rpc: Rpc) -> None:
    blob_id = sqlite_rpc("create_blob", content="a", kind="text/plain")["blob_id"]
    tries: dict[str, tuple[dict[str, Any], str]] = {
        "fences": ({"code": "```python\ndef main(args):\n    return 1\n```"}, "without the lines of ```"),
        "return": ({"code": "return 3"}, "line 1) (write the lines as a function, indented below def main(args):)"),
        "no input blob": (
            {"code": f"from runtime import blobs\ndef main(args):\n    return blobs.read_text('{blob_id}')"},
            "pass its id in input_blobs",
        ),
        "mount without skills.": (
            {
                "code": "from text.csv.profile import main as profile\ndef main(args):\n    return 1",
                "mount_skills": ["text.csv.profile"],
            },
            "write from skills.text.csv.profile import",
        ),
        "time": (
            {"code": "def main(args):\n    while True: pass", "limits": {"timeout_ms": 200}},
            "larger limits={'timeout_ms': ...}",
        ),
        "memory": ({"code": "def main(args):\n    return len('x' * (3 << 30))"}, "larger limits={'memory_mb': ...}"),
    }
    errors = {name: sqlite_rpc("run_code", language="python", **asked)["error"] for name, (asked, _) in tries.items()}

    assert {name: errors[name] for name, (_, told) in tries.items() if told not in errors[name]["message"]} == {}


def test_a_summary_of_several_lines_refers_to_the_message(sqlite_rpc: Rpc) -> None:
    ran = sqlite_rpc("run_code", language="python", code="print(1)")
    assert ran["summary"].endswith("write these three lines (error.message has more)")


def test_the_guide_is_the_text_of_the_specification_and_then_the_contract(sqlite_rpc: Rpc) -> None:
    content = sqlite_rpc("load_skills_protocol_guide")["content"]
    before, found, after = content.partition("## Code for `run_code`")
    assert before.rstrip().endswith("- Use deterministic skill discovery (no semantic search in `list_skills`)")
    assert found + after == CONTRACT
    assert "def main(args):" in sqlite_rpc.http.get("/prompt").text


def test_the_guide_and_the_prompt_name_only_params_of_the_default_schemas(sqlite_rpc: Rpc) -> None:
    schemas = sqlite_rpc.http.get("/tools", params={"format": "anthropic"}).json()
    params = {name for tool in schemas for name in tool["input_schema"]["properties"]}
    hidden = {field for method in METHODS.values() for field in method.params.__struct_encode_fields__} - params

    for text in (sqlite_rpc("load_skills_protocol_guide")["content"], sqlite_rpc.http.get("/prompt").text):
        assert {name for name in hidden if f"`{name}`" in text or f"`{name}:" in text} == set()
        assert "search_skills" not in text
    wider = sqlite_rpc.http.get("/prompt?include=search_skills,code_contract").text
    assert "`search_skills`" in wider
    assert "`files`" in wider


def test_contract_text_is_at_most_half_its_former_length() -> None:
    assert len(CONTRACT) <= 1549 / 2


def test_schemas_explain_the_contract_to_connections_that_ask(sqlite_rpc: Rpc) -> None:
    plain = {tool["name"]: tool for tool in sqlite_rpc.http.get("/tools?format=mcp").json()}
    told = {tool["name"]: tool for tool in sqlite_rpc.http.get("/tools?format=mcp&include=code_contract").json()}
    of_mcp = {tool["name"]: tool for tool in Mcp(sqlite_rpc, tools="code_contract").all("tools/list", "tools")}
    assert of_mcp["run_code"]["inputSchema"] == told["run_code"]["inputSchema"]
    assert {name for name in plain if told[name] != plain[name]} == {"run_code"}
    assert plain.keys() == told.keys()
    shown = told["run_code"]["inputSchema"]["properties"]
    assert "def main(args)" in shown["code"]["description"]
    assert "from skills.text.csv.profile import" in shown["mount_skills"]["description"]
    params = next(one for one in openrpc(sqlite_rpc)["methods"] if one["name"] == "run_code")["params"]
    of_method = {param["name"]: param["schema"] for param in params}
    assert shown.keys() <= of_method.keys()
    assert shown["files"]["items"]["required"] == ["path", "blob_id"]
    assert shown["files"]["items"]["properties"].keys() == run_file(sqlite_rpc)["properties"].keys()


def openrpc(rpc: Rpc) -> dict[str, Any]:
    document: dict[str, Any] = rpc.http.get("/openrpc.json").json()
    return document


def run_file(rpc: Rpc) -> dict[str, Any]:
    schema: dict[str, Any] = openrpc(rpc)["components"]["schemas"]["RunFile"]
    return schema
