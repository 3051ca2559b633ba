"""Checks of Skill Tools: tools.json, handlers, and tools that agents define.

The Skill Tools specification names no way over the network to list and call tools. The suite uses the methods
`list_tools(skill)` and `call_tool(name, args)` with the name `skill/tool`, and skips these statements without them.
"""

from __future__ import annotations

import json
import secrets
from typing import Any

from skills_protocol_conformance.checks.envelope import knows
from skills_protocol_conformance.samples import HANDLERS, TOOLS
from skills_protocol_conformance.session import Session
from skills_protocol_conformance.statement import Check, Skipped, at, expect

NO_HANDLER = "def handler(args):\n    return {}\n"


def tool_rows(session: Session, key: str = "tools") -> list[dict[str, Any]]:
    """Return the tools of a sample. Raise Skipped if the server has no `list_tools`."""
    _need(session, "list_tools", "call_tool")
    return list(at(session.result("list_tools", skill=session.skill(key)), "tools"))


def _need(session: Session, *methods: str) -> None:
    for method in methods:
        if not knows(session, method):
            raise Skipped(f"the server has no method `{method}`; the document names no way to call a tool")


def call(session: Session, name: str, **args: Any) -> Any:
    """Return the `result` of `call_tool`."""
    tool_rows(session)
    return at(session.result("call_tool", name=f"{session.skill('tools')}/{name}", args=args), "result")


def tools_are_registered(session: Session) -> None:
    """The tools of tools.json are listed, all of them."""
    missing = {tool["name"] for tool in TOOLS} - {row.get("name") for row in tool_rows(session)}
    expect(not missing, f"the tools {', '.join(sorted(missing))} are not listed")


def tool_has(field: str) -> Check:
    """Make a check: the row of a tool has the declared value of this field."""

    def check(session: Session) -> None:
        rows = {row.get("name"): row for row in tool_rows(session)}
        got = at(rows.get("count_words"), field)
        expect(got == TOOLS[0][field], f"`{field}` is not the declared one", got)

    check.__doc__ = f"The row of a tool has the declared `{field}`."
    return check


def parameters_default_to_none(session: Session) -> None:
    """A tool without `parameters` is listed with no parameters, and can be called without arguments."""
    rows = {row.get("name"): row for row in tool_rows(session)}
    expect(not at(rows.get("give_number"), "parameters"), "the tool has parameters", rows.get("give_number"))
    expect(call(session, "give_number") == 42, "the tool returned another value")


def tools_json_is_read(session: Session) -> None:
    """tools.json is at the root of the skill."""
    content = at(session.result("read_skill_file", name=session.skill("tools"), path="tools.json"), "content")
    expect(json.loads(content) == TOOLS, "tools.json has another content", content)


def handler_is_read(session: Session) -> None:
    """A handler in scripts/ is a file of the skill."""
    path = "scripts/count_words.py"
    content = at(session.result("read_skill_file", name=session.skill("tools"), path=path), "content")
    expect(content == HANDLERS[path], "the handler has another content", content)


def skill_name_is_kept(session: Session) -> None:
    """A skill with a name of lowercase letters, digits and hyphens is described, with its frontmatter."""
    skill = at(session.result("describe_skill", name=session.skill("tools")), "skill")
    expect(at(skill, "skill_md_frontmatter.name") == session.skill("tools"), "the frontmatter has another name", skill)
    expect(at(skill, "skill_md_frontmatter.description"), "the frontmatter has no description", skill)


def zero_tools_are_valid(session: Session) -> None:
    """A skill with zero tools is valid, and lists no tools."""
    rows = tool_rows(session, "no-tools")
    expect(not rows, "the skill has tools", rows)


def skill_without_manifest_is_valid(session: Session) -> None:
    """A skill without tools.json is valid, and lists no tools."""
    rows = tool_rows(session, "notes")
    expect(not rows, "the skill has tools", rows)


def returns(name: str, value: object) -> Check:
    """Make a check: this tool returns this value."""

    def check(session: Session) -> None:
        got = call(session, name)
        expect(got == value and type(got) is type(value), f"the tool did not return {value!r}", got)

    check.__doc__ = f"A handler returns {value!r}."
    return check


def gets_all_parameters(session: Session) -> None:
    """A handler gets one object with all arguments."""
    got = call(session, "show_args", text="Grüße", number=3)
    expect((got.get("text"), got.get("number")) == ("Grüße", 3), "the handler got other arguments", got)


def gets_its_work_dir(session: Session) -> None:
    """A handler gets `__workDir`."""
    got = call(session, "show_args")
    expect(isinstance(at(got, "__workDir"), str) and got["__workDir"], "`__workDir` is not a text", got)


def error_is_returned(session: Session) -> None:
    """A handler that fails gives {"error": "<message>"}."""
    got = call(session, "refuse")
    expect("the tool refuses" in str(at(got, "error")), "`error` does not have the message", got)


def counts_words(session: Session) -> None:
    """The handler of the example counts words."""
    expect(call(session, "count_words", text="one two three") == {"count": 3}, "the count is not 3")


def optional_is_not_required(session: Session) -> None:
    """A parameter with `optional`: true may be omitted."""
    got = call(session, "count_words", text="one")
    expect(isinstance(got, dict) and "error" not in got, "the call failed", got)


