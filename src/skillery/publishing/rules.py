"""Which versions are published at once, and which begin as drafts."""

from __future__ import annotations

from typing import Literal, NamedTuple

from skillery.backends import Identity
from skillery.formats.permissions import PermissionsDiff
from skillery.registry import Visibility

Landing = Literal["publish", "draft"]


class PublishingRules(NamedTuple):
    """How new versions and new skills begin."""

    people: Landing = "publish"
    agents: Landing = "publish"
    visibility: Visibility = "public"
    """Of a new skill."""
    increases: Landing = "publish"
    """A version that may do more than those of its skill that are published, whoever publishes it."""
    first_permissions: Landing = "publish"
    """A first version that has permissions."""
    examples: bool = True
    """Whether they are run."""

    def status_for(self, identity: Identity, diff: PermissionsDiff) -> str:
        asked = [self.agents if identity.kind == "agent" else self.people]
        if diff.is_increase:
            asked.append(self.increases if diff.against is not None else self.first_permissions)
        return "draft" if "draft" in asked else "published"
