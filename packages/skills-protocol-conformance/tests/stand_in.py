"""A small server of the Skills Protocol that conforms. `POST /rpc/FAULT` switches one fault on.

The server reads the skills of a folder. It runs code in a process of its own without isolation, where paths and
functions of a sandbox are replaced: it is for code of the conformance suite only.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from skills_protocol_conformance.samples import write_skills

METHODS = ["list_skills", "describe_skill", "read_skill_file", "execute_skill", "run_code", "create_blob", "read_blob"]
METHODS += ["load_skills_protocol_guide", "create_skill", "list_tools", "call_tool", "define_tool", "remove_tool"]
GUIDE = "skills.protocol.guide"
GUIDE_MANIFEST = {
    "name": GUIDE,
    "version": "0.1.0",
    "description": "Intro to the Skills Protocol for LLMs.",
    "kind": "instruction",
    "namespace": "skills.protocol",
    "tags": ["guide", "bootstrap"],
}
GUIDE_TEXT = (
    "---\nname: Skills Protocol Guide\nshort_description: How to use the Skills Protocol tools.\n---\n\n"
    f"# Skills Protocol Overview\n\nAvailable tools: {', '.join(METHODS[:8])}\n\n"
    "## Recommended Workflow\n\n## Best Practices\n"
)
# The types of params. A required one ends with "!".
TYPES: dict[str, dict[str, str]] = {
    "list_skills": {"namespace": "str", "detail": "names summary", "limit": "int", "cursor": "str"},
    "describe_skill": {"name": "str!", "version": "str", "detail": "manifest summary full"},
    "read_skill_file": {"name": "str!", "version": "str", "path": "str!"},
    "execute_skill": {"name": "str!", "version": "str", "args": "dict", "input_blobs": "list", "timeout_ms": "int"},
    "run_code": {
        "language": "python !",
        "code": "str!",
        "entrypoint": "str",
        "args": "dict",
        "mount_skills": "list",
        "input_blobs": "list",
        "limits": "dict",
    },
    "create_blob": {"content": "str!", "kind": "str!"},
    "read_blob": {"blob_id": "str!", "mode": "sample_head sample_tail full", "max_bytes": "int"},
    "define_tool": {"name": "str!", "code": "str!"},
    "remove_tool": {"name": "str!"},
    "create_skill": {"manifest": "dict!", "skill_md": "str!", "files": "list"},
}
CHOICES = {"list_skills.detail", "describe_skill.detail", "run_code.language", "read_blob.mode"}
RUNNER = r"""
import builtins, json, os, sys, types
job = json.load(open(sys.argv[1]))
fault, root = job["fault"], job["root"]
result = {"blobs": {}, "log": []}
def module(name, **members):
    made = sys.modules[name] = types.ModuleType(name)
    made.__dict__.update(members)
    made.__path__ = []
    parent, _, own = name.rpartition(".")
    if parent:
        setattr(sys.modules.get(parent) or module(parent), own, made)
    return made
def write_text(content):
    blob = "blob:r%d-%d" % (job["number"], len(result["blobs"]))
    result["blobs"][blob] = content
    return blob
write_json = lambda obj: write_text(json.dumps(obj) if fault != "json_as_repr" else repr(obj))
def read_text(blob):
    return job["blobs"][blob] if blob in job["blobs"] else result["blobs"][blob]
say = lambda message: print(message, flush=True)
members = {"read_text": read_text, "write_text": write_text, "write_json": write_json}
if fault in ("no_read_text", "no_write_text", "no_write_json"):
    del members[fault[3:]]
module("runtime")
module("runtime.blobs", **members)
module("runtime.log", info=say, error=say if fault != "log_error_lost" else lambda message: None)
module("skills")
if fault != "mount_missing":
    for name, code in job["skills"].items():
        exec(compile(code, name, "exec"), module("skills." + name).__dict__)
if fault != "root":
    os.getuid = lambda: 1000
real_access, real_open = os.access, builtins.open
os.access = lambda path, mode: fault == "system_writable"
def guarded(file, mode="r", *more, **named):
    if fault != "skills_writable" and str(file).startswith(root + "/skills") and set(mode) & set("wax+"):
        raise PermissionError(13, "read-only")
    return real_open(file, mode, *more, **named)
