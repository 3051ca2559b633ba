"""Statements of another registry about a version that a mirror has copied.

A mirror adds a document of them to its import. They are signed by the keys in the document, and are about exactly the
imported files. Only the user of the mirror knows whether the keys are those of the stated source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from skillery.errors import SkilleryError
from skillery.formats.agent_skill import agent_skill
from skillery.formats.bundle import SKILL_MD, SKILL_TOML, BundleFile, digest_of
from skillery.formats.names import index_name
from skillery.formats.skill_toml import toml_manifest
from skillery.proof.dsse import ProofError, unverified, verify
from skillery.proof.keychains import follow
from skillery.proof.statements import Statement, check_subject, read_statement

ORIGINS = ".skillery-origins"
"""The folder at the top of an archive with the document of each copied skill, `NAME.json`."""
MOST_BYTES = 1024 * 1024
MOST_STATEMENTS = 64
MOST_SIGNATURES = 4
_Name = Annotated[str, Meta(max_length=255)]
_KeyStatement = Annotated[str, Meta(max_length=8 * 1024)]


class OriginDocument(msgspec.Struct, frozen=True):
    """The name and version at the origin, its statements, its chain of keys, and the two files that a mirror changes,
    as the origin has stored them.
    """

    name: _Name
    version: _Name
    keys: Annotated[Sequence[_KeyStatement], Meta(max_length=50)]
    statements: Annotated[Sequence[str], Meta(min_length=1, max_length=MOST_STATEMENTS)]
    skill_md: bytes
    skill_toml: bytes


class OriginStatement(NamedTuple):
    """A statement of the origin, whose signatures are valid."""

    envelope: str
    keyids: tuple[str, ...]
    statement: Statement


def make_document(unsigned: OriginDocument, envelopes: Iterable[bytes], digest: str) -> bytes:
    """Return `unsigned` with the last envelopes that its keys have signed, or b"" if it then exceeds the limits.
    `digest` is that of the version.
    """
    keys, valid = _trusted(unsigned), list[str]()
    for envelope in envelopes:
        with suppress(ProofError):  # a person has signed it with a key that is not in the chain
            valid.append(_verified(unsigned, envelope.decode("utf-8", "replace"), keys, digest).envelope)
    content = msgspec.json.encode(msgspec.structs.replace(unsigned, statements=valid[-MOST_STATEMENTS:]))
    with suppress(ProofError):
        read_document(content)
        return content if len(content) <= MOST_BYTES else b""
    return b""


def read_document(content: bytes) -> OriginDocument:
    """Return the document. Raise ProofError if it is not valid. Its statements are not verified."""
    try:
        return msgspec.json.decode(content, type=OriginDocument)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise ProofError("is not valid, or has too many entries") from None


def statements_in(document: OriginDocument, digest: str = "") -> Iterator[OriginStatement]:
    """Yield the statements. With a `digest`, they must be about it. Raise ProofError if one is not valid."""
    keys = _trusted(document)
    for envelope in document.statements:
        yield _verified(document, envelope, keys, digest)


def check_document(content: bytes, files: Iterable[BundleFile]) -> None:
    """Raise ProofError unless the document is valid, and its statements are about these files: SKILL.md is made from
    the signed one, all other files are the signed ones.
    """
    document = read_document(content)
    by_path = {file.path: file for file in files}
    present = by_path.get(SKILL_TOML, BundleFile(SKILL_TOML, b""))
    signed = BundleFile(SKILL_MD, document.skill_md, by_path[SKILL_MD].executable)
    toml = BundleFile(SKILL_TOML, document.skill_toml, present.executable)
    if by_path[SKILL_MD].content != mirrored_skill_md(document):
        raise ProofError("is not about this SKILL.md")
    for _ in statements_in(document, digest_of({**by_path, SKILL_MD: signed, SKILL_TOML: toml}.values())):
        pass


def mirrored_skill_md(document: OriginDocument) -> bytes:
    """Return the SKILL.md of a copy. Raise ProofError if the signed files do not allow one."""
    try:
        description = str(toml_manifest(document.skill_toml).get("description", ""))
        return agent_skill(document.skill_md, name=index_name(document.name), description=description).content
    except (SkilleryError, ValueError) as error:
        raise ProofError(f"has files that are not valid ({type(error).__name__})") from None


def _trusted(document: OriginDocument) -> Mapping[str, bytes]:
    return follow([statement.encode() for statement in document.keys]).trusted


def _verified(document: OriginDocument, envelope: str, keys: Mapping[str, bytes], digest: str) -> OriginStatement:
    if len(unverified(envelope.encode()).keyids) > MOST_SIGNATURES:
        raise ProofError(f"has a statement with more than {MOST_SIGNATURES} signatures")
    opened = verify(envelope.encode(), keys)
    statement = read_statement(opened.payload)
    if digest:
        check_subject(statement, document.name, document.version, digest)
    return OriginStatement(envelope, opened.keyids, statement)
