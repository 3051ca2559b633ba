"""Publishing: check a bundle and store it as a version in the registry.

All checks come before the version is stored, and one transaction stores all its rows.
"""

from typing import TYPE_CHECKING

from skillery.context.late_imports import late_names

if TYPE_CHECKING:
    from skillery.publishing.bundle_checks import BundleChecks
    from skillery.publishing.compile_pool import CompileLimits, CompilePool
    from skillery.publishing.developer import DevelopedSkill, Developer, KeptSkills
    from skillery.publishing.example_runs import ExampleRuns
    from skillery.publishing.folders import SkillFolder, read_skill_folder
    from skillery.publishing.gate import Gate, PublishingRules, Trials
    from skillery.publishing.import_check import ImportCheck
    from skillery.publishing.package_locks import ImportScan, Mode
    from skillery.publishing.publisher import CheckedSkill, CreatedSkill, Published, Publisher
    from skillery.publishing.rechecks import RecheckedVersion, Rechecks
    from skillery.publishing.script_check import ScriptCheck
    from skillery.publishing.tool_maker import DefinedTool, ToolMaker
    from skillery.publishing.undeclared import Undeclared
else:
    __getattr__ = late_names(
        __name__,
        {
            "bundle_checks": ("BundleChecks",),
            "compile_pool": ("CompileLimits", "CompilePool"),
            "developer": ("DevelopedSkill", "Developer", "KeptSkills"),
            "example_runs": ("ExampleRuns",),
            "folders": ("SkillFolder", "read_skill_folder"),
            "gate": ("Gate", "PublishingRules", "Trials"),
            "import_check": ("ImportCheck",),
            "package_locks": ("ImportScan", "Mode"),
            "publisher": ("CheckedSkill", "CreatedSkill", "Published", "Publisher"),
            "rechecks": ("RecheckedVersion", "Rechecks"),
            "script_check": ("ScriptCheck",),
            "tool_maker": ("DefinedTool", "ToolMaker"),
            "undeclared": ("Undeclared",),
        },
    )

__all__ = [
    "BundleChecks",
    "CheckedSkill",
    "CompileLimits",
    "CompilePool",
    "CreatedSkill",
    "DefinedTool",
    "DevelopedSkill",
    "Developer",
    "ExampleRuns",
    "Gate",
    "ImportCheck",
    "ImportScan",
    "KeptSkills",
    "Mode",
    "Published",
    "Publisher",
    "PublishingRules",
    "RecheckedVersion",
    "Rechecks",
    "ScriptCheck",
    "SkillFolder",
    "ToolMaker",
    "Trials",
    "Undeclared",
    "read_skill_folder",
]
