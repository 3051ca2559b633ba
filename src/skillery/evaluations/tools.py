"""The tools of an agent as calls of methods, in a workspace of its own for each trial.

The caller passes the function that calls a method: that of a client, or of a server with the rights of the evaluation.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from skillery.evaluations.trials import Trial
from skillery.formats.bundle import SKILL_MD
from skillery.formats.wording import one_line

LANGUAGES = ("python", "bash")
GRADER = Path(__file__).parent / "in_sandbox" / "grade.py"
GRADER_MS = 10_000
"""The time limit of a grader in Python."""
RUN_MS = 60_000
"""The time limit of each run of an agent."""
MOST_FILES, MOST_FILE_BYTES = 64, 1024 * 1024
"""How many files of a trial are graded, and the maximum size of each. Of larger files, the name counts."""

CallMethod = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
"""Call a method with its params, and return its result. Raise Refusal if the method refuses the params."""


class Refusal(Exception):
    """Raised if a method refuses params that a model has written. The message is for the model."""


class ToolResult(NamedTuple):
    """The answer of a tool: a text for the model, and the id of the run, or ""."""

    text: str
    is_error: bool = False
    run_id: str = ""
    is_invalid: bool = False
    """Whether the arguments are not valid, so that nothing was called."""


class TriedSkill(NamedTuple):
    """The version of a skill that an agent gets, and what it reads about the skill before it opens it."""

    name: str
    version: str
    description: str
    is_action: bool
    """Whether `execute_skill` can run the skill: it has an entrypoint or scripts."""
    tools: Sequence[Mapping[str, Any]] = ()
    """The tools of the skill, each with `name`, `description` and `parameters`."""


async def describe(call: CallMethod, name: str, version: str) -> TriedSkill:
    """Return what an agent reads about a version."""
    skill = (await call("describe_skill", {"name": name, "version": version, "detail": "full"}))["skill"]
    tools = (await call("list_tools", {"skill": f"{name}@{version}", "limit": 100}))["tools"]
    runtime = skill["manifest"].get("runtime") or {}
    is_action = bool(runtime.get("entrypoint") or skill.get("scripts"))
    return TriedSkill(name, version, skill["manifest"].get("description", ""), is_action, tools)


class _Arguments(msgspec.Struct):
    """The arguments of any of the tools."""

    language: str = LANGUAGES[0]
    code: str = ""
    path: str = SKILL_MD
    script: str | None = None
    tool: str = ""
    args: dict[str, Any] = {}


class AgentTools:
    """The tools of one trial, in a workspace of their own.

    Bad arguments and failed runs are results with `is_error`. Methods raise only if the sandbox or the registry cannot
    be used. The caller passes a version without the files of `is_hidden`.
    """

    def __init__(self, call: CallMethod, skill: TriedSkill | None, workspace: str) -> None:
        """`skill` is None in the arm `without`."""
        self.skill = skill
        self._call = call
        self._workspace = workspace
        self._files: list[Mapping[str, Any]] = []

    @classmethod
    async def open(cls, call: CallMethod, skill: TriedSkill | None, files: Mapping[str, bytes]) -> AgentTools:
        """Return tools with a new workspace, which has the files."""
        return cls(call, skill, await new_workspace(call, files))

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool. All runs are in the workspace, next to the files of the skill."""
        try:
            args = msgspec.convert(arguments, _Arguments)
        except msgspec.ValidationError as error:
            return ToolResult(f"the arguments are not valid: {error}", is_error=True, is_invalid=True)
        name, version = (self.skill.name, self.skill.version) if self.skill else ("", "")
        if tool == "run_code":
            mounts = [f"{name}@{version}"] if name else []
            params = {"language": args.language, "code": args.code, "mount_skills": mounts}
            return await self._run(tool, {**params, "limits": {"timeout_ms": RUN_MS}})
        if tool == "read_skill_file":
            return await self._read({"name": name, "version": version, "path": args.path})
        script = {"script": args.script} if args.script else {}
        about = {"name": name, **script} if tool == "execute_skill" else {"name": args.tool, "skill": name}
        return await self._run(tool, {"version": version, "args": args.args, "timeout_ms": RUN_MS, **about})

    async def _read(self, params: Mapping[str, Any]) -> ToolResult:
        try:
            file = await self._call("read_skill_file", params)
        except Refusal as refusal:
            return ToolResult(str(refusal), is_error=True)
        return ToolResult(file["content"] if file["encoding"] == "utf-8" else "(not a text)")

    async def files(self) -> Mapping[str, bytes]:
        """Return the files in `out/` of the workspace, by path without `out/`."""
        # Each run in the workspace answers with all files of its out/.
        return {file["path"]: await self._content(file) for file in self._files[:MOST_FILES]}

    async def _content(self, file: Mapping[str, Any]) -> bytes:
        if file["size_bytes"] > MOST_FILE_BYTES:
            return b""
        blob = await self._call("read_blob", {"blob_id": file["blob_id"], "mode": "full"})
        return base64.b64decode(blob["content"]) if blob["encoding"] == "base64" else blob["content"].encode()

    async def _run(self, method: str, params: Mapping[str, Any]) -> ToolResult:
        try:
            run = await self._call(method, {**params, "workspace": self._workspace})
        except Refusal as refusal:
            return ToolResult(str(refusal), is_error=True)
        self._files = run.get("files") or []
        shown = {
            "output": run.get("output", run.get("result")),
            "error": run.get("error"),
            "log": run.get("logs_preview"),
            "files": [f"out/{file['path']}" for file in self._files[:MOST_FILES]],
        }
        text = msgspec.json.encode({key: value for key, value in shown.items() if value or key == "output"}).decode()
        is_error = run.get("status") == "failed" or run.get("is_error") is True
        return ToolResult(text, is_error, run.get("run_id") or "")


