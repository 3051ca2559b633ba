"""The exchange of a CI job's token for a token of the registry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, Select, delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from skillery import audit
from skillery.backends import Provenance, Verifier
from skillery.database.tables import exchanged_tokens, trust_rules
from skillery.errors import Busy, ExchangeRefused
from skillery.formats.secret_names import parse_grantee
from skillery.identity.authenticator_chain import keeps_tokens
from skillery.identity.tokens import create_short_token, forget_short_tokens
from skillery.trust.matching import Job, identity_of, job_of, matching_rule
from skillery.trust.rules import Trust, installed, off, rule_of

MOST_AT_ONCE = 128
"""Limit of the tokens that are verified at the same time. Nearly all of their time is the wait for an issuer's keys."""
RETRY_MS = 1000
LIFETIME = timedelta(minutes=15)
KEPT = timedelta(days=1)
"""How long an expired token of a CI job stays in the list of tokens."""
_REMEMBER = {
    dialect.__name__.rpartition(".")[2]: dialect.insert(exchanged_tokens)
    .on_conflict_do_nothing(index_elements=["digest"])
    .execution_options(preserve_rowcount=True)
    for dialect in (sqlite, postgresql)
}


class ExchangedToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token of the registry for a CI job."""

    token: str
    expires_at: datetime
    target: str
    """The skill, or the namespace and `.*`, that the token may publish."""
    identity: str
    kind: Literal["person", "agent"]
    rule: str
    """Id of the trust rule."""
    provenance: Provenance


class Exchange:
    """Exchanges tokens of CI jobs."""

    def __init__(self, trust: Trust, audience: str) -> None:
        """`audience` is the public address of this server, or "" if it is not known."""
        self._trust = trust
        self._audience = audience.rstrip("/")
        self._verifying = 0

    async def exchange(self, token: str, target: str) -> ExchangedToken:
        """Return a token of the registry for the CI job that the token describes.

        `target` is the skill, or the namespace and `.*`, that the job publishes; "" for the target of its rule. Raise
        NotAuthenticated if the token is not valid or no rule matches, InvalidParams if `target` is not valid, Busy if
        too many tokens wait, Unavailable, or TrustedPublishingOff.
        """
        verifier, registry = self._ready(), self._trust.registry
        wanted = parse_grantee(target) if target else ""
        issuers = await registry.read(_issuers)
        if not issuers:
            raise ExchangeRefused("this server has no trust rule", hint="An admin adds one: skillery trust add.")
        with self._turn():
            claims = await verifier.verify(token, issuers, self._audience)
        try:
            job = job_of(claims, datetime.now(UTC))
            # Anyone can get a token of a public CI service. Only jobs of a rule take the turn of a writer.
            await registry.read(partial(check_job, job=job, target=wanted))
            return await registry.write(partial(exchange, job=job, target=wanted))
        except ExchangeRefused as error:
            error.issuer = str(claims.get("iss"))
            raise

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if self._verifying >= MOST_AT_ONCE:
            raise Busy(
                f"{self._verifying} tokens of CI jobs wait to be verified",
                hint="Try again after retry_after_ms, with the same token.",
                retry_after_ms=RETRY_MS,
            )
        self._verifying += 1
        try:
            yield
        finally:
            self._verifying -= 1

    def _ready(self) -> Verifier:
        verifier = installed(self._trust.verifier)
        if not keeps_tokens(self._trust.authenticator):
            raise off("this server accepts no tokens of the registry", "An admin adds 'tokens' to the setting auth.")
        if not self._audience:
            raise off("this server does not know its address", "An admin sets public_url: https://skills.example.org.")
        return verifier


def _issuers(connection: Connection) -> frozenset[str]:
    """Return the issuers of all rules."""
    return frozenset(connection.scalars(select(trust_rules.c.issuer).distinct()))


def check_job(connection: Connection, job: Job, target: str) -> None:
    """Raise ExchangeRefused if no rule matches a job."""
    matching_rule(job, [rule_of(row) for row in connection.execute(_of_issuer(job))], target)


def exchange(connection: Connection, job: Job, target: str) -> ExchangedToken:
    """Create a token of the registry for a job. Raise ExchangeRefused if no rule matches, or the job had a token."""
    rules = [rule_of(row) for row in connection.execute(_of_issuer(job).with_for_update())]
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
            "the token was exchanged before: a token can be exchanged only once",
            hint="Get a new token from the CI service, for each publishing step.",
        )


def forget_expired(connection: Connection, limit: int, *, dry_run: bool = False) -> int:
    """Delete at most `limit` records of exchanged tokens and `limit` expired tokens of CI jobs. Return the number.

    With `dry_run`, delete nothing, and return the number of all expired records of exchanged tokens.
    """
    now = datetime.now(UTC)
    old = select(exchanged_tokens.c.digest).where(exchanged_tokens.c.expires_at < now)
    if dry_run:
        return connection.scalar(select(func.count()).select_from(old.subquery())) or 0
    gone = connection.execute(delete(exchanged_tokens).where(exchanged_tokens.c.digest.in_(old.limit(limit)))).rowcount
    return gone + forget_short_tokens(connection, now - KEPT, limit)
