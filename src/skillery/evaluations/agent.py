"""The agent of an evaluation: a model that calls tools until it has done a task, or has used up its limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from skillery.backends import PublishedFile
from skillery.evaluations.dialects import Call, Chat, Message, Tool, Turn
from skillery.evaluations.models import ModelClient
from skillery.evaluations.tools import AgentTools, ToolResult, TriedSkill
from skillery.evaluations.trials import Arm, Budget, Limits, Task, Tokens, Trial
from skillery.formats.bundle import SKILL_MD, SKILL_TOML, BundleFile
from skillery.formats.graders import Rubric
from skillery.formats.suites import FOLDER, Suite, suite_files
from skillery.formats.wording import Problem, one_line

LANGUAGES = ("python", "bash")
_UNUSED = ("examples", "tool_examples", "permissions")
"""Keys of a manifest that an agent's copy of the skill does not have."""
_DESCRIPTION = 2_000
"""The maximum number of characters of a description in the prompt."""
File = TypeVar("File", BundleFile, PublishedFile)


def is_hidden(path: str) -> bool:
    """Return whether an agent must not see a file of the skill: the file has cases, answers or graders."""
    return path.startswith(f"{FOLDER}/") or bool(suite_files([path]))


def agent_copy(manifest: Mapping[str, Any], files: Iterable[File]) -> tuple[dict[str, Any], list[File]]:
    """Return the manifest and the files of the agent's copy of a skill: without suites, examples and permissions. The
    registry writes skill.toml of the manifest.
    """
    kept = {key: value for key, value in manifest.items() if key not in _UNUSED}
    return kept, [file for file in files if not is_hidden(file.path) and file.path != SKILL_TOML]


def tasks_of(suite: Suite, files: Mapping[str, bytes]) -> tuple[list[Task], list[Problem]]:
    """Return the tasks of a suite, and a problem for each that cannot be tried. `files` are those of the bundle."""
    tasks: dict[str, Task] = {}
    problems = []
    for case in suite.cases:
        if case.kind != "task":
            continue
        graders = case.graders
        if not graders and case.expected:
            graders = (Rubric(f"The result is as expected: {case.expected[:7_000]}"),)
        paths = {path: _bundle_path(path, files) for path in case.files}
        missing = [path for path, of_bundle in paths.items() if of_bundle is None]
        if missing or not graders:
            reason = f"names the file {missing[0]}, which is not in the skill" if missing else "expects nothing"
            problems.append(Problem(f"{case.source}: case {case.id} {one_line(reason, 200)}", file=case.source))
            continue
        task_id = _unused(f"{case.source}#{case.id}", tasks)
        inputs = {_input_path(path): files[path] for path in paths.values() if path is not None}
        tasks[task_id] = Task(task_id, msgspec.structs.replace(case, graders=graders), inputs)
    return list(tasks.values()), problems


def _bundle_path(path: str, files: Mapping[str, bytes]) -> str | None:
    """Return the path in the bundle of a file of a case, which may be relative to the folder of the suites."""
    candidates = (path, f"{FOLDER}/{path}", f"{FOLDER}/files/{path}")
    return next((candidate for candidate in candidates if candidate in files), None)


def _input_path(path: str) -> str:
    """Return where the agent finds a file: without the folder of the suites."""
    return path.removeprefix(f"{FOLDER}/").removeprefix("files/")


def _unused(name: str, tasks: Mapping[str, Task]) -> str:
    names = (name if number == 1 else f"{name}~{number}" for number in range(1, len(tasks) + 2))
    return next(name for name in names if name not in tasks)


# -- What the agent reads ----------------------------------------------------------------------------------------------


_SYSTEM = """\
Do the task of the user with your tools. No person answers questions: decide yourself, and finish the task.
Your files are in /workspace, where your code starts. Save files that the user wants in /workspace/out.
Your last message, without a tool call, is the answer."""


def _system(skill: TriedSkill | None) -> str:
    if skill is None:
        return _SYSTEM
    return f"""{_SYSTEM}

There is a skill. Read its {SKILL_MD} with read_skill_file before you use it. Its files are in /skills/{skill.name}.
{skill.name}: {one_line(skill.description, _DESCRIPTION)}"""


def _prompt(task: Task) -> str:
    listed = "".join(f"\n- /workspace/{path}" for path in sorted(task.files))
    return task.case.prompt + (f"\n\nFiles:{listed}" if listed else "")


