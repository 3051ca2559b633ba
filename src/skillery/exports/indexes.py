"""Indexes of Agent Skills: the format of discovery 0.2.0, and the older format that lists files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple
from urllib.parse import quote

import msgspec

from skillery.exports.facts import Facts
from skillery.formats.bundle import SKILL_MD
from skillery.registry import Listed

Kind = Literal["agent-skills", "skills"]
KINDS: tuple[Kind, ...] = ("agent-skills", "skills")
SCHEMA = "https://schemas.agentskills.io/discovery/0.2.0/schema.json"
MOST_BYTES = 32 * 1024 * 1024
"""The maximum number of bytes of an index. Further skills are omitted, and the index is marked as truncated."""

# The paths that the older format can list: clients put them unescaped into URLs, and refuse an index with a path "..".
_PLAIN_PATH = re.compile(r"[A-Za-z0-9 !$&'()*+,./:;=@_~-]+")


class Index(NamedTuple):
    content: bytes
    sha256: str

    @classmethod
    def of(cls, kind: Kind, entries: Sequence[bytes], *, is_whole: bool) -> Index:
        """Return the index with these entries. If it is not whole, it has the field `truncated`."""
        head = b'"$schema":' + msgspec.json.encode(SCHEMA) + b"," if kind == "agent-skills" else b""
        more = b"" if is_whole else b'"truncated":true,'
        content = b"{" + head + more + b'"skills":[' + b",".join(entries) + b"]}"
        return cls(content, hashlib.sha256(content).hexdigest())


def index_entry(kind: Kind, listed: Listed, facts: Facts) -> bytes:
    """Return the entry of a skill as JSON, or b"" if an index of this kind cannot list the skill."""
    if kind == "agent-skills":
        return msgspec.json.encode(_entry(listed, facts))
    if not all(_PLAIN_PATH.fullmatch(path) and ".." not in path for path in facts.files):
        return b""
    files = [SKILL_MD, *(path for path in facts.files if path != SKILL_MD)]
    return msgspec.json.encode({"name": facts.name, "description": facts.description, "files": files})


def _entry(listed: Listed, facts: Facts) -> dict[str, str]:
    version = f"/skills/{listed.name}/{quote(listed.version, safe='')}"
    if facts.is_lone:
        kind, url, digest = "skill-md", f"{version}/{SKILL_MD}", facts.skill_md
    else:
        kind, url, digest = "archive", f"{version}.{facts.form}", facts.archives[facts.form]
    return {
        "name": facts.name,
        "type": kind,
        "description": facts.description,
        "url": url,
        "digest": f"sha256:{digest}",
    }
