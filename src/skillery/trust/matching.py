"""Comparison of the claims of a verified token with trust rules."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from skillery.backends import Identity, Provenance
from skillery.errors import ExchangeRefused
from skillery.formats.tokens import CI_PREFIX
from skillery.formats.wording import quoted
from skillery.identity.access import grant_covers
from skillery.trust.documents import BY_START, PROVIDERS, WRITTEN_REFS, Provider, service_of
from skillery.trust.rules import TrustRule

FRESH = timedelta(hours=1)
"""The greatest age of a token. GitLab makes the token when the job starts, and a job may work before it publishes."""
SKEW = timedelta(seconds=60)
MOST_NAME = 200
MOST_CHARACTERS = 500


class Job(NamedTuple):
    """The CI job that a verified token describes."""

    claims: Mapping[str, Any]
    issuer: str
    digest: str
    """A text that all copies of the token have, and no other token."""
    expires_at: datetime
    """From this time on, the token is too old to be exchanged."""


def job_of(claims: Mapping[str, Any], now: datetime) -> Job:
    """Return the job of a verified token. Raise ExchangeRefused if the token is too old, or has no subject."""
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
    value = claims.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not 0 <= value < 32_503_680_000:  # type: ignore[operator]  # the year 3000
        raise ExchangeRefused(f"the token has no valid time '{name}'")
    return datetime.fromtimestamp(value, UTC)  # type: ignore[arg-type]


def matching_rule(job: Job, rules: Sequence[TrustRule], target: str) -> tuple[TrustRule, str]:
    """Return the rule that lets the job publish, and the skill or namespace that its token is for.

    `target` is what the job asks for, or "" for the target of the only rule that matches. Raise ExchangeRefused if no
    rule or more than one rule matches.
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
    """Return the reason why a rule does not match the claims, or None if the rule matches."""
    for name, wanted in rule.claims.items():
        value = claims.get(name)
        text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None
        if text is None:
            return f"the token has no claim '{name}'"
        if not _matches(name, wanted, text):
            return f"the claim '{name}' is {quoted(text[:200])}, not {quoted(wanted)}"
    return _problem_of_start(service_of(rule.provider, rule.issuer), claims)


def _problem_of_start(service: Provider, claims: Mapping[str, Any]) -> str | None:
    """Return why people who may not write to the repository could have started the job, or None."""
    if not service.event:
        return None
    event, ref = claims.get(service.event), claims.get(service.claims["ref"])
    if not isinstance(event, str) or event in service.refused_events:
        return f"jobs of the event {quoted(str(event)[:200])} may not publish: others can start them"
    if not isinstance(ref, str) or not ref.startswith(WRITTEN_REFS):
        return f"jobs of {quoted(str(ref)[:200])} may not publish: it is neither a branch nor a tag"
    return None


def _matches(name: str, wanted: str, text: str) -> bool:
    if name in BY_START and wanted.endswith("*"):
        return text.startswith(wanted[:-1])
    return text == wanted


def identity_of(rule: TrustRule, job: Job, target: str) -> Identity:
    """Return the identity of a job, which may publish the target, and nothing else."""
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
    values = {field: job.claims.get(claim) for field, claim in PROVIDERS[rule.provider].claims.items()}
    texts = {field: _text(value) for field, value in values.items() if isinstance(value, str | int)}
    return Provenance(issuer=job.issuer, subject=_text(job.claims["sub"]), **texts)


def _text(value: object) -> str:
    return str(value).replace("\0", "")[:MOST_CHARACTERS]


def _shown(job: Job) -> str:
    return quoted(str(job.claims["sub"])[:200])
