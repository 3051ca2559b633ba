"""The methods for trust rules, and the exchange of tokens, as the API calls them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial

from skillery.backends import Authenticator, Identity, KeepsTokens, Verifier
from skillery.database import Database
from skillery.errors import Busy, ExchangeRefused, NotAllowed, TrustedPublishingOff
from skillery.formats.secret_names import parse_grantee
from skillery.identity import access
from skillery.identity.authenticator_chain import keeps_tokens
from skillery.trust import rows
from skillery.trust.matching import job_of
from skillery.trust.results import ExchangedToken, RemovedTrustRule, TrustRule, TrustRules
from skillery.trust.rules import NewRule, RuleRequest, parse_rule

MOST_AT_ONCE = 128
"""Limit of the tokens that are verified at the same time. Nearly all of their time is the wait for an issuer's keys."""
RETRY_MS = 1000


class Trust:
    """Manages trust rules, and exchanges tokens of CI jobs."""

    def __init__(
        self, database: Database, verifier: Verifier | None, authenticator: Authenticator, audience: str
    ) -> None:
        """`audience` is the public address of this server, or "" if it is not known."""
        self._database = database
        self._verifier = verifier
        self._authenticator = authenticator
        self._audience = audience.rstrip("/")
        self._verifying = 0

    async def add_rule(self, identity: Identity, asked: RuleRequest) -> TrustRule:
        """Add a rule. Raise InvalidParams, NotAllowed, Conflict, or TrustedPublishingOff."""
        verifier = self._installed()
        rule = parse_rule(asked)
        _check_author(identity, rule)
        if not rule.has_public_issuer:
            await verifier.check_issuer(rule.issuer)
        return await self._database.write(partial(rows.add_rule, actor=identity, rule=rule))

    async def list_rules(self, identity: Identity) -> TrustRules:
        return await asyncio.to_thread(self._database.read_now, partial(rows.list_rules, identity=identity))

    async def remove_rule(self, identity: Identity, rule_id: str) -> RemovedTrustRule:
        """Remove a rule. The tokens that jobs got by it end at once. Raise TrustRuleNotFound or NotAllowed."""
        removed = await self._database.write(partial(rows.remove_rule, identity=identity, rule_id=rule_id))
        if isinstance(self._authenticator, KeepsTokens):
            self._authenticator.forget()
        return removed

    async def exchange(self, token: str, target: str) -> ExchangedToken:
        """Return a token of the registry for the CI job that the token describes.

        `target` is the skill, or the namespace and `.*`, that the job publishes; "" for the target of its rule. Raise
        NotAuthenticated if the token is not valid or no rule matches, InvalidParams if `target` is not valid, Busy if
        too many tokens wait, Unavailable, or TrustedPublishingOff.
        """
        verifier = self._ready()
        wanted = parse_grantee(target) if target else ""
        issuers = await self._database.read(rows.issuers)
        if not issuers:
            raise ExchangeRefused("this server has no trust rule", hint="An admin adds one: skillery trust add.")
        with self._turn():
            claims = await verifier.verify(token, issuers, self._audience)
        try:
            job = job_of(claims, datetime.now(UTC))
            # Anyone can get a token of a public CI service. Only jobs of a rule take the turn of a writer.
            await self._database.read(partial(rows.check_job, job=job, target=wanted))
            return await self._database.write(partial(rows.exchange, job=job, target=wanted))
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

    def _installed(self) -> Verifier:
        if self._verifier is None:
            raise _off("no plugin verifies tokens of CI jobs", "An admin installs one: pip install skillery-oidc.")
        return self._verifier

    def _ready(self) -> Verifier:
        verifier = self._installed()
        if not keeps_tokens(self._authenticator):
            raise _off("this server accepts no tokens of the registry", "An admin adds 'tokens' to the setting auth.")
        if not self._audience:
            raise _off("this server does not know its address", "An admin sets public_url: https://skills.example.org.")
        return verifier


def _off(problem: str, hint: str) -> TrustedPublishingOff:
    return TrustedPublishingOff(f"trusted publishing is off: {problem}", hint=hint)


def _check_author(identity: Identity, rule: NewRule) -> None:
    """Raise NotAllowed if the identity may not add the rule.

    A rule works until a person removes it. So only people add rules, for names that their grants cover. Only admins add
    a rule with another issuer, because the server sends requests to this issuer and trusts its tokens.
    """
    rows.check_person(identity)
    access.require_namespace(identity, "publish", rule.target)
    if not rule.has_public_issuer and not access.is_admin(identity):
        raise NotAllowed(
            f"only an admin may trust the issuer '{rule.issuer}'",
            hint="Without an admin, the issuers are those of github.com and gitlab.com.",
            scope="admin",
        )
