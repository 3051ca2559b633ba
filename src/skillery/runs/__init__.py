"""Runs: joins a skill, blobs, limits and a sandbox. No transaction is open while a sandbox works."""

from skillery.runs.running import CodeRequest, Runner, SkillRequest
from skillery.runs.tool_calls import ToolRequest
from skillery.runs.trying import Trial, Tried

__all__ = ["CodeRequest", "Runner", "SkillRequest", "ToolRequest", "Trial", "Tried"]
