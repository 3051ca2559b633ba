"""The steps between the statuses of a version: the conditions of each step, and its execution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

import msgspec
from sqlalchemy import Connection, insert, select, update

from skillery import audit
from skillery.attestations.evidence import end_recertification, is_approval_old, is_proof_ended
from skillery.backends import Identity
from skillery.database import select_row
from skillery.database.registry import lock_skill_row
from skillery.database.tables import RESOLVABLE, skill_versions, skills, version_steps
from skillery.errors import DigestDiffers, IllegalStep, NotAllowed
from skillery.formats.semver import Version
from skillery.formats.timestamps import timestamp_text
from skillery.formats.version_spec import Exact
from skillery.identity import access
from skillery.identity.access import ApprovalRules
from skillery.registry.requires import count_dependents
from skillery.registry.resolution import find_skill, resolve, skill_not_found
from skillery.registry.version_rows import Severity, VersionRow, record_deprecation, record_step, yank_of
from skillery.registry.visibility import sees_version
from skillery.skills.catalogue_order import rank_later
from skillery.skills.search_index import index_successor
from skillery.versions.new_versions import NewVersion, point_to_latest

StepName = Literal["submit", "approve", "reject", "yank", "unyank", "deprecate", "undeprecate", "purge", "publish"]


NO_ADVISORY: Mapping[str, str] = MappingProxyType({})
_SEVERITIES = ("", *get_args(Severity))
STRICT = ApprovalRules()
"""The rules of approval with the default settings, which are the strictest ones."""


class Step(NamedTuple):
    """A change of the status of a version."""

    starts: tuple[str, ...]
    """The statuses from which the step is legal."""
    leads_to: str
    """The status after the step."""
    method: str
    """The JSON-RPC method, as the audit trail names it."""
    done: str
    """The participle in messages: "it cannot be <done>"."""


STEPS: dict[StepName, Step] = {
    "submit": Step(("draft",), "in_review", "submit_version", "submitted"),
    "approve": Step(("in_review",), "published", "approve_version", "approved"),
    "reject": Step(("in_review",), "rejected", "reject_version", "rejected"),
    "yank": Step(("published", "deprecated"), "yanked", "yank_version", "yanked"),
    # If the version was deprecated before the yank, _apply_step sets "deprecated" instead.
    "unyank": Step(("yanked",), "published", "unyank_version", "unyanked"),
    # A deprecated version can be deprecated again with another message.
    "deprecate": Step(("published", "deprecated"), "deprecated", "deprecate_skill", "deprecated"),
    "purge": Step(
        ("draft", "in_review", "published", "deprecated", "yanked", "rejected"), "purged", "purge_version", "purged"
    ),
    # A version meets its policy without another approval, for example when its author signs it.
    "publish": Step(("in_review",), "published", "publish_version", "published"),
    "undeprecate": Step(("deprecated",), "published", "undeprecate_skill", "undeprecated"),
}
"""All legal steps. `step_one` and `step_all` raise IllegalStep for other ones."""


class _Version(NamedTuple):
    """The columns of a version that a step needs."""

    version_id: int
    version: str
    digest: str
    status: str
    publisher: str
    standing_json: str | None


_VERSION = select_row(_Version, skill_versions, version_id=skill_versions.c.id)


def step_one(
    connection: Connection,
    identity: Identity,
    name: str,
    version: Version,
    step: StepName,
    *,
    note: str = "",
    digest: str | None = None,
    rules: ApprovalRules = STRICT,
    advisory: Mapping[str, str] = NO_ADVISORY,
    stays: bool = False,
) -> NewVersion:
    """Take a step with one version, and return the version. Record the step in the audit trail and the outbox.
    `advisory` has the fields of a revocation: `severity`, `advisory` and `fixed`.

    With `stays`, the status stays: an approval is then one of several. Raise SkillNotFound or VersionNotFound if the
    identity sees no such version, IllegalStep if its status does not permit the step, DigestDiffers if a reviewer has
    seen another `digest`, and NotAllowed if `rules` refuse an approval.
    """
    # The lock comes first: the step applies to the values that are read after it.
    lock_skill_row(connection, name)
    row = find_for_step(connection, identity, name, version, step, digest=digest, rules=rules, advisory=advisory)
    stored = _Version(row.version_id, row.version, row.digest, row.status, row.publisher, row.standing_json)
    # An approval of a published version is evidence, and no publication.
    stays = stays or (step == "approve" and row.status in RESOLVABLE)
    status = _apply_step(connection, identity, stored, step, note, advisory=advisory, stays=stays)
    if step == "approve":
        end_recertification(connection, row.version_id)
    if not stays:
        point_to_latest(connection, row.skill_id)
    audit.record(
        connection,
        identity,
        STEPS[step].method,
        f"{name}@{stored.version}",
        before={"status": stored.status},
        after={"status": status, "digest": stored.digest, **({"note": note} if note else {}), **advisory},
    )
    about = {"version": stored.version, "digest": stored.digest, "status": status, "publisher": stored.publisher}
    if not stays:
        is_revoked = advisory.get("severity", "broken") != "broken"
        dependents = count_dependents(connection, row.version_id) if is_revoked else None
        record_step(connection, identity, step, name, note=note, dependents=dependents, **about, **advisory)
    return NewVersion(name, stored.version, stored.digest, status)


def find_for_step(
    connection: Connection,
    identity: Identity,
    name: str,
    version: Version,
    step: StepName,
    *,
    digest: str | None = None,
    rules: ApprovalRules = STRICT,
    advisory: Mapping[str, str] = NO_ADVISORY,
) -> VersionRow:
    """Return the version with which `step_one` would take the step now. Raise the errors of `step_one`."""
    row = resolve(connection, identity, name, Exact(version), manages=True)
    # Steps that a version takes again: an approval after withdrawn evidence, and a yank with a higher severity.
    is_again = step == "approve" and is_reviewed_again(connection, row)
    is_again = is_again or (step == "yank" and _is_more_severe(row, advisory))
    if row.status not in STEPS[step].starts and not is_again:
        raise _illegal(name, row.version, [row.status], step)
    if step == "approve":
        _check_approval(identity, row, digest, rules)
    return row


def is_reviewed_again(connection: Connection, row: VersionRow) -> bool:
    """Return whether a published version waits for a review: evidence was withdrawn, or its approval is old."""
    is_due = is_proof_ended(connection, row.version_id) or is_approval_old(connection, row.version_id)
    return row.status in RESOLVABLE and is_due


def _is_more_severe(row: VersionRow, advisory: Mapping[str, str]) -> bool:
    """Return whether a version is yanked, and the advisory has a higher severity. Automatic yanks have none."""
    yank = yank_of(row.standing_json)
    present, raised = (_SEVERITIES.index(facts.get("severity", "")) for facts in (yank, advisory))
    return bool(yank) and raised > present


def step_all(
    connection: Connection,
    identity: Identity,
    name: str,
    step: StepName,
    *,
    note: str = "",
    deprecated: dict[str, Any] | None = None,
) -> NewVersion:
    """Take a step with all versions of a skill that permit the step. Return the latest version.

    `deprecated` has the message and the successor of a deprecation. Raise NotAllowed, SkillNotFound, or IllegalStep if
    no version permits the step.
    """
    access.require_namespace(identity, "publish", name)
    skill_id = lock_skill(connection, identity, name)
    versions = [_Version(*row) for row in connection.execute(_VERSION.where(skill_versions.c.skill_id == skill_id))]
    ready = [version for version in versions if version.status in STEPS[step].starts]
    if not ready:
        seen_statuses = {
            version.status for version in versions if sees_version(identity, name, version.status, version.publisher)
        }
        raise _illegal(name, None, sorted(seen_statuses), step)
    statuses = {
        version.version: _apply_step(connection, identity, version, step, note, deprecated) for version in ready
    }
    point_to_latest(connection, skill_id)
    index_successor(connection, skill_id, deprecated["successor"] if deprecated else None)
    rank_later(connection, name)
    audit.record(
        connection,
        identity,
        STEPS[step].method,
        name,
        before={"versions": {version.version: version.status for version in ready}},
        after={"versions": statuses, **(deprecated or {})},
    )
    if deprecated is not None:
        record_deprecation(connection, identity, name, list(statuses), deprecated)
    return latest_version(connection, identity, name, skill_id)


def _apply_step(
    connection: Connection,
    identity: Identity,
    version: _Version,
    step: StepName,
    note: str,
    deprecated: dict[str, Any] | None = None,
    advisory: Mapping[str, str] = NO_ADVISORY,
    *,
    stays: bool = False,
) -> str:
    """Store a step and the new status of a version. Return the new status. With `stays`, the status stays.

    The row of `version_steps` has the identity, the time and the note of the step.
    """
    now = datetime.now(UTC)
    standing: dict[str, Any] = msgspec.json.decode(version.standing_json) if version.standing_json else {}
    actor = {"by": identity.name, "kind": identity.kind, "at": timestamp_text(now)}
    status = version.status if stays else STEPS[step].leads_to
    match step:
        case "approve" if stays:
            pass
        case "approve":
            standing["approval"] = {**actor, "digest": version.digest, "note": note}
        case "reject":
            standing["rejected"] = {**actor, "reason": note}
        case "yank":
            standing["yanked"] = {**actor, "reason": note, **advisory}
        case "purge":
            # The notes of earlier steps may quote what the purge removes.
            standing = {"purged": {**actor, "reason": note, **advisory}}
        case "unyank":
            standing.pop("yanked", None)
            status = "deprecated" if "deprecated" in standing else status
        case "deprecate":
            standing["deprecated"] = deprecated
        case "undeprecate":
            standing.pop("deprecated", None)
        case "submit" | "publish":
            pass
    standing_json = msgspec.json.encode(standing).decode() if standing else None
    connection.execute(
        update(skill_versions)
        .where(skill_versions.c.id == version.version_id)
        .values(status=status, standing_json=standing_json)
    )
    connection.execute(
        insert(version_steps).values(
            version_id=version.version_id,
            step=step,
            status=status,
            digest=version.digest,
            identity=identity.name,
            identity_kind=identity.kind,
            note=note,
            created_at=now,
        )
    )
    return status


def _check_approval(identity: Identity, row: VersionRow, digest: str | None, rules: ApprovalRules) -> None:
    """Raise DigestDiffers if the reviewer has seen another digest, and NotAllowed if `rules` refuse the approval."""
    if digest is not None and digest.strip().lower() != row.digest:
        raise DigestDiffers(
            f"'{row.name}' {row.version} has the digest {row.digest}, not {digest[:80]}",
            hint="Review this version again, and approve the digest that describe_skill shows.",
            name=row.name,
            version=row.version,
            digest=row.digest,
        )
    if refusal := rules.refusal(identity, row.publisher):
        raise NotAllowed(
            f"'{identity.name}' cannot approve '{row.name}' {row.version}: it {refusal}",
            hint="Ask another reviewer, a person with the scope review.",
            name=row.name,
            version=row.version,
        )


def lock_skill(connection: Connection, identity: Identity, name: str) -> int:
    """Lock the row of a skill until the transaction ends, and return its id.

    Raise SkillNotFound if the identity sees no such skill.
    """
    lock_skill_row(connection, name)
    skill_id = find_skill(connection, identity, name)
    if skill_id is None:
        raise skill_not_found(connection, identity, name)
    return skill_id


def latest_version(connection: Connection, identity: Identity, name: str, skill_id: int) -> NewVersion:
    """Return the latest version of a skill. If no version is published, return the highest one that the identity
    sees.
    """
    latest_id = connection.scalar(select(skills.c.latest_version_id).where(skills.c.id == skill_id))
    if latest_id is not None:
        chosen = _Version(*connection.execute(_VERSION.where(skill_versions.c.id == latest_id)).one())
    else:
        highest_first = _VERSION.where(skill_versions.c.skill_id == skill_id).order_by(
            skill_versions.c.precedence.desc()
        )
        versions = (_Version(*row) for row in connection.execute(highest_first))
        chosen = next(
            version for version in versions if sees_version(identity, name, version.status, version.publisher)
        )
    return NewVersion(name, chosen.version, chosen.digest, chosen.status)


def _illegal(name: str, version: str | None, statuses: Sequence[str], step: StepName) -> IllegalStep:
    """Return the error for a version, or for all versions of a skill if `version` is None.

    `statuses` are the statuses of these versions.
    """
    # A purge is always legal, and never the remedy. No method publishes a version directly.
    legal = [
        next_step.method
        for key, next_step in STEPS.items()
        if key not in ("purge", "publish") and set(statuses) & set(next_step.starts)
    ]
    subject = f"'{name}' {version} is" if version else f"every version of '{name}' is"
    leads = f"The next step can be {_either(legal)}." if legal else "No step is possible: publish a new version."
    return IllegalStep(
        f"{subject} {_either(statuses)}: it cannot be {STEPS[step].done}",
        hint=leads,
        name=name,
        **({"version": version} if version else {}),
        status=" ".join(statuses),
        legal=legal,
    )


def _either(words: Sequence[str]) -> str:
    return " or ".join(words)
