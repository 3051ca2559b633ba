"""The results of methods for type checkers: the JSON objects that the server sends.

`generated` has one TypedDict for each struct of the results. docs/reference/results.md explains the fields.
Names of earlier releases still work, and their use at run time gives a DeprecationWarning.
"""

import warnings
from typing import TYPE_CHECKING, Any, TypeAlias

from skillery.client import generated as results
from skillery.client.generated import *  # noqa: F403 - every name is public

RENAMED = {
    "BuildProgress": "ShownProgress",
    "EnvironmentLock": "ShownLock",
    "EnvironmentOnServer": "OnServer",
    "EnvironmentRebuild": "ShownRebuild",
    "Example": "CheckedExample",
    "Finding": "CheckFinding",
    "HostUse": "NetworkUse",
    "NewToken": "CreatedToken",
    "Removed": "Swept",
    "SkillVersion": "NewVersion",
    "Sweep": "Garbage",
    "ToolAnswer": "ToolResult",
    "VerifiedLock": "Verified",
    "VersionRow": "ListedVersion",
    "VersionWithLock": "WithLock",
}
"""The present name of each type, by its name in earlier releases."""

if TYPE_CHECKING:
    BuildProgress = results.ShownProgress
    EnvironmentLock = results.ShownLock
    EnvironmentOnServer = results.OnServer
    EnvironmentRebuild = results.ShownRebuild
    Example = results.CheckedExample
    Finding = results.CheckFinding
    HostUse = results.NetworkUse
    NewToken = results.CreatedToken
    Removed = results.Swept
    SkillVersion = results.NewVersion
    Step: TypeAlias = results.Approval | results.Objection
    Sweep = results.Garbage
    ToolAnswer = results.ToolResult
    VerifiedLock = results.Verified
    VersionRow = results.ListedVersion
    VersionWithLock = results.WithLock


def __getattr__(name: str) -> Any:
    if name in RENAMED:
        now = RENAMED[name]
        kind: Any = getattr(results, now)
    elif name == "Step":
        now = "Approval | Objection"
        kind = results.Approval | results.Objection
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{__name__}.{name} is now called {now}", DeprecationWarning, stacklevel=2)
    return kind
