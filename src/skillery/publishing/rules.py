"""Rules for the first status of a new version: published at once, in review, or a draft."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NamedTuple

from skillery.backends import Identity
from skillery.formats.permissions import PermissionsDiff
from skillery.identity.access import ApprovalRules
from skillery.registry.visibility import Visibility

Landing = Literal["publish", "review", "draft"]


class PublishingRules(NamedTuple):
    """The first status of new versions, by publisher and permissions, and the visibility of new skills."""

    people: Landing = "publish"
    agents: Landing = "publish"
    visibility: Visibility = "public"
    """The visibility of a new skill."""
    increases: Landing = "publish"
    """First status of a version that has more permissions than the published versions of the skill. It applies to
    people and agents.
    """
    first_permissions: Landing = "publish"
    """First status of the first version of a skill, if the version has permissions."""
    trials: bool = True
    """Whether the entrypoint is imported and the examples run before a version is published."""
    passed: Collection[str] = ()
    """Digests of bundles whose examples have passed before. They count as passed, without `trials` too."""
    approval: ApprovalRules = ApprovalRules()
    """Which reviewers approve versions."""
    submit: bool | None = None
    """The decision of the publisher for this version: True submits a draft for review, False makes a draft."""

    def status_for(self, identity: Identity, diff: PermissionsDiff, *, is_unproven: bool = False) -> str:
        """Return the first status of a version. Examples of an unproven version run when a reviewer approves it."""
        own = self.agents if identity.kind == "agent" else self.people
        asked = [own]
        if diff.is_increase:
            asked.append(self.increases if diff.against is not None else self.first_permissions)
        if not is_unproven and set(asked) == {"publish"}:
            return "draft" if self.submit is False else "published"
        submits = "review" in asked if self.submit is None else self.submit
        return "in_review" if submits else "draft"
