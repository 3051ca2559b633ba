"""Turns and input tokens of agents that have never seen their tools: Skillery, FastMCP and plain folders.

Scripted agents solve the ten tasks of the code contract and ten tasks that need one skill. The input tokens of a turn
are those of all that is sent: the system prompt, the tools, and the messages so far. The agents differ only in the way
to the skill: all of them write the same code and the same args, and make no mistakes.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import peers
from bench.agent_tasks import TASKS, AgentSkill, SkillTask, skills
from bench.load import call, send
from bench.report import Report
from skillery.client import Client
from tests.conftest import Rpc, Server
from tests.runs import test_code_contract as contract
from tests.support.mcp_client import LEGACY, message_of
from tests.support.mcp_client import Mcp as McpClient

SIZES = (20, 2000)
PACKAGES = ("fastmcp", "quicktok-v1")
"""quicktok contains the vocabulary of its tokenizers, so that no download is needed."""
COUNTS = """
import json, sys
from quicktok import get_encoding

encode = get_encoding("o200k_base").encode
print(json.dumps([len(encode(text)) for text in json.load(sys.stdin)]))
"""
FASTMCP = """
import json, sys
from typing import Annotated, Any
from fastmcp import FastMCP
from pydantic import Field

TYPES = {"string": "str", "number": "float", "integer": "int", "boolean": "bool", "object": "dict", "array": "list"}
TYPES |= {"blob": "str", "any": "Any"}
server = FastMCP("peer")


def param(name, one):
    given = f"Annotated[{TYPES[one['type']]}, Field(description={one['description']!r})]"
    return f"{name}: {given}" if one.get("required") else f"{name}: {given} = {one.get('default')!r}"


for skill in json.load(open(sys.argv[2])):
    scope = {"Annotated": Annotated, "Field": Field, "Any": Any}
    exec(skill["code"], scope)
    names = ", ".join(f"{name!r}: {name}" for name in skill["inputs"])
    function = skill["name"].replace(".", "_").replace("-", "_")
    ordered = sorted(skill["inputs"].items(), key=lambda one: not one[1].get("required"))
    params = ", ".join(param(*one) for one in ordered)
    exec(f"def {function}({params}) -> Any:\\n    {skill['description']!r}\\n    return main({{{names}}})", scope)
    server.tool(scope[function])


@server.tool
def run_python(
    code: Annotated[str, Field(description="Code that defines main(args)")],
    args: Annotated[dict, Field(description="Argument of main")] = {},
) -> Any:
    "Run Python code in a new process, call its function main, and return the result."
    scope = {}
    exec(code, scope)
    return scope["main"](args)


server.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), stateless_http=True, show_banner=False)
"""
FOLDERS_PROMPT = """\
You are an agent with a folder of skills. A skill is a folder with instructions in SKILL.md, and scripts. If a skill
fits the task, read its SKILL.md first, then do what it says.

