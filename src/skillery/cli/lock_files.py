"""Lock files and the files of locked skills: make a lock from a registry, read it, and check its proofs."""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from skillery.cli.failures import CheckFailed
from skillery.cli.output import print_warning
from skillery.cli.proof import address_of, naming_revoked, read_answer, read_keychain
from skillery.formats.wording import first_names

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.client.results import Locked
    from skillery.proof.keychains import Keychain
    from skillery.proof.locks import Lock, LockedSeal, Proof
    from skillery.proof.seals import Seal

LOCKFILE = "skillery.lock"
MAX_LOCKFILE_BYTES = 4 * 1024 * 1024
MAX_PROOFS_BYTES = 32 * 1024 * 1024
AT_ONCE = 16
"""The number of versions whose statements are read at the same time."""


class _FirstEntry(msgspec.Struct, frozen=True):
    name: str
    version: str
    digest: str


class _FirstLock(msgspec.Struct, frozen=True):
    """A lock of version 1, which has digests only."""

    skills: list[_FirstEntry]


class _AnyLock(msgspec.Struct, frozen=True):
    lock_version: int


def verified_lock(path: Path, keychain: Keychain | None = None, max_age: str | None = None) -> Lock:
    """Return the lock in a file, after a check of its proofs with the keys of a chain, or with those of the lock.

    A lock of version 1 has no proofs. Raise CheckFailed for the first problem, also if the seal of the lock is older
    than `max_age`.
    """
    from skillery.formats.timestamps import parse_duration
    from skillery.proof.dsse import ErrorsAbout
    from skillery.proof.locks import check_age, check_lock

    lock, revoked = read_lockfile(path), keychain.revoked if keychain else ()
    with ErrorsAbout(f"'{path}'", CheckFailed), naming_revoked(revoked, "run skillery lock again"):
        if lock.lock_version == 1:
            print_warning(f"'{path}' has only digests: run skillery lock to add signed statements")
        else:
            proofs = _read(proofs_of(path), MAX_PROOFS_BYTES, "the proofs") if _has_proofs(lock) else b""
            check_lock(lock, proofs, keychain.trusted if keychain else None)
            _warn_unsigned(lock)
        if max_age is not None:
            check_age(lock, parse_duration(max_age, "max-age"))
    return lock


def _has_proofs(lock: Lock) -> bool:
    return lock.seal is not None or any(skill.proof for skill in lock.skills)


def entries_of(lock: Lock) -> list[Locked]:
    """Return the skills of a lock as verify_lock reads them."""
    entries: list[Locked] = [
        {"name": skill.name, "version": skill.version, "digest": skill.digest, "status": ""} for skill in lock.skills
    ]
    for entry, skill in zip(entries, lock.skills, strict=True):
        if skill.requires:  # earlier releases do not know the member
            entry["requires"] = list(skill.requires)
    return entries


def read_lockfile(path: Path) -> Lock:
    """Return the lock in a file, of version 1 or 2. Raise CheckFailed if the file cannot be read or is not a lock file.
    Its proofs are not checked.
    """
    from skillery.proof.dsse import ErrorsAbout
    from skillery.proof.locks import Lock as NewLock
    from skillery.proof.locks import LockedSkill, read_lock

    text = _read(path, MAX_LOCKFILE_BYTES, "the lock file")
    try:
        if msgspec.json.decode(text, type=_AnyLock).lock_version != 1:
            with ErrorsAbout(f"'{path}'", CheckFailed):
                return read_lock(text)
        entries = msgspec.json.decode(text, type=_FirstLock).skills
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckFailed(f"'{path}' is not a Skillery lock file: {error}") from None
    skills = [LockedSkill(name=entry.name, version=entry.version, digest=entry.digest) for entry in entries]
    return NewLock(lock_version=1, keys={}, skills=tuple(skills))


def _read(path: Path, most: int, subject: str) -> bytes:
    try:
        if path.stat().st_size > most:
            raise CheckFailed(f"'{path}' is too large for {subject}")
        return path.read_bytes()
    except OSError as error:
        raise CheckFailed(
            f"cannot read {subject} '{path}': {error.strerror}; run `skillery lock` to create it"
        ) from None


def proofs_of(path: Path) -> Path:
    """Return the file with the proofs of a lock file."""
    return path.with_name(f"{path.name}.proofs")


def seal_of(path: Path, lock: Lock | None) -> Seal | None:
    """Return the seal of the lock in a file, or None if the lock or the file of its proofs does not have it."""
    from skillery.proof.dsse import ErrorsAbout
    from skillery.proof.locks import digest_of_envelope
    from skillery.proof.seals import read_seal

    if lock is None or lock.seal is None or not proofs_of(path).exists():
        return None
    lines = _read(proofs_of(path), MAX_PROOFS_BYTES, "the proofs").split(b"\n")
    envelope = next((line for line in lines if digest_of_envelope(line) == lock.seal.sha256), None)
    with ErrorsAbout(f"the seal of '{path}'", CheckFailed):
        return None if envelope is None else read_seal(envelope)