async def new_workspace(call: CallMethod, files: Mapping[str, bytes]) -> str:
    """Return the id of a new workspace with these files."""
    sent = []
    for path, content in files.items():
        params = {"content": base64.b64encode(content).decode(), "encoding": "base64", "kind": "text/plain"}
        sent.append({"path": path, "blob_id": (await call("create_blob", params))["blob_id"]})
    workspace: str = (await call("create_workspace", {"name": "evaluation", "files": sent}))["id"]
    return workspace


class Verdict(msgspec.Struct):
    """What a grader says about a trial."""

    passed: bool
    evidence: str = ""


class PythonGraders(NamedTuple):
    """Graders of authors, run in the sandbox without network. `bundle` are the files of the skill, with `evals/`."""

    call: CallMethod
    bundle: Mapping[str, bytes]

    async def run(self, file: str, trial: Trial) -> tuple[bool, str]:
        """Call `grade(answer, files, transcript)` in a file of the bundle. Return whether the trial passed, and the
        evidence. A failed run is evidence, too.
        """
        if file not in self.bundle:
            return False, f"the skill has no file {one_line(file, 200)}"
        code = self.bundle[file].decode("utf-8", "replace")
        args = {"code": code, "file": file, "answer": trial.answer, "transcript": trial.transcript}
        try:
            workspace = await new_workspace(self.call, {f"out/{path}": data for path, data in trial.files.items()})
            limits = {"timeout_ms": GRADER_MS}
            params = {"language": "python", "code": GRADER.read_text("utf-8"), "args": args, "limits": limits}
            run = await self.call("run_code", {**params, "workspace": workspace})
        except Refusal as refusal:
            return False, f"the grader cannot run: {refusal}"
        if run["status"] != "completed":
            return False, one_line(f"the grader failed: {run['error']['type']}: {run['error']['message']}", 500)
        try:
            verdict = msgspec.convert(run["output"], Verdict)
        except msgspec.ValidationError as error:
            return False, f"the grader returned nothing usable: {error}"
        return verdict.passed, verdict.evidence
