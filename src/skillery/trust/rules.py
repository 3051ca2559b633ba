"""Trust rules: which CI jobs may publish which skills. Add, list and remove them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta
from sqlalchemy import Connection, delete, func, insert, select

from skillery import audit
from skillery.audit import Actor
from skillery.backends import Authenticator, Identity, KeepsTokens, Verifier
from skillery.database import in_utc
from skillery.database.registry import Registry
from skillery.database.tables import trust_rules
from skillery.errors import Conflict, InvalidParams, NotAllowed, TrustedPublishingOff, TrustRuleNotFound
from skillery.formats.names import parse_grantee
from skillery.formats.wording import quoted
from skillery.identity import access
from skillery.identity.tokens import revoke_tokens_of_rule
from skillery.method import Given, Method, Params, about
from skillery.trust.documents import BY_START, PROVIDERS, Name

MOST_RULES = 1000
MOST_CLAIMS = 20
MOST_CHARACTERS = 500
NAMED = ("repository", "repository_id", "owner_id", "workflow", "ref", "environment")
"""The params that stand for claims of GitHub and GitLab tokens."""
REQUIRED = ("repository", "repository_id", "owner_id")
"""Params that every rule for GitHub or GitLab needs. A rule without one of them would still match after the repository
has got a new owner.
"""
_REPOSITORY = re.compile(r"[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)+")
_NUMBER = re.compile(r"[0-9]{1,20}")
_FILE = re.compile(r"[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*\.ya?ml")
_REF = re.compile(r"refs/(?:heads|tags)/[^\s*]*\*?")
_ISSUER = re.compile(r"https?://[A-Za-z0-9.:\[\]_-]+(?:/[A-Za-z0-9._~%/-]*)?")
_FORMS = {
    "repository": (_REPOSITORY, "acme/skills"),
    "repository_id": (_NUMBER, "the number of the repository, which does not change with its name"),
    "owner_id": (_NUMBER, "the number of the owner (GitHub) or group (GitLab), which does not change with its name"),
    "workflow": (_FILE, "the file of the workflow, such as release.yml"),
    "ref": (_REF, "refs/heads/main, refs/tags/v1, or refs/tags/* for every tag"),
    "environment": (re.compile(r"[^\x00-\x1f]+"), "release"),
}
_claims = msgspec.json.Decoder(dict[str, str])


class Trust(NamedTuple):
    """The parts of the server that the methods for trust rules use."""

    registry: Registry
    verifier: Verifier | None
    authenticator: Authenticator


class TrustRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that lets CI jobs publish."""

    id: str
    target: Annotated[str, Meta(description="The skill, or the namespace and '.*', that the jobs may publish")]
    provider: Name
    issuer: str
    claims: Annotated[dict[str, str], Meta(description="Claims that the token of a job must have")]
    kind: Annotated[Literal["person", "agent"], Meta(description="Whose publishing rules apply to the jobs")]
    created_by: str
    created_at: datetime
    last_used_at: datetime | None


# -- add_trust_rule ----------------------------------------------------------------------------------------------------


class AddTrustRule(Params, frozen=True, kw_only=True):
    """Let CI jobs publish a skill or a namespace, without a stored token."""

    target: Annotated[str, about("The skill ('sales.report') or the namespace ('sales.*') that the jobs may publish")]
    provider: Annotated[Literal["github", "gitlab", "oidc"], about("The CI service; oidc for another issuer")]
    issuer: Annotated[str, about("Issuer of the tokens; omit for github.com and gitlab.com")] = ""
    repository: Annotated[Given, about("Repository (e.g., 'acme/skills'), for github and gitlab")] = ""
    repository_id: Annotated[Given, about("Number of the repository or project")] = ""
    owner_id: Annotated[Given, about("Number of the owner (github) or group (gitlab)")] = ""
    workflow: Annotated[
        Given, about("File of the workflow (e.g., 'release.yml'); for gitlab, default .gitlab-ci.yml")
    ] = ""
    ref: Annotated[Given, about("Branch or tag (e.g., 'refs/heads/main', 'refs/tags/*'); omit for all")] = ""
    environment: Annotated[Given, about("Environment of the job; omit for all")] = ""
    claims: Annotated[dict[str, str], about("Further claims that a token must have")] = {}
    kind: Annotated[Literal["person", "agent"], about("Whose publishing rules apply to the jobs")] = "agent"


class NewRule(NamedTuple):
    """A trust rule with checked values, before it is stored."""

    target: str
    provider: Name
    issuer: str
    claims: dict[str, str]
    kind: Literal["person", "agent"]

    @property
    def has_public_issuer(self) -> bool:
        """Whether the issuer is the public service of the provider, such as gitlab.com."""
        return bool(self.issuer) and self.issuer == PROVIDERS[self.provider].issuer


