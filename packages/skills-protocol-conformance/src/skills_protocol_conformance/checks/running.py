"""Checks of `execute_skill` and `run_code`: answers, arguments, failures, limits and blobs of runs."""

from __future__ import annotations

import json
from typing import Any

from skills_protocol_conformance.connection import Reply
from skills_protocol_conformance.session import GUIDE, Session, completed, failed, result_of
from skills_protocol_conformance.statement import Check, at, expect

OUTPUT_BYTES = 4096
LOG_BYTES = 2048
SLEEP_SECONDS = 6
ARGS = {"do": "echo", "text": "Grüße 😀", "number": 1.5, "list": [1, None, True], "object": {"a": {"b": "c"}}}
CODE = """\
import sys

from runtime import log


def main(args):
    print("a line on stdout")
    print("a line on stderr", file=sys.stderr)
    return {"args": args}


def other(args):
    return {"called": "other"}
"""


def executed(session: Session) -> Any:
    """The run of `execute_skill`."""
    return completed(session.result("execute_skill", name=session.skill("probe"), args=ARGS))


def coded(session: Session) -> Any:
    """The run of `run_code`."""
    return session.code(CODE, ARGS)


def failed_skill(session: Session) -> Any:
    """The run of a skill that raises an exception."""
    return failed(session.result("execute_skill", name=session.skill("probe"), args={"do": "raise"}))


def failed_code(session: Session) -> Any:
    """The run of code that raises an exception."""
    return failed(
        _failing(session, 'def main(args):\n    print("before")\n    raise RuntimeError("the code refuses")\n')
    )


def _failing(session: Session, code: str, **params: Any) -> Any:
    return session.result("run_code", language="python", code=code, **params)


def skill_writes_a_blob(session: Session) -> Any:
    """The run of a skill that writes a blob."""
    return completed(session.result("execute_skill", name=session.skill("probe"), args={"do": "write"}))


def takes_args(fact: Any) -> Check:
    """Make a check: the entrypoint gets the args of the call."""

    def check(session: Session) -> None:
        got = at(fact(session), "output.args")
        expect(got == ARGS, "the entrypoint got other args", got)

    check.__doc__ = f"{fact.__doc__.rstrip('.')}: the entrypoint gets `args` unchanged, and its value is `output`."
    return check


def logs_have(fact: Any, *texts: str) -> Check:
    """Make a check: the log of a run has these texts."""

    def check(session: Session) -> None:
        log = at(fact(session), "logs_preview")
        missing = [text for text in texts if text not in log]
        expect(not missing, f"`logs_preview` does not have {', '.join(map(repr, missing))}", log)

    check.__doc__ = f"{fact.__doc__.rstrip('.')}: `logs_preview` has {', '.join(map(repr, texts))}."
    return check


def error_says(fact: Any, kind: str, text: str) -> Check:
    """Make a check: the error of a run names the exception."""

    def check(session: Session) -> None:
        error = at(fact(session), "error")
        expect(at(error, "type") == kind, f"`error.type` is not {kind}", error)
        expect(text in at(error, "message"), f"`error.message` does not have {text!r}", error)

    check.__doc__ = f"{fact.__doc__.rstrip('.')}: `error` has the type {kind} and the message."
    return check


def entrypoint_and_export_are_used(session: Session) -> None:
    """`execute_skill` calls the declared export of the declared entrypoint."""
    run = completed(session.result("execute_skill", name=session.skill("handle"), args={}))
    expect(at(run, "output.called") == "handle", "the run called another function", run)


def latest_is_executed(session: Session) -> None:
    """Without `version`, the latest version runs."""
    version = at(executed(session), "output.version")
    expect(version == "0.2.0", f"version {version} ran, and the latest one is 0.2.0")


def version_is_executed(session: Session) -> None:
    """With `version`, this version runs."""
    run = completed(session.result("execute_skill", name=session.skill("probe"), version="0.1.0", args=ARGS))
    expect(at(run, "output.version") == "0.1.0", "another version ran", run)


def args_may_be_omitted(session: Session) -> None:
    """`execute_skill` without `args` runs the skill."""
    completed(session.result("execute_skill", name=session.skill("probe")))


def run_ids_differ(session: Session) -> None:
    """Two runs have two `run_id`s."""
    params = {"language": "python", "code": CODE, "args": ARGS}
    one, two = (at(result_of(session.send("run_code", params)), "run_id") for _ in range(2))
    expect(one != two, "two runs have the same `run_id`", one)


