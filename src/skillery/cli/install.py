"""`skillery install`: write the bundles of a lock of skills as folders. Each bundle is verified by its digest.
Either all bundles are installed or none, and files that the command did not write stay.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from skillery.cli.failures import CheckFailed, run_async, signals_interrupt
from skillery.cli.lock_files import (
    GENERATED,
    LOCKFILE,
    check_digest,
    digest_on_disk,
    entries_of,
    files_in,
    is_executable,
    read_lockfile,
    unpack_skills,
    verified_lock,
    with_name,
    write_atomically,
    write_skill,
)
from skillery.cli.locks import (
    print_entries,
    refuse_problems,
    refuse_unsigned,
    resolve_lock,
    unsigned_option,
    yanked_options,
)
from skillery.cli.options import Target, json_option, target_options
from skillery.cli.output import as_json as as_json_text
from skillery.cli.output import clean, print_json
from skillery.formats.wording import first_names

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.client.results import Locked

# Names that no skill can have, because they begin with a dot.
RECORD = f".{LOCKFILE}"
RECORD_VERSION = 1
BACKUP = ".skillery-backup"
MOST_NAMED = 8


class Recorded(msgspec.Struct, frozen=True):
    """One installed skill in the record of a folder, with the marks of its files."""

    name: str
    version: str
    digest: str
    status: str = ""
    files: dict[str, str] | None = None
    """The mark of each file by its path. None if an earlier release or `skillery export` wrote the record."""
    requires: list[str] = []
    is_required: bool = False
    """Whether it was installed only because another skill requires it."""


class _Record(msgspec.Struct, frozen=True):
    """The record of a folder: a lock file with the marks of the files."""

    skills: list[Recorded]


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.argument("skills", metavar="[NAME[@SPEC]...]", nargs=-1)
@click.option(
    "--locked",
    is_flag=True,
    help="Install exactly the versions of the lock file, or nothing if one is missing or changed.",
)
@click.option("--file", "file", metavar="FILE", default=LOCKFILE, show_default=True, help="The lock file.")
@click.option("--backup", is_flag=True, help=f"Move edited skills to DIR/{BACKUP}.")
@click.option("--force", is_flag=True, help="Discard the edits in installed skills.")
@click.option("--prune", is_flag=True, help="Remove the skills of earlier installations that are not installed now.")
@yanked_options
@unsigned_option
@click.option("--max-age", metavar="TIME", help="With --locked: refuse a lock whose seal is older, for example 30d.")
@click.option("--offline", is_flag=True, help="With --locked and --from: make no request.")
@click.option(
    "--from",
    "archive",
    metavar="ARCHIVE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="With --offline: the archive of `skillery export` that has the files.",
)
@target_options
@json_option
def install(
    folder: Path,
    skills: Sequence[str],
    locked: bool,
    file: str,
    backup: bool,
    force: bool,
    prune: bool,
    deny_yanked: bool,
    allow_yanked: Sequence[str],
    unsigned: Sequence[str],
    max_age: str | None,
    offline: bool,
    archive: Path | None,
    target: Target,
    as_json: bool,
) -> None:
    """Install skills as folders DIR/NAME.

    With --locked, install the skills of the lock file, otherwise the named skills. The proofs of the lock file must be
    valid with its keys. Without --prune, skills of earlier installations stay. Other files in DIR always stay. If a
    skill was edited in DIR, the command lists the edits and installs nothing: use --backup or --force. Broken versions
    are installed with a warning, versions yanked for security only with --allow-yanked, malicious ones never. The new
    folders replace the old ones after the files of every skill match its digest.
    """
    from skillery.cli.connection import with_client

    if locked == bool(skills):
        raise click.UsageError("name the skills to install, or pass --locked to install a lock file")
    if backup and force:
        raise click.UsageError("--backup keeps the edits, and --force discards them: use only one of them")
    if offline != (archive is not None) or (not locked and (offline or max_age)):
        raise click.UsageError("--offline and --from ARCHIVE belong together, and they and --max-age need --locked")
    lock = verified_lock(Path(file), max_age=max_age) if locked else None
    if lock is not None:
        refuse_unsigned(lock, unsigned)
    lockfile = entries_of(lock) if lock else None
    installed = _Installed(folder)

    async def write_all(client: AsyncClient | None, built: Path) -> list[Locked]:
        entries = lockfile or []
        if client is not None:
            entries = lockfile if lockfile is not None else await resolve_lock(client, skills)
            verified = await client.verify_lock(lock=entries)
            refuse_problems(verified, deny_yanked=deny_yanked, allow_yanked=allow_yanked)
        # Find edits before the download, and again before the change.
        installed.check(entries, prune=prune, may_change=backup or force)
        if client is None and archive is not None:
            unpack_skills(archive, entries, built)
        for entry in entries:
            if client is not None:
                await write_skill(client, entry, built)
            check_digest(entry, built)
            skill_md = built / entry["name"] / "SKILL.md"
            skill_md.write_bytes(with_name(skill_md.read_bytes(), entry["name"]))
        installed.check(entries, prune=prune, may_change=backup or force)
        return entries

    try:
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        # The new folders must be on the same file system, so that a rename can put them in place.
        parent, prefix = folder.absolute().parent, f".{folder.name}."
        with signals_interrupt(), tempfile.TemporaryDirectory(dir=parent, prefix=prefix) as temporary:
            built = Path(temporary) / "new"
            built.mkdir()
            entries = (
                run_async(write_all(None, built))
                if offline
                else with_client(target, lambda client: write_all(client, built))
            )
            named = {skill.partition("@")[0] for skill in skills}
            removed, backups = installed.replace(built, entries, named, prune=prune, backup=backup)
    except OSError as error:
        raise CheckFailed(f"cannot install into '{folder}': {error.strerror}; nothing was installed") from None
    if as_json:
        print_json({"folder": str(folder), "lock": entries, "removed": removed, "moved": backups})
        return
    print_entries(entries)
    for line in (*(f"removed {name}" for name in removed), *(f"moved {old} to {new}" for old, new in backups.items())):
        click.echo(clean(line), err=True)
    other_names = sorted(installed.recorded.keys() - {entry["name"] for entry in entries} - set(removed))
    if other_names:
        click.echo(clean(f"earlier installations stay: {', '.join(other_names)} (--prune removes them)"), err=True)


class _Installed:
    """The skills that earlier commands have installed in a folder, by its record."""

    def __init__(self, folder: Path) -> None:
        """Read the record of the folder. Raise CheckFailed if the record or the folder cannot be read."""
        self._folder = folder
        self.recorded = {skill.name: skill for skill in read_record(folder)}

    def check(self, entries: Sequence[Locked], *, prune: bool, may_change: bool) -> None:
        """Raise CheckFailed if a folder in place of a skill is foreign, or if a skill was edited and may not change."""
        edited = []
        names = {entry["name"] for entry in entries}
        for name in sorted({*names, *(self.recorded if prune else self.unneeded(entries))}):
            place = self._folder / name
            if name not in self.recorded and (place.exists() or place.is_symlink()):
                raise CheckFailed(
                    f"'{place}' was not written by `skillery install`: move it, or choose another folder. "
                    "Nothing was installed"
                )
            edits = edits_of(place, self.recorded[name]) if name in self.recorded else []
            if edits:
                edited.append(f"{place} was edited here: {first_names(edits, MOST_NAMED)}.")
        if edited and not may_change:
            raise CheckFailed(
                "\n".join(edited) + f"\nUse --backup to move edited skills to {self._folder / BACKUP}, or --force to "
                "discard the edits. Nothing was installed"
            )

    def unneeded(self, entries: Sequence[Locked]) -> list[str]:
        """Return the recorded skills that were installed because others required them, and that none requires now."""
        requires = {entry["name"]: entry.get("requires", []) for entry in entries}
        others = {name: skill for name, skill in self.recorded.items() if name not in requires}
        kept = [*requires, *(name for name, skill in others.items() if not skill.is_required)]
        for name in kept:  # grows: the skills that a kept skill requires are kept too
            below = requires[name] if name in requires else self.recorded[name].requires
            kept += [required for required in below if required in others and required not in kept]
        return sorted(others.keys() - set(kept))

    def replace(
        self, built: Path, entries: Sequence[Locked], named: Collection[str], *, prune: bool, backup: bool
    ) -> tuple[list[str], dict[str, str]]:
        """Move the new folders from `built` to their places, and write the record. `named` are the skills that the user
        has named.

        Return the names of the removed skills, and the new path of each backup by its old path. If a step fails, undo
        the earlier ones.
        """
        entries_by_name = {entry["name"]: entry for entry in entries}
        removed = sorted(self.recorded.keys() - entries_by_name.keys()) if prune else self.unneeded(entries)
        kept_skills = [
            skill for name, skill in self.recorded.items() if name not in entries_by_name and name not in removed
        ]
        needed = {name for entry in entries for name in entry.get("requires", ())} - {*named}
        needed -= {name for name, skill in self.recorded.items() if not skill.is_required}
        new = [
            msgspec.convert(
                {**entry, "files": _marks(built / entry["name"]), "is_required": entry["name"] in needed}, Recorded
            )
            for entry in entries
        ]
        backups: dict[str, str] = {}
        undo: list[tuple[Path, Path]] = []
        old_folder = built.parent / "old"
        old_folder.mkdir()
        self._folder.mkdir(exist_ok=True)
        try:
            for name in (*entries_by_name, *removed):
                place = self._folder / name
                if place.exists() or place.is_symlink():
                    quarantined = old_folder / name
                    if backup and edits_of(place, self.recorded[name]):
                        quarantined = _free(self._folder / BACKUP / name)
                        if quarantined.parent.is_symlink():
                            raise CheckFailed(f"'{quarantined.parent}' is a link: remove it. Nothing was installed")
                        quarantined.parent.mkdir(exist_ok=True)
                        backups[str(place)] = str(quarantined)
                    _move(place, quarantined, undo)
                if name in entries_by_name:
                    _move(built / name, place, undo)
            text = {
                "lock_version": RECORD_VERSION,
                "skills": sorted([*kept_skills, *new], key=lambda skill: skill.name),
            }
            write_atomically(self._folder / RECORD, as_json_text(text) + "\n")
        except (OSError, CheckFailed):
            for old_path, new_path in reversed(undo):
                new_path.rename(old_path)
            raise
        return removed, backups


def read_record(folder: Path) -> list[Recorded]:
    """Return the recorded skills of a folder, or [] without a record. Raise CheckFailed if the record is not valid."""
    from skillery.errors import InvalidName
    from skillery.formats.names import parse_skill_name

    record = folder / RECORD
    try:
        if not record.is_file():
            return []
        read_lockfile(record)  # raises an error that names the problem
        skills = msgspec.json.decode(record.read_bytes(), type=_Record).skills
        for skill in skills:
            # The folder may be from others, and a name that is a path would move or remove other folders.
            parse_skill_name(skill.name)
    except OSError as error:
        raise CheckFailed(f"cannot install into '{folder}': {error.strerror}") from None
    except InvalidName as error:
        raise CheckFailed(f"'{record}' is not a record of installed skills: {error.message}") from None
    return skills


def _move(source: Path, target: Path, undo: list[tuple[Path, Path]]) -> None:
    """Move a folder, and note the move in `undo`."""
    source.rename(target)
    undo.append((source, target))


def _free(path: Path) -> Path:
    """Return the path if nothing exists there, else the path with the first free number."""
    numbered = (path.with_name(f"{path.name}.{number}") for number in range(2, 10_000))
    return next(candidate for candidate in (path, *numbered) if not candidate.exists())


def edits_of(place: Path, skill: Recorded) -> list[str]:
    """Return the edits in the folder of an installed skill: `SKILL.md changed`. A removed folder has none."""
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        return ["it is not a folder"]
    if not place.exists():
        return []
    if skill.files is None:  # a record of an earlier release has no marks: only the digest can be compared
        has_links = any(path.is_symlink() for path in files_in(place, with_generated=False))
        is_same = not has_links and digest_on_disk(place, with_generated=False) == skill.digest
        return [] if is_same else ["its files have another digest"]
    marks = _marks(place)
    marks = {path: mark for path, mark in marks.items() if path in skill.files or GENERATED not in path.split("/")}
    words = dict.fromkeys(skill.files.keys() - marks.keys(), "removed")
    words |= dict.fromkeys(marks.keys() - skill.files.keys(), "added")
    words |= {path: "changed" for path in marks.keys() & skill.files.keys() if marks[path] != skill.files[path]}
    return [f"{path} {words[path]}" for path in sorted(words)]


def _marks(folder: Path) -> dict[str, str]:
    """Return the mark of each file by its path."""
    return {path.relative_to(folder).as_posix(): _mark(path) for path in files_in(folder)}


def _mark(path: Path) -> str:
    """Return the SHA-256 of a file, with `x` before it if the file is executable. Installed files are never links."""
    if path.is_symlink():
        return "link"
    return "x" * is_executable(path) + hashlib.sha256(path.read_bytes()).hexdigest()


def read_installed(folder: Path) -> list[tuple[Recorded, dict[str, str]]]:
    """Return the recorded skills of a folder, each with the marks of its files by path."""
    return [(skill, _marks(folder / skill.name)) for skill in read_record(folder)]
