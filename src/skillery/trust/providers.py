"""The providers of CI jobs: their issuers, and the names of their claims."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Name = Literal["github", "gitlab", "oidc"]


class Provider(NamedTuple):
    """A CI service, or `oidc` for any other issuer."""

    issuer: str
    """The issuer of its public service. "": a rule must name the issuer."""
    claims: Mapping[str, str]
    """For each field of `skillery.backends.Provenance`, the claim with its value."""
    default_workflow: str = ""
    event: str = ""
    """The claim that says what started the job."""
    refused_events: frozenset[str] = frozenset()
    """Events that start a job of the repository for changes of people who may not write to it."""

    def workflow_pattern(self, host: str, repository: str, workflow: str) -> str:
        """Return the start of the claim for a workflow file of any branch or tag."""
        if self.default_workflow:
            return f"{host}/{repository}//{workflow}@refs/*"
        return f"{repository}/.github/workflows/{workflow}@refs/*"


PROVIDERS: Mapping[Name, Provider] = {
    "github": Provider(
        issuer="https://token.actions.githubusercontent.com",
        claims={
            "repository": "repository",
            "repository_id": "repository_id",
            "owner_id": "repository_owner_id",
            "workflow": "workflow_ref",
            "ref": "ref",
            "commit": "sha",
            "environment": "environment",
            "run": "run_id",
        },
        event="event_name",
        refused_events=frozenset({"pull_request_target", "workflow_run"}),
    ),
    "gitlab": Provider(
        issuer="https://gitlab.com",
        claims={
            "repository": "project_path",
            "repository_id": "project_id",
            "owner_id": "namespace_id",
            "workflow": "ci_config_ref_uri",
            "ref": "ref_path",
            "commit": "sha",
            "environment": "environment",
            "run": "pipeline_id",
        },
        default_workflow=".gitlab-ci.yml",
        event="pipeline_source",
        refused_events=frozenset({"merge_request_event", "external_pull_request_event"}),
    ),
    "oidc": Provider(issuer="", claims={}),
}
WRITTEN_REFS = ("refs/heads/", "refs/tags/")
"""The starts of refs that only people who may write to a repository change. Pull requests have other refs."""
BY_START = frozenset({"ref", "ref_path", "workflow_ref", "ci_config_ref_uri"})
"""Claims whose wanted value may end with `*`: every value with this start matches. No branch or tag contains `*`."""


def service_of(name: Name, issuer: str) -> Provider:
    """Return the CI service that signs the tokens of an issuer: the one with this public issuer, else the named one."""
    return next((one for one in PROVIDERS.values() if one.issuer == issuer), PROVIDERS[name])
