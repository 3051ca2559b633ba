"""Statements about runs: the evidence that is stored when a run ends, and get_run_statement."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

import msgspec
from sqlalchemy import Connection, select

from skillery.attestations.run_leaves import find_ended_run, record_of, split_leaves
from skillery.attestations.signing import Signing
from skillery.backends import CodeCall, Identity, Outcome
from skillery.contents.blob_rows import BlobRow
from skillery.database.registry import Registry
from skillery.database.tables import seals
from skillery.errors import Busy, Conflict, InvalidParams, NotFound
from skillery.method import Method, Params, about
from skillery.proof.merkle import leaf_hash, proof_of
from skillery.proof.seals import DisclosedArgs, Place, RunPredicate, args_digest, make_run_statement
from skillery.runs.active_run import ActiveRun
from skillery.runs.queries import find_run
from skillery.runs.results import Run
from skillery.runs.scripts import args_of
from skillery.settings.versions import Seals

# -- The evidence of a run: with its row, it becomes the record that seals cover and statements show -------------------


class RunEvidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts about a run that are in no other column. Digests are SHA-256 in hex."""

    mounts: list[tuple[str, str, str]]
    """Name, version and digest of each mounted skill. The tools of sessions have no version."""
    secrets: tuple[str, ...]
    """The names of the secrets that the run got."""
    allowed: tuple[str, ...]
    """The hosts that the run was allowed to reach."""
    sandbox: str
    release: str
    salt: str
    args: str
    """The digest of the salt and the args."""
    inputs: list[str]
    output: str | None
    """The digest of the output as JSON. If the output is stored as a blob, the digest of this blob."""
    files: list[tuple[str, str]]
    """The path and the digest of each written blob, in order. A blob without a path has its id as the path."""
    log: str | None
    """The digest of the preview, or of the blob that has the whole log."""
    code: str | None = None
    """The digest of the code of `run_code`."""


def make_evidence(
    run: ActiveRun, sandbox: str, release: str, answer: Run, outcome: Outcome, log_digest: str | None
) -> str:
    """Return the evidence of an ended run as JSON. `log_digest` is the digest of its log, if that is a blob."""
    job, prepared, salt = run.job, run.prepared, secrets.token_hex(16)
    call, preview = job.call, answer.logs_preview
    inputs = [*(blob.sha256 for blob in job.blobs), *(file.sha256 for file in job.files)]
    return msgspec.json.encode(
        RunEvidence(
            mounts=[(mount.name, mount.version, mount.digest) for mount in job.skills if mount.digest],
            secrets=prepared.secrets,
            allowed=job.network,
            sandbox=sandbox,
            release=release,
            salt=salt,
            args=args_digest(salt, args_of(job)),
            inputs=[digest for digest in inputs if digest],
            output=_output_digest(answer, outcome, run.host.written),
            files=[(row.path or row.id, row.sha256) for row in run.host.written],
            log=log_digest or (hashlib.sha256(preview.encode()).hexdigest() if preview else None),
            code=hashlib.sha256(call.code.encode()).hexdigest() if isinstance(call, CodeCall) else None,
        )
    ).decode()


def _output_digest(answer: Run, outcome: Outcome, written: Sequence[BlobRow]) -> str | None:
    if outcome.result is None:
        return None
    if isinstance(answer.output, msgspec.Raw):
        return hashlib.sha256(answer.output).hexdigest()
    blob_id = answer.output["blob_id"]
    stored = next((row.sha256 for row in written if row.id == blob_id), None)
    return stored or hashlib.sha256(outcome.result).hexdigest()  # the result of a called run has no blob


# -- get_run_statement -------------------------------------------------------------------------------------------------


class RunStatement(msgspec.Struct, frozen=True):
    """A signed statement about a run. `envelope` is an envelope of DSSE as JSON text, `seal` the number of its seal."""

    run_id: str
    seal: int
    envelope: str


