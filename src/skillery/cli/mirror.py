"""The commands `skillery mirror add`, `list`, `run` and `remove`, and the records of the mirrors."""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
import platformdirs

from skillery.cli.failures import ANSWERED_ERROR, CheckFailed
from skillery.cli.lock_files import write_atomically
from skillery.cli.options import Target, json_option, target_options, without_user
from skillery.cli.output import clean, print_json, print_rows
from skillery.cli.proof import keychain_of_file, keys_option
from skillery.errors import Conflict, InvalidParams, SkilleryError, StartupError

if TYPE_CHECKING:
    from skillery.client import ImportOptions


COLUMNS = ("id", "source", "namespace", "review", "every", "last refresh", "result")
MOST_SOURCE = 200
CHECK_SECONDS = 5.0
_GIT = re.compile(r"(?:https?://|ssh://|[\w.-]+@[\w.-]+:).+\.git/?")


@click.group(short_help="Follow other servers, repositories and indexes.")
def mirror() -> None:
    """Follow the skills of another server, a git repository, an index or a folder.

    A mirror imports new and changed skills, with the same checks and reviews as every import. Skills that are gone from
    the source are reported and stay. `skillery mirror run` refreshes the mirrors, from cron or with --forever.
    """


@mirror.command("add")
@click.argument("source", metavar="URL|DIR")
@click.option("--namespace", metavar="NS", default="", help="Publish the skills in this namespace: pdf becomes NS.pdf.")
@click.option("--review", is_flag=True, help="Each new version waits for a review.")
@click.option(
    "--every", metavar="TIME", help="Minimum time between two refreshes: 1h, 1d.  [default: refresh in each run]"
)
@keys_option
@json_option
def add(source: str, namespace: str, review: bool, every: str | None, keys_file: Path | None, as_json: bool) -> None:
    """Remember a source to follow.

    URL is another Skillery server, a namespace of it (https://host/n/NAMESPACE), an index of Agent Skills, or a git
    repository that ends with .git. With --keys, the mirror copies only versions that a Skillery server has signed.
    """
    from skillery.formats.names import parse_namespace
    from skillery.formats.timestamps import parse_duration

    source = checked_source(source)
    if keys_file is not None and (not _is_url(source) or _GIT.fullmatch(source)):
        raise InvalidParams(f"{source!r} has no keys", hint="Name the address of a Skillery server.", param="keys")
    present = keychain_of_file(keys_file).present if keys_file is not None else ()
    new_mirror = Mirror(
        id=id_of(source, namespace),
        source=source,
        namespace=parse_namespace(namespace),
        review=review,
        every_seconds=parse_duration(every, "every").total_seconds() if every else 0.0,
        keys=keys_file.read_text("utf-8") if keys_file is not None else "",
    )
    add_mirror(new_mirror)
    if as_json:
        print_json(_facts(new_mirror))
        return
    click.echo(clean(f"{new_mirror.id}: {source}"))
    if present:
        click.echo(clean(f"trusted key: {', '.join(present)}"), err=True)
    click.echo(clean(f"next: skillery mirror run {new_mirror.id}"), err=True)


