"""`skillery runs statement` and `skillery witness`: statements about runs, and seals as another machine sees them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import click
import msgspec

from skillery.cli.failures import CHECK_FAILED, CheckFailed
from skillery.cli.options import Target, json_option, target_options, token_option
from skillery.cli.output import clean, print_json, print_rows
from skillery.cli.verbs import read_pages
from skillery.proof import KEYS_ADDRESS, SEALS_ADDRESS

if TYPE_CHECKING:
    from skillery.audit import Head
    from skillery.client import AsyncClient
    from skillery.proof.seals import CheckedRun, Link

Disclose: TypeAlias = Literal["args"] | None
MOST_HEADS = 1000
"""The number of heads of the audit trail that a witness keeps. Each one proves all entries before it."""
MOST_LINE = 1 << 20
out_option = click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the statements to FILE, one in a line.  [default: stdout]",
)
disclose_option = click.option(
    "--disclose", type=click.Choice(["args"]), help="Add the args of the runs, which statements have only as a digest."
)


# -- statements about runs ---------------------------------------------------------------------------------------------


@click.command()
@click.argument("run_ids", metavar="RUN...", nargs=-1, required=True)
@out_option
@disclose_option
@target_options
def statement(run_ids: Sequence[str], out: Path | None, disclose: Disclose, target: Target) -> None:
    """Write signed statements about runs. `skillery verify FILE --keys KEYS` checks them without a server.

    A statement exists as soon as a seal covers the run, which takes about a minute after its end.
    """
    from skillery.cli.connection import with_client

    async def read(client: AsyncClient) -> list[str]:
        return [(await client.get_run_statement(run_id, disclose=disclose))["envelope"] for run_id in run_ids]

    _write(out, with_client(target, read))


@click.command()
@click.option("--skill", metavar="NAME", help="Only runs of this skill.")
@click.option("--since", metavar="WHEN", help="Only runs since this time: 2026-11-22T10:00:00Z, or 90m, 24h, 7d.")
@out_option
@disclose_option
@target_options
def statements(skill: str | None, since: str | None, out: Path | None, disclose: Disclose, target: Target) -> None:
    """Write signed statements about all ended runs of a skill or time, newest first. Runs without a seal are left
    out, with a message.
    """
    from skillery.cli.connection import with_client
    from skillery.client import AnsweredError

    async def read(client: AsyncClient) -> list[str]:
        params = {"skill": skill, "since": since, "limit": None, "cursor": None}
        envelopes = []
        for run in (await read_pages(client.list_runs, params, "runs"))[1]:
            try:
                envelopes.append((await client.get_run_statement(run["run_id"], disclose=disclose))["envelope"])
            except AnsweredError as error:
                click.echo(clean(f"left out: {error.object['message']}"), err=True)
        return envelopes

    _write(out, with_client(target, read))


def _write(out: Path | None, envelopes: Sequence[str]) -> None:
    text = "".join(f"{envelope}\n" for envelope in envelopes)
    if out is None:
        click.echo(text, nl=False)
    else:
        out.write_text(text)


def is_runs_file(file: Path) -> bool:
    """Return whether the first line of a file is an envelope. A lock file is one JSON document."""
    with file.open("rb") as lines:
        return b'"payloadType"' in lines.readline(MOST_LINE)


def check_runs(file: Path, keys: Mapping[str, bytes], as_json: bool) -> None:
    """Verify the statements about runs in a file, one in a line, and print a line for each. Exit with CHECK_FAILED if
    one is not valid. `keys` are public keys in DER by keyid.
    """
    from skillery.proof.dsse import ProofError
    from skillery.proof.seals import check_run

    rows: list[tuple[CheckedRun | None, str | None]] = []
    for line in file.read_bytes().splitlines():
        try:
            rows.append((check_run(line, keys), None))
        except ProofError as error:
            rows.append((None, str(error)))
    is_valid = bool(rows) and not any(problem for _, problem in rows)
    if as_json:
        runs = [
            {"run": run.record if run else None, "seal": run.seal if run else None, "problem": problem}
            for run, problem in rows
        ]
        print_json({"ok": is_valid, "runs": runs})
    else:
        headings = ["", "run", "status", "by", "mounts", "finished", "seal", "problem"]
        print_rows(headings, [_row(run, problem) for run, problem in rows], none=f"{file} has no statements.")
    if not is_valid:
        raise click.exceptions.Exit(CHECK_FAILED)


def _row(run: CheckedRun | None, problem: str | None) -> Sequence[object]:
    if run is None:
        return "FAILED", "-", "-", "-", "-", "-", "-", f"the statement {problem}"
    record = run.record
    mounts = " ".join(f"{name}@{version}" for name, version, _ in record["mounts"] or ())
    seen = record["run_id"], record["status"], record["identity"], mounts or "-", record["finished_at"]
    return "ok", *seen, str(run.seal.seq), ""


# -- skillery witness --------------------------------------------------------------------------------------------------


class State(msgspec.Struct):
    """The state of a witness: the keys of a registry, its last seal, and heads of its audit trail."""

    keys: msgspec.Raw
    """The chain of the registry's keys, as the registry has sent it."""
    seq: int = 0
    """The number of the last seal."""
    sha256: str = ""
    at: str = ""
    heads: list[tuple[int, str]] = []
    """The last heads of the audit trail, oldest first."""