async def add_trust_rule(trust: Trust, identity: Identity, params: AddTrustRule) -> TrustRule:
    """Add a trust rule. Raise InvalidParams, NotAllowed, Conflict (too many rules) or TrustedPublishingOff."""
    verifier = installed(trust.verifier)
    rule = parse_rule(params)
    _check_author(identity, rule)
    if not rule.has_public_issuer:
        await verifier.check_issuer(rule.issuer)
    return await trust.registry.write(partial(insert_rule, actor=identity, rule=rule))


def installed(verifier: Verifier | None) -> Verifier:
    """Return the verifier. Raise TrustedPublishingOff if no plugin provides one."""
    if verifier is None:
        raise off("no plugin verifies tokens of CI jobs", "An admin installs one: pip install skillery-oidc.")
    return verifier


def off(problem: str, hint: str) -> TrustedPublishingOff:
    """Return the error for a server on which trusted publishing is off."""
    return TrustedPublishingOff(f"trusted publishing is off: {problem}", hint=hint)


def parse_rule(params: AddTrustRule) -> NewRule:
    """Return the rule. Raise InvalidParams if a param is missing or invalid, or does not fit the provider."""
    issuer = _issuer(params)
    named = _named_claims(params, issuer)
    claims = _further_claims(params.claims)
    for name in named.keys() & claims.keys():
        raise InvalidParams(f"the claim '{name}' is given twice", param="claims")
    if not named and all(value.endswith("*") for value in claims.values()):
        raise InvalidParams(
            "a rule for the provider 'oidc' needs a claim without '*', else every token of the issuer would match",
            hint="Name claims that do not change, such as sub.",
            param="claims",
        )
    return NewRule(parse_grantee(params.target), params.provider, issuer, named | claims, params.kind)


def _issuer(params: AddTrustRule) -> str:
    """Return the issuer, by default the public one of the provider. Raise InvalidParams if it is missing or invalid."""
    issuer = params.issuer or PROVIDERS[params.provider].issuer
    if not issuer:
        raise InvalidParams(
            "the provider 'oidc' needs 'issuer'",
            hint="Send the claim 'iss' of the tokens of this issuer.",
            param="issuer",
        )
    if len(issuer) > MOST_CHARACTERS or not _is_address(issuer):
        raise InvalidParams(
            f"'issuer' {quoted(issuer[:200])} is not an address like https://gitlab.example.org",
            hint="Copy the claim 'iss' from a token of this issuer.",
            param="issuer",
        )
    return issuer


def _is_address(text: str) -> bool:
    try:
        return _ISSUER.fullmatch(text) is not None and urlsplit(text).port != 0
    except ValueError:
        return False


def _named_claims(params: AddTrustRule, issuer: str) -> dict[str, str]:
    """Return the claims for the params in NAMED. Raise InvalidParams if one is missing, invalid or foreign."""
    named = {name: value for name in NAMED if (value := getattr(params, name))}
    provider = PROVIDERS[params.provider]
    if not provider.claims:
        for name in named:
            raise InvalidParams(
                f"'{name}' is only for the providers github and gitlab",
                hint="Write the claims of other providers into 'claims'.",
                param=name,
            )
        return {}
    if provider.default_workflow:
        named = {"workflow": provider.default_workflow} | named
    for name in (*REQUIRED, "workflow"):
        if name not in named:
            raise InvalidParams(f"a rule for {params.provider} needs '{name}'", hint=_hint(name), param=name)
    for name, value in named.items():
        if len(value) > MOST_CHARACTERS or not _FORMS[name][0].fullmatch(value):
            raise InvalidParams(f"'{name}' {quoted(value[:200])} is not valid", hint=_hint(name), param=name)
    host = urlsplit(issuer).netloc
    named["workflow"] = provider.workflow_pattern(host, named["repository"], named["workflow"])
    return {provider.claims[name]: value for name, value in named.items()}


def _further_claims(claims: Mapping[str, str]) -> dict[str, str]:
    """Return the claims of the param `claims`. Raise InvalidParams if there are too many, or if one is invalid."""
    if len(claims) > MOST_CLAIMS:
        raise InvalidParams(f"'claims' has {len(claims)} claims; at most {MOST_CLAIMS} are allowed", param="claims")
    for name, value in claims.items():
        is_short = 1 <= len(name) <= 100 and 1 <= len(value) <= MOST_CHARACTERS
        if not is_short or "\0" in name + value or ("*" in value and name not in BY_START):
            raise InvalidParams(
                f"the claim {quoted(name[:100])} cannot have the value {quoted(value[:200])}",
                hint="Values are compared as a whole: no *, at most 500 characters.",
                param="claims",
            )
    return dict(claims)