def instruction_skill_does_not_run(session: Session) -> None:
    """`execute_skill` of an instruction skill does not complete."""
    reply: Reply = session.ask("execute_skill", {"name": session.skill("notes"), "args": {}})
    expect(reply.error or failed(reply.result), "an instruction skill was executed", reply.text)


def guide_does_not_run(session: Session) -> None:
    """`execute_skill` of the canonical guide does not complete."""
    reply: Reply = session.ask("execute_skill", {"name": GUIDE, "args": {}})
    expect(reply.error or failed(reply.result), "the guide was executed", reply.text)


def entrypoint_is_called(session: Session) -> None:
    """`run_code` calls the function in `entrypoint`."""
    run = session.code(CODE, entrypoint="other")
    expect(at(run, "output.called") == "other", "another function was called", run)


def default_entrypoint_is_main(session: Session) -> None:
    """Without `entrypoint`, `run_code` calls `main`, as with `entrypoint`: "main"."""
    explicit = session.code(CODE, ARGS, entrypoint="main")
    expect(at(coded(session), "output") == at(explicit, "output"), "the default is another function", coded(session))


def missing_entrypoint_does_not_complete(session: Session) -> None:
    """A missing `entrypoint` does not complete."""
    reply = session.ask("run_code", {"language": "python", "code": CODE, "entrypoint": "not_there"})
    expect(reply.error or failed(reply.result), "the run completed", reply.text)


# -- failures ----------------------------------------------------------------------------------------------------------

FAULTS = {
    "an exception when imported": "1 / 0\n",
    "a missing import": "import conformance_not_there\n\n\ndef main(args):\n    return {}\n",
    "a syntax error": "def main(args:\n    return {}\n",
    "`sys.exit(3)`": "import sys\n\n\ndef main(args):\n    sys.exit(3)\n",
    "`os._exit(3)`": "import os\n\n\ndef main(args):\n    os._exit(3)\n",
    "a value that is not JSON": "def main(args):\n    return {'set': {1, 2}}\n",
    "endless recursion": "def main(args):\n    return main(args)\n",
}


def fault_is_a_failed_run(what: str) -> Check:
    """Make a check: code with this fault is a failed run, and no JSON-RPC error."""

    def check(session: Session) -> None:
        run = failed(_failing(session, FAULTS[what]))
        expect(isinstance(at(run, "error.message"), str), "`error.message` is not a string", run)

    check.__doc__ = f'Code with {what} is a result with the status "failed", and no JSON-RPC error.'
    return check


def skill_timeout_ends_the_run(session: Session) -> None:
    """`timeout_ms` of `execute_skill` ends a run that sleeps, and the result is "failed"."""
    args = {"do": "sleep", "seconds": SLEEP_SECONDS}
    failed(session.result("execute_skill", name=session.skill("probe"), args=args, timeout_ms=500))


def code_timeout_ends_the_run(session: Session) -> None:
    """`limits.timeout_ms` of `run_code` ends a run that calculates, and the result is "failed"."""
    code = (
        "import time\n\n\ndef main(args):\n    end = time.monotonic() + args['seconds']\n"
        "    while time.monotonic() < end:\n        pass\n    return {}\n"
    )
    failed(_failing(session, code, args={"seconds": SLEEP_SECONDS}, limits={"timeout_ms": 500}))


def timeout_leaves_time(session: Session) -> None:
    """A run that ends before its `timeout_ms` completes."""
    completed(session.result("execute_skill", name=session.skill("probe"), args=ARGS, timeout_ms=60000))


# -- sizes -------------------------------------------------------------------------------------------------------------


def large_output_is_small(session: Session) -> None:
    """A returned value of 10 KB is not inline: the serialized `output` has at most 4 KB."""
    for reply in (
        session.ask("execute_skill", {"name": session.skill("probe"), "args": {"do": "large"}}),
        session.ask("run_code", {"language": "python", "code": "def main(args):\n    return {'text': 'x' * 10000}\n"}),
    ):
        size = len(json.dumps(result_of(reply).get("output"), ensure_ascii=False).encode())
        expect(size <= OUTPUT_BYTES, f"the serialized `output` has {size} bytes", reply.text)


