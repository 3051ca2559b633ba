"""Rules that decide whether a new version is published at once or becomes a draft."""

from __future__ import annotations

from typing import Literal, NamedTuple

from skillery.backends import Identity
from skillery.formats.permissions import PermissionsDiff
from skillery.registry import Visibility

Landing = Literal["publish", "draft"]


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

    def status_for(self, identity: Identity, diff: PermissionsDiff) -> str:
        asked = [self.agents if identity.kind == "agent" else self.people]
        if diff.is_increase:
            asked.append(self.increases if diff.against is not None else self.first_permissions)
        return "draft" if "draft" in asked else "published"
