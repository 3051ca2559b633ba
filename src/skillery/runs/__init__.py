"""Runs of skills, tools and code, from a request to a record. No transaction is open while the sandbox executes
code.
"""

from typing import TYPE_CHECKING

from skillery.context.late_imports import late_names

if TYPE_CHECKING:
    from skillery.runs.mounts import parse_outputs
    from skillery.runs.queries import args_of
    from skillery.runs.runner import Runner
    from skillery.runs.trials import Trial, TrialResult
    from skillery.runs.unrecorded import UnrecordedRuns
else:
    __getattr__ = late_names(
        __name__,
        {
            "mounts": ("parse_outputs",),
            "queries": ("args_of",),
            "runner": ("Runner",),
            "trials": ("Trial", "TrialResult"),
            "unrecorded": ("UnrecordedRuns",),
        },
    )

__all__ = [
    "Runner",
    "Trial",
    "TrialResult",
    "UnrecordedRuns",
    "args_of",
    "parse_outputs",
]
