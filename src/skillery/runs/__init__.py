"""Runs of skills, tools and code, from a request to a record. No transaction is open while the sandbox executes
code.
"""

from skillery.runs.input_files import RunFile, parse_files
from skillery.runs.output_globs import parse_outputs
from skillery.runs.requests import CodeRequest, SkillRequest, ToolRequest
from skillery.runs.runner import Runner
from skillery.runs.trials import Trial, TrialResult
from skillery.runs.unrecorded import UnrecordedRuns

__all__ = [
    "CodeRequest",
    "RunFile",
    "Runner",
    "SkillRequest",
    "ToolRequest",
    "Trial",
    "TrialResult",
    "UnrecordedRuns",
    "parse_files",
    "parse_outputs",
]
