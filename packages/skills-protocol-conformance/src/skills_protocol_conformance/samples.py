"""The skills that the statements need: published by `create_skill`, or written to a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER_NAMESPACE = "conformancesuite"
"""Namespace of the skills that `--write-skills` writes."""
MANY_NAMESPACE = "conformancemany"
MANY = 51
"""One skill more than the default limit of `list_skills`. Their names are fixed, so that they are published once."""
SECRET = "CONFORMANCE_SECRET"  # noqa: S105 - a name

PROBE = '''\
"""Does what `args["do"]` says."""
import builtins
import os
import sys
import time

from runtime import blobs, log

VERSION = "@VERSION@"


def main(args):
    do = (args or {}).get("do", "echo")
    if do == "echo":
        print("stdout of the probe")
        print("stderr of the probe", file=sys.stderr)
        return {"version": VERSION, "args": args}
    if do == "raise":
        print("the probe begins")
        raise ValueError("the probe refuses")
    if do == "read":
        return {"text": blobs.read_text(args["blob"])}
    if do == "write":
        return {"blob": blobs.write_text("written by the probe")}
    if do == "sleep":
        time.sleep(args["seconds"])
        return {"slept": args["seconds"]}
    if do == "large":
        return {"text": "x" * 10000}
    if do == "print":
        print("y" * 10000)
        return {"printed": 10000}
    if do == "folder":
        with open("/skills/" + args["name"] + "/resources/schema.json") as file:
            return {"text": file.read()}
    if do == "mark":
        before = [getattr(builtins, "conformance_mark", None), os.path.exists("/workspace/" + args["mark"])]
        builtins.conformance_mark = args["mark"]
        with open("/workspace/" + args["mark"], "w") as file:
            file.write("left")
        return {"before": before}
    raise KeyError(do)


def double(number):
    return {"double": 2 * number}
'''
HANDLE = 'def main(args):\n    return {"called": "main"}\n\n\ndef handle(args):\n    return {"called": "handle"}\n'
PYTHON = {"language": "python", "entrypoint": "code/main.py", "export": "main"}
TOOLS: list[dict[str, Any]] = [
    {
        "name": "count_words",
        "description": "Count the words of a text.",
        "script": "scripts/count_words.py",
        "parameters": {
            "text": {"type": "string", "description": "The text"},
            "unit": {"type": "string", "description": "What to count", "enum": ["words", "lines"], "optional": True},
        },
    },
    {"name": "show_args", "description": "Return the arguments.", "script": "scripts/show_args.py"},
    {"name": "give_text", "description": "Return a string.", "script": "scripts/give_text.py"},
    {"name": "give_list", "description": "Return an array.", "script": "scripts/give_list.py"},
    {"name": "give_number", "description": "Return a number.", "script": "scripts/give_number.py"},
    {"name": "give_truth", "description": "Return a boolean.", "script": "scripts/give_truth.py"},
    {"name": "refuse", "description": "Raise an error.", "script": "scripts/refuse.py"},
    {"name": "count_calls", "description": "Count calls in a global variable.", "script": "scripts/count_calls.py"},
    {"name": "main_block", "description": "Use the convention for subprocesses.", "script": "scripts/main_block.py"},
    {"name": "elsewhere", "description": "Lie outside of scripts/.", "script": "tools/elsewhere.py"},
    {"name": "in_javascript", "description": "Run in JavaScript.", "script": "scripts/in_javascript.js"},
    {"name": "in_shell", "description": "Run in a shell.", "script": "scripts/in_shell.sh"},
    {"name": "no_script", "description": "Has no handler."},
]
HANDLERS = {
    "scripts/count_words.py": 'def handler(args):\n    return {"count": len(args.get("text", "").split())}\n',
    "scripts/show_args.py": "def handler(args):\n    return args\n",
    "scripts/give_text.py": 'def handler(args):\n    return "a text"\n',
    "scripts/give_list.py": "def handler(args):\n    return [1, 2, 3]\n",
    "scripts/give_number.py": "def handler(args):\n    return 42\n",
    "scripts/give_truth.py": "def handler(args):\n    return True\n",
    "scripts/refuse.py": 'def handler(args):\n    raise ValueError("the tool refuses")\n',
    "scripts/count_calls.py": "calls = 0\n\n\ndef handler(args):\n    global calls\n    calls += 1\n    return calls\n",
    "scripts/main_block.py": (
        "import json\nimport sys\n\n\ndef handler(args):\n"
        '    return {"count": len(args.get("text", "").split())}\n\n\nif __name__ == "__main__":\n'
        "    args = json.loads(sys.argv[1]) if len(sys.argv) > 1 else json.load(sys.stdin)\n"
        "    print(json.dumps(handler(args)))\n"
    ),
    "tools/elsewhere.py": 'def handler(args):\n    return "found"\n',
    "scripts/in_javascript.js": "export default async function handler(args) {\n  return { in: 'javascript' };\n}\n",
    "scripts/in_shell.sh": '#!/bin/sh\necho \'{"in": "shell"}\'\n',
}


@dataclass(frozen=True)
class Sample:
    """A skill of one version. `name` has no namespace; `tools` skills have names of the Agent Skills format."""

    name: str
    version: str
    manifest: dict[str, Any]
    files: dict[str, str] = field(default_factory=dict)
    is_tool: bool = False

    def full_name(self, namespace: str) -> str:
        return f"{namespace}-{self.name}" if self.is_tool else f"{namespace}.{self.name}"

    def full_manifest(self, namespace: str) -> dict[str, Any]:
        own = {"name": self.full_name(namespace), "version": self.version, **self.manifest}
        return own if self.is_tool else {**own, "namespace": namespace}

    def skill_md(self, namespace: str) -> str:
        name = self.full_name(namespace) if self.is_tool else f"Conformance {self.name.title()}"
        return (
            f"---\nname: {name}\nshort_description: A sample of the conformance suite.\n"
            f"description: {self.manifest['description']}\ntags: [conformance, {self.name}]\n"
            f"priority: 3\nratio: 0.5\nreviewed: true\n---\n\n"
            f"# {name}\n\n{self.manifest['description']} Überprüft mit 3 € 😀.\n"
        )


def _probe(version: str) -> Sample:
    manifest = {
        "description": f"Show what a run does, a pelican of version {version}.",
        "kind": "action",
        "tags": ["conformance", "probe"],
        "runtime": PYTHON,
    }
    files = {"code/main.py": PROBE.replace("@VERSION@", version), "resources/schema.json": '{"type": "object"}\n'}
    return Sample("probe", version, manifest, files)


def _instruction(name: str, description: str, files: dict[str, str], **more: Any) -> Sample:
    return Sample(name, "0.1.0", {"description": description, "kind": "instruction", **more}, files)


SAMPLES = {
    "probe 0.1.0": _probe("0.1.0"),
    "probe": _probe("0.2.0"),
    "handle": Sample(
        "handle",
        "0.1.0",
        {
            "description": "Has another entrypoint and export.",
            "kind": "action",
            "runtime": {**PYTHON, "entrypoint": "code/run.py", "export": "handle"},
        },
        {"code/run.py": HANDLE},
    ),
    "notes": _instruction(
        "notes",
        "Instructions with a further document.",
        {"resources/deep/more.md": "# More\n\nGrüße.\n"},
        tags=["conformance", "notes"],
    ),
    "bare": _instruction("bare", "Instructions without code/ and resources/.", {}),
    "declared": _instruction(
        "declared",
        "Declares inputs and permissions.",
        {},
        inputs={"sheet_blob": {"type": "blob", "description": "Blob id of the sheet"}},
        permissions={"network": ["https://*.example.com"], "secrets": [SECRET]},
    ),
    "tools": Sample(
        "tools",
        "0.1.0",
        {"description": "Tools of the conformance suite.", "kind": "instruction"},
        {"tools.json": json.dumps(TOOLS, indent=2), **HANDLERS},
        is_tool=True,
    ),
    "no-tools": Sample(
        "no-tools",
        "0.1.0",
        {"description": "A manifest with zero tools.", "kind": "instruction"},
        {"tools.json": "[]\n"},
        is_tool=True,
    ),
}


def many() -> list[Sample]:
    """Return the skills that fill more than one page of `list_skills`."""
    return [
        Sample(f"s{number:02}", "0.1.0", {"description": "One of many skills.", "kind": "instruction"})
        for number in range(1, MANY + 1)
    ]


def write_skills(folder: Path) -> int:
    """Write all samples as folders `NAME` (older versions: `NAME-VERSION`), and return their number."""
    written = [*_folders(FOLDER_NAMESPACE, list(SAMPLES.items())), *_folders(MANY_NAMESPACE, [("", s) for s in many()])]
    for name, files in written:
        for path, content in files.items():
            file = folder / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, "utf-8")
    return len(written)


def _folders(namespace: str, samples: list[tuple[str, Sample]]) -> Iterator[tuple[str, dict[str, str]]]:
    for key, sample in samples:
        name = sample.full_name(namespace) + (f"-{sample.version}" if key.endswith(sample.version) else "")
        manifest = toml(sample.full_manifest(namespace))
        yield name, {"skill.toml": manifest, "SKILL.md": sample.skill_md(namespace), **sample.files}


def toml(manifest: dict[str, Any]) -> str:
    """Return a manifest as TOML: texts and arrays first, then one table for each object."""
    tables = {key: value for key, value in manifest.items() if isinstance(value, dict)}
    lines = [f"{key} = {_toml(value)}" for key, value in manifest.items() if key not in tables]
    for key, table in tables.items():
        lines += ["", f"[{key}]", *(f"{name} = {_toml(value)}" for name, value in table.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(part)}" for key, part in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)  # strings and arrays of strings are the same in TOML