builtins.open = guarded
if "socket" in job["code"] and fault != "network":
    import socket
    def refused(*more, **named):
        raise OSError("no network")
    socket.create_connection = refused
if "sleep" in job["code"] and fault == "timeout_ignored":
    import time
    time.sleep = lambda seconds: None
if job["mark"]:
    builtins.conformance_mark = job["mark"]
try:
    main = module("conformance_code", VERSION=None)
    exec(compile(job["code"], "code.py", "exec"), main.__dict__)
    args = {} if fault == "args_lost" else job["args"]
    value = getattr(main, "main" if fault == "entrypoint_ignored" else job["entrypoint"])(args)
    result["output"] = json.loads(json.dumps(value))
except BaseException as error:
    kind = "Error" if fault == "error_type_wrong" else type(error).__name__
    result["error"] = {"type": kind, "message": "" if fault == "error_message_empty" else str(error)}
result["mark"] = getattr(builtins, "conformance_mark", None)
sys.stdout.flush()
with real_open(sys.argv[1] + ".out", "w") as file:
    json.dump(result, file)
"""


class Error(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class StandIn:
    """The state of the server, and its methods."""

    def __init__(self, folder: Path) -> None:
        self.skills: dict[str, dict[str, dict[str, Any]]] = {}
        self.blobs: dict[str, tuple[str, str]] = {}
        self.mark: Any = None
        self.defined: dict[str, str] = {}
        self.shared = Path(tempfile.mkdtemp(prefix="stand-in-"))
        self.numbers = itertools.count(1)
        self.add(GUIDE_MANIFEST, {"SKILL.md": GUIDE_TEXT})
        for root in sorted(folder.iterdir()):
            files = {str(file.relative_to(root)): file.read_text("utf-8") for file in root.rglob("*") if file.is_file()}
            self.add(tomllib.loads(files.pop("skill.toml")), files)

    def add(self, manifest: dict[str, Any], files: dict[str, str]) -> None:
        lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in manifest.items() if key in TEXTS]
        stored = {"manifest": manifest, "files": {"skill.toml": "\n".join(lines) + "\n", **files}}
        self.skills.setdefault(manifest["name"], {})[manifest["version"]] = stored

    def skill(self, params: dict[str, Any], fault: str) -> dict[str, Any]:
        versions = self.skills.get(params["name"])
        if not versions or (fault == "guide_missing" and params["name"] == GUIDE):
            raise Error(-32001, "skill not found")
        ordered = sorted(versions, key=lambda version: [int(part) for part in version.split("-")[0].split(".")])
        version = params.get("version") or ordered[0 if fault == "latest_is_first" else -1]
        if fault == "version_ignored":
            version = ordered[-1]
        if version not in versions:
            raise Error(-32001, "version not found")
        return versions[version]

    # -- messages ------------------------------------------------------------------------------------------------------

    def answer(self, body: bytes, fault: str) -> Any:
        """Return the answer to a message, or None for a notification."""
        try:
            message = json.loads(body)
        except ValueError:
            return self.error(None, -32000 if fault == "parse_code" else -32700, "Parse error")
        if not isinstance(message, dict) or not isinstance(message.get("method"), str):
            number = message.get("id") if isinstance(message, dict) else None
            return self.error(number, -32000 if fault == "request_code" else -32600, "Invalid Request")
        number = None if fault == "id_not_echoed" else message.get("id")
        if fault == "id_as_string":
            number = str(number)
        try:
            result = self.call(message["method"], message.get("params") or {}, fault)
        except Error as error:
            answer = self.error(number, error.code, str(error))
            if fault == "error_with_result":
                answer["result"] = None
            if fault == "error_without_message":
                del answer["error"]["message"]
        else:
            answer = {"jsonrpc": "2.0", "id": number, "result": result}
            if fault == "result_with_error":
                answer["error"] = None
        if fault == "extra_fields":
            answer = with_more(answer)
        if fault == "no_jsonrpc_member":
            del answer["jsonrpc"]
        if "id" not in message and fault != "notification_answered":
            return None
        return answer

    def error(self, number: Any, code: int, message: str) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}

    def call(self, method: str, params: Any, fault: str) -> Any:
        if fault == "empty_results":
            return {}
        if method not in METHODS or fault == "no_method" or fault == f"no_{method}":
            raise Error(-32000 if fault == "unknown_method_code" else -32601, "Method not found")
        if fault == "no_params_refused" and not params:
            raise Error(-32602, "params are missing")
        if not isinstance(params, dict):
            raise Error(-32602, "params are not an object")
        if fault != "params_unchecked":
            self.check(method, params, fault)
        try:
            return getattr(self, method)(params, fault)
        except Error as error:
            if fault == "failed_for_error":
                return {"status": "failed", "run_id": "run_0", "summary": "Failed.", "error": {"type": "Error"}}
            raise error

    def check(self, method: str, params: Any, fault: str) -> None:
        code = -32603 if fault == "params_code" else -32602
        for name, kind in TYPES.get(method, {}).items():
            value = params.get(name)
            if value is None:
                if kind.endswith("!") and not (fault == "kind_is_optional" and name == "kind"):
                    raise Error(code, f"{name} is missing")
            elif f"{method}.{name}" in CHOICES:
                if value not in kind.split() and fault != "choices_unchecked":
                    raise Error(code, f"{name} is none of {kind}")
            elif type(value).__name__ != kind.strip("!"):
                raise Error(code, f"{name} is not {kind}")

    # -- discovery -----------------------------------------------------------------------------------------------------

    def list_skills(self, params: dict[str, Any], fault: str) -> Any:
        names = sorted(self.skills)
        if fault == "unsorted":
            random.shuffle(names)
        if fault == "insertion_order":
            names = sorted(self.skills, key=lambda name: name[::-1])
        own = str(params.get("namespace") or "")
        rows = []
        for name in names:
            manifest = self.skill({"name": name}, fault)["manifest"]
            space = manifest.get("namespace", "")
            found = not own or f"{space}.".startswith(f"{own}.") or fault == "namespace_ignored"
            if found or (fault == "semantic_search" and own in manifest["description"]):
                row = {key: manifest.get(key, "") for key in ("name", "version", "description", "namespace", "kind")}
                if fault.startswith("row_without_"):
                    row.pop(fault.removeprefix("row_without_"))
                if fault == "kind_wrong":
                    row["kind"] = "skill"
                rows.append(row)
        if fault == "guide_not_listed":
            rows = [row for row in rows if row["name"] != GUIDE]
        limit = params.get("limit") or (20 if fault == "default_limit" else 50)
        cursor = params.get("cursor") or "0"
        if not cursor.isdecimal():
            raise Error(-32602, "the cursor is not one of this server")
        begin = int(cursor)
        end = begin + limit + (fault == "limit_exceeded")
        step = {"lost_row": end + 1, "repeated_row": end - 1}.get(fault, end)
        if fault == "cursor_ignored":
            begin, end, step = 0, limit, limit
        return {"skills": rows[begin:end], "next_cursor": str(step) if end < len(rows) else None}

    def describe_skill(self, params: dict[str, Any], fault: str) -> Any:
        stored = self.skill(params, fault)
        default = "manifest" if fault == "default_detail" else "summary"
        detail = params.get("detail") or default
        skill = {"manifest": dict(stored["manifest"])}
        if fault == "manifest_cut":
            skill["manifest"].pop("runtime", None)
        if detail != "manifest":
            text = stored["files"]["SKILL.md"]
            head = text.partition("---\n")[2].partition("\n---\n")[0] if text.startswith("---\n") else ""
            pairs = (line.partition(": ") for line in head.splitlines())
            skill["skill_md_frontmatter"] = {key: parsed(value, fault) for key, _, value in pairs}
        return skill if fault == "skill_not_wrapped" else {"skill": skill}

    def read_skill_file(self, params: dict[str, Any], fault: str) -> Any:
        files, path = self.skill(params, fault)["files"], params["path"]
        if fault == "escape_served" and ".." in path:
            return {"content": "root:x:0:0:root:/root:/bin/sh\n"}
        if path not in files:
            raise Error(-32001, "file not found")
        content = files[path]
        if fault == "ascii_only":
            content = content.encode("ascii", "replace").decode()
        return {"text" if fault == "file_text_field" else "content": content}

    def load_skills_protocol_guide(self, params: dict[str, Any], fault: str) -> Any:
        return {"content": "# A guide\n" if fault == "guide_wrong" else GUIDE_TEXT}

    # -- runs ----------------------------------------------------------------------------------------------------------

    def execute_skill(self, params: dict[str, Any], fault: str) -> Any:
        stored = self.skill(params, fault)
        runtime = stored["manifest"].get("runtime")
        if runtime is None:
            if fault == "instruction_runs":
                return {"status": "completed", "run_id": "run_0", "summary": "Nothing.", "output": {}}
            raise Error(-32602, "an instruction skill cannot be executed")
        code = stored["files"][runtime["entrypoint"]]
        export = "main" if fault == "export_ignored" else runtime["export"]
        mounts = [] if fault == "skill_folder_missing" else [params["name"]]
        return self.run(code, export, params, mounts, params.get("timeout_ms"), fault)

    def run_code(self, params: dict[str, Any], fault: str) -> Any:
        limits = params.get("limits") or {}
        default = "other" if fault == "default_entrypoint" else "main"
        entrypoint, mounts = params.get("entrypoint") or default, params.get("mount_skills") or []
        return self.run(params["code"], entrypoint, params, mounts, limits.get("timeout_ms"), fault)

    def run(self, code: str, entrypoint: str, params: Any, mounts: list[str], timeout: Any, fault: str) -> Any:
        number = next(self.numbers)
        root = Path(tempfile.mkdtemp(prefix="run-"))
        try:
            paths = {part: str(root / part) for part in ("workspace", "skills", "blobs")}
            if fault == "workspace_left":
                paths["workspace"] = str(self.shared)
            Path(paths["workspace"]).mkdir(exist_ok=True)
            for part, path in paths.items():
                code = code.replace(f"/{part}/", f"{path}/").replace(f"'/{part}'", f"'{path}'")
            skills = {}
            for name in mounts:
                stored = self.skill({"name": name}, fault)
                for path, content in stored["files"].items():
                    file = root / "skills" / name / path
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(content, "utf-8")
                runtime = stored["manifest"].get("runtime")
                skills[name] = stored["files"][runtime["entrypoint"]] if runtime else ""
            inputs = [] if fault == "inputs_lost" else params.get("input_blobs") or []
            job = {"code": code, "entrypoint": entrypoint, "args": params.get("args") or {}, "skills": skills}
            job |= {"blobs": {blob: self.blob(blob)[0] for blob in inputs}, "number": number, "fault": fault}
            job |= {"root": str(root), "mark": self.mark if fault == "sandbox_reused" else None}
            (root / "job").write_text(json.dumps(job), "utf-8")
            seconds = timeout / 1000 if timeout and fault != "timeout_ignored" else 60
            return self.ended(root / "job", seconds, number, fault)
        finally:
            shutil.rmtree(root)

    def ended(self, job: Path, seconds: float, number: int, fault: str) -> Any:
        env = {"PATH": "/usr/bin:/bin", "PYTHONIOENCODING": "utf-8"}
        if fault == "secrets_leaked":
            env["SALESFORCE_API_KEY"] = "…"
        command = [sys.executable, "-I", "-S", "-c", RUNNER, str(job)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env) as process:
            try:
                log = process.communicate(timeout=seconds)[0].decode("utf-8", "replace")
                error = {"type": "ProcessExited", "message": f"status {process.returncode}"}
            except subprocess.TimeoutExpired:
                process.kill()
                log, error = "", {"type": "TimeoutError", "message": "the run took too long"}
        out = Path(f"{job}.out")
        result = json.loads(out.read_text("utf-8")) if out.exists() else {"blobs": {}, "error": error}
        self.mark = result.get("mark")
        self.blobs |= {blob: (content, "text/plain") for blob, content in result["blobs"].items()}
        run_id = "run_1" if fault == "run_id_repeated" else f"run_{number}"
        run: dict[str, Any] = {"status": "completed", "run_id": run_id, "summary": "Ran."}
        run["output_blobs"] = [] if fault == "output_blobs_lost" else list(result["blobs"])
        run["logs_preview"] = "" if fault == "logs_lost" else log if fault == "log_not_cut" else log[:2048]
        if fault.startswith("run_without_"):
            run.pop(fault.removeprefix("run_without_"), None)
        if "error" in result:
            if fault == "error_for_failed_run":
                raise Error(-32000, "the run failed")
            status = "completed" if fault == "completed_for_failed_run" else "failed"
            return run | {"status": status, "error": result["error"]}
        if fault == "error_on_success":
            run["error"] = {"type": "None", "message": ""}
        if fault == "status_other":
            run["status"] = "succeeded"
        if fault == "output_blobs_extra":
            run["output_blobs"].append("blob:extra")
        output = result["output"]
        text = json.dumps(output, separators=(",", ":"), ensure_ascii=False)
        if len(text.encode()) > 4096 and fault != "large_output_inline":
            blob = self.create_blob({"content": text, "kind": "application/json"}, "")["blob_id"]
            return run | {"output": {"blob_id": blob}, "output_blobs": [*run["output_blobs"], blob]}
        return run | {"output": json.dumps(output) if fault == "output_as_text" else output}

    # -- blobs ---------------------------------------------------------------------------------------------------------

    def blob(self, blob: str) -> tuple[str, str]:
        if blob not in self.blobs:
            raise Error(-32001, "blob not found")
        return self.blobs[blob]

    def create_blob(self, params: dict[str, Any], fault: str) -> Any:
        number, content = next(self.numbers), params["content"]
        blob = f"{'' if fault == 'blob_id_form' else 'blob:'}b{number}"
        self.blobs[blob] = (content, "text/plain" if fault == "blob_kind_lost" else params["kind"])
        size = len(content) if fault == "size_in_characters" else len(content.encode())
        return {"blob_id": blob, "size_bytes": str(size) if fault == "size_as_text" else size}

    def read_blob(self, params: dict[str, Any], fault: str) -> Any:
        content, kind = self.blob(params["blob_id"])
        data, mode = content.encode(), params.get("mode") or ("full" if fault == "default_mode" else "sample_head")
        most = params.get("max_bytes") or (1000 if fault == "default_max_bytes" else 2000)
        if fault == "max_bytes_ignored":
            most = 100_000
        if mode == "full" and params.get("max_bytes") is None:
            most = len(data)
        part = data[-most:] if mode == "sample_tail" and fault != "tail_is_head" else data[:most]
        text = part.decode("utf-8", "replace" if fault == "split_character" else "ignore")
        truncated = {"never_truncated": False, "always_truncated": True}.get(fault, len(part) < len(data))
        answer = {"content": text, "truncated": truncated, "kind": kind}
        if fault == "blob_without_kind":
            del answer["kind"]
        return answer

    # -- create_skill and tools ----------------------------------------------------------------------------------------

    def create_skill(self, params: dict[str, Any], fault: str) -> Any:
        manifest, files = params["manifest"], {file["path"]: file["content"] for file in params.get("files") or []}
        if not manifest.get("name") or not manifest.get("version"):
            if fault == "manifest_unchecked":
                return {"name": "x", "version": "0"}
            raise Error(-32602, "the manifest has no name or version")
        for path in files:
            if PurePosixPath(path).is_absolute() or ".." in path.split("/"):
                if fault == "create_escape_accepted":
                    continue
                raise Error(-32602, "the path leaves the skill")
        if "tools.json" in files and fault != "tools_unchecked" and not are_tools(files["tools.json"]):
            raise Error(-32602, "tools.json is invalid")
        if fault == "files_lost":
            files = {}
        if fault != "not_persisted":
            self.add(manifest, {"SKILL.md": params["skill_md"], **files})
        return {"name": manifest["name"], "version": "9.9.9" if fault == "version_changed" else manifest["version"]}

    def tools(self, name: str, fault: str) -> list[dict[str, Any]]:
        text = self.skill({"name": name}, fault)["files"].get("tools.json", "[]")
        if fault == "tools_unchecked" and not are_tools(text):
            return [{"name": "broken", "description": text}]
        return list(json.loads(text)) if are_tools(text) else []

    def list_tools(self, params: dict[str, Any], fault: str) -> Any:
        rows = [{"parameters": {}, **tool} for tool in self.tools(params.get("skill") or GUIDE, fault)]
        if fault == "tool_without_parameters":
            rows = [{**row, "parameters": None} for row in rows]
        return {"tools": rows[1:] if fault == "tool_lost" else rows}

    def call_tool(self, params: dict[str, Any], fault: str) -> Any:
        skill, _, name = str(params.get("name")).rpartition("/")
        if name in self.defined:
            run = self.run(self.defined[name], "handler", params, [], None, "")
            return {"result": None if fault == "defined_tool_wrong" else run["output"]}
        tool = next((tool for tool in self.tools(skill, fault) if tool["name"] == name), None)
        if tool is None:
            raise Error(-32001, "tool not found")
        args = {**params.get("args", {}), **({} if fault == "no_work_dir" else {"__workDir": "/workspace"})}
        for key, parameter in tool.get("parameters", {}).items():
            if not parameter.get("optional") and key not in args and fault != "required_unchecked":
                return {"result": {"error": f"{key} is missing"}}
        script = tool.get("script")
        if script is None:
            return {"result": "" if fault == "stub_empty" else f"Read SKILL.md of {skill}."}
        if not script.endswith(".py"):
            return {"result": {"error": "this server runs Python only"}}
        run = self.run(self.skill({"name": skill}, fault)["files"][script], "handler", {"args": args}, [], None, "")
        if run["status"] == "failed":
            if fault == "tool_error_raised":
                raise Error(-32000, run["error"]["message"])
            return {"result": {"error": run["error"]["message"]}}
        return {"result": str(run["output"]) if fault == "tool_result_as_text" else run["output"]}

    def define_tool(self, params: dict[str, Any], fault: str) -> Any:
        name, code = params["name"], "def handler(args):\n    " + params["code"] + "\n"
        if params.get("persistent") != "true":
            self.defined[name] = code
            return {"name": name, "skill": None}
        skill, script = name.replace("_", "-"), f"scripts/{name}.py"
        declared = [{"name": name, "description": params["description"], "script": script}]
        files = {"SKILL.md": f"---\nname: {skill}\n---\n", "tools.json": json.dumps(declared), script: code}
        if fault == "persistent_without_tools":
            files["tools.json"] = "[]"
        self.add({"name": skill, "version": "1.0.0", "description": "A tool.", "kind": "instruction"}, files)
        return {"name": name, "skill": skill}

    def remove_tool(self, params: dict[str, Any], fault: str) -> Any:
        name = params["name"]
        if name in METHODS and fault != "standard_tool_removed":
            raise Error(-32602, "the tool is protected")
        if fault != "tool_not_removed":
            self.defined.pop(name, None)
            self.skills.pop(name.replace("_", "-"), None)
        return {"name": name}


TEXTS = ("name", "version", "description", "kind", "namespace", "tags")


def parsed(value: str, fault: str) -> Any:
    """Return a value of YAML frontmatter: a list in brackets, a number, a boolean, or a string."""
    if value in {"3", "0.5", "true"} and fault != "frontmatter_as_text":
        return json.loads(value)
    if value.startswith("[") and fault != "frontmatter_unparsed":
        return [part.strip() for part in value.strip("[]").split(",")]
    return value


def with_more(answer: Any) -> Any:
    """Return an answer whose objects have a further field, except values of the caller."""
    if isinstance(answer, list):
        return [with_more(part) for part in answer]
    if not isinstance(answer, dict):
        return answer
    kept = {"output", "manifest", "skill_md_frontmatter", "parameters"}
    return {key: value if key in kept else with_more(value) for key, value in answer.items()} | {"x_more": [1]}


def are_tools(text: str) -> bool:
    try:
        tools = json.loads(text)
        names = [tool["name"] for tool in tools if tool["description"]]
    except (ValueError, KeyError, TypeError):
        return False
    return isinstance(tools, list) and len(names) == len(set(names)) and all(name.islower() for name in names)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stand_in: StandIn

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        answer = self.stand_in.answer(body, self.path.removeprefix("/rpc").strip("/"))
        text = b"" if answer is None else json.dumps(answer).encode()
        status = 202 if self.path.endswith("http_status") else 200
        self.send_response(204 if answer is None else status)
        kind = "text/plain" if self.path.endswith("content_type") else "application/json"
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log."""


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of a server with the samples of the suite, in a folder that the suite has written."""
    folder = tmp_path_factory.mktemp("samples")
    write_skills(folder)
    handler = type("StandInHandler", (Handler,), {"stand_in": StandIn(folder)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/rpc"
    server.shutdown()
    server.server_close()
