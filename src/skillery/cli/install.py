"""`skillery install`: write the bundles of a lock of skills as folders. Each bundle is verified by its digest.
Either all bundles are installed or none.
"""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skillery.cli.failures import CheckFailed
from skillery.cli.locks import LOCKFILE, lockfile_text, print_entries, read_lockfile, refuse_problems, resolve_lock
from skillery.cli.options import Target, json_option, target_options
from skillery.cli.output import print_json

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.client.results import Locked

# A name that no skill can have, because it begins with a dot.
RECORD = f".{LOCKFILE}"


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.argument("skills", metavar="[NAME[@SPEC]...]", nargs=-1)
@click.option("--locked", is_flag=True, help="Install exactly the lock file; install nothing if it no longer holds.")
@click.option("--file", "file", metavar="FILE", default=LOCKFILE, show_default=True, help="The lock file.")
@target_options
@json_option
def install(folder: Path, skills: Sequence[str], locked: bool, file: str, target: Target, as_json: bool) -> None:
    """Install skills as folders DIR/NAME.

    With --locked, install the skills of the lock file, otherwise the named skills. DIR then contains these skills, a
    hidden copy of the lock, and nothing else. The new folder is built next to DIR, and replaces DIR only after the
    files of every skill match its digest. The command refuses a DIR that contains other files or folders than the
    skills of an earlier `install`.
    """
    from skillery.cli.connection import with_client

    if locked == bool(skills):
        raise click.UsageError("name the skills to install, or pass --locked to install a lock file")
    given = read_lockfile(Path(file)) if locked else None

    async def write_all(client: AsyncClient, built: Path) -> list[Locked]:
        entries = given if given is not None else await resolve_lock(client, skills)
        refuse_problems(await client.verify_lock(lock=entries))
        for entry in entries:
            await write_skill(client, entry, built)
        return entries

    with _building(folder.absolute()) as built:
        entries = with_client(target, lambda client: write_all(client, built))
        (built / RECORD).write_text(lockfile_text(entries))
    if as_json:
        print_json({"folder": str(folder), "lock": entries})
    else:
        print_entries(entries)


@contextmanager
def _building(place: Path) -> Iterator[Path]:
    """Context manager: yield a new folder that replaces the folder `place` after the `with` block.

    Raise CheckFailed as `_check_folder` does, or if a file cannot be written.
    """
    _check_folder(place)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        # The folder must be on the same file system, so that a rename can replace the target.
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}.") as temporary:
            built, old = Path(temporary) / "new", Path(temporary) / "old"
            built.mkdir()
            yield built
            _check_folder(place)
            _put_in_place(built, place, old)
    except OSError as error:
        raise CheckFailed(f"cannot install into '{place}': {error.strerror}; nothing was installed") from None


def _check_folder(folder: Path) -> None:
    """Raise CheckFailed if the folder contains anything but installed skills, is a link, or cannot be read."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise CheckFailed(f"cannot install into '{folder}': {error.strerror}") from None
    if folder.is_symlink():
        raise CheckFailed(f"'{folder}' is a link: pass the path of the folder itself")
    ours = {RECORD, *_recorded(folder)}
    foreign = [name for name in names if name not in ours]
    if foreign:
        raise CheckFailed(
            f"'{folder}' contains files that `skillery install` did not write ({', '.join(foreign[:5])}): "
            "choose another folder"
        )


def _recorded(folder: Path) -> list[str]:
    record = folder / RECORD
    return [entry["name"] for entry in read_lockfile(record)] if record.is_file() else []


async def write_skill(client: AsyncClient, entry: Locked, built: Path) -> None:
    """Write the files of a version to `built/NAME`. Raise CheckFailed if they do not match the digest of the lock."""
    from skillery.formats.names import parse_skill_name
    from skillery.formats.paths import parse_path

    # The paths come from a server, which must not make this command write outside the folder.
    name = parse_skill_name(entry["name"])
    described = await client.describe_skill(name=name, version=entry["version"], detail="full")
    for file in described["skill"]["files"]:
        path = parse_path(file["path"])
        read = await client.read_skill_file(name=name, version=entry["version"], path=path)
        target = built / name / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(_content(read))
        target.chmod(0o755 if file["executable"] else 0o644)
    found = _digest_on_disk(built / name)
    if found != entry["digest"].strip().lower():
        raise CheckFailed(
            f"'{name}' {entry['version']} does not match the lock: its files have the digest {found}, the lock says "
            f"{entry['digest']}; nothing was written"
        )


def _content(read: Mapping[str, Any]) -> bytes:
    content: str = read["content"]
    return base64.b64decode(content) if read["encoding"] == "base64" else content.encode()


def _digest_on_disk(folder: Path) -> str:
    from skillery.formats.bundle import BundleFile, digest_of

    paths = [path for path in folder.rglob("*") if path.is_file()]
    return digest_of(
        BundleFile(path.relative_to(folder).as_posix(), path.read_bytes(), bool(path.stat().st_mode & 0o100))
        for path in paths
    )


def _put_in_place(built: Path, place: Path, old: Path) -> None:
    if place.exists():
        place.rename(old)
    try:
        built.rename(place)
    except OSError:
        if old.exists():
            old.rename(place)
        raise
