"""Trust rules from the params of `add_trust_rule`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from skillery.errors import InvalidParams
from skillery.formats.secret_names import parse_grantee
from skillery.formats.wording import quoted
from skillery.trust.providers import BY_START, PROVIDERS, Name

MOST_CLAIMS = 20
MOST_CHARACTERS = 500
NAMED = ("repository", "repository_id", "owner_id", "workflow", "ref", "environment")
"""The params that stand for claims of GitHub and GitLab."""
REQUIRED = ("repository", "repository_id", "owner_id")
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


class RuleRequest(NamedTuple):
    """The params of `add_trust_rule`."""

    target: str
    provider: Name
    issuer: str
    repository: str
    repository_id: str
    owner_id: str
    workflow: str
    ref: str
    environment: str
    claims: Mapping[str, str]
    kind: Literal["person", "agent"]


class NewRule(NamedTuple):
    """A checked rule."""

    target: str
    provider: Name
    issuer: str
    claims: dict[str, str]
    kind: Literal["person", "agent"]

    @property
    def has_public_issuer(self) -> bool:
        """Whether the issuer is the public service of the provider."""
        return bool(self.issuer) and self.issuer == PROVIDERS[self.provider].issuer


def parse_rule(asked: RuleRequest) -> NewRule:
    """Return the rule. Raise InvalidParams if a param is missing, not valid, or does not fit the provider."""
    issuer = _issuer(asked)
    named = _named_claims(asked, issuer)
    claims = _further_claims(asked.claims)
    for name in named.keys() & claims.keys():
        raise InvalidParams(f"the claim '{name}' is given twice", param="claims")
    if not named and all(value.endswith("*") for value in claims.values()):
        raise InvalidParams(
            "a rule for the provider 'oidc' needs claims with whole values, else every token of the issuer would match",
            hint="Name claims that do not change, such as sub.",
            param="claims",
        )
    return NewRule(parse_grantee(asked.target), asked.provider, issuer, named | claims, asked.kind)


def _issuer(asked: RuleRequest) -> str:
    issuer = asked.issuer or PROVIDERS[asked.provider].issuer
    if not issuer:
        raise InvalidParams(
            "the provider 'oidc' needs 'issuer'", hint="Send the claim iss of its tokens.", param="issuer"
        )
    if len(issuer) > MOST_CHARACTERS or not _is_address(issuer):
        raise InvalidParams(
            f"'issuer' {quoted(issuer[:200])} is not an address like https://gitlab.example.org",
            hint="Send the claim iss of its tokens, character by character.",
            param="issuer",
        )
    return issuer


def _is_address(text: str) -> bool:
    try:
        return _ISSUER.fullmatch(text) is not None and urlsplit(text).port != 0
    except ValueError:
        return False


def _named_claims(asked: RuleRequest, issuer: str) -> dict[str, str]:
    given = {name: value for name in NAMED if (value := getattr(asked, name))}
    provider = PROVIDERS[asked.provider]
    if not provider.claims:
        for name in given:
            raise InvalidParams(f"'{name}' is for github and gitlab", hint="Put its claims into 'claims'.", param=name)
        return {}
    if provider.default_workflow:
        given = {"workflow": provider.default_workflow} | given
    for name in (*REQUIRED, "workflow"):
        if name not in given:
            raise InvalidParams(f"a rule for {asked.provider} needs '{name}'", hint=_hint(name), param=name)
    for name, value in given.items():
        if len(value) > MOST_CHARACTERS or not _FORMS[name][0].fullmatch(value):
            raise InvalidParams(f"'{name}' {quoted(value[:200])} is not valid", hint=_hint(name), param=name)
    host = urlsplit(issuer).netloc
    given["workflow"] = provider.workflow_pattern(host, given["repository"], given["workflow"])
    return {provider.claims[name]: value for name, value in given.items()}


def _further_claims(claims: Mapping[str, str]) -> dict[str, str]:
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