async def lock_of(
    client: AsyncClient,
    entries: Sequence[Locked],
    former: Lock | None = None,
    pinned: Keychain | None = None,
    *,
    former_seal: Seal | None = None,
    with_seal: bool = True,
) -> tuple[Lock, Sequence[bytes]]:
    """Return the lock of these versions, and the envelopes of its proofs. `with_seal` adds the newest seal, which
    changes each minute.

    The keys of the registry must follow those of `pinned`, or else of the `former` lock. Raise CheckFailed if not, or
    if a signed statement is not valid, or if the registry has lost the seal of the `former` lock or a
    change of its keys.
    """
    import asyncio

    from skillery.proof.dsse import ErrorsAbout
    from skillery.proof.locks import LOCK_VERSION, LockedSkill, digest_of_envelope
    from skillery.proof.locks import Lock as NewLock
    from skillery.proof.seals import read_seal

    # A seal that is read before the chain names a statement of the chain.
    newest = (await client.list_seals(newest=True))["seals"] if with_seal else []
    envelopes = [seal["envelope"].encode() for seal in newest]
    with ErrorsAbout("the newest seal", CheckFailed):
        seals = [*([former_seal] if former_seal else []), *map(read_seal, envelopes)]
    known = tuple(former.keys) if former else ()
    keychain = await read_keychain(client, pinned, known, seals, may_be_empty=True)
    keys = dict(keychain.trusted)
    seal = check_newest(envelopes, keychain, former.seal if former else None) if keys and with_seal else None
    proofs = []
    for start in range(0, len(entries), AT_ONCE):
        group = entries[start : start + AT_ONCE]
        proofs += await asyncio.gather(*(_proof(client, entry, keychain) for entry in group))
    locked = tuple(
        LockedSkill(
            name=entry["name"],
            version=entry["version"],
            digest=entry["digest"],
            signer=proof.signer if proof else "",
            proof=digest_of_envelope(proof.envelope) if proof else "",
            requires=tuple(entry.get("requires", ())),
        )
        for entry, proof in zip(entries, proofs, strict=True)
    )
    lock = NewLock(lock_version=LOCK_VERSION, keys=keys, seal=seal, skills=locked)
    _warn_unsigned(lock)
    return lock, [*(envelopes if seal else ()), *(proof.envelope for proof in proofs if proof)]


def check_newest(
    newest: Sequence[bytes], keychain: Keychain, former: LockedSeal | None, holder: str = "the lock"
) -> LockedSeal | None:
    """Return the newest seal, or None if the registry has no seal yet. `holder` has the `former` seal.

    Raise CheckFailed if it is not valid, or if it is older than the `former` one or replaces it.
    """
    from skillery.proof.dsse import ErrorsAbout
    from skillery.proof.locks import LockedSeal, digest_of_envelope
    from skillery.proof.seals import check_seal

    locked = None
    if newest:
        remedy = "repeat the command when the server has made another seal"
        with ErrorsAbout("the newest seal", CheckFailed), naming_revoked(keychain.revoked, remedy):
            seal = check_seal(newest[0], keychain.trusted).seal
        locked = LockedSeal(seal.seq, digest_of_envelope(newest[0]), seal.at)
    if former and (locked is None or locked.seq < former.seq or (locked.seq == former.seq and locked != former)):
        newest_seal = f"the newest seal of the registry is {locked.seq}" if locked else "the registry has no seal"
        raise CheckFailed(f"{holder} has seal {former.seq}, and {newest_seal}: history was rewritten")
    return locked


async def _proof(client: AsyncClient, entry: Locked, keychain: Keychain) -> Proof | None:
    """Return the proof of a version. Return None if the registry signs nothing, or has not signed this version."""
    from skillery.proof.dsse import ErrorsAbout
    from skillery.proof.locks import choose_proof

    if not keychain.trusted:
        return None
    name, version = entry["name"], entry["version"]
    lines = (await read_answer(client, f"{address_of(name, version)}.intoto.jsonl")).split(b"\n")
    with ErrorsAbout(f"the proof of {name}@{version}", CheckFailed), naming_revoked(keychain.revoked):
        return choose_proof([line for line in lines if line], keychain.trusted, name, version, entry["digest"])


def _warn_unsigned(lock: Lock) -> None:
    if lock.unsigned:
        print_warning(f"the lock has only digests, and no signed statement, for {first_names(lock.unsigned, 8)}")


