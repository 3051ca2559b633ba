"""`skillery publish`: the methods create_skill and check_skill."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from skillery.cli.failures import ANSWERED_ERROR, CHECK_FAILED, answered, object_of, print_error
from skillery.cli.options import (
    Target,
    allow_unknown_option,
    folders_argument,
    json_option,
    print_change,
    target_options,
)
from skillery.cli.output import clean, print_json
from skillery.cli.proof import add_author, find_owner, read_key, sign_option
from skillery.errors import SkilleryError

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.formats.version_diffs import Part, Step
    from skillery.proof.dsse import SigningKey
    from skillery.publishing.folders import SkillFolder

SEARCHED = 20
"""Hits of the search that shows whether a description is found."""
PRINTED_FIELDS = ("warnings", "verified", "examples", "findings", "permissions_diff")
"""Fields of the answer that `publish` prints."""


@click.command(short_help="Publish the skill in each DIR.")
@folders_argument
@click.option(
    "--dry-run", is_flag=True, help="Print what publishing would print and run the examples; publish nothing."
)
@click.option(
    "--bump",
    type=click.Choice(["patch", "minor", "major", "auto"]),
    help="Publish the next version, and write it into skill.toml after the server has accepted it. auto: choose "
    "the step from the changes.",
)
@allow_unknown_option
@sign_option
@click.option(
    "--bundle",
    "bundle_file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Also store this Sigstore bundle, which signs the .files of the version (FILE.sigstore.json).",
)
@click.option("--trusted", is_flag=True, help="In a CI job: publish with a trust rule of the server at --url.")
@target_options
@json_option
def publish(
    folders: Sequence[Path],
    dry_run: bool,
    bump: Part | Literal["auto"] | None,
    allow_unknown: bool,
    trusted: bool,
    sign_file: Path | None,
    bundle_file: Path | None,
    target: Target,
    as_json: bool,
) -> None:
    """Publish the skill in each DIR (skill.toml, SKILL.md, code/, resources/).

    Files and folders with a name that starts with a dot are skipped, and so are the folders __pycache__ and
    node_modules. A skill is published completely or not at all. A refused skill does not stop the others. Publishing
    the same bundle again succeeds and changes nothing. The examples in skill.toml run first and must pass.
    """
    from skillery.cli.connection import with_client

    if trusted:
        from skillery.cli.publish_options import trusted_target

        only_skill = _read(folders[0], allow_unknown).manifest["name"] if len(folders) == 1 else ""
        target = trusted_target(target, only_skill)
    if (sign_file or bundle_file) and (trusted or dry_run):
        raise click.UsageError(
            "--sign and --bundle exclude --trusted and --dry-run: a CI job needs no key, and a dry run signs nothing"
        )
    if bundle_file and len(folders) > 1:
        raise click.UsageError("--bundle is about one skill: publish the others without it")
    key = read_key(sign_file) if sign_file is not None else None
    bundle = bundle_file.read_text("utf-8", "replace") if bundle_file else ""
    read_folder = partial(_read, allow_unknown=allow_unknown)
    # The token of a CI job may only publish: it cannot read an earlier version.
    reads = not trusted
    send_folder = (
        partial(_check, read=read_folder, bump=bump)
        if dry_run
        else partial(_publish, read=read_folder, bump=bump, reads=reads, key=key, bundle=bundle)
    )
    answers: list[dict[str, Any]] = with_client(target, lambda client: _all(client, folders, send_folder))
    if as_json:
        print_json(answers)
    for answer in answers if not as_json else ():
        _print_published(answer)
    if any("error" in answer for answer in answers):
        raise click.exceptions.Exit(ANSWERED_ERROR)
    if not all(answer.get("ok", True) for answer in answers):
        raise click.exceptions.Exit(CHECK_FAILED)


@click.command(short_help="Raise the ranges of required skills in each DIR.")
@folders_argument
@click.option("--requires", is_flag=True, required=True, help="Raise the ranges in [requires.skills].")
@target_options
def bump(folders: Sequence[Path], requires: bool, target: Target) -> None:
    """Raise each range in [requires.skills] that excludes the latest version of its skill.

    If publishing would now choose other versions than the latest version of the skill has, the next patch is written
    into skill.toml, unless it has a higher version already. Its other texts stay. Nothing is published.
    """
    from skillery.cli.connection import with_client
    from skillery.cli.publish_options import with_raised_ranges, write_bump
    from skillery.publishing.folders import read_skill_folder

    async def work(client: AsyncClient) -> None:
        for folder in folders:
            skill, changes = await with_raised_ranges(client, read_skill_folder(folder))
            if changes:
                write_bump(folder, skill)
            note = "" if changes else ": nothing to raise"
            click.echo(clean(f"{skill.manifest['name']} {skill.manifest['version']}{note}"))
            for line in changes:
                click.echo(clean(f"  {line}"))

    with_client(target, work)


Send = Callable[["AsyncClient", Path], Awaitable[dict[str, Any]]]
Read = Callable[[Path], "SkillFolder"]


async def _all(client: AsyncClient, folders: Sequence[Path], send: Send) -> list[dict[str, Any]]:
    """Call `send` for each folder. A refused folder does not stop the others: its answer has the member `error`."""
    from skillery.client import AnsweredError, StrangeAnswer

    answers = []
    for folder in folders:
        try:
            answers.append({"folder": str(folder), **await send(client, folder)})
        except (AnsweredError, StrangeAnswer) as error:
            answers.append({"folder": str(folder), "error": answered(error)})
        except SkilleryError as error:
            answers.append({"folder": str(folder), "error": object_of(error)})
    return answers


async def _publish(
    client: AsyncClient,
    folder: Path,
    read: Read,
    bump: Part | Literal["auto"] | None,
    reads: bool,
    key: SigningKey | None,
    bundle: str,
) -> dict[str, Any]:
    """Publish a folder, and store the author's signature with `key` and the Sigstore `bundle`. If `reads` is false, the
    token may only publish, and the answer has no details.
    """
    from skillery.authoring.lint import lint, placed
    from skillery.cli.publish_options import Stepped, stepped, stored_digest, with_bump, write_bump
    from skillery.publishing.folders import params_of

    if key is not None:
        await find_owner(client, key)
    next_skill = Stepped(read(folder))
    if reads or bump == "auto":
        next_skill = await stepped(client, next_skill.skill, bump)
    elif bump:
        next_skill = Stepped(with_bump(next_skill.skill, bump))
    skill, step, warnings = next_skill
    digest = await stored_digest(client, skill) if reads else ""
    created = await client.create_skill(**params_of(skill))
    if key is not None:
        await add_author(client, key, created, {file.path: file.sha256 for file in skill.files})
    if bump:
        write_bump(folder, skill)
    facts = {**_counts(skill), **_step(step, bump)}
    all_warnings = [*warnings, *lint(skill)]
    if key is not None:
        facts["signed_with"] = key.keyid
    if bundle:
        added = await client.add_attestation(created["name"], created["version"], bundle)
        facts["signed_by"] = added["verified_as"]
    if not reads:
        return {**created, **facts, "warnings": all_warnings}
    described = await client.describe_skill(created["name"], version=created["version"])
    stored: Mapping[str, Any] = described["skill"]
    printed = {key: stored[key] for key in PRINTED_FIELDS if key in stored}
    facts["unchanged"] = digest == created["digest"]
    search = await _search(client, skill) if created["status"] == "published" else {}
    return {**created, **facts, **printed, "warnings": [*placed(skill, printed["warnings"]), *all_warnings], **search}


async def _check(client: AsyncClient, folder: Path, read: Read, bump: Part | Literal["auto"] | None) -> dict[str, Any]:
    """Check a folder without publishing it, and return the answer with counts and warnings."""
    from skillery.authoring.lint import lint, placed
    from skillery.cli.publish_options import stepped
    from skillery.publishing.folders import params_of

    skill, step, warnings = await stepped(client, read(folder), bump)
    answer = await client.check_skill(**params_of(skill))
    all_warnings = [*placed(skill, answer["warnings"]), *warnings, *lint(skill)]
    return {**answer, **_counts(skill), **_step(step, bump), "warnings": all_warnings}


def _step(step: Step | None, bump: str | None) -> dict[str, Any]:
    return {"step": {"part": step.part, "reasons": step.reasons}} if step and bump == "auto" else {}


async def _search(client: AsyncClient, skill: SkillFolder) -> dict[str, Any]:
    """Return the rank of a published skill in a search for the words of its examples, or 0 if the search does not find
    it.
    """
    from skillery.authoring.lint import example_words

    query = example_words(skill.manifest)
    if not query:
        return {}
    page = await client.search_skills(query, limit=SEARCHED)
    names = [hit["name"] for hit in page["skills"]]
    name = skill.manifest["name"]
    return {"search": {"query": query, "rank": names.index(name) + 1 if name in names else 0}}


def _read(folder: Path, allow_unknown: bool) -> SkillFolder:
    """Read a skill folder. Raise InvalidManifest if a key of skill.toml is misspelt, unless `allow_unknown`."""
    from skillery.publishing.folders import read_skill_folder, refuse_misspelt

    skill = read_skill_folder(folder)
    if not allow_unknown:
        refuse_misspelt(skill)
    return skill


def _counts(skill: SkillFolder) -> dict[str, Any]:
    total = sum(len(file.content) for file in skill.files)
    return {"files": len(skill.files), "size_bytes": total, "skipped": skill.skipped}


def _print_published(answer: Mapping[str, Any]) -> None:
    """Print the answer for one folder, of a check or of a publication."""
    if "error" in answer:
        print_error({**answer["error"], "subject": answer["folder"]})
        return
    if "ok" in answer:
        status = "unchanged" if answer.get("unchanged") else answer["status"]
        outcome = status if answer["ok"] else "refused"
        click.echo(clean(f"{answer['name']} {answer['version']} {answer['digest']} would be {outcome}"))
    else:
        status = answer["status"]
        note = "" if status == "published" else f" ({status})"
        done, preposition = "uploaded" if note else "published", "to"
        if answer.get("unchanged"):
            done, preposition = "unchanged", "at"
        print_change(f"{done} {answer['name']} {answer['version']}{note}", preposition)
        click.echo(clean(f"  {answer['digest']}"), err=True)
        if "signed_with" in answer:
            click.echo(clean(f"  signed with {answer['signed_with']}"), err=True)
        if "signed_by" in answer:
            click.echo(clean(f"  signed by {answer['signed_by']}"), err=True)
    skipped = f"; skipped {', '.join(answer['skipped'])}" if answer["skipped"] else ""
    click.echo(clean(f"  {answer['files']} files, {answer['size_bytes']} bytes{skipped}"), err=True)
    for line in (*_example_lines(answer), *finding_lines(answer), *_permission_lines(answer)):
        click.echo(clean(f"  {line}"), err=True)
    for line in (*_step_lines(answer), *_search_lines(answer)):
        click.echo(clean(f"  {line}"), err=True)
    for warning in answer["warnings"]:
        click.echo(clean(f"  warning: {warning}"), err=True)
    if "ok" not in answer and (next_step := _next_step(answer)):
        click.echo(clean(f"  next: {next_step}"), err=True)


def _next_step(answer: Mapping[str, Any]) -> str:
    """Return what has to happen before the version is published, or ""."""
    skill = f"{answer['name']}@{answer['version']}"
    steps = {
        "draft": f"skillery submit {skill}, then ask a reviewer",
        "in_review": f"a reviewer runs skillery approve {skill}",
    }
    return steps.get(answer["status"], "")


def _example_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line with the numbers of examples by status, if there are examples."""
    examples = answer.get("examples") or ()
    counts = {
        status: sum(example["status"] == status for example in examples) for status in ("passed", "failed", "not_run")
    }
    parts = [f"{count} {status.replace('_', ' ')}" for status, count in counts.items() if count]
    waiting_count = sum(example["status"] == "waiting" for example in examples)
    if waiting_count:
        parts.append(f"{waiting_count} that need permissions will run at publication")
    if parts:
        yield f"examples: {', '.join(parts)}"