class RunStatements:
    """Makes statements about runs of this registry."""

    def __init__(self, registry: Registry, signing: Signing, settings: Seals) -> None:
        self._registry = registry
        self._signing = signing
        self.has_public_seals = settings.public
        self._retry_ms = round(settings.seconds * 1000)

    async def make(self, identity: Identity, run_id: str, *, with_args: bool) -> RunStatement:
        """Return the statement about a run. With `with_args`, the statement has the args and their salt.

        Raise RunNotFound if the identity may not see the run, Busy if no seal covers the run yet or the signer cannot
        be reached, Conflict if the record was changed after it was sealed, NotFound if there will be no seal for the
        run, and InvalidParams if the args are not kept.
        """
        work = partial(make_predicate, identity=identity, run_id=run_id, with_args=with_args)
        stored = await self._registry.read_page(partial(work, is_signing=self._signing.signs, retry_ms=self._retry_ms))
        seq, predicate = stored
        [envelope] = await self._signing.envelopes([make_run_statement(predicate)])
        return RunStatement(run_id, seq, envelope)


def make_predicate(
    connection: Connection, identity: Identity, run_id: str, *, with_args: bool, is_signing: bool, retry_ms: int
) -> tuple[int, RunPredicate]:
    """Return the number of the seal that covers a run, and the statement. Raise the errors of `RunStatements.make`."""
    find_run(connection, identity, run_id)
    row = find_ended_run(connection, run_id)
    if row is None:
        raise Busy(f"the run {run_id} has not ended", retry_after_ms=retry_ms, hint="Ask again after its end.")
    if not is_signing:
        raise NotFound(f"this server signs nothing, so there is no statement about {run_id}", hint=_SIGNING)
    if row.seal_batch is None:
        raise NotFound(f"the run {run_id} ended before this registry sealed runs", hint="Newer runs have statements.")
    of_batch = select(seals.c.seq, seals.c.envelope, seals.c.run_leaves).where(seals.c.batch == row.seal_batch)
    seal = connection.execute(of_batch).one_or_none()
    if seal is None:
        raise Busy(f"the run {run_id} is not sealed yet", retry_after_ms=retry_ms, hint="Ask again after this time.")
    if not seal.run_leaves:
        raise NotFound(
            f"the hashes in the seal of {run_id} are deleted", hint="An admin can raise the setting seals.keep_days."
        )
    record = record_of(row)
    leaf, leaves = leaf_hash(record), split_leaves(seal.run_leaves)
    if leaf not in leaves:
        raise Conflict(
            f"the record of {run_id} was changed after seal {seal.seq} covered it", hint="Tell an admin of this server."
        )
    index = leaves.index(leaf)
    place = Place(index, len(leaves), tuple(node.hex() for node in proof_of(leaves, index)))
    args = None
    if with_args:
        evidence = msgspec.json.decode(row.evidence_json, type=RunEvidence) if row.evidence_json else None
        if not evidence or row.args_json is None or args_digest(evidence.salt, row.args_json.encode()) != evidence.args:
            raise InvalidParams(f"the args of {run_id} are not kept", hint="Leave 'disclose' out.", param="disclose")
        args = DisclosedArgs(evidence.salt, row.args_json)
    return seal.seq, RunPredicate(record.decode(), leaf.hex(), place, seal.envelope, args)


_SIGNING = "An admin can change the setting signing.key. It counts for later runs."


class GetRunStatement(Params, frozen=True, kw_only=True):
    """Return a signed statement about an ended run. The registry's key is enough to verify it offline."""

    run_id: Annotated[str, about("The run's id")]
    disclose: Annotated[Literal["args", ""], about("'args' adds the args; otherwise only their digest")] = ""


async def get_run_statement(statements: RunStatements, identity: Identity, params: GetRunStatement) -> RunStatement:
    return await statements.make(identity, params.run_id, with_args=params.disclose == "args")


METHODS = (Method(get_run_statement, "read", audits="", for_auditors=True),)