@mirror.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the mirrors with the result of their last refresh."""
    mirrors = list_mirrors()
    if as_json:
        print_json({"mirrors": [_facts(mirror) for mirror in mirrors]})
        return
    rows = [
        (
            mirror.id,
            mirror.source,
            mirror.namespace or "-",
            "yes" if mirror.review else "no",
            f"{mirror.every_seconds:.0f} s" if mirror.every_seconds else "each run",
            mirror.tried_at.isoformat(timespec="seconds") if mirror.tried_at else "-",
            mirror.result or "-",
        )
        for mirror in mirrors
    ]
    print_rows(COLUMNS, rows, none="No mirrors.")


@mirror.command("remove")
@click.argument("mirror_id", metavar="ID")
def remove(mirror_id: str) -> None:
    """Forget a source. Its imported skills stay."""
    removed = find_mirror(mirror_id)
    remove_mirror(removed)
    click.echo(clean(f"{removed.id}: {removed.source} is not followed anymore"))


@mirror.command("run")
@click.argument("ids", metavar="[ID...]", nargs=-1)
@click.option("--forever", is_flag=True, help="Keep running, and refresh each mirror when it is due.")
@target_options
@json_option
def run(ids: tuple[str, ...], forever: bool, target: Target, as_json: bool) -> None:
    """Refresh the mirrors that are due, or the named mirrors.

    If a source or one of its skills cannot be read, the command reports this, continues with the next one, and ends
    with exit code 3. A skill is imported completely or not at all. The next run tries again.
    """
    needs_due = forever or not ids
    while True:
        now = datetime.now(UTC)
        chosen = [find_mirror(mirror_id) for mirror_id in ids] if ids else list_mirrors()
        failed = [_refresh(mirror, target, as_json) for mirror in chosen if not needs_due or mirror.is_due(now)]
        if not forever:
            if any(failed):
                raise click.exceptions.Exit(ANSWERED_ERROR)
            return
        sys.stdout.flush()
        time.sleep(CHECK_SECONDS)


def _refresh(mirror: Mirror, target: Target, as_json: bool) -> bool:
    """Read the source of a mirror and import the changes. Return whether something failed."""
    from skillery.client import ClientError

    if not as_json:
        click.echo(clean(f"{mirror.id}: {mirror.source}"))
    try:
        copied, folder, problems = _copied(mirror)
        for problem in problems:
            click.echo(clean(f"not copied: {problem}"), err=True)
        result, fingerprint = _imported(copied, folder, target, as_json)
    except (SkilleryError, StartupError, ClientError, CheckFailed) as error:
        mirror.tried(result=f"error: {error}"[:500])
        click.echo(clean(f"error: {error}"), err=True)
        if hint := getattr(error, "hint", None):
            click.echo(clean(f"hint: {hint}"), err=True)
        return True
    if problems:
        result = f"{result}; {len(problems)} not copied: {problems[0]}"
    copied.tried(result=result[:500], imported=fingerprint)
    return bool(problems) or not fingerprint


def _copied(mirror: Mirror) -> tuple[Mirror, Path, list[str]]:
    """Update the copy of a mirror from its source. Return the changed mirror, the folder to import, and a line for each
    skill that could not be copied.
    """
    from skillery.cli.mirror_git import copy_repository
    from skillery.cli.mirror_index import copy_index
    from skillery.client.logins.login import server_of
    from skillery.client.logins.tokens import kept_token

    if _GIT.fullmatch(mirror.source):
        state = copy_repository(mirror.source, mirror.tree, mirror.state)
        return msgspec.structs.replace(mirror, state=state), mirror.tree, []
    if _is_url(mirror.source):
        server = server_of(mirror.source.partition("/n/")[0].partition("/.well-known/")[0])
        trust = mirror.keys, mirror.seal
        problems, (keys, seal) = copy_index(mirror.source, mirror.tree, kept_token(server)(), trust)
        return msgspec.structs.replace(mirror, keys=keys, seal=seal), mirror.tree, problems
    if not Path(mirror.source).is_dir():
        raise StartupError(f"the folder '{mirror.source}' does not exist")
    return mirror, Path(mirror.source), []


def _imported(mirror: Mirror, folder: Path, target: Target, as_json: bool) -> tuple[str, str]:
    """Import the copy if it has changed. Return the result in words, and the fingerprint of the copy, or "" if a skill
    was refused, so that the next refresh tries again.
    """
    from skillery.cli.import_uploads import ImportPaths, import_all

    paths = ImportPaths([folder], follow_links=False)
    [fingerprint] = paths.fingerprints()
    if fingerprint == mirror.imported:
        if as_json:
            print_json([])
        else:
            click.echo("unchanged")
        return "unchanged", fingerprint
    options: ImportOptions = {
        "namespace": mirror.namespace,
        "source": mirror.source,
        "name": mirror.id,
        "review": mirror.review,
    }
    [answer] = import_all(target, paths, lambda _: options, as_json, reports_removed=True)
    if "error" in answer:
        raise StartupError(str(answer["error"].get("message", "the import failed")))
    counts = answer["counts"]
    is_complete = not counts.get("refused") and not answer["stopped"]
    result = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "no skills"
    removed_count = len(answer["removed"])
    result = f"{result}, {removed_count} removed from the source" if removed_count else result
    return result, fingerprint if is_complete else ""


def checked_source(source: str) -> str:
    """Return the source in its normal form. Raise InvalidParams if it cannot be followed."""
    from urllib.parse import urlsplit

    from skillery.client.logins.login import is_safe

    if len(source) > MOST_SOURCE or not source.isprintable():
        raise InvalidParams(f"the source is longer than {MOST_SOURCE} characters or not printable", param="source")
    if not _is_url(source) and not _GIT.fullmatch(source):
        if not Path(source).is_dir():
            hint = "Name a folder, an https address, or a git repository that ends with .git."
            raise InvalidParams(f"{source!r} is neither a folder nor an address", hint=hint, param="source")
        return str(Path(source).resolve())
    if _is_url(source):
        try:
            parts = urlsplit(source)
        except ValueError:
            raise InvalidParams(f"{without_user(source)!r} is not an address", param="source") from None
        if parts.username or parts.password or parts.query:
            hint = "Log in instead: skillery login, or a credential helper of git."
            raise InvalidParams("the address contains a user, a password or a query", hint=hint, param="source")
        if not is_safe(source):
            raise InvalidParams(f"{source!r} is not encrypted", hint="Use https.", param="source")
    return source


def _is_url(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def _facts(mirror: Mirror) -> dict[str, Any]:
    return {
        "id": mirror.id,
        "source": mirror.source,
        "namespace": mirror.namespace,
        "review": mirror.review,
        "every_seconds": mirror.every_seconds,
        "signed": bool(mirror.keys),
        "tried_at": mirror.tried_at.isoformat() if mirror.tried_at else None,
        "result": mirror.result,
    }


# -- The mirrors of a user: one folder each, with a record and a copy of the source ------------------------------------
# The copy (`tree`) is what the last refresh read. Each import sends the whole copy, so that the registry can tell which
# skills are gone.


RECORD = "mirror.json"


class Mirror(msgspec.Struct, frozen=True, kw_only=True):
    """A source to follow, and the result of its last refresh."""

    id: str
    source: str
    namespace: str = ""
    review: bool = False
    every_seconds: float = 0.0
    """The shortest time between two refreshes. 0: each `skillery mirror run` refreshes it."""
    keys: str = ""
    """The pinned keys of the source, an answer of KEYS_ADDRESS. "": its statements are not checked."""
    seal: tuple[int, str, str] | None = None
    """The fields of the newest LockedSeal of the source, at the last refresh with pinned keys."""
    state: str = ""
    """What the copy was made from, as the source names it: a commit. "" for other sources."""
    imported: str = ""
    """The fingerprint of the copy that was imported last without an error."""
    tried_at: datetime | None = None
    result: str = ""
    """The outcome of the last refresh in words."""

    def is_due(self, now: datetime) -> bool:
        return self.tried_at is None or now - self.tried_at >= timedelta(seconds=self.every_seconds)

    @property
    def folder(self) -> Path:
        return mirrors_folder() / self.id

    @property
    def tree(self) -> Path:
        return self.folder / "tree"

    def tried(self, **changes: object) -> Mirror:
        """Store the changes and the present time. Return the changed record."""
        changed = msgspec.structs.replace(self, tried_at=datetime.now(UTC), **changes)
        _store(changed)
        return changed


def mirrors_folder() -> Path:
    return Path(platformdirs.user_data_dir("skillery", appauthor=False)) / "mirrors"


def add_mirror(mirror: Mirror) -> None:
    """Store a new mirror. Raise Conflict if the user has a mirror with its id."""
    if (mirror.folder / RECORD).exists():
        raise Conflict(
            f"there is a mirror of {mirror.source!r} already: {mirror.id}",
            hint=f"Remove it first: skillery mirror remove {mirror.id}",
        )
    _store(mirror)


def list_mirrors() -> list[Mirror]:
    return [_read(path) for path in sorted(mirrors_folder().glob(f"*/{RECORD}"))]


def find_mirror(mirror_id: str) -> Mirror:
    """Return a mirror. Raise InvalidParams if the user has no such mirror."""
    for mirror in list_mirrors():
        if mirror.id == mirror_id:
            return mirror
    raise InvalidParams(f"there is no mirror {mirror_id[:80]!r}", hint="skillery mirror list shows all of them.")


def remove_mirror(mirror: Mirror) -> None:
    shutil.rmtree(mirror.folder)


def id_of(source: str, namespace: str) -> str:
    return hashlib.sha256(f"{source}\0{namespace}".encode()).hexdigest()[:12]


def _read(path: Path) -> Mirror:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Mirror)
    except (OSError, msgspec.DecodeError) as error:
        raise StartupError(f"'{path}' is not a record of a mirror ({error}); delete its folder") from None


def _store(mirror: Mirror) -> None:
    mirror.folder.mkdir(parents=True, exist_ok=True)
    write_atomically(mirror.folder / RECORD, msgspec.json.format(msgspec.json.encode(mirror)).decode())
