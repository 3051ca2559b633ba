"""Publishing: from what somebody sends to a version that everybody can rely on. Nothing is claimed before all of it is
valid, and then all of it at once."""

from skillery.publishing.creating import Publisher, PublishingRules
from skillery.publishing.folders import SkillFolder, read_skill_folder

__all__ = ["Publisher", "PublishingRules", "SkillFolder", "read_skill_folder"]
