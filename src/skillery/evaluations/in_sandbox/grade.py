"""Calls the grader of an author in the sandbox. The files of the trial are in `/workspace/out`."""

from pathlib import Path
from typing import Any


def main(args: dict[str, Any]) -> dict[str, Any]:
    """Return `passed` and `evidence` of `grade(answer, files, transcript)` in the code `args["code"]`. `files` has the
    paths of the files of the trial, by their path in `out/`.
    """
    names: dict[str, Any] = {"__name__": "grader"}
    exec(compile(args["code"], args["file"], "exec"), names)  # noqa: S102 - the code of the author, in the sandbox
    out = Path("out")
    files = {path.relative_to(out).as_posix(): path for path in sorted(out.rglob("*")) if path.is_file()}
    result = names["grade"](args["answer"], files, args["transcript"])
    if not isinstance(result, dict):
        result = {"passed": result}
    return {"passed": result.get("passed") is True, "evidence": str(result.get("evidence", ""))[:500]}
