"""Checks of `create_blob`, `read_blob` and `create_skill`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from skills_protocol_conformance.samples import SAMPLES
from skills_protocol_conformance.session import Session, completed, error_of, result_of, rows_of
from skills_protocol_conformance.statement import Check, Skipped, at, expect

TEXT = "Überblick: 3 € 😀\n"
LONG = "".join(f"{number:04}\n" for number in range(1000))
"""5000 bytes, of which no two parts are the same."""
MARK = "\n[truncated]"
DEFAULT_BYTES = 2000


def created(session: Session) -> Any:
    """The answer of `create_blob`."""
    return session.result("create_blob", content=TEXT, kind="text/plain")


def read(session: Session) -> Any:
    """The answer of `read_blob`."""
    return session.result("read_blob", blob_id=session.blob(TEXT))


def head(session: Session) -> Any:
    """The first 100 bytes of a blob."""
    return session.result("read_blob", blob_id=session.blob(LONG), mode="sample_head", max_bytes=100)


def _text(answer: Any) -> str:
    return str(at(answer, "content")).removesuffix(MARK).removeprefix(MARK.strip() + "\n")


def has_a_blob_id(session: Session) -> None:
    """The id of a blob has the form blob:<id>."""
    blob = at(created(session), "blob_id")
    expect(isinstance(blob, str) and blob.startswith("blob:") and len(blob) > 5, "the id is not blob:<id>", blob)


def size_is_in_bytes(session: Session) -> None:
    """`size_bytes` is the number of bytes of the content in UTF-8."""
    size = at(created(session), "size_bytes")
    expect(size == len(TEXT.encode()), f"`size_bytes` is not {len(TEXT.encode())}", created(session))


def content_is_kept(session: Session) -> None:
    """`read_blob` returns the stored content."""
    expect(at(read(session), "content") == TEXT, "`content` is not the stored text", read(session))


def kind_is_kept(*kinds: str) -> Check:
    """Make a check: `read_blob` returns the kind that the blob was stored with."""

    def check(session: Session) -> None:
        for kind in kinds:
            answer = session.result("read_blob", blob_id=session.blob('{"a": 1}', kind))
            expect(at(answer, "kind") == kind, f"`kind` is not {kind}", answer)

    check.__doc__ = f"`read_blob` returns the `kind` of the blob: {', '.join(kinds)}."
    return check


def complete_blob_is_not_truncated(session: Session) -> None:
    """A view with the complete content has `truncated`: false."""
    expect(at(read(session), "truncated") is False, "`truncated` is not false", read(session))


def part_is_truncated(session: Session) -> None:
    """A view with a part of the content has `truncated`: true."""
    expect(at(head(session), "truncated") is True, "`truncated` is not true", head(session))


def head_is_the_beginning(session: Session) -> None:
    """`sample_head` returns the beginning of the blob."""
    text = _text(head(session))
    expect(text and LONG.startswith(text), "`content` is not the beginning", text)


def tail_is_the_end(session: Session) -> None:
    """`sample_tail` returns the end of the blob, with `truncated`: true."""
    answer = session.result("read_blob", blob_id=session.blob(LONG), mode="sample_tail", max_bytes=100)
    text = _text(answer)
    expect(text and LONG.endswith(text), "`content` is not the end", answer)
    expect(at(answer, "truncated") is True, "`truncated` is not true", answer)


def max_bytes_is_kept(session: Session) -> None:
    """A view has at most `max_bytes` bytes."""
    for mode in ("sample_head", "sample_tail"):
        answer = session.result("read_blob", blob_id=session.blob(LONG), mode=mode, max_bytes=10)
        size = len(_text(answer).encode())
        expect(0 < size <= 10, f"the view of 10 bytes has {size} bytes", answer)


def max_bytes_counts_bytes(session: Session) -> None:
    """`max_bytes` limits bytes, not characters."""
    answer = session.result("read_blob", blob_id=session.blob("ü" * 40), max_bytes=20)
    size = len(_text(answer).encode())
    expect(size <= 20, f"the view of 20 bytes has {size} bytes", answer)


def no_character_is_split(session: Session) -> None:
    """A view has no character that the blob does not have, also if `max_bytes` ends inside of a character."""
    blob = session.blob("😀" * 40)
    for mode in ("sample_head", "sample_tail"):
        answer = session.result("read_blob", blob_id=blob, mode=mode, max_bytes=10)
        expect(set(_text(answer)) <= {"😀"}, f"`{mode}` has other characters", answer)


def default_is_2000_bytes(session: Session) -> None:
    """Without `max_bytes`, a view has 2000 bytes."""
    answer = session.result("read_blob", blob_id=session.blob(LONG))
    explicit = session.result("read_blob", blob_id=session.blob(LONG), max_bytes=DEFAULT_BYTES)
    size = len(_text(answer).encode())
    expect(size <= DEFAULT_BYTES and _text(answer) == _text(explicit), f"the default view has {size} bytes", answer)
    expect(size > DEFAULT_BYTES - 50, f"the default view has only {size} bytes", answer)


def default_is_sample_head(session: Session) -> None:
    """Without `mode`, a view is the beginning of the blob."""
    answer = session.result("read_blob", blob_id=session.blob(LONG))
    expect(LONG.startswith(_text(answer)), "the default view is not the beginning", answer)


def full_is_everything(session: Session) -> None:
    """`full` returns the complete content of a small blob."""
    answer = session.result("read_blob", blob_id=session.blob(TEXT), mode="full")
    expect(at(answer, "content") == TEXT, "`content` is not the stored text", answer)


def large_content_is_stored(session: Session) -> None:
    """`create_blob` stores 200,000 bytes, as in the example."""
    answer = session.result("create_blob", content="0123456789" * 20_000, kind="text/csv")
    expect(at(answer, "size_bytes") == 200_000, "`size_bytes` is not 200000", answer)


def two_blobs_can_be_read(session: Session) -> None:
    """Two blobs with other contents have two ids, and both can be read."""
    one, two = session.blob("the first blob"), session.blob("the second blob")
    expect(one != two, "two contents have the same id", one)
    contents = [at(session.result("read_blob", blob_id=blob), "content") for blob in (one, two)]
    expect(contents == ["the first blob", "the second blob"], "a blob has another content", contents)


# -- create_skill ------------------------------------------------------------------------------------------------------

ESCAPES = ("../evil.py", "/tmp/evil.py", "code/../../evil.py", "code/../../../tmp/evil.py")  # noqa: S108 - not written


def published(session: Session) -> Any:
    """The answer of `create_skill`."""
    sample = SAMPLES["bare"]
    own = f"{session.namespace}.again"
    manifest = {**sample.full_manifest(session.namespace), "name": own}
    files = {"code/main.py": "def main(args):\n    return {}\n", "resources/examples.md": "Example usage.\n"}
    reply = session.once("published", lambda: session.create(manifest, files, "# Again\n\nA new skill.\n"))
    return result_of(reply)


def create_skill_returns_name_and_version(session: Session) -> None:
    """`create_skill` returns the name and the version of the manifest."""
    answer = published(session)
    wanted = (f"{session.namespace}.again", "0.1.0")
    expect((at(answer, "name"), at(answer, "version")) == wanted, "name and version are not the published ones", answer)


def _after(look: Callable[[Session, str], None], title: str) -> Check:
    def check(session: Session) -> None:
        published(session)
        session.skill("probe")  # is skipped if the server keeps versions for a review
        look(session, f"{session.namespace}.again")

    check.__doc__ = title
    return check


def _is_described(session: Session, name: str) -> None:
    manifest = at(session.result("describe_skill", name=name), "skill.manifest")
    expect(manifest.get("name") == name, "the description has another name", manifest)


def _is_listed(session: Session, name: str) -> None:
    rows = rows_of(result_of(session.send("list_skills", {"namespace": session.namespace})))
    expect(name in {row.get("name") for row in rows}, f"the list does not have {name}")


def _files_are_read(session: Session, name: str) -> None:
    for path, text in (("resources/examples.md", "Example usage."), ("SKILL.md", "A new skill.")):
        content = at(session.result("read_skill_file", name=name, path=path), "content")
        expect(text in content, f"{path} has another content", content)


is_described_at_once = _after(_is_described, "A published skill can be described at once.")
is_listed_at_once = _after(_is_listed, "A published skill is in the list at once.")
files_are_stored = _after(_files_are_read, "The files and SKILL.md of a published skill can be read.")


def published_skill_runs(session: Session) -> None:
    """A published action skill can be executed at once."""
    if not session.publishes:
        raise Skipped("the profile `core` publishes no skills")
    completed(session.result("execute_skill", name=session.skill("handle"), args={}))


def escapes_are_refused(session: Session) -> None:
    """`create_skill` refuses paths out of the skill, and then does not have the skill."""
    for number, path in enumerate(ESCAPES):
        manifest = session.manifest(f"escape{number}")
        reply = session.create(manifest, {path: "x = 1\n"})
        expect(isinstance(reply.error, dict), f"the server does not refuse the path {path}", reply.text)
        error_of(session.send("describe_skill", {"name": manifest["name"], "version": "0.1.0"}))


def invalid_manifest_is_an_error(session: Session) -> None:
    """`create_skill` with a manifest without name and version is a JSON-RPC error."""
    error_of(session.create({"description": "No name.", "kind": "instruction"}, {}))
