"""Comparison of the claims of a verified token with trust rules."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec
from sqlalchemy import Connection, Select, delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from skillery import audit
from skillery.backends import Identity, Provenance, Verifier
from skillery.database.tables import exchanged_tokens, trust_rules
from skillery.errors import Busy, ExchangeRefused
from skillery.formats.names import parse_grantee
from skillery.formats.tokens import CI_PREFIX
from skillery.formats.wording import quoted
from skillery.identity.access import grant_covers
from skillery.identity.authenticator_chain import keeps_tokens
from skillery.identity.tokens import create_short_token, forget_short_tokens
from skillery.trust.documents import BY_START, PROVIDERS, WRITTEN_REFS, Provider, service_of
from skillery.trust.rules import Trust, TrustRule, installed, off, rule_of

FRESH = timedelta(hours=1)
"""The maximum age of a token. GitLab issues the token when the job starts, and a job may work before it publishes."""
SKEW = timedelta(seconds=60)
"""The permitted difference between the clocks of this server and of an issuer."""
MOST_NAME = 200
MOST_CHARACTERS = 500


class Job(NamedTuple):
    """The CI job that a verified token describes."""

    claims: Mapping[str, Any]
    issuer: str
    digest: str
    """A hash that is equal for all copies of the token, and different for other tokens."""
    expires_at: datetime
    """From this time on, the token is too old for an exchange, so its digest can be deleted."""


def job_of(claims: Mapping[str, Any], now: datetime) -> Job:
    """Return the job of a verified token. Raise ExchangeRefused if the token has no subject or is too old."""
    issuer, subject, jti = claims.get("iss"), claims.get("sub"), claims.get("jti")
    if not isinstance(issuer, str) or not isinstance(subject, str) or not subject:
        raise ExchangeRefused("the token has no subject")
    issued = _time(claims, "iat")
    if now - issued > FRESH + SKEW:
        raise ExchangeRefused(
            f"the token was issued at {issued:%Y-%m-%dT%H:%M:%SZ}, more than an hour ago",
            hint="Get a new token in the step that publishes.",
        )
    # The text of a token is not compared: ES256 signatures have a second form that anyone can compute.
    unique = jti if isinstance(jti, str) and jti else msgspec.json.encode(dict(claims), order="sorted").decode()
    digest = hashlib.sha256(msgspec.json.encode([issuer, bool(jti), unique])).hexdigest()
    # Without `exp`: a verifier may accept tokens for a while after it, because clocks differ.
    return Job(claims, issuer, digest, issued + FRESH + 2 * SKEW)


def _time(claims: Mapping[str, Any], name: str) -> datetime:
    """Return a claim as a time. Raise ExchangeRefused if it is not a number of seconds before the year 3000."""
    value = claims.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not 0 <= value < 32_503_680_000:  # type: ignore[operator]  # the year 3000
        raise ExchangeRefused(f"the token has no valid time '{name}'")
    return datetime.fromtimestamp(value, UTC)  # type: ignore[arg-type]


def matching_rule(job: Job, rules: Sequence[TrustRule], target: str) -> tuple[TrustRule, str]:
    """Return the rule that permits the job to publish, and the skill or namespace for its token.

    `target` is the skill or namespace that the job requests, or "" for the only target of the matching rules. Raise
    ExchangeRefused if no rule matches, or if rules with several targets match and `target` is "".
    """
    problems = {rule.id: problem for rule in rules if (problem := mismatch(rule, job.claims))}
    matching = [rule for rule in rules if rule.id not in problems]
    covering = [rule for rule in matching if not target or grant_covers(rule.target, target)]
    if not matching:
        reason = "; ".join(f"{rule_id}: {problem}" for rule_id, problem in list(problems.items())[:20])
        raise ExchangeRefused(
            f"no trust rule of this server matches the job {_shown(job)}",
            hint="Compare the claims with the rules (skillery trust list), or ask an admin, who finds the reason in "
            "the audit trail.",
            reason=f"{_shown(job)}: {reason}"[:2000],
        )
    if not covering:
        raise ExchangeRefused(
            f"no trust rule lets the job {_shown(job)} publish {quoted(target)}",
            hint=f"The rules for this job are for {', '.join(sorted({rule.target for rule in matching}))}.",
        )
    targets = sorted({rule.target for rule in covering})
    if not target and len(targets) > 1:
        raise ExchangeRefused(
            f"several trust rules match the job {_shown(job)}: say which skill or namespace it publishes",
            hint=f"Send 'target': one of {', '.join(targets)}, or a name below.",
        )
    # Of several rules for one target, the narrowest decides.
    rule = min(covering, key=lambda candidate: (-len(candidate.claims), candidate.kind != "agent", candidate.id))
    return rule, target or rule.target


def mismatch(rule: TrustRule, claims: Mapping[str, Any]) -> str | None:
    """Return the reason why a rule does not match the claims of a token, or None if the rule matches."""
    for name, required in rule.claims.items():
        value = claims.get(name)
        text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
        if text is None:
            return f"the token has no claim '{name}'"
        if not _matches(name, required, text):
            return f"the claim '{name}' is {quoted(text[:200])}, not {quoted(required)}"
    return _problem_of_start(service_of(rule.provider, rule.issuer), claims)


def _problem_of_start(service: Provider, claims: Mapping[str, Any]) -> str | None:
    """Return the reason why people without write access could have started the job, or None."""
    if not service.event:
        return None
    event, ref = claims.get(service.event), claims.get(service.claims["ref"])
    if not isinstance(event, str) or event in service.refused_events:
        return f"jobs of the event {quoted(str(event)[:200])} may not publish: others can start them"
    if not isinstance(ref, str) or not ref.startswith(WRITTEN_REFS):
        return f"jobs of {quoted(str(ref)[:200])} may not publish: it is neither a branch nor a tag"
    return None


def _matches(name: str, required: str, text: str) -> bool:
    """Return whether a claim has the value of a rule."""
    if name in BY_START and required.endswith("*"):
        return text.startswith(required[:-1])
    return text == required


def identity_of(rule: TrustRule, job: Job, target: str) -> Identity:
    """Return the identity of a job, which may publish only `target`. Raise ExchangeRefused if its name is too long."""
    provenance = _provenance(rule, job)
    # With its path: a host may have several issuers, such as the realms of Keycloak.
    label = (
        rule.provider if rule.issuer == PROVIDERS[rule.provider].issuer else rule.issuer.partition("://")[2].rstrip("/")
    )
    name = f"{CI_PREFIX}{label}:{provenance.repository or provenance.subject}"
    if len(name) > MOST_NAME or not name.isprintable() or name != name.strip():
        raise ExchangeRefused(f"the name of the job {_shown(job)} is too long, or cannot be printed")
    return Identity(name, rule.kind, frozenset({"publish"}), (target,), provenance)


def _provenance(rule: TrustRule, job: Job) -> Provenance:
    """Return the repository, workflow and commit of a job, from its claims."""
    values = {field: job.claims.get(claim) for field, claim in PROVIDERS[rule.provider].claims.items()}
    texts = {field: _text(value) for field, value in values.items() if isinstance(value, str | int)}
    return Provenance(issuer=job.issuer, subject=_text(job.claims["sub"]), **texts)


def _text(value: object) -> str:
    return str(value).replace("\0", "")[:MOST_CHARACTERS]


def _shown(job: Job) -> str:
    """Return the subject of a job, for messages."""
    return quoted(str(job.claims["sub"])[:200])


# -- The exchange of a CI job's token for a token of the registry ------------------------------------------------------


MOST_AT_ONCE = 128
"""The maximum number of tokens that are verified at the same time. Most of their time is the wait for the keys of an
issuer.
"""
RETRY_MS = 1000
LIFETIME = timedelta(minutes=15)
KEPT = timedelta(days=1)
"""Time for which an expired token of a CI job stays in the list of tokens."""
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
    """The skill, or the namespace with `.*`, that the token may publish."""
    identity: str
    kind: Literal["person", "agent"]
    rule: str
    """The id of the trust rule."""
    provenance: Provenance


class Exchange:
    """Exchanges tokens of CI jobs."""

    def __init__(self, trust: Trust, audience: str) -> None:
        """`audience` is the public address of this server, which tokens must name, or "" if it is unknown."""
        self._trust = trust
        self._audience = audience.rstrip("/")
        self._verifying = 0

    async def exchange(self, token: str, target: str) -> ExchangedToken:
        """Return a token of the registry for the CI job that `token` describes.

        `target` is the skill, or the namespace with `.*`, that the job publishes; "" means the target of its rule.
        Raise NotAuthenticated if the token is invalid or no rule matches, InvalidParams if `target` is invalid, Busy if
        too many tokens wait, Unavailable if an issuer cannot be reached, or TrustedPublishingOff.
        """
        verifier, registry = self._ready(), self._trust.registry
        requested_target = parse_grantee(target) if target else ""
        issuers = await registry.read(_issuers)
        if not issuers:
            raise ExchangeRefused("this server has no trust rule", hint="An admin adds one: skillery trust add.")
        with self._turn():
            claims = await verifier.verify(token, issuers, self._audience)
        try:
            job = job_of(claims, datetime.now(UTC))
            # Anyone can get a token of a public CI service. So a job without a rule never takes a turn of the writer.
            await registry.read(partial(check_job, job=job, target=requested_target))
            return await registry.write(partial(exchange, job=job, target=requested_target))
        except ExchangeRefused as error:
            error.issuer = str(claims.get("iss"))
            raise

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Count the block as one verification of a token. Raise Busy if MOST_AT_ONCE are active."""
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
        """Return the verifier. Raise TrustedPublishingOff if this server cannot exchange tokens."""
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
    """Raise ExchangeRefused if no rule permits the job to publish `target`."""
    matching_rule(job, [rule_of(row) for row in connection.execute(_of_issuer(job))], target)


