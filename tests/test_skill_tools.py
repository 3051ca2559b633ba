"""Skill Tools by the front doors: published, listed, called in every language, defined and removed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from skillery.testing.sandbox.languages import with_node
from tests.conftest import Rpc, RpcError

NOT_FOUND, CONFLICT, INVALID_PARAMS = -32003, -32004, -32602
TEXT = {"type": "string", "description": "The text"}
COUNT = {
    "js": "export default async function handler(args) {\n"
    "  const words = args.text.trim().split(/\\s+/).filter(Boolean);\n"
    "  return { count: words.length, workDir: args.__workDir };\n}\n",
    "py": 'def handler(args):\n    return {"count": len(args["text"].split()), "workDir": args["__workDir"]}\n\n'
    'if __name__ == "__main__":\n    raise SystemExit("not called as a program")\n',
    "sh": 'echo "{\\"count\\": $(echo "$1" | grep -o word | wc -l), \\"workDir\\": \\"$PWD\\"}"\n',
}
PROGRAM = "import json, sys\nargs = json.load(sys.stdin)\nassert json.loads(sys.argv[1]) == args\nprint(json.dumps(sorted(args)))\n"


def tool(name: str = "count_words", script: str | None = None, **parameters: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "description": f"Does {name}", "parameters": parameters}
    return made if script is None else made | {"script": script}


def bundle(name: str, tools: object, version: str = "1.0.0", /, **files: str) -> dict[str, Any]:
    """The params of create_skill; keys of `files` are paths below scripts/, with `__` for the dot."""
    scripts = [{"path": f"scripts/{path.replace('__', '.')}", "content": text} for path, text in files.items()]
    given = tools if isinstance(tools, str) else json.dumps(tools)
    return {
        "manifest": {"name": name, "version": version, "description": f"Tools of {name}"},
        "skill_md": f"---\nname: {name}\n---\n# {name}\n",
        "files": [{"path": "tools.json", "content": given}, *scripts],
    }


@pytest.fixture
def offer(rpc: Rpc) -> Callable[..., dict[str, Any]]:
    def create(name: str, tools: object, version: str = "1.0.0", /, **files: str) -> dict[str, Any]:
        created: dict[str, Any] = rpc("create_skill", **bundle(name, tools, version, **files))
        return created

    return create


@pytest.mark.parametrize("language", [pytest.param("js", marks=with_node), "py", "sh"])
def test_a_handler_gets_its_args_and_its_result_is_the_answer(
    rpc: Rpc, offer: Callable[..., Any], new_name: str, language: str
) -> None:
    name = f"{new_name}-count"
    created = offer(name, [tool(script=f"scripts/h.{language}", text=TEXT)], **{f"h__{language}": COUNT[language]})
    answer = rpc("call_tool", name="count_words", skill=name, args={"text": "word word", "__workDir": "/etc"})

    assert answer["result"] == {"count": 2, "workDir": "/workspace"}
    assert answer["is_error"] is False
    assert answer["skill"] == {"name": name, "version": "1.0.0", "digest": created["digest"]}
    run = rpc("get_run", run_id=answer["run_id"])
    assert (run["method"], run["tool"], run["status"], run["output"]) == (
        "call_tool",
        "count_words",
        "completed",
        answer["result"],
    )
    assert rpc("describe_skill", name=name)["skill"]["kind"] == "action"


def test_define_smoke(rpc: Rpc, new_name: str) -> None:
    word = new_name.replace("-", "_").replace(".", "_")
    print(
        rpc(
            "define_tool",
            name=word,
            description="Adds",
            parameters='{"a": {"type":"number","description":"x"}}',
            code="return args['a'] + 1",
            language="python",
        )
    )
    print(rpc("call_tool", name=word, args={"a": 1}))
    print(
        rpc(
            "define_tool",
            name=word,
            description="Adds",
            parameters='{"a": {"type":"number","description":"x"}}',
            code="return args.a + 1",
            persistent="true",
        )
    )
    print(rpc("call_tool", name=word, args={"a": 1}))
    print(rpc("define_tool", name=word, description="Adds", code="return args.a + 2", persistent="true"))
    print(rpc("list_tools"))
    print(rpc("remove_tool", name=word))
    print(rpc.error("call_tool", name=word))