def refuse_signers(former: Lock | None, new: Lock, allowed: Collection[str]) -> None:
    """Raise CheckFailed if a skill has another signer than in the former lock, and is not in `allowed`."""
    signers = {skill.name: skill.signer for skill in former.skills if skill.proof} if former else {}
    changes = [
        f"{skill.name}: signer changed from {signers[skill.name] or 'no signer'} to {skill.signer or 'no signer'}"
        for skill in new.skills
        if signers.get(skill.name, skill.signer) != skill.signer and skill.name not in allowed
    ]
    if changes:
        lines = "\n".join(changes)
        raise CheckFailed(f"{lines}\nIf this is right, use --allow-signer-change NAME. Nothing was written")


def write_atomically(path: Path, text: str | bytes) -> None:
    """Replace a file atomically: a concurrent reader reads the old or the new text, never a part."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        temporary.write_bytes(text.encode() if isinstance(text, str) else text)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise CheckFailed(f"cannot write '{path}': {error.strerror}") from None


# -- the files of locked skills ----------------------------------------------------------------------------------------

GENERATED = "__pycache__"
"""Folder that Python writes next to the files of a skill. New files there are not edits, but they are code: Python may
run them in place of their sources. So the digest counts them, and `skillery verify DIR` refuses them.
"""


def unpack_skills(archive: Path, entries: Sequence[Locked], folder: Path) -> None:
    """Write the files of locked skills from an archive of `skillery export` to `folder/NAME`.

    Raise CheckFailed if a skill is not in the archive, and the errors of `open_archive`.
    """
    from skillery.formats.names import parse_skill_name
    from skillery.formats.paths import parse_path
    from skillery.importing.archives import open_archive
    from skillery.importing.entries import ImportLimits

    missing = {parse_skill_name(entry["name"]) for entry in entries}
    names = frozenset(missing)
    with archive.open("rb") as file, open_archive(file, ImportLimits(), folder) as opened:
        for entry in opened.entries:
            name, _, path = entry.path.partition("/")
            if name in names and not entry.target:
                place = folder / name / parse_path(path)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(opened.read(entry))
                place.chmod(0o755 if entry.executable else 0o644)
                missing.discard(name)
    if missing:
        raise CheckFailed(f"'{archive}' does not have {', '.join(sorted(missing)[:8])}; nothing was written")


_NAME = re.compile(
    rb"\A(?:\xef\xbb\xbf)?---[ \t]*\r?\n(?:(?!---|name:)[^\n]*\n)*+name:[ \t]+(?P<value>[^\s|>&!][^\r\n]*)"
)
"""The line of the frontmatter that states a name."""


def with_name(skill_md: bytes, name: str) -> bytes:
    """Return SKILL.md with the name of its folder: agents skip a skill that states another one."""
    match = _NAME.match(skill_md)
    if match is None or match["value"].strip().strip(b"\"'") == name.encode():
        return skill_md
    return skill_md[: match.start("value")] + name.encode() + skill_md[match.end("value") :]


async def write_skill(client: AsyncClient, entry: Locked, built: Path) -> None:
    """Write the files of a version to `built/NAME`."""
    from skillery.formats.names import parse_skill_name
    from skillery.formats.paths import parse_path

    # The paths come from a server, which must not make this command write outside the folder.
    name = parse_skill_name(entry["name"])
    described = await client.describe_skill(name=name, version=entry["version"], detail="full")
    for file in described["skill"]["files"]:
        path = parse_path(file["path"])
        answer = await client.read_skill_file(name=name, version=entry["version"], path=path)
        target = built / name / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content_of(answer))
        target.chmod(0o755 if file["executable"] else 0o644)


def check_digest(entry: Locked, built: Path) -> None:
    """Raise CheckFailed if the files in `built/NAME` do not match the digest of the lock."""
    name = entry["name"]
    digest = digest_on_disk(built / name)
    if digest != entry["digest"].strip().lower():
        raise CheckFailed(
            f"'{name}' {entry['version']} does not match the lock: its files have the digest {digest}, the lock says "
            f"{entry['digest']}; nothing was written"
        )


def content_of(read: Mapping[str, Any]) -> bytes:
    content: str = read["content"]
    return base64.b64decode(content) if read["encoding"] == "base64" else content.encode()


def digest_on_disk(folder: Path, *, with_generated: bool = True) -> str:
    from skillery.formats.bundle import BundleFile, digest_of

    return digest_of(
        BundleFile(path.relative_to(folder).as_posix(), path.read_bytes(), is_executable(path))
        for path in files_in(folder, with_generated=with_generated)
    )


def files_in(folder: Path, *, with_generated: bool = True) -> list[Path]:
    """Return all files and links below a folder. `with_generated` includes those in folders named GENERATED."""
    paths = [path for path in folder.rglob("*") if path.is_symlink() or path.is_file()]
    return [path for path in paths if with_generated or GENERATED not in path.relative_to(folder).parts]


def is_executable(path: Path) -> bool:
    return bool(path.stat().st_mode & 0o100)