def exchange(connection: Connection, job: Job, target: str) -> ExchangedToken:
    """Create a token of the registry for a job.

    Raise ExchangeRefused if no rule matches, or if the token of the job was exchanged before.
    """
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
    """Return the SELECT of the trust rules for the issuer of the job's token."""
    return select(trust_rules).where(trust_rules.c.issuer == job.issuer).order_by(trust_rules.c.id)


def _remember(connection: Connection, job: Job) -> None:
    """Record that the token is exchanged. Raise ExchangeRefused if it was exchanged before."""
    row = {"digest": job.digest, "expires_at": job.expires_at}
    if not connection.execute(_REMEMBER[connection.dialect.name], row).rowcount:
        raise ExchangeRefused(
            "the token was exchanged before: a token can be exchanged only once",
            hint="Get a new token from the CI service, for each publishing step.",
        )


def forget_expired(connection: Connection, limit: int, *, dry_run: bool = False) -> int:
    """Delete at most `limit` records of exchanged tokens, and at most `limit` expired tokens of CI jobs. Return the
    number of deleted rows.

    With `dry_run`, delete nothing, and return the number of all expired records of exchanged tokens.
    """
    now = datetime.now(UTC)
    expired = select(exchanged_tokens.c.digest).where(exchanged_tokens.c.expires_at < now)
    if dry_run:
        return connection.scalar(select(func.count()).select_from(expired.subquery())) or 0
    deleted = connection.execute(
        delete(exchanged_tokens).where(exchanged_tokens.c.digest.in_(expired.limit(limit)))
    ).rowcount
    return deleted + forget_short_tokens(connection, now - KEPT, limit)
