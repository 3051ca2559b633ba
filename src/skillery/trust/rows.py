"""The trust rules of a database, and the tokens that were exchanged."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, delete, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from skillery import audit
from skillery.audit import Actor
from skillery.backends import Identity
from skillery.database import in_utc
from skillery.database.tables import exchanged_tokens, trust_rules
from skillery.errors import Conflict, ExchangeRefused, NotAllowed, TrustRuleNotFound
from skillery.formats.wording import quoted
from skillery.identity import access
from skillery.identity.tokens import create_short_token, forget_short_tokens, revoke_tokens_of_rule
from skillery.trust.matching import Job, identity_of, matching_rule
from skillery.trust.results import ExchangedToken, RemovedTrustRule, TrustRule, TrustRules
from skillery.trust.rules import NewRule

MOST_RULES = 1000
LIFETIME = timedelta(minutes=15)
KEPT = timedelta(days=1)
"""How long an expired token of a CI job stays in the list of tokens."""
_claims = msgspec.json.Decoder(dict[str, str])
_REMEMBER = {
    dialect.__name__.rpartition(".")[2]: dialect.insert(exchanged_tokens)
    .on_conflict_do_nothing(index_elements=["digest"])
    .execution_options(preserve_rowcount=True)
    for dialect in (sqlite, postgresql)
}


def add_rule(connection: Connection, actor: Actor, rule: NewRule) -> TrustRule:
    """Add a checked rule. Raise Conflict if there are too many rules."""
    count = connection.scalar(select(func.count()).select_from(trust_rules)) or 0
    if count >= MOST_RULES:
        raise Conflict(f"there are {count} trust rules, which is the limit", hint="Remove one: remove_trust_rule.")
    added = TrustRule(
        id=f"trust_{secrets.token_hex(12)}",
        target=rule.target,
        provider=rule.provider,
        issuer=rule.issuer,
        claims=rule.claims,
        kind=rule.kind,
        created_by=actor.name,
        created_at=datetime.now(UTC),
        last_used_at=None,
    )
    values = msgspec.structs.asdict(added)
    values["claims_json"] = msgspec.json.encode(values.pop("claims")).decode()
    connection.execute(insert(trust_rules).values(**values))
    audit.record(connection, actor, "add_trust_rule", added.id, after=rule._asdict())
    return added


def list_rules(connection: Connection, identity: Identity) -> TrustRules:
    rows = connection.execute(select(trust_rules).order_by(trust_rules.c.created_at, trust_rules.c.id))
    return TrustRules([rule for row in rows if access.covers(identity, (rule := _rule(row)).target)])


def remove_rule(connection: Connection, identity: Identity, rule_id: str) -> RemovedTrustRule:
    """Remove a rule, and end the tokens that jobs got by it. Raise TrustRuleNotFound or NotAllowed."""
    row = connection.execute(select(trust_rules).where(trust_rules.c.id == rule_id.replace("\0", ""))).one_or_none()
    if row is None or not access.covers(identity, row.target):
        raise TrustRuleNotFound(
            f"there is no trust rule {quoted(rule_id[:80])} for your namespaces", hint="list_trust_rules shows them."
        )
    check_person(identity)
    # An exchange locks the row of its rule. After this statement, no other exchange can use the rule.
    connection.execute(delete(trust_rules).where(trust_rules.c.id == row.id))
    ended = revoke_tokens_of_rule(connection, row.id)
    rule = _rule(row)
    before = {"target": rule.target, "provider": rule.provider, "issuer": rule.issuer, "claims": rule.claims}
    audit.record(connection, identity, "remove_trust_rule", row.id, before=before, after={"ended": ended})
    return RemovedTrustRule(row.id, row.target, ended)


def check_person(identity: Identity) -> None:
    """Raise NotAllowed if the identity is an agent or a CI job. Admins may be agents."""
    if identity.provenance is not None or (identity.kind == "agent" and not access.is_admin(identity)):
        raise NotAllowed(
            f"'{identity.name}' is an agent or a CI job, and only people manage trust rules", scope="admin"
        )


def issuers(connection: Connection) -> frozenset[str]:
    """Return the issuers of all rules."""
    return frozenset(connection.scalars(select(trust_rules.c.issuer).distinct()))


def check_job(connection: Connection, job: Job, target: str) -> None:
    """Raise ExchangeRefused if no rule matches a job."""
    matching_rule(job, [_rule(row) for row in connection.execute(_of_issuer(job))], target)


def exchange(connection: Connection, job: Job, target: str) -> ExchangedToken:
    """Create a token of the registry for a job. Raise ExchangeRefused if no rule matches, or the job had a token."""
    rules = [_rule(row) for row in connection.execute(_of_issuer(job).with_for_update())]
    rule, granted = matching_rule(job, rules, target)
    identity = identity_of(rule, job, granted)
    _remember(connection, job)
    created = create_short_token(connection, identity, rule.id, LIFETIME)
    connection.execute(update(trust_rules).where(trust_rules.c.id == rule.id).values(last_used_at=created.created_at))
    after = {"rule": rule.id, "token": created.id, "kind": rule.kind, "provenance": identity.provenance}
    audit.record(connection, identity, "exchange_token", granted, after=after)
    assert created.expires_at is not None
    assert identity.provenance is not None
    return ExchangedToken(
        token=created.token,
        expires_at=created.expires_at,
        target=granted,
        identity=identity.name,
        kind=rule.kind,
        rule=rule.id,
        provenance=identity.provenance,
    )


def _of_issuer(job: Job) -> Select[Any]:
    return select(trust_rules).where(trust_rules.c.issuer == job.issuer).order_by(trust_rules.c.id)


def _remember(connection: Connection, job: Job) -> None:
    row = {"digest": job.digest, "expires_at": job.expires_at}
    if not connection.execute(_REMEMBER[connection.dialect.name], row).rowcount:
        raise ExchangeRefused(
            "the token was exchanged before: each token is exchanged once",
            hint="Get a new token from the CI service, for each publishing step.",
        )


def forget_expired(connection: Connection, limit: int, *, dry_run: bool = False) -> int:
    """Delete at most `limit` records of exchanged tokens and as many expired tokens of CI jobs. Return the number."""
    now = datetime.now(UTC)
    old = select(exchanged_tokens.c.digest).where(exchanged_tokens.c.expires_at < now)
    if dry_run:
        return connection.scalar(select(func.count()).select_from(old.subquery())) or 0
    gone = connection.execute(delete(exchanged_tokens).where(exchanged_tokens.c.digest.in_(old.limit(limit)))).rowcount
    return gone + forget_short_tokens(connection, now - KEPT, limit)


def _rule(row: Any) -> TrustRule:
    return TrustRule(
        id=row.id,
        target=row.target,
        provider=row.provider,
        issuer=row.issuer,
        claims=_claims.decode(row.claims_json),
        kind=row.kind,
        created_by=row.created_by,
        created_at=in_utc(row.created_at),
        last_used_at=in_utc(row.last_used_at),
    )
