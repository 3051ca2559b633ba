"""Rules that decide which versions are published at once, and which begin as drafts."""

from __future__ import annotations

from typing import Literal, NamedTuple

from skillery.backends import Identity
from skillery.formats.permissions import PermissionsDiff
from skillery.registry import Visibility

Landing = Literal["publish", "draft"]


class PublishingRules(NamedTuple):
    """First status of new versions, and visibility of new skills."""

    people: Landing = "publish"
    agents: Landing = "publish"
    visibility: Visibility = "public"
    """The visibility of a new skill."""
    increases: Landing = "publish"
    """First status of a version with more permissions than the skill's published versions, from any publisher."""
    first_permissions: Landing = "publish"
    """First status of the first version of a skill, if it has permissions."""
    trials: bool = True
    """Whether the entrypoint is imported and the examples are run."""

    def status_for(self, identity: Identity, diff: PermissionsDiff) -> str:
        asked = [self.agents if identity.kind == "agent" else self.people]
        if diff.is_increase:
            asked.append(self.increases if diff.against is not None else self.first_permissions)
        return "draft" if "draft" in asked else "published"