Skills:
"""


def _tool(name: str, description: str, **params: str) -> dict[str, Any]:
    properties = {param: {"type": "string", "description": told} for param, told in params.items()}
    schema = {"type": "object", "properties": properties, "required": list(params)}
    return {"name": name, "description": description, "input_schema": schema}


FOLDER_TOOLS = [
    _tool("read_file", "Read a text file of the workspace.", path="Path of the file"),
    _tool("write_file", "Write a text file of the workspace.", path="Path of the file", content="The new content"),
    _tool("bash", "Run a command in a shell and return its output.", command="The command"),
]


class Talk:
    """The conversation of one agent about one task."""

    def __init__(self, head: str, question: str) -> None:
        """`head` is what each turn begins with: the system prompt and the tools."""
        self.parts = [head, question]
        self.ends: list[int] = []
        """For each turn, the number of parts that were sent."""

    def call(self, name: str, args: object, result: str) -> None:
        self.ends.append(len(self.parts))
        self.parts += [json.dumps({"name": name, "input": args}, ensure_ascii=False), result]

    def answer(self) -> None:
        self.ends.append(len(self.parts))


class Cost(NamedTuple):
    turns: int
    characters: int
    tokens: int


Agent = Callable[["SkillTask | CodeTask"], Talk]


class CodeTask(NamedTuple):
    """A task of the code contract, with the call that solves it. `content` is the content of its blob, or ""."""

    question: str
    call: dict[str, Any]
    content: str
    output: Any


def measure(report: Report, folder: Path, small: bool) -> None:
    python = peers.install(folder, PACKAGES)
    rows = []
    for size in SIZES:
        with contextlib.ExitStack() as stack:
            agents = _agents(stack, python, folder / str(size), size)
            code = _code_tasks(Rpc(stack.enter_context(_server(folder / f"contract{size}", [])).url))
            for name, agent in agents.items():
                for kind, tasks in (("one skill", TASKS), ("code", code)):
                    costs = _costs(python, [agent(task) for task in tasks])
                    rows.append([size, name, kind, *_summary(costs)])
    report.heading("Agents")
    report.text(
        "Scripted agents that have not seen their tools before: ten tasks that one skill solves, and the ten tasks of "
        "the code contract. The tokens are the input tokens of all turns of a task together (o200k_base). Skillery is "
        "used over `skillery.client`, FastMCP offers each skill as a tool and runs code in a tool, and the plain "
        "folders have the names and descriptions of all skills in the system prompt."
    )
    head = ["skills", "agent", "tasks", "turns, most", "tokens, mean", "tokens, most", "characters, mean"]
    report.table(head, rows)


def _summary(costs: Sequence[Cost]) -> list[object]:
    mean = sum(cost.tokens for cost in costs) / len(costs)
    characters = sum(cost.characters for cost in costs) / len(costs)
    return [max(c.turns for c in costs), f"{mean:,.0f}", f"{max(c.tokens for c in costs):,}", f"{characters:,.0f}"]


def _costs(python: Path, talks: Sequence[Talk]) -> list[Cost]:
    parts = [part for talk in talks for part in talk.parts]
    counted = subprocess.run(
        [python, "-c", COUNTS], input=json.dumps(parts), capture_output=True, text=True, check=True
    )
    tokens = iter(json.loads(counted.stdout))
    costs = []
    for talk in talks:
        sizes = [(len(part), next(tokens)) for part in talk.parts]
        sent = [sizes[:end] for end in talk.ends]
        characters, summed = (sum(one[at] for turn in sent for one in turn) for at in (0, 1))
        costs.append(Cost(len(sent), characters, summed))
    return costs


def _agents(stack: contextlib.ExitStack, python: Path, folder: Path, size: int) -> dict[str, Agent]:
    offered = skills(size)
    folder.mkdir()
    server = stack.enter_context(_server(folder / "home", offered))
    client = stack.enter_context(Client(server.url))
    offered += _bundled(Rpc(server.url), {one.name for one in offered})
    assert len(offered) == size
    fastmcp = stack.enter_context(_fastmcp(python, folder, offered))
    return {
        "Skillery": _skillery_agent(client, size),
        "FastMCP": _fastmcp_agent(fastmcp),
        "plain folders": _folder_agent(folder / "plain", offered),
    }


@contextlib.contextmanager
def _server(home: Path, offered: Sequence[AgentSkill]) -> Iterator[Server]:
    server = Server(home)
    try:
        if offered:
            send(server.url, lambda number: _publish(offered[number]), len(offered), 4)
        yield server
    finally:
        server.stop()


def _bundled(rpc: Rpc, published: set[str]) -> list[AgentSkill]:
    """Return the bundled skills for the peers, which never call them."""
    rows = rpc("list_skills", namespace="text", detail="summary", limit=1000)["skills"]
    rows += rpc("list_skills", namespace="data", detail="summary", limit=1000)["skills"]
    bundled = [one for one in rows if one["name"] not in published]
    return [AgentSkill(one["name"], one["description"], one["inputs"], "return None", True) for one in bundled]


def _publish(skill: AgentSkill) -> bytes:
    files = [{"path": "code/main.py", "content": skill.code}]
    return call("create_skill", manifest=skill.manifest, skill_md=skill.skill_md, files=files)


def _code_tasks(rpc: Rpc) -> list[CodeTask]:
    """Return the tasks of the code contract with the calls that the errors of their first attempts lead to."""
    found = []
    for name, task in contract.TASKS.items():
        agent, message = contract.Agent(rpc), ""
        if task.first is not None:
            message = agent.run(task.first)["error"]["message"]
        asked = task.correct(task.first or {}, message, agent)
        needs_blob = "input_blobs" in asked or "files" in asked
        found.append(CodeTask(name, asked, "a,b\n1,2\n3,4\n" if needs_blob else "", task.output))
    return found


# -- the agents --------------------------------------------------------------------------------------------------------


def _skillery_agent(client: Client, size: int) -> Agent:
    head = client.prompt() + json.dumps(client.tools("anthropic"), ensure_ascii=False)

    def use(talk: Talk, name: str, args: dict[str, Any]) -> Any:
        told = client.handle({"type": "tool_use", "id": "toolu_1", "name": name, "input": args})
        assert not told["is_error"], told
        talk.call(name, args, told["content"])
        return json.loads(told["content"])

    def solve(task: SkillTask | CodeTask) -> Talk:
        talk = Talk(head, task.question)
        if isinstance(task, SkillTask):
            if f"- {task.skill.name}(" not in head:
                hits = use(talk, "search_skills", {"query": task.words})["skills"][:2]
                chosen = next(hit for hit in hits if hit["name"] == task.skill.name)
                assert all(name in chosen["compact_inputs"] for name in task.args)
            ran = use(talk, "execute_skill", {"name": task.skill.name, "args": task.args})
        else:
            asked = {"language": "python", **task.call}
            if task.content:
                blob_id = use(talk, "create_blob", {"content": task.content, "kind": "text/csv"})["blob_id"]
                asked |= {"args": {**asked.get("args", {}), "blob_id": blob_id}, **_with_blob(asked, blob_id)}
            ran = use(talk, "run_code", asked)
        assert ran["output"] == task.output, ran
        talk.answer()
        return talk

    return solve


def _with_blob(asked: dict[str, Any], blob_id: str) -> dict[str, Any]:
    if "files" in asked:
        return {"files": [{**file, "blob_id": blob_id} for file in asked["files"]]}
    return {"input_blobs": [blob_id]}


def _fastmcp_agent(url: str) -> Agent:
    mcp = McpClient(Rpc(url), LEGACY)
    listed = message_of(mcp.send("tools/list", {}))["result"]["tools"]
    offered = [
        {"name": one["name"], "description": one["description"], "input_schema": one["inputSchema"]} for one in listed
    ]
    head = "You are an agent with tools." + json.dumps(offered, ensure_ascii=False)

    def solve(task: SkillTask | CodeTask) -> Talk:
        talk = Talk(head, task.question)
        name, args = "run_python", {}
        if isinstance(task, SkillTask):
            name, args = task.skill.name.replace(".", "_").replace("-", "_"), task.args
            result = message_of(mcp.send("tools/call", {"name": name, "arguments": args}))["result"]
            assert not result.get("isError"), result
            text = "".join(part["text"] for part in result["content"])
        else:
            args, text = _plain_code(task), json.dumps(task.output)
        talk.call(name, args, text)
        talk.answer()
        return talk

    return solve


def _plain_code(task: CodeTask) -> dict[str, Any]:
    """Return the code and args for a tool without blobs: the content of a blob is an argument."""
    content = {"content": task.content} if task.content else {}
    return {"code": task.call["code"], "args": {**task.call.get("args", {}), **content}}


def _folder_agent(folder: Path, offered: Sequence[AgentSkill]) -> Agent:
    for skill in offered:
        place = folder / "skills" / skill.name
        (place / "scripts").mkdir(parents=True)
        (place / "SKILL.md").write_text(skill.skill_md)
        (place / "scripts" / "main.py").write_text(skill.script)
    listed = "".join(f"- {skill.name}: {skill.description}\n" for skill in offered)
    head = FOLDERS_PROMPT + listed + json.dumps(FOLDER_TOOLS)

    def solve(task: SkillTask | CodeTask) -> Talk:
        talk = Talk(head, task.question)
        if isinstance(task, SkillTask):
            path = f"skills/{task.skill.name}/SKILL.md"
            talk.call("read_file", {"path": path}, (folder / path).read_text())
            args = json.dumps(task.args)
            command = f"python skills/{task.skill.name}/scripts/main.py '{args}'"
            ran = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, check=True)
            assert json.loads(ran.stdout) == task.output, ran
            talk.call("bash", {"command": command}, ran.stdout)
        else:
            code = _plain_code(task)
            command = f"python - <<'END'\n{code['code']}\nprint(main({code['args']!r}))\nEND"
            talk.call("bash", {"command": command}, json.dumps(task.output))
        talk.answer()
        return talk

    return solve


# -- the peers ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _fastmcp(python: Path, folder: Path, offered: Sequence[AgentSkill]) -> Iterator[str]:
    program, listed = folder / "peer.py", folder / "skills.json"
    program.write_text(FASTMCP)
    listed.write_text(
        json.dumps(
            [
                {"name": one.name, "description": one.description, "inputs": one.inputs, "code": one.code}
                for one in offered
            ]
        )
    )
    port = peers.free_port()
    command = [str(python), str(program), str(port), str(listed)]
    with peers.running(command, folder / "peer.log", port) as url:
        yield url
