"""Skill Tools over HTTP: published, listed, called in every language, defined and removed."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, text

from skillery.backends import Identity
from skillery.database import Database, migrate
from skillery.database.tables import objects, skill_files, skill_versions, skills, tools
from skillery.errors import ToolNotFound
from skillery.formats.defined_tools import script_path
from skillery.formats.tools import parse_definition
from skillery.identity.quotas import UNLIMITED
from skillery.registry.tool_rows import define_session_tool, forget_session_tools
from skillery.testing.sandbox.languages import with_node
from skillery.tools.tool_lookup import find_tool
from skillery.versions.new_versions import rebuild_derived_rows
from tests.cli.test_cli import skillery
from tests.conftest import Rpc, Server, manifest
from tests.identity.test_idempotency import send
from tests.support.people import Caller, Who
from tests.support.processes import eventually

NOT_ALLOWED, NOT_FOUND, CONFLICT, TOO_LARGE, INVALID = -32002, -32003, -32004, -32005, -32602
Offer = Callable[..., dict[str, Any]]
ECHO = "def handler(args):\n    args.pop('__workDir')\n    return args\n"
TEXT = {"type": "string", "description": "The text"}
COUNT = {
    "js": "export default async function handler(args) {\n"
    "  const words = args.text.trim().split(/\\s+/).filter(Boolean);\n"
    "  return { count: words.length, workDir: args.__workDir };\n}\n",
    "py": 'def handler(args):\n    return {"count": len(args["text"].split()), "workDir": args["__workDir"]}\n\n'
    'if __name__ == "__main__":\n    raise SystemExit("not called as a program")\n',
    "sh": 'echo "{\\"count\\": $(echo "$1" | grep -o word | wc -l), \\"workDir\\": \\"$PWD\\"}"\n',
}
PROGRAM = """
import json, sys
args = json.load(sys.stdin)
assert json.loads(sys.argv[1]) == args
print(json.dumps(sorted(args)))
"""


def tool(name: str = "count_words", script: str | None = None, **parameters: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "description": f"Does {name}", "parameters": parameters}
    return made if script is None else made | {"script": script}


def bundle(name: str, tools: object, version: str = "1.0.0", /, **files: str) -> dict[str, Any]:
    """Return the params of create_skill. Keys of `files` are paths below scripts/, with `__` for the dot."""
    scripts = [{"path": f"scripts/{path.replace('__', '.')}", "content": text} for path, text in files.items()]
    given = tools if isinstance(tools, str) else json.dumps(tools)
    return {
        "manifest": {"name": name, "version": version, "description": f"Tools of {name}"},
        "skill_md": f"---\nname: {name}\n---\n# {name}\n",
        "files": [{"path": "tools.json", "content": given}, *scripts],
    }


@pytest.fixture
def offer(rpc: Rpc) -> Offer:
    def create(name: str, tools: object, version: str = "1.0.0", /, **files: str) -> dict[str, Any]:
        created: dict[str, Any] = rpc("create_skill", **bundle(name, tools, version, **files))
        return created

    return create


@pytest.mark.parametrize("language", [pytest.param("js", marks=with_node), "py", "sh"])
def test_a_handler_gets_its_args_and_its_result_is_the_answer(
    rpc: Rpc, offer: Offer, new_name: str, language: str
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


# -- handlers ----------------------------------------------------------------------------------------------------------


def test_python_without_a_handler_is_a_program(rpc: Rpc, offer: Offer, new_name: str) -> None:
    offer(new_name, [tool("t", "scripts/t.py", a=TEXT)], t__py=PROGRAM)

    assert rpc("call_tool", name=f"{new_name}/t", args={"a": "x", "more": 1})["result"] == ["__workDir", "a", "more"]


@pytest.mark.parametrize(
    ("script", "content", "message"),
    [
        ("t.py", "def handler(args): raise ValueError('no luck')", "no luck"),
        ("t.py", "def handler(args): raise KeyError", "KeyError"),
        pytest.param("t.js", "export default () => { throw new Error('no luck') }", "no luck", marks=with_node),
        pytest.param("t.js", "export default async () => Promise.reject('x')", "the code threw x", marks=with_node),
        ("t.sh", "echo not this; echo no luck >&2; exit 3", "the program exited with status 3: no luck"),
        ("t.py", "def handler(args) return 1", None),
        ("t.py", "def handler(args): return {1}", None),
    ],
)
def test_failures_are_reported_to_the_agent(
    rpc: Rpc, offer: Offer, new_name: str, script: str, content: str, message: str | None
) -> None:
    offer(new_name, [tool("t", f"scripts/{script}")], **{script.replace(".", "__"): content})
    answer = rpc("call_tool", name="t", skill=new_name)

    assert answer["is_error"] is True
    assert list(answer["result"]) == ["error"]
    assert message is None or answer["result"]["error"] == message
    assert rpc("get_run", run_id=answer["run_id"])["status"] == "failed"


def test_tool_result_is_string_if_stdout_is_not_json(rpc: Rpc, offer: Offer, new_name: str) -> None:
    offer(new_name, [tool("t", "scripts/t.sh")], t__sh="echo hello; echo noted >&2")
    answer = rpc("call_tool", name=f"{new_name}/t")

    assert (answer["result"], answer["logs_preview"], answer["is_error"]) == ("hello", "noted\n", False)


def test_a_large_result_becomes_a_blob(rpc: Rpc, offer: Offer, new_name: str) -> None:
    offer(new_name, [tool("t", "scripts/t.py")], t__py="def handler(args): return 'x' * 5000")
    answer = rpc("call_tool", name=f"{new_name}/t")

    assert answer["result"]["size_bytes"] == 5002
    assert answer["output_blobs"] == [answer["result"]["blob_id"]]


def test_handler_reads_input_blobs_of_call(rpc: Rpc, offer: Offer, new_name: str) -> None:
    blob_id = rpc("create_blob", content="from a blob", kind="text/plain")["blob_id"]
    offer(
        new_name,
        [tool("t", "scripts/t.py", blob=TEXT)],
        t__py="def handler(a): return open('/blobs/' + a['blob']).read()",
    )

    answer = rpc("call_tool", name=f"{new_name}/t", args={"blob": blob_id}, input_blobs=[blob_id])
    assert answer["result"] == "from a blob"
    assert rpc.error("call_tool", name=f"{new_name}/t", input_blobs=["blob:none"])["code"] == NOT_FOUND


def test_a_handler_has_its_time(rpc: Rpc, offer: Offer, new_name: str) -> None:
    offer(new_name, [tool("t", "scripts/t.sh")], t__sh="sleep 60")

    answer = rpc("call_tool", name=f"{new_name}/t", timeout_ms=100)
    assert answer["is_error"]
    assert "100 ms" in answer["result"]["error"]


def test_a_call_can_be_cancelled_and_is_listed(rpc: Rpc, offer: Offer, new_name: str) -> None:
    offer(new_name, [tool("t", "scripts/t.sh")], t__sh="sleep 60")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Rpc(rpc.url), "call_tool", name=f"{new_name}/t")
        found = eventually(lambda: waiting.done() or rpc("list_runs", skill=new_name, status="started")["runs"])
        assert not waiting.done(), waiting.result()
        assert (found[0]["method"], found[0]["tool"]) == ("call_tool", "t")
        rpc("cancel_run", run_id=found[0]["run_id"])
        assert waiting.result()["is_error"]
    assert rpc("describe_skill", name=new_name)["skill"]["usage"]["cancelled"] == 1


def test_secrets_and_network_are_those_of_the_skill(rpc: Rpc, server: Server, new_name: str) -> None:
    made = bundle(new_name, [tool("t", "scripts/t.py")], t__py="import os\ndef handler(a): return sorted(os.environ)")
    secret = new_name.upper()
    made["manifest"]["permissions"] = {"secrets": [secret], "network": ["https://example.com"]}
    rpc("create_skill", **made)
    assert "has no secret grant" in rpc("call_tool", name=f"{new_name}/t")["result"]["error"]

    home = ("--home", str(server.home))
    value = ("--value-from-stdin",)
    skillery("secret", "set", secret, *value, *home, stdin=b"value", SKILLERY_DATABASE=server.database)
    skillery("secret", "grant", secret, new_name, *home, SKILLERY_DATABASE=server.database)
    assert {secret, "HTTPS_PROXY"} <= set(rpc("call_tool", name=f"{new_name}/t")["result"])


def test_a_call_with_a_key_is_made_once(rpc: Rpc, offer: Offer, new_name: str) -> None:
    offer(new_name, [tool("t", "scripts/t.py")], t__py="import os\ndef handler(args): return os.urandom(8).hex()")
    first, second = (send(rpc, new_name, "call_tool", name=f"{new_name}/t") for _ in range(2))

    assert first["result"] == second["result"]


# -- arguments ---------------------------------------------------------------------------------------------------------


def test_valid_arguments_pass_and_invalid_ones_are_reported(rpc: Rpc, offer: Offer, new_name: str) -> None:
    declared = {
        "word": TEXT | {"enum": ["a", "b"]},
        "count": {"type": "number", "description": "n"},
        "flag": {"type": "boolean", "description": "b", "optional": True},
        "table": {"type": "object", "description": "o", "optional": True},
        "list": {"type": "array", "description": "l", "optional": True},
    }
    offer(new_name, [tool("t", "scripts/t.py", **declared)], t__py=ECHO)
    least = {"word": "a", "count": 1.5}
    fitting = [least, least | {"flag": False, "table": {}, "list": [], "more": None, "count": 3}]
    wrong: dict[str, dict[str, Any]] = {
        "'count': it is required": {"word": "a"},
        "Argument 'word' is \"c\", allowed are": least | {"word": "c"},
        "Argument 'count' is a string": least | {"count": "1"},
        "Argument 'count' is a boolean": least | {"count": True},
        "Argument 'flag' is an integer": least | {"flag": 1},
        "Argument 'flag' is null": least | {"flag": None},
        "Argument 'table' is an array": least | {"table": []},
        "Argument 'list' is an object": least | {"list": {}},
    }

    for args in fitting:
        assert rpc("call_tool", name=f"{new_name}/t", args=args)["result"] == args
    for message, args in wrong.items():
        answer = rpc("call_tool", name=f"{new_name}/t", args=args)
        assert answer["is_error"]
        assert message in answer["result"]["error"]
    assert rpc("get_run", run_id=answer["run_id"])["error"]["type"] == "ValidationError"
    assert rpc.error("call_tool", name=f"{new_name}/t", args=[1])["code"] == INVALID


def test_a_tool_without_a_script_says_where_to_read_on(rpc: Rpc, offer: Offer, new_name: str) -> None:
    created = offer(new_name, [tool("t", a=TEXT)])
    answer = rpc("call_tool", name=f"{new_name}/t")

    assert (answer["is_error"], answer["run_id"], answer["output_blobs"]) == (False, None, [])
    assert answer["skill"]["digest"] == created["digest"]
    assert "SKILL.md" in answer["result"]
    assert new_name in answer["result"]
    assert rpc("list_runs", skill=new_name)["runs"] == []


# -- bundles -----------------------------------------------------------------------------------------------------------


def described(rpc: Rpc, name: str) -> dict[str, Any]:
    found: dict[str, Any] = rpc("describe_skill", name=name)["skill"]
    return found


def test_the_kind_follows_from_the_tools(rpc: Rpc, offer: Offer, new_name: str) -> None:
    offer(f"{new_name}-a", [tool("t", "scripts/t.sh"), tool("b")], t__sh="true")
    offer(f"{new_name}-b", [tool("t")])
    offer(f"{new_name}-c", [])

    assert [described(rpc, f"{new_name}-{one}")["kind"] for one in "abc"] == ["action", "instruction", "instruction"]
    assert [described(rpc, f"{new_name}-{one}")["warnings"] for one in "abc"] == [[], [], []]
    assert described(rpc, f"{new_name}-a")["manifest"]["kind"] == "action"
    error = rpc.error("execute_skill", name=f"{new_name}-a")
    assert (error["code"], error["data"]["hint"]) == (
        INVALID,
        "Call one with call_tool, or pass the path of one of its files as 'script'.",
    )


def test_skill_with_tools_keeps_its_declared_kind(rpc: Rpc, new_name: str) -> None:
    for kind in ("action", "instruction"):
        made = bundle(f"{new_name}-{kind}", [tool("t", "scripts/t.sh")], t__sh="echo 1")
        made["manifest"]["kind"] = kind
        rpc("create_skill", **made)
        assert described(rpc, f"{new_name}-{kind}")["kind"] == kind
        assert rpc("call_tool", name=f"{new_name}-{kind}/t")["result"] == 1


def test_rules_that_are_broken_are_refused_all_at_once(rpc: Rpc, new_name: str) -> None:
    error = rpc.error("create_skill", **bundle(new_name, [{"name": "A"}, tool("b", "scripts/none.py")]))

    assert error["code"] == INVALID
    assert [problem["path"] for problem in error["data"]["problems"]] == [
        "tools.json[0].name",
        "tools.json[0].description",
        "tools.json[1].script",
    ]
    assert rpc.error("create_skill", **bundle(new_name, tool("a")))["code"] == INVALID
    assert rpc.error("describe_skill", name=new_name)["code"] == NOT_FOUND


@pytest.mark.parametrize("content", ["[\n{", '{"tools": [1]}', '["a"]', "[" * 50_000, "[NaN]"])
def test_a_tools_json_that_lists_no_tools_is_refused(rpc: Rpc, new_name: str, content: str) -> None:
    given = [{"path": "tools.json", "content": content}]
    error = rpc.error("create_skill", manifest=manifest(new_name, kind="instruction"), skill_md="# A\n", files=given)

    (problem,) = error["data"]["problems"]
    assert (error["code"], problem["path"]) == (INVALID, "tools.json")
    assert content != "[\n{" or problem["line"] == 2
    assert rpc.error("describe_skill", name=new_name)["code"] == NOT_FOUND


def test_names_that_other_runtimes_refuse_are_warned_of(rpc: Rpc, offer: Offer, new_name: str) -> None:
    offer(f"{new_name}.count", [tool("t")])
    assert ["Skill Tools does not allow" in one for one in described(rpc, f"{new_name}.count")["warnings"]] == [True]
    rpc("create_skill", **bundle(f"{new_name}-x", [tool("t")]) | {"skill_md": "---\nname: other\n---\n"})
    assert ["is 'other'" in one for one in described(rpc, f"{new_name}-x")["warnings"]] == [True]


def test_a_handler_that_does_not_compile_is_warned_of(rpc: Rpc, offer: Offer, new_name: str) -> None:
    offer(new_name, [tool("t", "scripts/t.py")], t__py="def handler(")

    assert [one.startswith("scripts/t.py") for one in described(rpc, new_name)["warnings"]] == [True]


def test_summaries_name_the_tools(rpc: Rpc, offer: Offer, new_name: str) -> None:
    offer(f"{new_name}.a", [tool("one"), tool("two")])

    (row,) = rpc("list_skills", namespace=new_name, detail="summary")["skills"]
    assert row["tools"] == ["one", "two"]


# -- listing -----------------------------------------------------------------------------------------------------------


def test_tools_are_listed_as_declared(rpc: Rpc, offer: Offer, new_name: str) -> None:
    odd: dict[str, Any] = {"text": TEXT | {"default": None, "enum": ["b", "a"]}}
    offer(new_name, [tool("b", **odd), tool("a")], "1.0.0")
    offer(new_name, [tool("c")], "2.0.0")

    assert rpc("list_tools", skill=new_name)["tools"] == [
        {"name": "c", "skill": new_name, "version": "2.0.0", "description": "Does c", "parameters": {}}
    ]
    first = rpc("list_tools", skill=f"{new_name}@^1")["tools"]
    assert [(one["name"], one["version"], one["parameters"]) for one in first] == [
        ("a", "1.0.0", {}),
        ("b", "1.0.0", odd),
    ]
    assert rpc.error("list_tools", skill=f"{new_name}-none")["code"] == NOT_FOUND
    assert [one["name"] for one in rpc("list_tools", limit=1000)["tools"] if one["skill"] == new_name] == ["c"]


def every(rpc: Rpc, **asked: Any) -> list[dict[str, Any]]:
    found, cursor = [], None
    while True:
        page = rpc("list_tools", cursor=cursor, **asked)
        found += page["tools"]
        cursor = page["next_cursor"]
        if cursor is None:
            return found
        assert len(page["tools"]) == asked["limit"]


@pytest.mark.full
def test_a_tool_is_defined_by_several_calls_at_the_same_time(rpc: Rpc, new_name: str) -> None:
    def define(number: int) -> dict[str, Any]:
        return rpc.send(
            "define_tool", {"name": "own", "description": "x", "code": f"return {number}", "session": new_name}
        )

    with ThreadPoolExecutor(8) as callers:
        assert [reply for reply in callers.map(define, range(80)) if "error" in reply] == []
    assert rpc("list_tools", session=new_name, limit=1)["tools"][0]["name"] == "own"


def test_pages_hold_all_tools_in_order(rpc: Rpc, offer: Offer, new_name: str) -> None:
    for skill in ("b", "a.x", "a"):
        offer(f"{new_name}.{skill}", [tool(f"t{n}") for n in range(3)])
    rpc("define_tool", name="own_b", description="x", code="return 1", session=new_name)
    rpc("define_tool", name="own_a", description="x", code="return 1", session=new_name)

    for limit in (1, 2, 7, 1000):
        rows = [(one["skill"], one["name"]) for one in every(rpc, limit=limit, session=new_name)]
        assert rows[:2] == [(None, "own_a"), (None, "own_b")]
        assert [one for one in rows if (one[0] or "").startswith(f"{new_name}.")] == [
            (f"{new_name}.{skill}", f"t{n}") for skill in ("a", "a.x", "b") for n in range(3)
        ]
        assert rows[2:] == sorted(rows[2:])
    of_skill = every(rpc, limit=2, skill=f"{new_name}.a")
    assert [one["name"] for one in of_skill] == ["t0", "t1", "t2"]


def test_a_page_of_large_tools_ends_before_its_limit(people: People, new_name: str) -> None:
    parameters = json.dumps({"text": TEXT | {"description": "x" * 60_000}})
    made = {"description": "x", "parameters": parameters, "code": "echo 1", "language": "bash", "session": new_name}
    names = [f"t{number:02d}" for number in range(36)]
    for name in names:
        people.ann("define_tool", name=name, **made)

    first = people.ann("list_tools", session=new_name, limit=1000)
    own = [one["name"] for one in first["tools"]]
    assert own == names[: len(own)]
    assert 30 < len(own) < 36
    second = people.ann("list_tools", session=new_name, limit=1000, cursor=first["next_cursor"])
    assert [one["name"] for one in second["tools"] if one["skill"] is None] == names[len(own) :]


def test_a_cursor_of_another_question_is_refused(rpc: Rpc, offer: Offer, new_name: str) -> None:
    offer(new_name, [tool("a"), tool("b")])
    cursor = rpc("list_tools", skill=new_name, limit=1)["next_cursor"]

    for asked in ({}, {"skill": new_name, "session": "x"}, {"skill": f"{new_name}@1"}):
        assert rpc.error("list_tools", cursor=cursor, **asked)["code"] == INVALID


# -- names -------------------------------------------------------------------------------------------------------------


def test_bare_tool_name_resolves_to_most_recently_published_tool(rpc: Rpc, offer: Offer, new_name: str) -> None:
    name = f"{new_name}_t"
    offer(f"{new_name}-a", [tool(name, "scripts/t.sh")], t__sh="echo '\"a\"'")
    offer(f"{new_name}-b", [tool(name, "scripts/t.sh")], t__sh="echo '\"b\"'")

    assert rpc("call_tool", name=name)["skill"]["name"] == f"{new_name}-b"
    assert rpc("call_tool", name=name)["result"] == "b"
    assert rpc("call_tool", name=f"{new_name}-a/{name}")["result"] == "a"
    assert rpc("call_tool", name=name, skill=f"{new_name}-a")["result"] == "a"
    offer(f"{new_name}-a", [tool(name, "scripts/t.sh")], "1.1.0", t__sh="echo '\"a2\"'")
    assert rpc("call_tool", name=name)["result"] == "a2"
    assert rpc("call_tool", name=name, skill=f"{new_name}-a", version="1.0.0")["result"] == "a"
    assert rpc("call_tool", name=name, skill=f"{new_name}-a@1.0.0")["skill"]["version"] == "1.0.0"
    two = rpc.error("call_tool", name=name, skill=f"{new_name}-a@1.0.0", version="1.1.0")
    assert two["data"]["param"] == "version"
    rpc("yank_version", name=f"{new_name}-a", version="1.1.0", reason="x")
    assert rpc("call_tool", name=name)["result"] == "b"
    rpc("yank_version", name=f"{new_name}-b", version="1.0.0", reason="x")
    assert rpc("call_tool", name=name)["result"] == "a"


def test_an_unknown_tool_is_reported_with_similar_names(rpc: Rpc, offer: Offer, new_name: str) -> None:
    name = f"{new_name}_count_words"
    offer(new_name, [tool(name)])

    error = rpc.error("call_tool", name=f"{new_name}_cuont_words")
    assert (error["code"], error["data"]["type"], error["data"]["near"][0]) == (NOT_FOUND, "tool_not_found", name)
    error = rpc.error("call_tool", name=f"{new_name}_cuont_words", skill=new_name)
    assert (error["code"], error["data"]["near"]) == (NOT_FOUND, [name])
    assert rpc.error("call_tool", name="x", skill=f"{new_name}.none")["data"]["type"] == "skill_not_found"
    assert rpc.error("call_tool", name=f"{new_name}/")["code"] == NOT_FOUND


@pytest.mark.parametrize(
    "params",
    [
        {"name": "a\0b"},
        {"name": "A B/t"},
        {"name": "/t"},
        {"name": "a/t", "skill": "b"},
        {"name": "t", "version": "1.0.0"},
        {"name": "a/t", "version": "not a version!"},
        {"name": "t", "session": "x" * 129},
        {"name": "t", "session": "a\nb"},
        {"name": "t", "timeout_ms": 0},
    ],
)
def test_calls_that_mean_nothing_are_refused(sqlite_rpc: Rpc, params: dict[str, Any]) -> None:
    assert sqlite_rpc.error("call_tool", **params)["code"] == INVALID


# -- visibility --------------------------------------------------------------------------------------------------------


class People:
    def __init__(self, url: str, name: str) -> None:
        self.admin = Caller(url, Who(f"{name}-admin", "admin", "*"))
        self.ann = Caller(url, Who(f"{name}-ann", "read run publish", f"{name}.*"))
        self.bot = Caller(url, Who(f"{name}-bot", "read run publish", f"{name}.*", "agent"))
        self.rita = Caller(url, Who(f"{name}-rita", "read review"))
        self.eve = Caller(url, Who(f"{name}-eve", "read run"))


@pytest.fixture
def people(org: Server, new_name: str) -> People:
    return People(org.url, new_name)


def test_tools_of_invisible_skills_are_hidden_from_calls_and_lists(people: People, new_name: str) -> None:
    name = f"{new_name}_count"
    people.ann("create_skill", **bundle(f"{new_name}.open", [tool(name)]))
    people.ann("create_skill", **bundle(f"{new_name}.hidden", [tool(name), tool(f"{name}_more")]))
    people.ann("set_visibility", name=f"{new_name}.hidden", visibility="private")

    for caller, served in ((people.ann, "hidden"), (people.admin, "hidden"), (people.rita, None), (people.eve, "open")):
        if served is not None:
            assert caller("call_tool", name=name)["skill"]["name"] == f"{new_name}.{served}"
        seen = [one["skill"] for one in every(caller, limit=1000) if (one["skill"] or "").startswith(f"{new_name}.")]
        hidden = [f"{new_name}.hidden"] * 2 if caller is not people.eve else []
        assert seen == [*hidden, f"{new_name}.open"]
    error = people.eve.error("call_tool", name=f"{name}_mor")
    assert error["code"] == NOT_FOUND
    assert error["data"]["near"][0] == name
    assert f"{name}_more" not in error["data"]["near"]
    assert people.eve.error("call_tool", name=f"{new_name}.hidden/{name}")["data"]["type"] == "skill_not_found"
    people.ann("set_visibility", name=f"{new_name}.hidden", visibility="namespace")
    assert people.bot("call_tool", name=name)["skill"]["name"] == f"{new_name}.hidden"
    assert people.eve("call_tool", name=name)["skill"]["name"] == f"{new_name}.open"


def test_a_draft_offers_nothing_until_it_is_approved(people: People, new_name: str) -> None:
    name = f"{new_name}_t"
    assert people.bot("create_skill", **bundle(f"{new_name}.a", [tool(name)]))["status"] == "draft"
    people.ann("create_skill", **bundle(f"{new_name}.b", [tool(name)]))

    which = {"name": f"{new_name}.a", "version": "1.0.0"}
    assert people.eve("call_tool", name=name)["skill"]["name"] == f"{new_name}.b"
    assert people.bot("call_tool", name=name, skill=which["name"], version="1.0.0")["skill"]["version"] == "1.0.0"
    assert people.eve.error("call_tool", name=name, skill=which["name"], version="1.0.0")["code"] == NOT_FOUND
    people.bot("submit_version", **which)
    people.rita("approve_version", **which)
    assert people.eve("call_tool", name=name)["skill"]["name"] == f"{new_name}.a"


# -- tools of a session ------------------------------------------------------------------------------------------------

ADD = {"description": "Adds one", "parameters": json.dumps({"n": {"type": "number", "description": "n"}})}


@pytest.mark.parametrize(
    ("language", "code"),
    [
        pytest.param("javascript", "const { n } = args;\nreturn await Promise.resolve(n + 1);", marks=with_node),
        ("python", "n = args['n']\nreturn n + 1"),
        ("python", "import asyncio\nawait asyncio.sleep(0)\nreturn args['n'] + 1\n"),
        ("bash", 'echo $(( $(echo "$1" | grep -o \'"n": *[0-9]*\' | grep -o "[0-9]*") + 1 ))'),
    ],
)
@pytest.mark.full(after=5)
def test_a_tool_of_a_session_is_called_only_by_its_author(
    people: People, new_name: str, language: str, code: str
) -> None:
    defined = people.eve("define_tool", name="add_one", language=language, code=code, **ADD)

    assert defined == {"name": "add_one", "skill": None, "version": None, "status": "session"}
    answer = people.eve("call_tool", name="add_one", args={"n": 41})
    assert (answer["result"], answer["skill"], answer["is_error"]) == (42, None, False)
    assert people.eve("get_run", run_id=answer["run_id"])["tool"] == "add_one"
    assert people.eve("call_tool", name="add_one")["is_error"]
    assert people.ann.error("call_tool", name="add_one")["code"] == NOT_FOUND
    assert people.eve.error("call_tool", name="add_one", session="another")["code"] == NOT_FOUND
    assert people.eve("list_tools", limit=1)["tools"][0] == {
        "name": "add_one",
        "skill": None,
        "version": None,
        "description": "Adds one",
        "parameters": {"n": {"type": "number", "description": "n"}},
    }
    assert people.eve("remove_tool", name="add_one")["status"] == "removed"
    assert people.eve.error("call_tool", name="add_one")["code"] == NOT_FOUND


@with_node
def test_the_language_is_javascript_where_there_is_node(people: People) -> None:
    people.eve("define_tool", name="which", description="x", code="return typeof args")

    assert people.eve("call_tool", name="which")["result"] == "object"


def test_a_tool_of_a_session_stands_before_others_of_its_name(people: People, new_name: str) -> None:
    name = f"{new_name}_t"
    people.ann("create_skill", **bundle(f"{new_name}.a", [tool(name)]))
    people.eve("define_tool", name=name, description="x", language="python", code="return 'first'", session="s")
    people.eve("define_tool", name=name, description="x", language="python", code="return 'own'", session="s")

    assert people.eve("call_tool", name=name, session="s")["result"] == "own"
    assert people.eve("call_tool", name=name)["skill"]["name"] == f"{new_name}.a"
    assert people.eve("call_tool", name=f"{new_name}.a/{name}", session="s")["run_id"] is None


def test_a_tool_of_a_session_has_no_network(people: People, new_name: str) -> None:
    code = "import urllib.request\nreturn urllib.request.urlopen('https://example.com').status"
    people.eve("define_tool", name="fetch", description="x", language="python", code=code)

    assert "a tool of a session has no network" in people.eve("call_tool", name="fetch")["result"]["error"]


def test_session_tools_of_identity_are_limited_across_sessions(org: Server, new_name: str) -> None:
    many = Caller(org.url, Who(f"{new_name}-many", "read run"))
    made = {"description": "x", "language": "bash", "code": "true"}
    for number in range(100):
        many("define_tool", name=f"t{number}", session=str(number % 3), **made)
    many("define_tool", name="t5", session="2", **made)

    error = many.error("define_tool", name="t100", **made)
    assert (error["code"], error["data"]["quota"], error["data"]["used"]) == (TOO_LARGE, "session_tools", 100)
    assert many("get_usage")["session_tools"] == {"used": 100, "limit": 100}
    many("remove_tool", name="t5", session="2")
    many("define_tool", name="t100", **made)


def test_sessions_end(database: Database) -> None:
    ann = Identity("ann")
    made = parse_definition("t", "x", "", script_path("t", "bash"))

    def define(session: str, keep_for: timedelta) -> None:
        database.write_now(
            lambda connection: define_session_tool(
                connection, ann, session, made, "true", keep_for=keep_for, quotas=UNLIMITED
            )
        )

    define("over", timedelta(0))
    define("on", timedelta(hours=1))
    assert database.read_now(lambda c: find_tool(c, ann, "t", skill=None, session="on")).script == "scripts/t.sh"
    with pytest.raises(ToolNotFound):
        database.read_now(lambda c: find_tool(c, ann, "t", skill=None, session="over"))
    define("over", timedelta(0))
    assert database.write_now(lambda connection: forget_session_tools(connection, limit=10)) == 1
    assert database.write_now(lambda connection: forget_session_tools(connection, limit=10)) == 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"name": "Add"}, "name is 'Add'"),
        ({"name": "add-one"}, "name is 'add-one'"),
        ({"parameters": "["}, "'parameters' is not JSON"),
        ({"parameters": "[]"}, "parameters is an array"),
        ({"parameters": '{"n": {"type": "integer", "description": "n"}}'}, "parameters.n.type is 'integer'"),
        ({"parameters": '{"n": 1, "n": 2}'}, "the key 'n' twice"),
        ({"parameters": "[" * 10_000}, "nested too deep"),
        ({"description": " "}, "description is blank"),
        ({"code": ""}, "code"),
        ({"code": "return 1\n  + ("}, "'code' is not the body of a Python function"),
        ({"code": "def add(args):\n    return 1"}, "write only the lines of the function"),
        ({"code": "import re\nasync def add(args):\n    return 1"}, "'return await add(args)'"),
        ({"code": "a\0b"}, "NUL"),
        ({"persistent": "yes"}, "'persistent' is 'yes'"),
        ({"persistent": True}, "persistent"),
        ({"language": "ruby"}, "language"),
        ({"namespace": "A"}, "namespace"),
        ({"name": "a__b", "persistent": "true"}, "would get the skill name"),
        ({"name": "a_", "persistent": "true"}, "would get the skill name"),
    ],
)
def test_define_tool_refuses_invalid_params(sqlite_rpc: Rpc, more: dict[str, Any], words: str) -> None:
    error = sqlite_rpc.error(
        "define_tool", **{"name": "add", "description": "x", "language": "python", "code": "return 1"} | more
    )

    assert error["code"] == INVALID
    assert words in error["message"]


def test_texts_of_several_lines_stay_as_they_were_written(people: People) -> None:
    code = 'text = """one\n  two\nthree"""\nname = "x"\nif name:\n    more = f"""a\n {name}\nb"""\nreturn [text, more]'
    people.eve("define_tool", name="texts", description="x", language="python", code=code)

    assert people.eve("call_tool", name="texts")["result"] == ["one\n  two\nthree", "a\n x\nb"]


# -- persistent tools --------------------------------------------------------------------------------------------------


def test_a_persistent_tool_is_a_skill(rpc: Rpc, new_name: str) -> None:
    name, skill = f"{new_name}_fetch_it", f"{new_name}-fetch-it"
    code = "return args['n'] + 1"
    defined = rpc("define_tool", name=name, language="python", code=code, persistent="true", **ADD)

    assert defined == {"name": name, "skill": skill, "version": "1.0.0", "status": "published"}
    full = rpc("describe_skill", name=skill, detail="full")["skill"]
    assert (full["kind"], full["warnings"], full["skill_md_frontmatter"]) == (
        "action",
        [],
        {"name": skill, "description": "Adds one"},
    )
    assert [file["path"] for file in full["files"]] == ["SKILL.md", f"scripts/{name}.py", "skill.toml", "tools.json"]
    declared = rpc("read_skill_file", name=skill, path="tools.json")["content"]
    assert json.loads(declared) == [
        {
            "name": name,
            "description": "Adds one",
            "script": f"scripts/{name}.py",
            "parameters": {"n": {"type": "number", "description": "n"}},
        }
    ]
    assert rpc("call_tool", name=name, args={"n": 1})["result"] == 2


def test_any_description_is_kept(sqlite_rpc: Rpc, new_name: str) -> None:
    said = "Smiles \U0001f600 --- or: '#' \"not\"\n---\nname: evil"
    parameters = json.dumps({"a`\n# b": TEXT})
    asked = {"description": said, "parameters": parameters, "code": "return 1", "language": "python"}
    kept = sqlite_rpc("define_tool", name=new_name, persistent="true", **asked)
    skill = sqlite_rpc("describe_skill", name=kept["skill"], detail="full")["skill"]
    assert skill["skill_md_frontmatter"] == {"name": kept["skill"], "description": said}
    assert "\n# b" not in skill["skill_md"]


def test_define_tool_refuses_unterminated_string_without_long_search(sqlite_rpc: Rpc) -> None:
    """Before Python 3.12, a search restarts at each quote, which would block a thread of the server for ten minutes."""
    asked = {"name": "never_ends", "description": "x", "language": "python", "code": "x = '" + "\\'" * 120_000}
    error = sqlite_rpc.send("define_tool", asked)["error"]
    assert (error["code"], error["data"]["type"]) == (INVALID, "invalid_params")
    assert "does not compile" in error["message"]


@pytest.mark.parametrize("method", ["call_tool", "define_tool", "remove_tool"])
def test_a_name_that_no_tool_can_have_is_not_looked_up(sqlite_rpc: Rpc, method: str) -> None:
    more = {"description": "x", "code": "return 1"} if method == "define_tool" else {}
    error = sqlite_rpc.send(method, {"name": "a" * 258, **more})["error"]
    assert error["code"] == INVALID
    assert "257" in error["message"]


def test_defining_again_publishes_the_next_patch_and_removing_yanks(rpc: Rpc, new_name: str) -> None:
    name, skill = f"{new_name}_t", f"{new_name}-t"
    made = {"name": name, "description": "x", "language": "bash", "persistent": "true"}
    assert [rpc("define_tool", code=f"echo {n}", **made)["version"] for n in (1, 2)] == ["1.0.0", "1.0.1"]
    assert rpc("call_tool", name=name)["result"] == 2

    assert rpc("remove_tool", name=name) == {"name": name, "skill": skill, "version": "1.0.1", "status": "yanked"}
    assert rpc.error("call_tool", name=name)["code"] == NOT_FOUND
    assert rpc.error("remove_tool", name=name)["data"]["type"] == "tool_not_found"
    assert rpc("describe_skill", name=skill, version="1.0.0")["skill"]["status"] == "yanked"
    assert rpc("define_tool", code="echo 3", **made)["version"] == "1.0.2"
    assert rpc("call_tool", name=name)["result"] == 3
    assert rpc("remove_tool", name=f"{skill}/{name}")["version"] == "1.0.2"


def test_removing_a_tool_that_a_skill_has_not_leaves_the_skill(rpc: Rpc, new_name: str) -> None:
    made = rpc("define_tool", name=new_name, description="x", code="echo 1", language="bash", persistent="true")
    assert rpc.error("remove_tool", name=f"{made['skill']}/another")["data"]["type"] == "tool_not_found"
    assert rpc("call_tool", name=f"{made['skill']}/{new_name}")["result"] == 1


def test_removing_a_tool_reveals_no_invisible_draft(people: People, new_name: str) -> None:
    made = {"name": f"{new_name}_t", "description": "x", "language": "bash", "persistent": "true"}
    people.ann("define_tool", code="echo 1", **made)
    people.ann("remove_tool", name=made["name"])
    assert people.bot("define_tool", code="echo 2", **made)["status"] == "draft"

    assert people.ann.error("remove_tool", name=made["name"])["data"]["type"] == "tool_not_found"
    assert people.bot.error("remove_tool", name=made["name"])["data"]["type"] == "illegal_step"


def test_a_handler_that_has_permissions_is_not_run_past_its_declared_arguments(rpc: Rpc, new_name: str) -> None:
    declared = [tool("pick", "scripts/pick.sh", text=TEXT | {"enum": ["a"]})]
    asked = bundle(new_name, declared, pick__sh="echo 1", helper__sh="echo 2")
    rpc("create_skill", **asked)
    assert rpc("execute_skill", name=new_name, script="scripts/pick.sh")["status"] == "completed"

    asked["manifest"] |= {"version": "1.1.0", "permissions": {"network": ["https://example.com"]}}
    rpc("create_skill", **asked)
    error = rpc.error("execute_skill", name=new_name, script="scripts/pick.sh")
    assert error["code"] == INVALID
    assert f"{new_name}/pick" in error["data"]["hint"]
    assert rpc("execute_skill", name=new_name, script="scripts/helper.sh")["status"] == "completed"


def test_keeping_a_tool_takes_it_out_of_the_session(rpc: Rpc, new_name: str) -> None:
    made = {"name": new_name, "description": "x", "language": "bash"}
    rpc("define_tool", code="echo 1", **made)
    rpc("define_tool", code="echo 2", persistent="true", **made)

    answer = rpc("call_tool", name=new_name)
    assert (answer["result"], answer["skill"]["name"]) == (2, new_name)


@pytest.mark.postgres
def test_concurrent_define_tool_calls_publish_distinct_versions(rpc: Rpc, new_name: str) -> None:
    def define(number: int) -> str:
        made = Rpc(rpc.url)("define_tool", name=new_name, description="x", code=f"return {number}", persistent="true")
        return str(made["version"])

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(define, range(4))) == ["1.0.0", "1.0.1", "1.0.2", "1.0.3"]


def test_tools_not_created_by_define_tool_are_protected(rpc: Rpc, offer: Offer, new_name: str) -> None:
    name = f"{new_name}_t"
    offer(f"{new_name}-t", [tool(name)])
    for method, params in (
        ("define_tool", {"name": name, "description": "x", "code": "return 1", "persistent": "true"}),
        ("define_tool", {"name": "list_skills", "description": "x", "code": "return 1"}),
        ("remove_tool", {"name": name}),
        ("remove_tool", {"name": f"{new_name}-t/{name}"}),
        ("remove_tool", {"name": "execute_skill"}),
        ("remove_tool", {"name": "text.csv.profile/any"}),
    ):
        error = rpc.error(method, **params)
        assert (error["code"], error["data"]["type"]) == (CONFLICT, "tool_protected"), (method, params)


def test_a_version_from_another_hand_protects_the_skill(rpc: Rpc, offer: Offer, new_name: str) -> None:
    made = {"name": new_name, "description": "x", "code": "return 1", "persistent": "true"}
    rpc("define_tool", **made)
    offer(new_name, [tool(new_name)], "2.0.0")

    assert rpc.error("define_tool", **made)["data"]["type"] == "tool_protected"
    assert rpc.error("remove_tool", name=new_name)["data"]["type"] == "tool_protected"


def test_a_tool_is_kept_where_its_identity_may_publish(people: People, new_name: str) -> None:
    made = {"description": "x", "language": "bash", "code": "echo 1", "persistent": "true"}
    name = f"{new_name}_t"
    assert people.ann("define_tool", name=name, **made)["skill"] == f"{new_name}.{new_name}-t"
    below = people.ann("define_tool", name=name, namespace=f"{new_name}.deep", **made)
    assert below["skill"] == f"{new_name}.deep.{new_name}-t"
    assert people.admin("define_tool", name=name, **made)["skill"] == f"{new_name}-t"

    for caller, more in ((people.eve, {}), (people.ann, {"namespace": ""}), (people.ann, {"namespace": "elsewhere"})):
        assert caller.error("define_tool", name=name, **made | more)["code"] == NOT_ALLOWED
    assert people.eve.error("remove_tool", name=name)["code"] == NOT_ALLOWED
    assert people.ann("remove_tool", name=name)["skill"] == f"{new_name}.{new_name}-t"
    assert people.ann.error("remove_tool", name=f"{new_name}-t/{name}")["code"] == NOT_ALLOWED


def test_persistent_tool_of_agent_is_draft_until_approved(people: People, new_name: str) -> None:
    made = {"name": f"{new_name}_t", "description": "x", "language": "bash", "persistent": "true"}
    defined = people.bot("define_tool", code="echo 1", **made)

    assert (defined["version"], defined["status"]) == ("1.0.0", "draft")
    assert people.bot.error("call_tool", name=made["name"])["code"] == NOT_FOUND
    assert people.bot.error("remove_tool", name=made["name"])["data"]["type"] == "illegal_step"
    assert people.bot("define_tool", code="echo 2", **made)["version"] == "1.0.1"
    which = {"name": defined["skill"], "version": "1.0.0"}
    people.bot("submit_version", **which)
    people.rita("approve_version", **which)
    assert people.eve("call_tool", name=made["name"])["result"] == 1
    assert people.bot("remove_tool", name=made["name"])["status"] == "yanked"


def test_the_name_of_a_private_tool_is_taken(people: People, new_name: str) -> None:
    made = {"description": "x", "language": "bash", "code": "echo 1", "persistent": "true"}
    people.ann("define_tool", name="own", **made)
    people.ann("set_visibility", name=f"{new_name}.own", visibility="private")

    assert people.bot.error("define_tool", name="own", **made)["data"]["type"] == "name_taken"
    assert people.bot.error("remove_tool", name=f"{new_name}.own/own")["code"] == NOT_FOUND


# -- the command line, and tools of earlier releases -------------------------------------------------------------------


@pytest.mark.smoke
def test_tools_from_a_shell(sqlite_server: Server, new_name: str, tmp_path: Path) -> None:
    home = ("--home", str(sqlite_server.home), "--session", new_name)
    (tmp_path / "body.py").write_text("return args['n'] + 1\n")
    options = ("--description", "Adds", "--parameters", ADD["parameters"])
    assert skillery("tool", "define", "add_one", str(tmp_path / "body.py"), *options, *home).code == 0

    called = skillery("tool", "call", "add_one", "--arg", "n=1", *home)
    assert (called.code, called.out) == (0, "2\n")
    assert "a tool of this session" in called.err
    failed = skillery("tool", "call", "add_one", *home)
    assert (failed.code, failed.out) == (1, "")
    assert "'n': it is required" in failed.err
    correct = f"A correct call: skillery tool call add_one --session {new_name} --arg n=1.5 --home {sqlite_server.home}"
    assert correct in failed.err
    assert skillery("tool", "call", "add_one", "--json", "--arg", "n=2", *home).json["result"] == 3
    assert skillery("tool", "list", "--limit", "1", *home).out == "add_one\t(session)\t\tn\tAdds\n"
    assert "status: removed" in skillery("tool", "remove", "add_one", *home).out
    assert skillery("tool", "remove", "add_one", *home).code == 3


def test_versions_from_before_offer_their_tools(database: Database) -> None:
    content = json.dumps([tool("count", "scripts/t.sh", text=TEXT), {"name": "broken"}]).encode()
    made = {"version": "1.0.0", "precedence": b"x", "is_release": True, "status": "published", "kind": "instruction"}
    made |= {"namespace": "", "digest": "sha256:x", "size_bytes": 1, "manifest_json": "{}", "frontmatter_json": "{}"}
    made |= {
        "warnings_json": "[]",
        "names_json": "{}",
        "summary_json": '{"name": "a", "description": "", "tags": [], "tools": []}',
        "publisher": "ann",
    }

    def publish(connection: Any) -> None:
        now = "2026-11-01 00:00:00+00:00" if database.is_sqlite else "2026-11-01T00:00:00Z"
        connection.execute(
            text(f"INSERT INTO skills (id, name, latest_version_id, created_at) VALUES (1, 'a', 1, '{now}')")
        )
        created = connection.scalar(select(skills.c.created_at))
        connection.execute(insert(skill_versions).values(id=1, skill_id=1, created_at=created, **made))
        connection.execute(insert(objects).values(sha256="s", size_bytes=len(content), data=content))
        file = {"version_id": 1, "sha256": "s", "size_bytes": 1, "executable": False}
        connection.execute(insert(skill_files), [file | {"path": path} for path in ("tools.json", "scripts/t.sh")])

    database.write_now(publish)
    migrate.downgrade(database, "0012")
    migrate.upgrade(database)
    rebuild_derived_rows(database)

    with database.engine.connect() as connection:
        (found,) = connection.execute(select(tools)).all()
        summary = connection.scalar(select(skill_versions.c.summary_json))
    assert (found.name, found.skill, found.script) == ("count", "a", "scripts/t.sh")
    assert found.offered_since is not None
    assert json.loads(found.item_json)["parameters"] == {"text": TEXT}
    assert json.loads(summary or "")["tools"] == ["count"]
