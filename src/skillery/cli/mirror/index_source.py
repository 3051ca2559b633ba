"""Copies of indexes of Agent Skills (discovery 0.2.0), which every Skillery server has too.

A skill whose digest has not changed is not read again. A skill that cannot be read keeps its former copy, so that it
does not look like a removed one.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast
from urllib.parse import urljoin, urlsplit

import httpx
import msgspec

from skillery.errors import SkilleryError, Unavailable
from skillery.importing.archives import open_archive
from skillery.importing.entries import ImportLimits

WELL_KNOWN = "/.well-known/agent-skills/index.json"
SECONDS = 60.0
MIB = 1024 * 1024
MOST_INDEX_BYTES = 32 * MIB
MOST_BYTES = 64 * MIB
"""Most bytes of one archive."""
LIMITS = ImportLimits(max_bytes=MOST_BYTES, max_unpacked_bytes=256 * MIB, max_entries=10_000)
MOST_SKILLS = 10_000
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class _Entry(msgspec.Struct):
    name: str
    url: str
    digest: str
    type: str = "archive"


class _Index(msgspec.Struct):
    skills: list[_Entry]
    truncated: bool = False


class _Copy(NamedTuple):
    """The folders of a copy."""

    skills: Path
    digests: Path
    """One file for each copied skill, with the digest of its archive."""

    def has(self, entry: _Entry) -> bool:
        place = self.digests / entry.name
        return place.is_file() and place.read_text("utf-8") == entry.digest


def copy_index(source: str, tree: Path, token: str | None) -> list[str]:
    """Bring the copy in `tree` in step with the index at `source`. Return what could not be copied.

    `token` is for the server of the index, and is sent to no other one. Raise Unavailable if the index cannot be read:
    the copy then stays as it is.
    """
    address = source if source.endswith(".json") else source.rstrip("/") + WELL_KNOWN
    copy = _Copy(tree, tree.parent / "digests")
    for folder in copy:
        folder.mkdir(parents=True, exist_ok=True)
    names, problems = set[str](), list[str]()
    with httpx.Client(timeout=SECONDS, headers={"user-agent": "skillery-mirror"}) as client:
        for entry in _index(client, address, token).skills:
            problem = _problem(entry, names, address)
            if problem is None and not copy.has(entry):
                problem = _copy(client, urljoin(address, entry.url), address, token, entry, copy)
            if problem is not None:
                problems.append(f"{entry.name[:80]!r}: {problem}")
            names.add(entry.name)
    for folder in tree.iterdir():
        if folder.name not in names:
            (copy.digests / folder.name).unlink(missing_ok=True)
            shutil.rmtree(folder)
    return problems


def _index(client: httpx.Client, address: str, token: str | None) -> _Index:
    try:
        content = _read(client, address, address, token, MOST_INDEX_BYTES)
        index = msgspec.json.decode(content, type=_Index)
    except msgspec.DecodeError as error:
        raise Unavailable(f"{address} is no index of Agent Skills: {error}") from None
    if index.truncated or len(index.skills) > MOST_SKILLS:
        raise Unavailable(
            f"the index at {address} is too large", hint="Mirror namespaces of it: https://host/n/NAMESPACE."
        )
    return index


def _problem(entry: _Entry, earlier: set[str], index: str) -> str | None:
    if not _NAME.fullmatch(entry.name) or len(entry.name) > 64:
        return "the name is no name of an Agent Skill"
    if entry.name in earlier:
        return "the index has the name twice"
    if not _DIGEST.fullmatch(entry.digest):
        return "it has no SHA-256 digest"
    if _is_unsafe(urljoin(index, entry.url), index):
        return "its address is not encrypted"
    if entry.type not in {"archive", "skill-md"}:
        return f"its type {entry.type[:40]!r} is unknown"
    return None


def _copy(client: httpx.Client, url: str, index: str, token: str | None, entry: _Entry, copy: _Copy) -> str | None:
    """Replace the copy of a skill, completely or not at all. Return the reason if that is not possible."""
    partial = copy.skills.parent / f"partial-{secrets.token_hex(4)}"
    digest = copy.digests / entry.name
    try:
        content = _read(client, url, index, token, MOST_BYTES)
        found = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if found != entry.digest:
            return f"the content at {url[:200]} has the digest {found}, and not {entry.digest} as the index says"
        partial.mkdir()
        if entry.type == "skill-md":
            (partial / "SKILL.md").write_bytes(content)
        else:
            _unpack(content, partial)
        # Without its digest, a skill is copied again if this process dies in between.
        digest.unlink(missing_ok=True)
        shutil.rmtree(copy.skills / entry.name, ignore_errors=True)
        partial.rename(copy.skills / entry.name)
        digest.write_text(entry.digest, "utf-8")
    except SkilleryError as error:
        return error.message
    except OSError as error:
        return str(error.strerror)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return None


def _unpack(content: bytes, folder: Path) -> None:
    """Write the files of an archive. Links are left out. Raise InvalidArchive or ArchiveTooLarge."""
    with tempfile.TemporaryFile() as file:
        file.write(content)
        with open_archive(cast(BinaryIO, file), LIMITS, folder.parent) as archive:
            for entry in archive.entries:
                if entry.target:
                    continue
                place = folder / entry.path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(archive.read(entry))
                place.chmod(0o755 if entry.executable else 0o644)


def _read(client: httpx.Client, url: str, index: str, token: str | None, most: int) -> bytes:
    """Return the content at an address. Redirects are not followed: they could lead to another host with the token.

    Raise Unavailable if it cannot be read, or has more than `most` bytes.
    """
    is_own = _origin(url) == _origin(index)
    headers = {"authorization": f"Bearer {token}"} if token and is_own else {}
    body = bytearray()
    try:
        with client.stream("GET", url, headers=headers) as response:
            if response.status_code in {401, 403} and is_own:
                raise Unavailable(f"{url[:200]} asks for a login", hint="Run skillery login for this server.")
            if response.status_code != 200:
                raise Unavailable(f"{url[:200]} answers with status {response.status_code}")
            for piece in response.iter_raw():
                body += piece
                if len(body) > most:
                    raise Unavailable(f"{url[:200]} has more than {most} bytes")
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise Unavailable(f"{url[:200]} cannot be read ({type(error).__name__})") from None
    return bytes(body)


def _is_unsafe(url: str, index: str) -> bool:
    """Return whether an address of another host is not https. `index` is checked when the mirror is added."""
    return _origin(url) != _origin(index) and urlsplit(url).scheme != "https"


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc
