"""The results of methods for type checkers: the JSON objects that the server sends.

`generated.results` has one TypedDict for each struct of the server. docs/reference/methods.md explains the fields. The
aliases in this module keep programs working that use names of earlier releases.
"""

from typing import TypeAlias

from skillery.client.generated.results import *  # noqa: F403 - every name is public
from skillery.client.generated.results import (
    Approval,
    CheckedExample,
    CheckFinding,
    CreatedToken,
    Garbage,
    ListedVersion,
    NetworkUse,
    NewVersion,
    Objection,
    OnServer,
    ShownLock,
    ShownProgress,
    ShownRebuild,
    Swept,
    ToolResult,
    Verified,
    WithLock,
)

BuildProgress = ShownProgress
EnvironmentLock = ShownLock
EnvironmentOnServer = OnServer
EnvironmentRebuild = ShownRebuild
Example = CheckedExample
Finding = CheckFinding
HostUse = NetworkUse
NewToken = CreatedToken
Removed = Swept
SkillVersion = NewVersion
Step: TypeAlias = Approval | Objection
Sweep = Garbage
ToolAnswer = ToolResult
VerifiedLock = Verified
VersionRow = ListedVersion
VersionWithLock = WithLock
