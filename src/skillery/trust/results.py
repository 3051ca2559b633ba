"""Trust rules and exchanged tokens, as methods and the endpoint return them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from skillery.backends import Provenance
from skillery.trust.providers import Name


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


class TrustRules(msgspec.Struct, frozen=True):
    """The trust rules for the namespaces of the caller, oldest first. Admins get all rules."""

    rules: list[TrustRule]


class RemovedTrustRule(msgspec.Struct, frozen=True):
    """Result of `remove_trust_rule`."""

    id: str
    target: str
    ended: Annotated[int, Meta(description="Tokens of CI jobs that ended with the rule")]


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
