"""What the documents leave open. The suite reports what a server does there, and judges nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from skills_protocol_conformance.checks.running import CODE
from skills_protocol_conformance.connection import Reply
from skills_protocol_conformance.session import GUIDE, Session, result_of, rows_of
from skills_protocol_conformance.statement import at

NO_EXPORT = {"language": "python", "entrypoint": "code/main.py"}
NOTHING = "conformance.nothing.here"


@dataclass(frozen=True)
class OpenPoint:
    """A question that the documents do not answer. `look` returns what the server does, without random parts."""

    id: str
    question: str
    look: Callable[[Session], str]


def told(reply: Reply, result: Callable[[Any], str] = lambda result: "a result") -> str:
    """Return an answer in a few words."""
    if not reply.text.strip():
        return f"HTTP {reply.status} without content"
    if isinstance(reply.error, dict):
        return f"error {reply.error.get('code')}"
    if not isinstance(reply.result, dict):
        return f"HTTP {reply.status}, and no JSON-RPC answer"
    return result(reply.result)


def ended(run: Any) -> str:
    """Return the status of a run, with the type of its error."""
    error = run.get("error")
    return f"failed run, `{error.get('type')}`" if isinstance(error, dict) else f"{run.get('status')} run"


def asks(
    method: str, result: Callable[[Any], str] = lambda result: "a result", **params: Any
) -> Callable[[Session], str]:
    """Make a look: the answer to one call. In params, `PROBE` and `NOTES` are the names of samples."""

    def look(session: Session) -> str:
        named = {
            key: session.skill(value.lower()) if value in ("PROBE", "NOTES") else value for key, value in params.items()
        }
        return told(session.send(method, named), result)

    return look


def runs(body: str, result: Callable[[Any], str] = ended, **params: Any) -> Callable[[Session], str]:
    """Make a look: the run of this function body."""
    code = f"def main(args):\n    {body}\n"
    return asks("run_code", result, language="python", **{"code": code, **params})


def posts(message: object, result: Callable[[Any], str] = lambda result: "a result") -> Callable[[Session], str]:
    """Make a look: the answer to this message."""
    return lambda session: told(session.connection.post(message), result)


def _call(method: str, *more: Any) -> dict[str, Any]:
    message = {"jsonrpc": "2.0", "id": 1, "method": method}
    return {**message, "params": more[0]} if more else message


# -- messages ----------------------------------------------------------------------------------------------------------


def _batch(session: Session) -> str:
    reply = session.connection.post([_call("load_skills_protocol_guide", {}), {**_call("no_such_method", {}), "id": 2}])
    if isinstance(reply.message, list):
        return f"an array of {len(reply.message)} answers"
    return told(reply)


def _http_status_of_errors(session: Session) -> str:
    return f"HTTP {session.send('describe_skill', {'name': NOTHING}).status}"


# -- skills ------------------------------------------------------------------------------------------------------------


def _rows_of_versions(session: Session) -> str:
    name = session.skill("probe")
    count = sum(row.get("name") == name for row in rows_of(session.result("list_skills", namespace=session.namespace)))
    return "one row for each skill" if count == 1 else f"{count} rows for a skill with 2 versions"


def _part_of_a_namespace(session: Session) -> str:
    rows = rows_of(session.result("list_skills", namespace="skills"))
    nested = GUIDE in {row.get("name") for row in rows}
    session.skill("probe")
    part = rows_of(session.result("list_skills", namespace=session.namespace[:-1]))
    return (
        f"`skills` {'includes' if nested else 'excludes'} `skills.protocol`; a part of a name finds {len(part)} skills"
    )


def _prerelease(session: Session) -> str:
    for version in ("0.1.0", "0.2.0-beta.1"):
        reply = session.create(session.manifest("pre", version=version), {})
        if reply.error:
            return f"`create_skill` of {version}: {told(reply)}"
    latest = at(session.result("describe_skill", name=f"{session.namespace}.pre"), "skill.manifest.version")
    return f"latest of 0.1.0 and 0.2.0-beta.1 is {latest}"


def _order_of_versions(session: Session) -> str:
    for version in ("0.10.0", "0.9.0"):
        reply = session.create(session.manifest("order", version=version), {})
        if reply.error:
            return f"`create_skill` of {version}: {told(reply)}"
    latest = at(session.result("describe_skill", name=f"{session.namespace}.order"), "skill.manifest.version")
    return f"latest of 0.10.0 and 0.9.0, published last, is {latest}"


def _taken_version(session: Session) -> str:
    first, second = (session.create(session.manifest("taken", description=text), {}) for text in ("One.", "Two."))
    return told(second) if not first.error else f"not seen: {told(first)}"


def _created(name: str, missing: str, **more: Any) -> Callable[[Session], str]:
    def look(session: Session) -> str:
        manifest = {key: value for key, value in session.manifest(name, **more).items() if key != missing}
        files = {"code/main.py": "def main(args):\n    return {}\n"} if "runtime" in more else {}
        return told(session.create(manifest, files), lambda result: f"published as {result.get('version')}")

    return look


def _uppercase(session: Session) -> str:
    return told(session.send("describe_skill", {"name": session.skill("probe").upper()}), lambda result: "the skill")


def _fields(session: Session, more: str, less: str) -> str:
    """Return the fields that a description has with one `detail`, and not with another."""
    fields = (
        set(at(session.result("describe_skill", name=session.skill("probe"), detail=detail), "skill"))
        for detail in (more, less)
    )
    return ", ".join(f"`{name}`" for name in sorted(next(fields) - next(fields))) or "none"


# -- runs and blobs ----------------------------------------------------------------------------------------------------


def _output(result: Any) -> str:
    return f"`output` is {json.dumps(result.get('output'), ensure_ascii=False)}" if _ok(result) else ended(result)


def _ok(result: Any) -> bool:
    return bool(result.get("status") == "completed")


def _large(result: Any) -> str:
    if not _ok(result):
        return ended(result)
    output, blobs = result.get("output"), result.get("output_blobs") or []
    form = f"an object with {', '.join(sorted(output))}" if isinstance(output, dict) else type(output).__name__
    return f"`output` is {form}; {len(blobs)} output blob"


def _largest(session: Session) -> str:
    inline = []  # the text of `{"t":"…"}` without spaces has 8 more characters than its value
    for size in (4095, 4096, 4097):
        body = f"def main(args):\n    return {{'t': 'x' * {size - 8}}}\n"
        run = result_of(session.send("run_code", {"language": "python", "code": body}))
        inline += [size] if len(str((run.get("output") or {}).get("t", ""))) > 4000 else []
    return f"inline up to {max(inline, default=0)} of 4095, 4096, 4097 bytes"


def _args(session: Session) -> str:
    run = session.result("run_code", language="python", code="def main(args):\n    return {'args': args}\n")
    return f"main gets {json.dumps(at(run, 'output.args'))}" if _ok(run) else ended(run)


def _unmounted(session: Session) -> str:
    code = f"from skills.{session.skill('probe')} import double\n\n\ndef main(args):\n    return double(1)\n"
    return ended(session.result("run_code", language="python", code=code))


def _blob_fields(session: Session) -> str:
    more = sorted(
        session.result("create_blob", content="lifetime", kind="text/plain").keys() - {"blob_id", "size_bytes"}
    )
    return f"`create_blob` also returns {', '.join(f'`{name}`' for name in more)}" if more else "no field tells it"


def _equal_blobs(session: Session) -> str:
    params = {"content": "two equal blobs", "kind": "text/plain"}
    one, two = (at(result_of(session.send("create_blob", params)), "blob_id") for _ in range(2))
    return "the same id" if one == two else "two ids"


def _split(session: Session) -> str:
    answer = session.result("read_blob", blob_id=session.blob("😀" * 40), max_bytes=10)
    content = at(answer, "content")
    return f"{content.count('😀')} characters of 4 bytes, and {len(content) - content.count('😀')} others, for 10 bytes"


def _full_with_max(session: Session) -> str:
    answer = session.result("read_blob", blob_id=session.blob("x" * 3000), mode="full", max_bytes=10)
    return f"`full` of 3000 bytes with `max_bytes` 10 has {len(at(answer, 'content'))}"


def _full_without_max(session: Session) -> str:
    answer = session.result("read_blob", blob_id=session.blob("x" * 3000), mode="full")
    return f"`full` of 3000 bytes without `max_bytes` has {len(at(answer, 'content'))}"


def _count(result: Any) -> str:
    return f"a page with {len(rows_of(result))} rows"


TABLE: list[tuple[str, str, Callable[[Session], str]]] = [
    ("http-status", "HTTP status of a JSON-RPC error", _http_status_of_errors),
    ("batch", "a batch of two calls", _batch),
    ("notification", "a notification", posts({"jsonrpc": "2.0", "method": "load_skills_protocol_guide", "params": {}})),
    ("null-params", "`params`: null", posts(_call("load_skills_protocol_guide", None))),
    ("array-params", "`params`: []", posts(_call("load_skills_protocol_guide", []))),
    ("positional", 'params by position: ["skills.protocol.guide"]', posts(_call("describe_skill", [GUIDE]))),
    ("unknown-param", "an unknown param", asks("load_skills_protocol_guide", conformance=True)),
    ("null-param", "an optional param that is null", asks("describe_skill", name="PROBE", version=None)),
    ("integral-float", "`limit`: 2.0", asks("list_skills", _count, limit=2.0)),
    ("limit-0", "`limit`: 0", asks("list_skills", _count, limit=0)),
    ("limit-large", "`limit`: 1000000", asks("list_skills", lambda result: "a page", limit=1_000_000)),
    ("wrong-cursor", "a cursor that the server did not make", asks("list_skills", _count, cursor="conformance")),
    ("unknown-skill", "an unknown skill", asks("describe_skill", name=NOTHING)),
    ("unknown-version", "an unknown version", asks("describe_skill", name="PROBE", version="77.0.0")),
    ("unknown-file", "a missing file", asks("read_skill_file", name="PROBE", path="no.md")),
    ("escape", "a path out of the skill", asks("read_skill_file", name="PROBE", path="../SKILL.md")),
    (
        "dot-path",
        "the path `./SKILL.md`",
        asks("read_skill_file", lambda _: "the file", name="PROBE", path="./SKILL.md"),
    ),
    ("unknown-blob", "an unknown blob", asks("read_blob", blob_id=f"blob:{NOTHING}")),
    ("unknown-input", "an unknown blob in `input_blobs`", runs("return {}", input_blobs=[f"blob:{NOTHING}"])),
    ("unknown-mount", "an unknown skill in `mount_skills`", runs("return {}", mount_skills=[NOTHING])),
    ("run-instruction", "`execute_skill` of an instruction skill", asks("execute_skill", ended, name="NOTES")),
    (
        "range",
        "the version `^0.1`",
        asks("describe_skill", lambda r: at(r, "skill.manifest.version"), name="PROBE", version="^0.1"),
    ),
    (
        "latest",
        "the version `latest`",
        asks("describe_skill", lambda r: at(r, "skill.manifest.version"), name="PROBE", version="latest"),
    ),
    ("pre-release", "pre-releases", _prerelease),
    ("order", "the order of versions", _order_of_versions),
    ("taken", "another skill with a published version", _taken_version),
    ("no-kind", "a manifest without `kind` and runtime", _created("nokind", "kind")),
    ("no-description", "a manifest without `description`", _created("nodescription", "description")),
    ("no-runtime", "an action skill without runtime", _created("noruntime", "", kind="action")),
    ("unknown-field", "a manifest with an unknown field", _created("unknown", "", license_notes="none")),
    ("no-export", "a runtime without `export`", _created("noexport", "", kind="action", runtime=NO_EXPORT)),
    ("rows", "rows of a skill with two versions", _rows_of_versions),
    ("namespaces", "what `namespace` matches", _part_of_a_namespace),
    ("uppercase", "a name in upper case", _uppercase),
    ("full", "fields of `full` that `summary` does not have", lambda session: _fields(session, "full", "summary")),
    ("summary", "fields of `summary` that `manifest` does not have", lambda s: _fields(s, "summary", "manifest")),
    ("large-output", "output over 4 KB", runs("return {'text': 'x' * 10000}", _large)),
    ("largest-output", "the largest inline output", _largest),
    ("list-output", "a returned list", runs("return [1, 2]", _output)),
    ("text-output", "a returned string", runs("return 'text'", _output)),
    ("none-output", "no returned value", runs("pass", _output)),
    ("no-args", "omitted `args`", _args),
    ("unmounted", "the import of a skill that is not mounted", _unmounted),
    ("entrypoint", "a missing entrypoint", asks("run_code", ended, language="python", code=CODE, entrypoint="absent")),
    ("exit-0", "`sys.exit(0)`", runs("import sys; sys.exit(0)")),
    ("timeout", "`error.type` of a timeout", runs("import time; time.sleep(5)", limits={"timeout_ms": 300})),
    ("timeout-0", "`timeout_ms`: 0", runs("return {}", limits={"timeout_ms": 0})),
    ("lifetime", "lifetime of blobs", _blob_fields),
    ("equal-blobs", "two blobs with equal content", _equal_blobs),
    (
        "empty-blob",
        "an empty blob",
        asks("create_blob", lambda r: f"{r.get('size_bytes')} bytes", content="", kind="text/plain"),
    ),
    ("odd-kind", "a `kind` that is not a MIME type", asks("create_blob", content="x", kind="something")),
    ("split", "`max_bytes` inside of a character", _split),
    ("full-max", "`full` with `max_bytes`", _full_with_max),
    ("full-default", "`full` without `max_bytes`", _full_without_max),
    (
        "max-0",
        "`max_bytes`: 0",
        lambda session: told(session.send("read_blob", {"blob_id": session.blob("x"), "max_bytes": 0})),
    ),
]
POINTS = [OpenPoint(*row) for row in TABLE]
