"""The agent of an evaluation: a model that calls tools until it has done a task, or has used up its limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from skillery.backends import PublishedFile
from skillery.evaluations.dialects import Call, Chat, Tool, Turn
from skillery.evaluations.models import ModelClient
from skillery.evaluations.tools import LANGUAGES, AgentTools, ToolResult, TriedSkill
from skillery.evaluations.trials import Arm, Budget, Limits, Task, Trial
from skillery.formats.bundle import SKILL_MD, SKILL_TOML, BundleFile
from skillery.formats.graders import Rubric
from skillery.formats.suites import FOLDER, Case, Suite, suite_files
from skillery.formats.wording import Problem, one_line

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


def prompts_of(suite: Suite) -> dict[str, Case]:
    """Return the prompts of a suite that should lead to its skill, or should not, by their ids."""
    prompts: dict[str, Case] = {}
    for case in suite.cases:
        if case.kind == "trigger":
            prompts[_unused(f"{case.source}#{case.id}", prompts)] = case
    return prompts


def _bundle_path(path: str, files: Mapping[str, bytes]) -> str | None:
    """Return the path in the bundle of a file of a case, which may be relative to the folder of the suites."""
    candidates = (path, f"{FOLDER}/{path}", f"{FOLDER}/files/{path}")
    return next((candidate for candidate in candidates if candidate in files), None)


def _input_path(path: str) -> str:
    """Return where the agent finds a file: without the folder of the suites."""
    return path.removeprefix(f"{FOLDER}/").removeprefix("files/")


def _unused(name: str, tasks: Mapping[str, object]) -> str:
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


# -- The loop ----------------------------------------------------------------------------------------------------------


async def attempt(task: Task, arm: Arm, model: ModelClient, tools: AgentTools, budget: Budget, limits: Limits) -> Trial:
    """Let an agent do a task once. Raise ModelFailed, or BudgetUsed before a request that the budget does not cover.

    An agent without more steps or time ends with `error`.
    """
    trial = Trial(task.id, arm, [{"role": "user", "text": _prompt(task)}])
    began = time.monotonic()
    try:
        async with asyncio.timeout(limits.seconds) as deadline:
            if not await _answers(trial, model, tools, budget, limits):
                trial.error = f"the agent did not end within {limits.steps} steps"
    except TimeoutError:
        if not deadline.expired():
            raise
        trial.error = f"the agent did not end within {limits.seconds:g} s"
    trial.files = await tools.files()
    trial.duration_ms = (time.monotonic() - began) * 1000
    return trial


async def _answers(trial: Trial, model: ModelClient, tools: AgentTools, budget: Budget, limits: Limits) -> bool:
    """Ask the model and call its tools. Return whether it answers without a call before it has used its steps."""
    offered = {tool.name: tool for tool in _offered(tools.skill)}
    turns: list[Turn] = [trial.transcript[0]["text"]]
    while trial.steps < limits.steps:
        chat = Chat(_system(tools.skill), turns, list(offered.values()), limits.answer_tokens)
        reply = await model.ask(chat, budget)
        trial.steps += 1
        trial.tokens, trial.cost = trial.tokens.plus(reply.tokens), trial.cost + reply.cost
        message = reply.message
        calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in message.calls]
        entry = {"role": "assistant", "text": message.text}
        trial.transcript.append(entry | ({"calls": calls} if calls else {}))
        if not calls:
            trial.answer = message.text
            return True
        turns += [message, [(call, await _called(trial, tools, call, offered, limits)) for call in message.calls]]
    return False


async def _called(
    trial: Trial, tools: AgentTools, call: Call, offered: Mapping[str, Tool], limits: Limits
) -> ToolResult:
    """Return what the model reads about a call, and add it to the trial."""
    if call.name not in offered:
        result = ToolResult(f"there is no tool {one_line(call.name, 80)}", is_error=True)
    elif call.problem:
        result = ToolResult(call.problem, is_error=True)
    else:
        result = await tools.call(call.name, call.arguments)
        trial.used_skill |= call.name != "run_code" and not result.is_invalid
    trial.run_ids += [result.run_id] if result.run_id else []
    text, most = result.text, limits.result_characters
    if len(text) > most:
        text = f"{text[:most]}\n… {len(text) - most} more characters"
    entry = {"role": "tool", "id": call.id, "name": call.name, "text": text, "is_error": result.is_error}
    trial.transcript.append(entry)
    return result._replace(text=text)