def other_is_required(session: Session) -> None:
    """Without a required parameter, the call fails."""
    tool_rows(session)
    reply = session.ask("call_tool", {"name": f"{session.skill('tools')}/count_words", "args": {}})
    expect(reply.error or "error" in (reply.result.get("result") or {}), "the call did not fail", reply.text)


def main_block_works(session: Session) -> None:
    """A handler in the convention for subprocesses returns its value."""
    expect(call(session, "main_block", text="one two") == {"count": 2}, "the count is not 2")


def script_elsewhere_works(session: Session) -> None:
    """A handler outside of scripts/ is found by its path."""
    expect(call(session, "elsewhere") == "found", "the handler returned another value")


def language(name: str, wanted: object) -> Check:
    """Make a check: a handler in another language returns its value, if the server has the language."""

    def check(session: Session) -> None:
        got = call(session, name)
        if isinstance(got, dict) and "error" in got:
            raise Skipped(f"not offered: {got['error']}")
        expect(got == wanted, "the handler returned another value", got)

    check.__doc__ = f"The handler `{name}` returns its value."
    return check


def stub_names_the_skill(session: Session) -> None:
    """A tool without `script` tells the agent to read the skill."""
    got = json.dumps(call(session, "no_script"))
    expect(session.skill("tools") in got or "SKILL.md" in got, "the answer names neither the skill nor SKILL.md", got)


def calls_are_independent(session: Session) -> None:
    """Two calls of a handler share no global state."""
    tool_rows(session)
    params = {"name": f"{session.skill('tools')}/count_calls", "args": {}}
    results = [at(session.send("call_tool", params).result, "result") for _ in range(2)]
    expect(results == [1, 1], "the second call sees the state of the first one", results)


def invalid(what: str, manifest: object) -> Check:
    """Make a check: a wrong tools.json is refused, or gives no tool."""

    def check(session: Session) -> None:
        _need(session, "list_tools")
        text = manifest if isinstance(manifest, str) else json.dumps(manifest)
        name = f"{session.namespace}-bad-{what.rsplit(maxsplit=1)[-1]}"
        own = {"name": name, "version": "0.1.0", "description": "A wrong manifest.", "kind": "instruction"}
        reply = session.create(own, {"tools.json": text, "scripts/a.py": NO_HANDLER}, "# Wrong\n")
        if reply.error:
            return
        listed = session.send("list_tools", {"skill": name})
        rows = [] if listed.error else at(listed.result, "tools")
        expect(len(rows) < 2 if what.endswith("twice") else not rows, "the server offers tools of it", rows)

    check.__doc__ = f"tools.json with {what} is refused, or the tool is skipped."
    return check


def defined_tool_works(session: Session) -> None:
    """`define_tool` makes a tool that can be called, and `remove_tool` removes it."""
    _need(session, "define_tool", "call_tool", "remove_tool")
    name = f"conformance_{secrets.token_hex(4)}"
    parameters = json.dumps({"n": {"type": "number", "description": "The number"}})
    more = {"description": "Doubles.", "language": "python", "parameters": parameters, "code": "return args['n'] * 2"}
    defined = session.send("define_tool", {"name": name, **more})
    expect(not defined.error, "the tool was not defined", defined.error)
    called = session.send("call_tool", {"name": name, "args": {"n": 21}})
    removed = session.send("remove_tool", {"name": name})
    expect(called.result and called.result.get("result") == 42, "the tool did not return 42", called.text)
    expect(not removed.error, "the tool was not removed", removed.error)
    again = session.send("call_tool", {"name": name, "args": {"n": 21}})
    expect(again.error or "error" in (again.result.get("result") or {}), "the removed tool still works", again.text)


def persistent_tool_is_a_skill(session: Session) -> None:
    """A tool with `persistent`: "true" becomes a skill `fetch-weather` with SKILL.md, tools.json and a handler."""
    _need(session, "define_tool", "remove_tool")
    name = f"conformance_{secrets.token_hex(4)}"
    more = {"description": "Returns 1.", "language": "python", "parameters": "{}", "code": "return 1"}
    defined = session.send("define_tool", {"name": name, "persistent": "true", **more})
    if defined.error:
        raise Skipped(f"not offered: {defined.error}")
    try:
        skill = name.replace("_", "-")
        if session.send("describe_skill", {"name": skill}).error:
            raise Skipped(f"the server has no skill {skill}: it may review versions, or put them into a namespace")
        tools = json.loads(at(session.result("read_skill_file", name=skill, path="tools.json"), "content"))
        expect([tool["name"] for tool in tools] == [name], "tools.json does not have the tool", tools)
        script = at(session.result("read_skill_file", name=skill, path=tools[0]["script"]), "content")
        expect("return 1" in script, "the handler does not have the code", script)
        head = at(session.result("read_skill_file", name=skill, path="SKILL.md"), "content")
        expect(head.startswith("---\n") and skill in head, "SKILL.md has no frontmatter with the name", head)
    finally:
        session.try_to_send("remove_tool", {"name": name})


def standard_tools_are_protected(session: Session) -> None:
    """`remove_tool` does not remove `list_skills`."""
    _need(session, "remove_tool")
    reply = session.send("remove_tool", {"name": "list_skills"})
    expect(reply.error and knows(session, "list_skills"), "the server removes a standard tool", reply.text)
