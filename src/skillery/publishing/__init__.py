"""Publishing: from what somebody sends to a version that everybody can rely on. Nothing is claimed before all of it is
valid, and then all of it at once."""

from skillery.publishing.compile_pool import CompileLimits, CompilePool
from skillery.publishing.example_runs import ExampleRuns
from skillery.publishing.folders import SkillFolder, read_skill_folder
from skillery.publishing.publisher import CheckedSkill, Published, Publisher
from skillery.publishing.rules import PublishingRules
from skillery.publishing.tool_maker import DefinedTool, Definition, ToolMaker
from skillery.publishing.undeclared import Undeclared
from skillery.publishing.undeclared_findings import Looked, Mode

__all__ = [
    "CheckedSkill",
    "CompileLimits",
    "CompilePool",
    "DefinedTool",
    "Definition",
    "ExampleRuns",
    "Looked",
    "Mode",
    "Published",
    "Publisher",
    "PublishingRules",
    "SkillFolder",
    "ToolMaker",
    "Undeclared",
    "read_skill_folder",
]
