"""`skillery status`: compare installed skills with what `install` wrote, and with the registry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from skillery.cli.failures import CHECK_FAILED, CheckFailed
from skillery.cli.install import MOST_NAMED, RECORD, Recorded, edits_of, read_record
from skillery.cli.options import Target, json_option, target_options
from skillery.cli.output import clean, print_json, print_rows
from skillery.cli.proof import MOST_PAGES, read_answer, read_keychain
from skillery.formats.wording import first_names
from skillery.proof import ADVISORIES_ADDRESS

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.proof.seals import Seal

DIGESTS_AT_ONCE = 50
LOCKED_AT_ONCE = 1000
QUARANTINED = "SKILL.md.quarantined"
"""The new name of SKILL.md in the folder of a quarantined skill. Agents read no skill without SKILL.md."""


class _Advisory(msgspec.Struct, frozen=True):
    id: str
    severity: str
    action: str
    reason: str
    fixed: str | None

    @property
    def is_serious(self) -> bool:
        return self.severity != "broken" or self.action == "purge"

    @property
    def is_harmful(self) -> bool:
        return self.severity == "malicious" or self.action == "purge"


class _Details(msgspec.Struct, frozen=True):
    severity: str
    action: str
    digests: list[str]
    fixed: str | None = None


class _Record(msgspec.Struct, frozen=True):
    """A record of OSV in the feed."""

    id: str
    summary: str
    database_specific: _Details
    withdrawn: str | None = None


class _Head(msgspec.Struct, frozen=True):
    seq: int
    hash: str


class _Page(msgspec.Struct, frozen=True):
    """A page of the feed. The next page is the one after `seq`."""

    advisories: list[_Record]
    seq: int
    more: bool
    head: _Head | None = None
    """The newest change of the whole feed, as seals name it."""


class _Skill(msgspec.Struct):
    """An installed skill, and its differences from the installation and the registry."""

    folder: str
    name: str
    version: str
    digest: str
    edits: list[str]
    is_missing: bool
    is_quarantined: bool
    latest: str | None = None
    problem: str | None = None
    """The problem of `verify_lock`: `gone`, `yanked`, `purged` and others."""
    advisories: list[_Advisory] = []

    @property
    def place(self) -> Path:
        return Path(self.folder) / self.name

    def words(self) -> str:
        words = ["missing"] if self.is_missing else ["quarantined"] if self.is_quarantined else []
        if self.edits and not self.is_quarantined:
            words.append(f"edited: {first_names(self.edits, MOST_NAMED)}")
        if self.problem is not None:
            words.append(self.problem.replace("_", " "))
        for advisory in self.advisories:
            fixed = f", fixed in {advisory.fixed}" if advisory.fixed else ""
            words.append(f"{advisory.severity} ({advisory.id}{fixed}): {advisory.reason or advisory.action}")
        if self.latest not in (None, self.version):
            words.append(f"latest is {self.latest}")
        return "; ".join(words) or "ok"


@click.command()
@click.argument("folders", metavar="[DIR...]", nargs=-1, type=click.Path(path_type=Path, file_okay=False))
@click.option("--quarantine", is_flag=True, help=f"Rename SKILL.md of malicious and purged skills to {QUARANTINED}.")
@target_options
@json_option
def status(folders: Sequence[Path], quarantine: bool, target: Target, as_json: bool) -> None:
    """Compare the installed skills in folders with the registry.

    Each line names a skill, its version, and what differs: edited, missing or quarantined files, a newer version, and
    advisories. Folders that `skillery install` did not write are foreign. The exit code is 1 if a version was yanked as
    security or malicious, or was purged. Run this command regularly: a registry cannot reach the copies.
    """
    from skillery.cli.connection import with_client

    skills, foreign = [], []
    for folder in folders or (Path(),):
        recorded = read_record(folder)
        if not recorded:
            raise CheckFailed(f"'{folder}' has no skills that `skillery install` wrote ({RECORD})")
        skills += [_installed(folder, skill) for skill in recorded]
        foreign += _foreign(folder, recorded)
    with_client(target, lambda client: _compare(client, skills))
    if quarantine:
        for skill in skills:
            if any(advisory.is_harmful for advisory in skill.advisories):
                _quarantine(skill)
    if as_json:
        print_json({"skills": skills, "foreign": [str(path) for path in foreign]})
    else:
        rows = [(str(skill.place), skill.version, skill.words()) for skill in skills]
        print_rows(["skill", "version", "status"], [*rows, *((str(path), "-", "foreign") for path in foreign)])
    if any(advisory.is_serious for skill in skills for advisory in skill.advisories):
        raise click.exceptions.Exit(CHECK_FAILED)


def _installed(folder: Path, skill: Recorded) -> _Skill:
    place = folder / skill.name
    try:
        edits = edits_of(place, skill)
    except OSError as error:
        raise CheckFailed(f"cannot read '{place}': {error.strerror}") from None
    is_quarantined = not place.is_symlink() and (place / QUARANTINED).exists() and not (place / "SKILL.md").exists()
    is_missing = not place.exists() and not place.is_symlink()
    return _Skill(str(folder), skill.name, skill.version, skill.digest, edits, is_missing, is_quarantined)


def _foreign(folder: Path, recorded: Sequence[Recorded]) -> list[Path]:
    """Return the files and folders next to the installed skills, without names that begin with a dot."""
    names = {skill.name for skill in recorded}
    return sorted(path for path in folder.iterdir() if path.name not in names and not path.name.startswith("."))


async def _compare(client: AsyncClient, skills: Sequence[_Skill]) -> None:
    """Add what the registry says about each skill."""
    from skillery.client.errors import ClientError

    digests = sorted({skill.digest for skill in skills})
    # A feed that is read after the seal has at least the advisories of the seal.
    seal = await _newest_seal(client)
    advisories: dict[str, list[_Advisory]] = {}
    for start in range(0, len(digests), DIGESTS_AT_ONCE):
        for record in await _records(client, digests[start : start + DIGESTS_AT_ONCE], seal):
            facts = record.database_specific
            advisory = _Advisory(record.id, facts.severity, facts.action, record.summary, facts.fixed)
            for digest in facts.digests if record.withdrawn is None else ():
                advisories.setdefault(digest, []).append(advisory)
    for start in range(0, len(skills), LOCKED_AT_ONCE):
        part = skills[start : start + LOCKED_AT_ONCE]
        lock: Any = [{"name": skill.name, "version": skill.version, "digest": skill.digest} for skill in part]
        problems = (await client.verify_lock(lock=lock))["problems"]
        by_version = {(problem["name"], problem["version"]): problem["problem"] for problem in problems}
        async with client.batch() as batch:
            described = [batch.describe_skill(name=skill.name, detail="manifest") for skill in part]
        for skill, answer in zip(part, described, strict=True):
            skill.advisories = advisories.get(skill.digest, [])
            problem = by_version.get((skill.name, skill.version))
            # The advisory says more. Two folders may have two versions of one skill.
            skill.problem = None if skill.advisories or problem == "two_versions" else problem
            try:
                skill.latest = answer.result()["skill"]["version"]
            except ClientError:
                continue  # the skill is gone, which `problem` says


async def _newest_seal(client: AsyncClient) -> Seal | None:
    """Return the newest seal, or None if the registry has none. Raise CheckFailed if it is not valid."""
    from skillery.proof.dsse import ErrorsAbout
    from skillery.proof.seals import check_seal

    newest = (await client.list_seals(newest=True))["seals"]
    keys = (await read_keychain(client, may_be_empty=True)).trusted
    with ErrorsAbout("the newest seal", CheckFailed):
        return check_seal(newest[0]["envelope"].encode(), keys).seal if newest else None


async def _records(client: AsyncClient, digests: Sequence[str], seal: Seal | None) -> list[_Record]:
    """Return the advisories about digests, from all pages. Raise CheckFailed if the answers are not those of a feed, or
    are older than the seal.
    """
    from skillery.proof.seals import Position, continues

    records: list[_Record] = []
    after = 0
    for _ in range(MOST_PAGES):
        content = await read_answer(client, f"{ADVISORIES_ADDRESS}?after={after}&digests={','.join(digests)}")
        try:
            page = msgspec.json.decode(content, type=_Page)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise CheckFailed(f"the answer of {ADVISORIES_ADDRESS} is not a feed of advisories: {error}") from None
        records += page.advisories
        if not page.more:
            head = Position(page.head.seq, page.head.hash) if page.head else None
            if seal and not continues(seal.advisories, head):
                remedy = "it may be an old copy; repeat the command later, or ask the admin of the server"
                raise CheckFailed(f"the feed {ADVISORIES_ADDRESS} is older than seal {seal.seq}: {remedy}")
            return records
        if page.seq <= after:
            raise CheckFailed(f"the feed {ADVISORIES_ADDRESS} repeats its page after {after}")
        after = page.seq
    raise CheckFailed(f"the feed {ADVISORIES_ADDRESS} has more than {MOST_PAGES} pages")


def _quarantine(skill: _Skill) -> None:
    """Rename SKILL.md, unless the folder is a link to another place."""
    source = skill.place / "SKILL.md"
    if skill.place.is_symlink() or not source.exists():
        return
    try:
        source.rename(skill.place / QUARANTINED)
    except OSError as error:
        raise CheckFailed(f"cannot rename '{source}': {error.strerror}") from None
    skill.is_quarantined = True
    click.echo(clean(f"quarantined {skill.place}"), err=True)
