"""The code contract: the rules that a model must know to write code for `run_code`.

The guide (`load_skills_protocol_guide`), `/prompt` and, on request, the schemas explain these rules. The guide is a
bundled skill, and its SKILL.md ends with CONTRACT. A test compares the two texts. Both name only params that the
schemas of every connection have: the schemas that have more params (`files`, `environment`, `workspace`) explain them.
"""

from __future__ import annotations

from typing import Any

OPT_IN = "code_contract"
"""The name by which a client asks for schemas that explain the contract."""

CONTRACT = """\
## Code for `run_code`

```python
def main(args):
    return {"sum": args["a"] + args["b"]}
```

- **Function.** Define `def main(args):`. `args` is the object `args` of the call. The returned value is `output`;
  printed text is only in the log.
- **Result.** Return JSON: dicts with string keys, lists, strings, numbers, booleans, None. Turn sets and dates into
  lists and strings. A large result becomes a blob.
- **Skills.** To use a skill, name it in `mount_skills` and import it: `mount_skills: ["text.csv.profile"]`, then
  `from skills.text.csv.profile import main as profile`. Write `-` in a name as `_`. Without the mount, the import
  fails.
- **Blobs.** Name a blob in `input_blobs` and read the file `/blobs/<blob_id>`; the whole id is the file name:
  `open("/blobs/" + args["blob_id"]).read()`. To write one: `from runtime import blobs`, then
  `blobs.write_text(text)` returns its id.
- **Files out.** `os.makedirs("out", exist_ok=True)`, then write below `/workspace/out`. The run lists these files with
  their blob ids.
- **Writing.** Only `/workspace` (the working directory) and `/tmp` are writable. Everything except blobs and `out` is
  gone after the run: the next call starts empty.
- **Packages.** The standard library. `pip install` does not work.
- **Refused.** Network, secrets, `sys.exit`, `input()`, and writing anywhere else. A function of a mounted skill may
  use the network and secrets that this skill was granted.
- **Failures.** A failed run says in `error.message` what to change. Change that and call again.
"""

PROMPT_LINES = """
Code for `run_code` defines `def main(args):` and returns JSON. To import a skill
(`from skills.text.csv.profile import main`), name it in `mount_skills`. Blobs of `input_blobs` are files in
`/blobs`, and files written to `/workspace/out` are kept. Nothing else is writable except `/workspace` and `/tmp`.
There is no network. The guide explains more.
"""

_RUN_CODE = {
    "code": (
        "Source code that defines the entrypoint: def main(args): ... It returns JSON (dict with string keys, list, "
        "str, number, bool or None). Printed text is only in the log. Writable are /workspace (working directory) and "
        "/tmp; files below /workspace/out are kept as blobs. No network, no secrets, no pip install."
    ),
    "entrypoint": "Name of the function in the code that is called with one argument, the object args",
    "args": "Object that is passed to the entrypoint as its only argument",
    "mount_skills": (
        "Names of the skills that the code imports. ['text.csv.profile'] allows: from skills.text.csv.profile import "
        "main. A '-' in a name is '_' in the import. A skill that is not named here cannot be imported."
    ),
    "input_blobs": "Ids of the blobs that the code reads as files: open('/blobs/' + blob_id)",
}
_FILES = {
    "type": "array",
    "description": "Blobs to copy into /workspace before the code starts: path 'in/a.csv' is /workspace/in/a.csv",
    "items": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "blob_id": {"type": "string"}},
        "required": ["path", "blob_id"],
    },
}


def explained(name: str, schema: dict[str, Any]) -> None:
    """Add the code contract to the descriptions of a tool's params. Tools that run no code of the model stay
    unchanged.
    """
    if name != "run_code":
        return
    for parameter, text in _RUN_CODE.items():
        schema["properties"][parameter] = {**schema["properties"][parameter], "description": text}
    schema["properties"]["files"] = _FILES
