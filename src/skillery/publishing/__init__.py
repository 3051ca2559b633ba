"""Publishing: check a bundle and store it as a version in the registry.

All checks come before anything is stored, and one transaction stores all rows.
"""

from skillery.publishing.bundle_checks import BundleChecks, Trials
from skillery.publishing.compile_pool import CompileLimits, CompilePool
from skillery.publishing.example_runs import ExampleRuns
from skillery.publishing.folders import SkillFolder, read_skill_folder
from skillery.publishing.import_check import ImportCheck
from skillery.publishing.publisher import CheckedSkill, Published, Publisher
from skillery.publishing.rules import PublishingRules
from skillery.publishing.tool_maker import DefinedTool, Definition, ToolMaker
from skillery.publishing.undeclared import Undeclared
from skillery.publishing.undeclared_findings import ImportScan, Mode

__all__ = [
    "BundleChecks",
    "CheckedSkill",
    "CompileLimits",
    "CompilePool",
    "DefinedTool",
    "Definition",
    "ExampleRuns",
    "ImportCheck",
    "ImportScan",
    "Mode",
    "Published",
    "Publisher",
    "PublishingRules",
    "SkillFolder",
    "ToolMaker",
    "Trials",
    "Undeclared",
    "read_skill_folder",
]
