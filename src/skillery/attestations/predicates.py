"""The predicates of statements, which the server or identities sign. Those of the server have no text of files except
for names of examples and licences. The purge of a version empties its envelopes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from skillery.attestations.evaluations import evaluation_text
from skillery.audit import Actor
from skillery.backends import Provenance
from skillery.formats.check_results import VULNERABILITY, CheckedExample, CheckFinding, PermissionsDiff
from skillery.formats.licences import Origin
from skillery.formats.npm import NPM_LOCK
from skillery.formats.requirements import LOCK
from skillery.formats.script_blocks import script_locks
from skillery.proof.dsse import ProofError
from skillery.proof.statements import URN, now, unverified_statement

Predicate = dict[str, Any]


def publication_predicate(
    files: Mapping[str, str],
    publisher: Actor,
    made_by: str | None,
    visibility: str,
    requires: Mapping[str, str] = {},
    *,
    asks_review: bool = False,
) -> Predicate:
    """Say who has published a version, with which method. `files` are the SHA-256 of its files by path, `made_by` is
    the method that made the version, or None. `requires` are the digests of all versions that it requires, by name.
    `asks_review` means that the version waits for a review, also if its policy needs none.
    """
    paths = {LOCK, NPM_LOCK, *script_locks(files)}
    locks = {path: f"sha256:{sha256}" for path, sha256 in files.items() if path in paths}
    return {
        "publisher": publisher.name,
        "kind": publisher.kind,
        "method": made_by or "create_skill",
        "package_locks": locks,
        "visibility": visibility,
        **({"requires": requires} if requires else {}),
        **({"asks_review": True} if asks_review else {}),
        "at": now(),
    }


def scan_predicate(
    findings: Sequence[CheckFinding],
    release: str,
    licences: Mapping[str, Sequence[str]] | None = None,
    archive: str = "",
) -> Predicate:
    """Say which findings the checks of a version had, by their rules. Messages may quote files, and are left out.
    `release` is the release of the server. `licences` are those of the version and its packages, if they were read.
    `archive` is the date of the archive of known vulnerabilities, or "".
    """
    rows = [
        {"rule": each.rule, "severity": each.severity, "waiver": each.waiver.id if each.waiver else None}
        for each in findings
    ]
    read: Predicate = {} if licences is None else {"licences": licences}
    read |= {"vulnerabilities": {"archive": archive}} if archive else {}
    return {"scanner": {"name": "skillery", "version": release}, "findings": rows, **read, "at": now()}


def vulnerabilities_of(scan: Mapping[str, Any]) -> str:
    """Return the known vulnerabilities that a scan names, in a few words, or "" if it has not looked for them."""
    if not (archive := scan.get("vulnerabilities", {}).get("archive", "")):
        return ""
    findings = [row for row in scan.get("findings", ()) if row["rule"].startswith(VULNERABILITY)]
    ids = [row["rule"].removeprefix(VULNERABILITY) + " (waived)" * bool(row.get("waiver")) for row in findings]
    more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
    return f"{', '.join(ids[:5]) or 'none known'}{more}; archive of {archive[:10]}"


def tests_predicate(examples: Sequence[CheckedExample]) -> Predicate:
    """Say which examples have passed, as a test result of in-toto. Examples that wait for an approval are warnings."""
    by_status = {
        status: [example.name for example in examples if example.status == status]
        for status in ("passed", "waiting", "not_run", "failed")
    }
    warned = by_status["waiting"] + by_status["not_run"]
    return {
        "result": "FAILED" if by_status["failed"] else "WARNED" if warned else "PASSED",
        "configuration": [],
        "passedTests": by_status["passed"],
        "warnedTests": warned,
        "failedTests": by_status["failed"],
    }


def ci_provenance(job: Provenance, builder: str) -> Predicate:
    """Say which CI job has published a version, as provenance of SLSA. `builder` is the URL of the registry, which has
    verified the claims of the job.
    """
    parameters = {"issuer": job.issuer, "repository": job.repository, "workflow": job.workflow, "ref": job.ref}
    host = urlsplit(job.issuer).hostname or ""
    # The issuer of jobs of github.com has another host. The dot excludes hosts of strangers with the same ending.
    host = "github.com" if host.endswith(".githubusercontent.com") else urlsplit(job.issuer).netloc
    source = {"uri": f"git+https://{host}/{job.repository}@{job.ref}", "digest": {"gitCommit": job.commit}}
    return _slsa("publish", parameters, [source] if job.repository and job.commit else [], builder, job.run)


def is_built_by(predicate: Predicate, job: str) -> bool:
    """Return whether the registry has verified that this CI job has built the version. `job` is its identity."""
    build = predicate.get("buildDefinition", {})
    repository = build.get("externalParameters", {}).get("repository")
    return bool(build.get("buildType") == _build_type("publish") and (not repository or job.endswith(f":{repository}")))


def import_provenance(origin: Origin, importer: str, builder: str) -> Predicate:
    """Say which origin the importer of a version has stated, as provenance of SLSA. The registry has not checked it."""
    licence = {"licence": origin.licence, "licence_path": origin.licence_path} if origin.licence else {}
    parameters = {"source": origin.source, "path": origin.path, **licence, "stated_by": importer}
    commit = {"uri": f"git+{origin.source}", "digest": {"gitCommit": origin.commit}}
    return _slsa("import", parameters, [commit] if origin.commit else [], builder, "")


def _build_type(build: str) -> str:
    return f"{URN.replace('attestation', 'build')}{build}:v1"


def _slsa(
    build: str, parameters: dict[str, str], dependencies: list[dict[str, Any]], builder: str, run: str
) -> Predicate:
    return {
        "buildDefinition": {
            "buildType": _build_type(build),
            "externalParameters": parameters,
            "resolvedDependencies": dependencies,
        },
        "runDetails": {"builder": {"id": builder}, "metadata": {"invocationId": run}},
    }


def review_predicate(
    reviewer: Actor,
    decision: Literal["approved", "rejected"],
    note: str,
    diff: PermissionsDiff | None,
    accepts: str = "",
) -> Predicate:
    """Say what a reviewer has decided. `diff` are the permissions that the reviewer has seen as added or removed,
    `accepts` is the unclear evaluation that the reviewer accepts.
    """
    return {
        "reviewer": reviewer.name,
        "kind": reviewer.kind,
        "decision": decision,
        "note": note,
        **({"accepts": accepts} if accepts else {}),
        "compared": diff.against if diff else None,
        "permissions": msgspec.to_builtins({"added": diff.added, "removed": diff.removed}) if diff else None,
        "at": now(),
    }


def revocation_predicate(
    actor: Actor, action: Literal["yank", "purge", "unyank"], advisory: Mapping[str, str], reason: str
) -> Predicate:
    """Say why a version was withdrawn, or that its advisory was withdrawn. `advisory` has `advisory`, `severity` and
    `fixed`.
    """
    return {**advisory, "action": action, "reason": reason, "by": actor.name, "kind": actor.kind, "at": now()}


Text = Annotated[str, Meta(max_length=2000)]


class OwnAuthor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The predicate with which an identity signs that it is an author."""

    signer: Text = msgspec.field(name="author")
    name: Text = ""
    version: Text = ""
    at: Text = ""