def _object(required: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


_TEXT = {"type": "string"}
_ANY = {"type": "object"}


def _offered(skill: TriedSkill | None) -> Iterator[Tool]:
    language = {"type": "string", "enum": list(LANGUAGES)}
    about = "Run code in /workspace. Python defines main(args), whose result you get; bash is a script."
    yield Tool("run_code", about, _object(["language", "code"], language=language, code=_TEXT))
    if skill is None:
        return
    yield Tool("read_skill_file", f"Read a file of the skill, for example {SKILL_MD}.", _object(["path"], path=_TEXT))
    if skill.is_action:
        about = "Run the skill with args, or a script of it with args {argv: […]}."
        yield Tool("execute_skill", about, _object(args=_ANY, script=_TEXT))
    if skill.tools:
        tools = "\n".join(_tool_line(tool) for tool in skill.tools)
        yield Tool("call_tool", f"Call a tool of the skill:\n{tools}", _object(["tool"], tool=_TEXT, args=_ANY))


def _tool_line(tool: Mapping[str, Any]) -> str:
    parameters = msgspec.json.encode(tool.get("parameters", {})).decode()
    return f"- {tool['name']}: {one_line(str(tool.get('description', '')), 300)} args: {parameters[:2_000]}"


class _Arguments(msgspec.Struct):
    """The arguments of any of the tools."""

    language: str = LANGUAGES[0]
    code: str = ""
    path: str = SKILL_MD
    script: str | None = None
    tool: str = ""
    args: dict[str, Any] = {}


# -- The loop ----------------------------------------------------------------------------------------------------------


async def attempt(task: Task, arm: Arm, model: ModelClient, tools: AgentTools, budget: Budget, limits: Limits) -> Trial:
    """Let an agent do a task once. Raise ModelFailed, or BudgetUsed before a request that the budget does not cover.

    An agent without more steps or time ends with `error`.
    """
    loop = _Loop(task, model, tools, budget, limits)
    began = time.monotonic()
    error = ""
    try:
        async with asyncio.timeout(limits.seconds) as deadline:
            await loop.run()
    except TimeoutError:
        if not deadline.expired():
            raise
        error = f"the agent did not end within {limits.seconds:g} s"
    if not error and loop.answer is None:
        error = f"the agent did not end within {limits.steps} steps"
    return Trial(
        task=task.id,
        arm=arm,
        answer=loop.answer or "",
        files=await tools.files(),
        steps=loop.steps,
        tokens=loop.tokens,
        cost=loop.cost,
        duration_ms=(time.monotonic() - began) * 1000,
        used_skill=loop.used_skill,
        run_ids=tuple(loop.run_ids),
        transcript=tuple(loop.transcript),
        error=error,
    )


class _Loop:
    """One conversation between a model and the tools."""

    def __init__(self, task: Task, model: ModelClient, tools: AgentTools, budget: Budget, limits: Limits) -> None:
        self._model, self._tools, self._budget, self._limits = model, tools, budget, limits
        self._system = _system(tools.skill)
        self._offered = tuple(_offered(tools.skill))
        self._turns: list[Turn] = [_prompt(task)]
        self.answer: str | None = None
        self.steps = 0
        self.tokens = Tokens()
        self.cost = 0.0
        self.used_skill = False
        self.run_ids: list[str] = []
        self.transcript: list[Mapping[str, Any]] = [{"role": "user", "text": _prompt(task)}]

    async def run(self) -> None:
        """Ask the model and call its tools, until it answers without a call or has used its steps."""
        while self.answer is None and self.steps < self._limits.steps:
            chat = Chat(self._system, self._turns, self._offered, self._limits.answer_tokens)
            reply = await self._model.ask(chat, self._budget)
            self.steps += 1
            self.tokens, self.cost = self.tokens.plus(reply.tokens), self.cost + reply.cost
            message = reply.message
            self._record(message)
            if message.calls:
                self._turns += [message, [(call, await self._called(call)) for call in message.calls]]
            else:
                self.answer = message.text

    def _record(self, message: Message) -> None:
        calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in message.calls]
        self.transcript.append({"role": "assistant", "text": message.text} | ({"calls": calls} if calls else {}))

    async def _called(self, call: Call) -> ToolResult:
        result = await self._result(call)
        if result.run_id:
            self.run_ids.append(result.run_id)
        text = result.text
        if len(text) > (most := self._limits.result_characters):
            text = f"{text[:most]}\n… {len(text) - most} more characters"
        result = result._replace(text=text)
        entry = {"role": "tool", "id": call.id, "name": call.name, "text": text, "is_error": result.is_error}
        self.transcript.append(entry)
        return result

    async def _result(self, call: Call) -> ToolResult:
        if call.name not in {tool.name for tool in self._offered}:
            return ToolResult(f"there is no tool {one_line(call.name, 80)}", is_error=True)
        if call.problem:
            return ToolResult(call.problem, is_error=True)
        try:
            arguments = msgspec.convert(call.arguments, _Arguments)
        except msgspec.ValidationError as error:
            return ToolResult(f"the arguments are not valid: {error}", is_error=True)
        self.used_skill |= call.name != "run_code"
        match call.name:
            case "run_code":
                return await self._tools.run_code(arguments.language, arguments.code)
            case "read_skill_file":
                return await self._tools.read_skill_file(arguments.path)
            case "execute_skill":
                return await self._tools.execute_skill(arguments.args, arguments.script)
            case _:
                return await self._tools.call_tool(arguments.tool, arguments.args)
