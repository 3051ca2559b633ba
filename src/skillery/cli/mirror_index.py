"""Copies of indexes of Agent Skills (discovery 0.2.0), which every Skillery server has too.

A skill whose digest has not changed is not read again. A skill that cannot be read keeps its former copy, so that it
does not look like a removed one.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast
from urllib.parse import unquote, urljoin, urlsplit

import httpx
import msgspec

from skillery.cli.failures import CheckFailed
from skillery.cli.lock_files import check_newest, content_of, digest_on_disk
from skillery.cli.proof import keychain_of, statements_of_keys
from skillery.errors import SkilleryError, Unavailable
from skillery.formats.bundle import SKILL_MD, SKILL_TOML
from skillery.formats.names import index_name
from skillery.formats.origins import ORIGINS, OriginDocument, make_document, mirrored_skill_md
from skillery.importing.archives import open_archive
from skillery.importing.entries import ImportLimits
from skillery.proof import KEYS_ADDRESS
from skillery.proof.dsse import ErrorsAbout, ProofError
from skillery.proof.locks import LockedSeal, age_of, choose_proof
from skillery.proof.seals import read_seal

T = TypeVar("T")
WELL_KNOWN = "/.well-known/agent-skills/index.json"
SECONDS = 60.0
"""Longest time without a byte."""
TOTAL_SECONDS = 600.0
"""Longest time of one answer: a server can send a byte in each minute."""
MIB = 1024 * 1024
MOST_INDEX_BYTES = 32 * MIB
MOST_BYTES = 64 * MIB
"""Most bytes of one archive."""
MOST_TREE_BYTES = 1024 * MIB
"""Most bytes of the whole copy. Each file counts with its blocks, so this limits the number of files too."""
BLOCK = 4096
LIMITS = ImportLimits(max_bytes=MOST_BYTES, max_unpacked_bytes=256 * MIB, max_entries=10_000)
MOST_SKILLS = 10_000
SEAL_AGE = timedelta(hours=2)
"""The newest seal, or the first key of a registry without a seal, must not be older. A server seals each hour."""
Trust = tuple[str, tuple[int, str, str] | None]
"""The `keys` and the `seal` of a `Mirror`."""
_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_VERSION = re.compile(r"(?P<address>/skills/(?P<name>[^/]+)/(?P<version>[^/]+?))(?:\.tar\.gz|\.zip|/SKILL\.md)")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class _Entry(msgspec.Struct):
    name: str
    url: str
    digest: str
    type: str = "archive"


class _Index(msgspec.Struct):
    skills: list[_Entry]
    truncated: bool = False


class _Seals(msgspec.Struct):
    seals: list[dict[str, Any]]


class _Copy:
    """The folders of a copy: the skills, and a file with the digest of each skill."""

    def __init__(self, skills: Path) -> None:
        self.skills = skills
        self.digests = skills.parent / "digests"
        """One file for each copied skill, with the digest of its archive."""
        self.origins = self.skills / ORIGINS
        for folder in (self.skills, self.digests, self.origins):
            folder.mkdir(parents=True, exist_ok=True)
        self._bytes = _size_of(skills)

    def has(self, entry: _Entry) -> bool:
        digest_file = self.digests / entry.name
        return digest_file.is_file() and digest_file.read_text("utf-8") == entry.digest

    def replace(self, entry: _Entry, partial: Path, document: bytes) -> None:
        """Replace the copy of a skill and its document. Raise Unavailable if the whole copy would be too large."""
        size = self._bytes + len(document) + _size_of(partial) - _size_of(self.skills / entry.name)
        if size > MOST_TREE_BYTES:
            raise Unavailable(f"the skills of the index have more than {MOST_TREE_BYTES} bytes")
        self._remove(entry.name)
        partial.rename(self.skills / entry.name)
        if document:
            (self.origins / f"{entry.name}.json").write_bytes(document)
        (self.digests / entry.name).write_text(entry.digest, "utf-8")
        self._bytes = size

    def keep(self, names: set[str]) -> None:
        """Remove the skills with other names."""
        for name in {folder.name for folder in self.skills.iterdir()} - {*names, ORIGINS}:
            self._remove(name)

    def _remove(self, name: str) -> None:
        # Without its digest, a skill is copied again if this process dies in between.
        for file in (self.digests / name, self.origins / f"{name}.json"):
            file.unlink(missing_ok=True)
        if (folder := self.skills / name).exists():
            shutil.rmtree(folder)


class _Server(NamedTuple):
    """The server of an index. The event loop limits the time of a whole answer, which httpx cannot."""

    address: str
    """The address of the index."""
    token: str | None
    client: httpx.AsyncClient
    loop: asyncio.Runner
    trusted: Mapping[str, bytes] | None = None
    """The keys of the registry, which must have signed each version. None: statements are not read."""
    chain: Sequence[bytes] = ()  # the statements about these keys

    def read(self, url: str, most: int, call: Mapping[str, object] | None = None) -> bytes:
        """Return the content at an address, or the answer to a `call`. Raise Unavailable if it cannot be read, or has
        more than `most` bytes.
        """
        return self.loop.run(self._read(url, most, call))

    async def _read(self, url: str, most: int, call: Mapping[str, object] | None) -> bytes:
        """Do the work of `read`. Redirects are not followed: they could lead to another host with the token."""
        is_own = _origin(url) == _origin(self.address)
        headers = {"authorization": f"Bearer {self.token}"} if self.token and is_own else {}
        body, verb = bytearray(), "GET" if call is None else "POST"
        try:
            request = self.client.stream(verb, url, headers=headers, json=call)
            async with asyncio.timeout(TOTAL_SECONDS), request as response:
                if response.status_code in {401, 403} and is_own:
                    raise Unavailable(f"{url[:200]} asks for a login", hint="Run skillery login for this server.")
                if response.status_code != 200:
                    raise Unavailable(f"{url[:200]} answers with status {response.status_code}")
                async for piece in response.aiter_raw():
                    body += piece
                    if len(body) > most:
                        raise Unavailable(f"{url[:200]} has more than {most} bytes")
        except TimeoutError:
            raise Unavailable(f"{url[:200]} did not answer completely within {TOTAL_SECONDS:.0f} seconds") from None
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise Unavailable(f"{url[:200]} cannot be read ({type(error).__name__})") from None
        return bytes(body)


def copy_index(source: str, tree: Path, token: str | None, trust: Trust = ("", None)) -> tuple[list[str], Trust]:
    """Update the copy in `tree` from the index at `source`. Return a line for each skill that could not be copied, and
    the present `trust`.

    `token` is only sent to the server of the index. With keys in `trust`, only versions are copied that these keys, or
    those that follow, have signed. Raise Unavailable if the index cannot be read, and CheckFailed if the registry has
    other keys, or shows an earlier state: the copy then stays as it is.
    """
    address = source if source.endswith(".json") else source.rstrip("/") + WELL_KNOWN
    names, problems = set[str](), list[str]()
    with asyncio.Runner() as loop:
        client = httpx.AsyncClient(timeout=SECONDS, headers={"user-agent": "skillery-mirror"})
        server = _Server(address, token, client, loop)
        try:
            if trust[0]:
                trust, trusted = _followed(server, trust)
                chain = statements_of_keys(trust[0].encode(), "the registry")
                server = server._replace(trusted=trusted, chain=chain)
            entries = _index(server).skills
            copy = _Copy(tree)
            for entry in entries:
                problem = _problem(entry, names, address)
                if problem is None and not copy.has(entry):
                    problem = _copy(server, entry, copy)
                if problem is not None:
                    problems.append(f"{entry.name[:80]!r}: {problem}")
                names.add(entry.name)
        finally:
            loop.run(client.aclose())
    copy.keep(names)
    return problems, trust


def _index(server: _Server) -> _Index:
    """Return the index. Raise Unavailable if it cannot be read or is not valid."""
    try:
        index = msgspec.json.decode(server.read(server.address, MOST_INDEX_BYTES), type=_Index)
    except msgspec.DecodeError as error:
        raise Unavailable(f"{server.address} is not an index of Agent Skills: {error}") from None
    if index.truncated or len(index.skills) > MOST_SKILLS:
        raise Unavailable(
            f"the index at {server.address} is too large",
            hint="Mirror single namespaces instead: https://host/n/NAMESPACE.",
        )
    return index


def _problem(entry: _Entry, earlier: set[str], index: str) -> str | None:
    """Return why an entry of an index cannot be copied, or None. `earlier` has the names of earlier entries."""
    if not _NAME.fullmatch(entry.name) or len(entry.name) > 64:
        return "the name is not a name of an Agent Skill"
    if entry.name in earlier:
        return "the index has the name twice"
    if not _DIGEST.fullmatch(entry.digest):
        return "it has no SHA-256 digest"
    try:
        url = urljoin(index, entry.url)
        if _origin(url) != _origin(index) and urlsplit(url).scheme != "https":
            return "its address is not encrypted"  # that of the index is checked when the mirror is added
    except ValueError:
        return "its address is not valid"
    if entry.type not in {"archive", "skill-md"}:
        return f"its type {entry.type[:40]!r} is unknown"
    return None


def _copy(server: _Server, entry: _Entry, copy: _Copy) -> str | None:
    """Replace the copy of a skill, completely or not at all. Return the reason if that is not possible."""
    partial = copy.skills.parent / f"partial-{secrets.token_hex(4)}"
    url = urljoin(server.address, entry.url)
    try:
        content = server.read(url, MOST_BYTES)
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if digest != entry.digest:
            return f"the content at {url[:200]} has the digest {digest}, and not {entry.digest} as the index says"
        partial.mkdir()
        if entry.type == "skill-md":
            (partial / "SKILL.md").write_bytes(content)
        else:
            _unpack(content, partial)
        copy.replace(entry, partial, b"" if server.trusted is None else _restore_signed(server, url, entry, partial))
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
                file_path = folder / entry.path
                file_path.parent.mkdir(parents=True, exist_ok=True)
                file_path.write_bytes(archive.read(entry))
                file_path.chmod(0o755 if entry.executable else 0o644)


# -- Statements of the registry ----------------------------------------------------------------------------------------


def _followed(server: _Server, known: Trust) -> tuple[Trust, Mapping[str, bytes]]:
    """Return the present state of the registry and its trusted keys. Raise CheckFailed unless it continues `known`, and
    if its newest seal is too old: the server, or a proxy before it, shows an earlier state of the registry.
    """
    keys, last = known
    # A seal that is read before the chain names a statement of the chain.
    newest = [str(seal.get("envelope")).encode() for seal in _called(server, _Seals, "list_seals", newest=True).seals]
    content = server.read(urljoin(server.address, KEYS_ADDRESS), MOST_INDEX_BYTES)
    statements, former = (statements_of_keys(text, "the registry") for text in (content, keys.encode()))
    if statements[: len(former)] != former:
        raise CheckFailed(
            "the registry has other keys than those of this mirror: its signer has changed; if its admin "
            "confirms the new keys, remove this mirror, and add it again with --keys"
        )
    with ErrorsAbout("the newest seal", CheckFailed):
        keychain = keychain_of(content, "the registry", seals=[read_seal(envelope) for envelope in newest])
        seal = check_newest(newest, keychain, LockedSeal(*last) if last else None, "this mirror")
        if abs(age_of(seal or LockedSeal(0, "", keychain.since))) > SEAL_AGE:
            state = f"is seal {seal.seq} of {seal.at}" if seal else f"is missing, and the keys are of {keychain.since}"
            raise ProofError(f"{state}: the server shows an earlier state, or a clock is wrong")
    return (content.decode(), (seal.seq, seal.sha256, seal.at) if seal else None), keychain.trusted


def _restore_signed(server: _Server, url: str, entry: _Entry, folder: Path) -> bytes:
    """Check that the registry has signed the version at `url`, and that `folder` has exactly its files. Make SKILL.md
    again from the signed one, because the server may send a generated one. Return the document with its statements, or
    b"". Raise Unavailable for another content.
    """
    match = _VERSION.fullmatch(urlsplit(url).path)
    name, version = map(unquote, match.group("name", "version")) if match else ("", "")
    if match is None or _origin(url) != _origin(server.address) or index_name(name) != entry.name:
        raise Unavailable("its address names no version of this skill on the server whose keys are pinned")
    address = urljoin(url, match["address"])
    digest = f"sha256:{hashlib.sha256(server.read(f'{address}.files', MOST_INDEX_BYTES)).hexdigest()}"
    envelopes = server.read(f"{address}.intoto.jsonl", MOST_INDEX_BYTES).splitlines()
    try:
        proof = choose_proof(envelopes, server.trusted or {}, name, version, digest)
    except ProofError as error:
        raise Unavailable(f"a statement about {name}@{version} {error}") from None
    if proof is None:
        raise Unavailable(f"the registry has not signed that {name}@{version} has passed its policy")
    paths = (SKILL_MD, SKILL_TOML) if entry.type == "skill-md" else (SKILL_MD,)
    for path in paths:
        (folder / path).write_bytes(_stored(server, name, version, path))
    if digest_on_disk(folder) != digest:
        raise Unavailable(f"its files are not those of {name}@{version} that the registry has signed")
    files = [(folder / path).read_bytes() for path in (SKILL_MD, SKILL_TOML)]
    unsigned = OriginDocument(name, version, [each.decode() for each in server.chain], (), *files)
    with ErrorsAbout(f"{name}@{version}", Unavailable):
        (folder / SKILL_MD).write_bytes(mirrored_skill_md(unsigned))
        document = make_document(unsigned, envelopes, digest)
    if entry.type == "skill-md":
        (folder / SKILL_TOML).unlink()
    return document


def _stored(server: _Server, name: str, version: str, path: str) -> bytes:
    """Return a stored file of a version."""
    read = _called(server, dict[str, Any], "read_skill_file", name=name, version=version, path=path)
    try:
        return content_of(read)
    except (KeyError, TypeError, ValueError):
        raise Unavailable(f"the file {path} of {name}@{version} cannot be read") from None


def _called(server: _Server, kind: type[T], method: str, **params: object) -> T:
    """Return the result of a method of the registry. Raise Unavailable if the answer has none of this `kind`."""
    call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = server.read(urljoin(server.address, "/rpc"), MOST_BYTES, call)
    try:
        return msgspec.json.decode(msgspec.json.decode(answer, type=dict[str, msgspec.Raw])["result"], type=kind)
    except (msgspec.DecodeError, KeyError, ValueError, RecursionError):
        raise Unavailable(f"{method} of the registry cannot be called", hint="It needs the scope read.") from None


def _size_of(folder: Path) -> int:
    """Return the bytes of all blocks of the files, with one block more for each file."""
    sizes = (path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return sum((math.ceil(size / BLOCK) + 1) * BLOCK for size in sizes)


def _origin(url: str) -> tuple[str, str]:
    return urlsplit(url)[:2]