def output_under_4_kb_is_inline(session: Session) -> None:
    """A returned value of 3 KB is `output`."""
    run = session.code("def main(args):\n    return {'text': 'x' * 3000}\n")
    expect(at(run, "output") == {"text": "x" * 3000}, "`output` is not the returned value", run)


def logs_are_cut(session: Session) -> None:
    """`logs_preview` of a run that prints 10 KB has at most 2 KB."""
    run = completed(session.result("execute_skill", name=session.skill("probe"), args={"do": "print"}))
    size = len(at(run, "logs_preview").encode())
    expect(0 < size <= LOG_BYTES, f"`logs_preview` has {size} bytes", run)


# -- blobs and skills in runs ------------------------------------------------------------------------------------------


def skill_reads_input_blobs(session: Session) -> None:
    """A skill reads a blob of `input_blobs`."""
    blob = session.blob("Überweisung 😀\n")
    params = {"name": session.skill("probe"), "args": {"do": "read", "blob": blob}, "input_blobs": [blob]}
    run = completed(session.result("execute_skill", **params))
    expect(at(run, "output.text") == "Überweisung 😀\n", "the skill read another text", run)


def code_reads_input_blobs(session: Session) -> None:
    """`blobs.read_text` in `run_code` returns the text of a blob of `input_blobs`."""
    blob = session.blob("Überweisung 😀\n")
    code = "from runtime import blobs\n\n\ndef main(args):\n    return {'text': blobs.read_text(args['blob'])}\n"
    run = session.code(code, {"blob": blob}, input_blobs=[blob])
    expect(at(run, "output.text") == "Überweisung 😀\n", "the code read another text", run)


def written_blob_is_an_output_blob(session: Session) -> None:
    """A blob that a skill writes is in `output_blobs`, and can be read."""
    run = skill_writes_a_blob(session)
    blob = at(run, "output.blob")
    expect(at(run, "output_blobs") == [blob], "`output_blobs` is not the list of the written blob", run)
    content = at(session.result("read_blob", blob_id=blob), "content")
    expect(content == "written by the probe", "the blob has another content", content)


def code_writes(function: str, argument: str, wanted: object) -> Check:
    """Make a check: this function of `runtime.blobs` writes a blob, and returns its id."""

    def check(session: Session) -> None:
        code = f"from runtime import blobs\n\n\ndef main(args):\n    return {{'id': blobs.{function}({argument})}}\n"
        run = session.code(code)
        blob = at(run, "output.id")
        expect(isinstance(blob, str) and blob.startswith("blob:"), "the function returns no blob id", run)
        expect(blob in at(run, "output_blobs"), "`output_blobs` does not have the written blob", run)
        content = at(session.result("read_blob", blob_id=blob, mode="full"), "content")
        got = json.loads(content) if function == "write_json" else content
        expect(got == wanted, "the blob has another content", content)

    check.__doc__ = f"`blobs.{function}` writes a blob, returns its id, and the id is in `output_blobs`."
    return check


def logs(function: str) -> Check:
    """Make a check: this function of `runtime.log` writes to the log."""

    def check(session: Session) -> None:
        run = session.code(f"from runtime import log\n\n\ndef main(args):\n    log.{function}('a note of the code')\n")
        expect("a note of the code" in at(run, "logs_preview"), "`logs_preview` does not have the message", run)

    check.__doc__ = f"`log.{function}` writes to `logs_preview`."
    return check


def no_written_blobs(session: Session) -> None:
    """A run that writes no blob has no `output_blobs`."""
    expect(not coded(session).get("output_blobs"), "`output_blobs` is not empty", coded(session))


def mounted_skill_is_imported(session: Session) -> None:
    """Code imports a function of a mounted skill as `skills.<name>`."""
    name = session.skill("probe")
    code = f"from skills.{name} import double\n\n\ndef main(args):\n    return double(args['number'])\n"
    run = session.code(code, {"number": 21}, mount_skills=[name])
    expect(at(run, "output") == {"double": 42}, "the function of the skill returned another value", run)


def several_skills_are_mounted(session: Session) -> None:
    """Code imports functions of two mounted skills."""
    one, two = session.skill("probe"), session.skill("handle")
    code = (
        f"from skills.{one} import double\nfrom skills.{two} import handle\n\n\n"
        "def main(args):\n    return {**double(4), **handle(args)}\n"
    )
    run = session.code(code, mount_skills=[one, two])
    expect(at(run, "output") == {"double": 8, "called": "handle"}, "the skills returned other values", run)
