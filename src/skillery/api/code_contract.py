"""The code contract: the rules that a model must know to write code for `run_code`.

The guide (`load_skills_protocol_guide`), `/prompt` and, on request, the schemas explain these rules. The guide is a
bundled skill, and its SKILL.md ends with CONTRACT. A test compares the two texts. The guide names only params that the
schemas of every connection have: the schemas that have more params (`files`, `environment`, `workspace`) explain them.
"""

from __future__ import annotations

import typing
from typing import Any

from skillery.api.rpc.schemas import field_schema
from skillery.runs.starting import RunCode

OPT_IN = "code_contract"
"""The name by which a client asks for schemas that explain the contract."""

CONTRACT = """\
## Code for `run_code`

```python
def main(args):
    return {"sum": args["a"] + args["b"]}
```

- `args` is the object `args` of the call. The returned value is `output`; printed text is only in the log.
- Return JSON with string keys. Turn sets and dates into lists and strings.
- Name a skill in `mount_skills` and import it: `from skills.text.csv.profile import main as profile`. `-` becomes `_`.
- Name a blob in `input_blobs` and read it: `open("/blobs/" + args["blob_id"]).read()`. To write one:
  `from runtime import blobs`, then `blobs.write_text(text)` returns its id.
- Files in `/workspace/out` are kept: `os.makedirs("out", exist_ok=True)`. Only `/workspace` and `/tmp` are writable.
- There is no network, no `pip install`, no `sys.exit`.
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


def explained(name: str, schema: dict[str, Any]) -> None:
    """Add the code contract to the descriptions of a tool's params. Tools that run no code of the model stay
    unchanged.
    """
    if name != "run_code":
        return
    for parameter, text in _RUN_CODE.items():
        schema["properties"][parameter] = {**schema["properties"][parameter], "description": text}
    schema["properties"]["files"] = field_schema(typing.get_type_hints(RunCode, include_extras=True)["files"])