def _hint(name: str) -> str:
    return f"Send {_FORMS[name][1]}."


def _check_author(identity: Identity, rule: NewRule) -> None:
    """Raise NotAllowed if the identity may not add the rule: only people add rules, for names that their grants cover.
    Only admins add a rule with another issuer, because the server sends requests to it and trusts its tokens.
    """
    check_person(identity)
    access.require_namespace(identity, "publish", rule.target)
    if not rule.has_public_issuer and not access.is_admin(identity):
        raise NotAllowed(
            f"only an admin may trust the issuer '{rule.issuer}'",
            hint="Other callers may trust only the issuers of github.com and gitlab.com.",
            scope="admin",
        )


def check_person(identity: Identity) -> None:
    """Raise NotAllowed if the identity is an agent or a CI job. An agent with the scope admin is permitted."""
    if identity.provenance is not None or (identity.kind == "agent" and not access.is_admin(identity)):
        raise NotAllowed(
            f"'{identity.name}' is an agent or a CI job, and only people manage trust rules", scope="admin"
        )


def insert_rule(connection: Connection, actor: Actor, rule: NewRule) -> TrustRule:
    """Insert a checked rule, and return it. Raise Conflict if there are too many rules."""
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


# -- list_trust_rules --------------------------------------------------------------------------------------------------


class ListTrustRules(Params, frozen=True, kw_only=True):
    """List the trust rules for the namespaces of the caller."""


class TrustRules(msgspec.Struct, frozen=True):
    """The trust rules for the namespaces of the caller, oldest first. Admins get all rules."""

    rules: list[TrustRule]


async def list_trust_rules(registry: Registry, identity: Identity, _: ListTrustRules) -> TrustRules:
    return await registry.read_page(partial(read_rules, identity=identity))


def read_rules(connection: Connection, identity: Identity) -> TrustRules:
    """Return the rules whose targets the grants of the identity cover, oldest first."""
    rows = connection.execute(select(trust_rules).order_by(trust_rules.c.created_at, trust_rules.c.id))
    return TrustRules([rule for row in rows if access.covers(identity, (rule := rule_of(row)).target)])


def rule_of(row: Any) -> TrustRule:
    """Return the trust rule in a row."""
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


# -- remove_trust_rule -------------------------------------------------------------------------------------------------


class RemoveTrustRule(Params, frozen=True, kw_only=True):
    """Remove a trust rule, and end the tokens that CI jobs got by it."""

    id: Annotated[str, Meta(min_length=1, max_length=64), about("The rule's id")]


class RemovedTrustRule(msgspec.Struct, frozen=True):
    """Result of `remove_trust_rule`."""

    id: str
    target: str
    ended: Annotated[int, Meta(description="Tokens of CI jobs that ended with the rule")]


async def remove_trust_rule(trust: Trust, identity: Identity, params: RemoveTrustRule) -> RemovedTrustRule:
    """Remove a rule, and end the tokens that jobs got through it. Raise TrustRuleNotFound or NotAllowed."""
    removed = await trust.registry.write(partial(delete_rule, identity=identity, rule_id=params.id))
    if isinstance(trust.authenticator, KeepsTokens):
        trust.authenticator.forget()
    return removed


def delete_rule(connection: Connection, identity: Identity, rule_id: str) -> RemovedTrustRule:
    """Delete a rule, and end the tokens that jobs got through it. Raise TrustRuleNotFound or NotAllowed."""
    row = connection.execute(select(trust_rules).where(trust_rules.c.id == rule_id.replace("\0", ""))).one_or_none()
    if row is None or not access.covers(identity, row.target):
        raise TrustRuleNotFound(
            f"there is no trust rule {quoted(rule_id[:80])} for your namespaces", hint="list_trust_rules shows them."
        )
    check_person(identity)
    # An exchange locks the row of its rule. After this statement, no other exchange can use the rule.
    connection.execute(delete(trust_rules).where(trust_rules.c.id == row.id))
    ended = revoke_tokens_of_rule(connection, row.id)
    rule = rule_of(row)
    before = {"target": rule.target, "provider": rule.provider, "issuer": rule.issuer, "claims": rule.claims}
    audit.record(connection, identity, "remove_trust_rule", row.id, before=before, after={"ended": ended})
    return RemovedTrustRule(row.id, row.target, ended)


METHODS = (
    Method(add_trust_rule, "publish", audits="target"),
    Method(list_trust_rules, "publish", audits=""),
    Method(remove_trust_rule, "publish", audits="id"),
)