def _step_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    if step := answer.get("step"):
        yield f"step: {step['part']}, because {'; '.join(step['reasons'][:3])}"


def _search_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    if search := answer.get("search"):
        rank = f"at rank {search['rank']}" if search["rank"] else f"not among the first {SEARCHED}"
        remedy = "" if search["rank"] else ": write words of the examples into the description"
        yield f"search: '{search['query']}' finds it {rank}{remedy}"


def finding_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line for each finding of an answer: its severity, location, message and rule."""
    for finding in answer.get("findings") or ():
        location = f"{finding['file']}:{finding['line']}: " if finding["line"] else ""
        waiver = finding.get("waiver")
        waived = f" (waived by {waiver['by']}: {waiver['reason']})" if waiver else ""
        yield f"{finding['severity']}: {location}{finding['message']} [{finding['rule']}]{waived}"


def _permission_lines(answer: Mapping[str, Any]) -> Iterator[str]:
    diff = answer.get("permissions_diff")
    added = [*diff["added"]["network"], *diff["added"]["secrets"]] if diff else []
    added += [f"calls of {name}" for name in diff["added"].get("calls", ())] if diff else []
    hidden = diff["added"].get("calls_hidden") if diff else None
    added += [f"calls of hidden skills ({hidden})"] if hidden else []
    if diff and added:
        occasion = f"added since {diff['against']}" if diff["against"] else "in the first version"
        review = "; a reviewer must approve this" if answer["status"] in {"draft", "in_review"} else ""
        yield f"permissions {occasion}: {', '.join(added)}{review}"