@click.command()
@click.argument("address", metavar="URL")
@click.option(
    "--state",
    "file",
    metavar="FILE",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The state of this witness. The first call makes the file.",
)
@click.option(
    "--max-age",
    metavar="TIME",
    default="2h",
    show_default=True,
    help="Fail if the last seal is older. A server makes a seal each hour, even if nothing happens.",
)
@token_option
@json_option
def witness(address: str, file: Path, max_age: str, token: str | None, as_json: bool) -> None:
    """Follow the seals of the server at URL, and notice if its history was rewritten.

    Run this command regularly on another machine. The exit code is 1 if a signature is not valid, if a seal does not
    follow the one before, if the server no longer has the last seal that this witness saw, or if that seal is too old.
    The first call trusts the keys of the server.
    """
    from skillery.cli.connection import client_of
    from skillery.cli.failures import run_async
    from skillery.cli.lock_files import write_atomically
    from skillery.formats.timestamps import parse_duration

    async def look() -> State:
        async with client_of(address, token) as client:
            return await _follow(client, address, before)

    before, most = _state(file) if file.exists() else None, parse_duration(max_age, "max-age")
    state = run_async(look())
    # Not formatted: blanks in a statement would change its hash.
    write_atomically(file, msgspec.json.encode(state) + b"\n")
    if state.seq and abs(datetime.now(UTC) - datetime.fromisoformat(state.at)) > most:
        raise CheckFailed(f"{address} has made no seal since seal {state.seq} of {state.at}, or a clock is wrong")
    if as_json:
        print_json({"seal": state.seq, "sha256": state.sha256, "at": state.at, "heads": len(state.heads)})
    else:
        click.echo(clean(f"ok: {state.seq} seals, up to {state.sha256} of {state.at}" if state.seq else "No seals."))


def _state(file: Path) -> State:
    try:
        return msgspec.json.decode(file.read_bytes(), type=State)
    except (msgspec.MsgspecError, ValueError):
        raise CheckFailed(f"{file} is not a state file of skillery witness") from None


def heads_of(file: Path) -> list[Head]:
    """Return the heads of the audit trail in the state of a witness, or in the seal of `seals.file`.

    The signature of the seal is not verified: the file is in a place that the admin trusts.
    """
    from skillery.audit import Head
    from skillery.proof.dsse import ProofError
    from skillery.proof.seals import read_seal

    try:
        position = read_seal(file.read_bytes().strip()).audit
    except ProofError:  # the state of a witness, which contains envelopes
        return [Head(seq, digest) for seq, digest in _state(file).heads]
    return [Head(position.seq, position.hash)]


async def _follow(client: AsyncClient, url: str, before: State | None) -> State:
    """Read all new seals, and return the new state of the witness. Raise CheckFailed if the history differs."""
    from skillery.cli.proof import keychain_of, read_answer, statements_of_keys
    from skillery.proof.dsse import ErrorsAbout, unverified
    from skillery.proof.seals import check_heads, follow_seals

    content = await read_answer(client, KEYS_ADDRESS)
    keychain, chain = keychain_of(content, url), statements_of_keys(content, url)
    kept = statements_of_keys(bytes(before.keys), "the state file") if before else []
    if chain[: len(kept)] != kept:
        raise CheckFailed(f"{url} no longer has all changes of keys that this witness saw: history was rewritten")
    state = before or State(msgspec.Raw(content))
    state.keys = msgspec.Raw(content)
    last = await _last_seen(client, state) if state.seq else None
    newest = b""
    while page := await _seals(client, state.seq):
        with ErrorsAbout(url, CheckFailed):
            links = follow_seals(page, keychain.trusted, last, keychain.revoked)
            check_heads([link.seal for link in ([last] if last else []) + links], chain)
        last, newest = links[-1], page[-1]
        for seal, _ in links:
            head = (seal.audit.seq, seal.audit.hash)
            if head not in state.heads[-1:]:
                state.heads.append(head)
        state.heads = state.heads[-MOST_HEADS:]
        state.seq, state.sha256, state.at = last.seal.seq, last.sha256, last.seal.at
    if newest and (stolen := keychain.revoked.intersection(unverified(newest).keyids)):
        raise CheckFailed(f"the last seal of {url} is signed with the revoked key {', '.join(stolen)}")
    return state


async def _last_seen(client: AsyncClient, state: State) -> Link:
    """Return the last seal that the witness saw. Raise CheckFailed if the server has another one."""
    from skillery.proof.seals import Link, read_seal

    envelope = next(iter(await _seals(client, state.seq - 1)), b"")
    if hashlib.sha256(envelope).hexdigest() != state.sha256:
        raise CheckFailed(f"seal {state.seq} is not the one that this witness saw: history was rewritten")
    return Link(read_seal(envelope), state.sha256)


async def _seals(client: AsyncClient, after: int) -> list[bytes]:
    from skillery.cli.proof import read_answer

    content = await read_answer(client, f"{SEALS_ADDRESS}?after={after}")
    try:
        return [bytes(seal) for seal in msgspec.json.decode(content, type=dict[str, list[msgspec.Raw]])["seals"]]
    except (msgspec.MsgspecError, KeyError):
        raise CheckFailed(f"the server has no seals at {SEALS_ADDRESS}") from None
