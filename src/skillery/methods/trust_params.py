"""The params of the methods for trust rules."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from skillery.method import Params, about
from skillery.methods.params import Limit


class AddTrustRule(Params, frozen=True, kw_only=True):
    """Let CI jobs publish a skill or a namespace, without a stored token."""

    target: Annotated[str, about("The skill ('sales.report') or the namespace ('sales.*') that the jobs may publish")]
    provider: Annotated[Literal["github", "gitlab", "oidc"], about("The CI service; oidc for another issuer")]
    issuer: Annotated[str, about("Issuer of the tokens; omit for github.com and gitlab.com")] = ""
    repository: Annotated[Limit, about("Repository (e.g., 'acme/skills'), for github and gitlab")] = ""
    repository_id: Annotated[Limit, about("Number of the repository or project")] = ""
    owner_id: Annotated[Limit, about("Number of the owner (github) or group (gitlab)")] = ""
    workflow: Annotated[
        Limit, about("File of the workflow (e.g., 'release.yml'); for gitlab, default .gitlab-ci.yml")
    ] = ""
    ref: Annotated[Limit, about("Branch or tag (e.g., 'refs/heads/main', 'refs/tags/*'); omit for all")] = ""
    environment: Annotated[Limit, about("Environment of the job; omit for all")] = ""
    claims: Annotated[dict[str, str], about("Further claims that a token must have")] = msgspec.field(
        default_factory=dict
    )
    kind: Annotated[Literal["person", "agent"], about("Whose publishing rules apply to the jobs")] = "agent"


class ListTrustRules(Params, frozen=True, kw_only=True):
    """List the trust rules for the namespaces of the caller."""


class RemoveTrustRule(Params, frozen=True, kw_only=True):
    """Remove a trust rule, and end the tokens that CI jobs got by it."""

    id: Annotated[str, Meta(min_length=1, max_length=64), about("The rule's id")]