class OwnReview(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The predicate with which an identity signs its review."""

    signer: Text = msgspec.field(name="reviewer")
    decision: Literal["approved", "rejected"]
    note: Text = ""
    at: Text = ""


_Share = Annotated[float, Meta(ge=0, le=1)]
_Count = Annotated[int, Meta(ge=1)]


class OwnEvaluation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The predicate with which an identity signs the results of another tool. They are compared with no version."""

    signer: Text = msgspec.field(name="by")
    executed: Literal["outside"]
    suite: dict[Literal["name", "digest"], Text]
    count: _Count
    trials: _Count
    shares: dict[Literal["with", "without", "before"], _Share]
    evaluation: Literal[""]
    before: None
    verdict: None
    worse: Annotated[list[Text], Meta(max_length=0)]
    at: Text = ""


def summary_of_envelope(word: str, envelope: str) -> str:
    """Return the predicate of an envelope in a few words, without a check of its signatures. Other registries and
    people sign any values.
    """
    try:
        return summary_of(word, unverified_statement(envelope.encode()).predicate)
    except (ProofError, LookupError, TypeError, AttributeError, ValueError, ArithmeticError):
        return "the envelope is damaged"


def summary_of(word: str, predicate: Mapping[str, Any]) -> str:
    """Return a predicate in a few words, for lists."""
    if predicate.get("backfilled"):
        return f"{summary_of(word, {**predicate, 'backfilled': False})} (signed later)"
    if predicate.get("replaces"):
        return f"{summary_of(word, {**predicate, 'replaces': ''})} (signed again)"
    match word:
        case "publication":
            return f"published by {predicate.get('publisher')} with {predicate.get('method')}"
        case "provenance":
            definition = predicate.get("buildDefinition", {})
            parameters = dict(definition.get("externalParameters", {}))
            facts = " ".join(str(parameters[key]) for key in ("repository", "workflow", "ref", "source", "path")
                             if parameters.get(key))  # fmt: skip
            for source in definition.get("resolvedDependencies", ()):
                facts += f" at {source['digest']['gitCommit'][:7]}"
            return f"{facts} (stated by {parameters['stated_by']})" if parameters.get("stated_by") else facts
        case "tests":
            return f"{predicate.get('result')}: {len(predicate.get('passedTests', ()))} passed"
        case "scan":
            findings = predicate.get("findings", ())
            waived = sum(1 for finding in findings if finding.get("waiver"))
            return f"{len(findings)} findings, {waived} waived" if findings else "no findings"
        case "evaluation":
            return evaluation_text(predicate)
        case "review":
            return ": ".join(str(predicate[key]) for key in ("decision", "note") if predicate.get(key))
        case "revocation":
            words = "{action} as {severity} ({advisory})".format_map(predicate)
            return ": ".join(filter(None, (words, predicate.get("reason"))))
        case "passed":
            return f"meets {str(predicate.get('policy', {}).get('uri', '')).removeprefix('skillery:')}"
        case _:
            return "signed with Sigstore" if "bundle" in predicate else ""
