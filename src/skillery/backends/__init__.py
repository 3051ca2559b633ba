"""The interface between Skillery and its backends and plugins: Protocols, and the frozen values that they exchange.

Plugin packages may import this module, `skillery.errors`, `skillery.hookimpl`, `skillery.sandboxing` (parts of
sandboxes) and `skillery.testing`. All other modules of Skillery are private.
"""

from __future__ import annotations

from collections.abc import Mapping

from skillery.backends import authenticator, sandbox, secrets, storage, verifier
from skillery.backends.authenticator import *
from skillery.backends.events import *
from skillery.backends.jobs import *
from skillery.backends.outcomes import *
from skillery.backends.sandbox import *
from skillery.backends.secrets import *
from skillery.backends.storage import *
from skillery.backends.values import *
from skillery.backends.verifier import *
from skillery.failure_types import FailureType

KINDS: Mapping[str, Kind] = {
    module.KIND.name: module.KIND for module in (sandbox, storage, authenticator, secrets, verifier)
}
"""All kinds of backends, by name."""

__all__ = [
    "ALL_SCOPES",
    "API_VERSION",
    "LIMITS",
    "Authenticator",
    "BlobMount",
    "BlobWriter",
    "Call",
    "Capability",
    "CodeCall",
    "Credentials",
    "DescribesResource",
    "Event",
    "EventType",
    "Events",
    "ExplainedCheck",
    "ExplainsCredentials",
    "Explanation",
    "Failure",
    "FailureType",
    "Finding",
    "FinishedRun",
    "FollowsLog",
    "FollowsProgress",
    "HandlerCall",
    "Identity",
    "InputFile",
    "Job",
    "KeepsSecrets",
    "KeepsTokens",
    "KeepsWarm",
    "KeepsWorkspace",
    "KeptFile",
    "KnowsRegistry",
    "Language",
    "Limits",
    "LimitsFailures",
    "LimitsRuns",
    "ListsContents",
    "Log",
    "LoggedIn",
    "LoginReturn",
    "LoginStart",
    "LogsInBrowsers",
    "Measured",
    "NetworkUse",
    "NoSettings",
    "Offer",
    "OpenContents",
    "Outcome",
    "PackageMount",
    "Place",
    "Probe",
    "Progress",
    "Provenance",
    "Publication",
    "PublishedFile",
    "RecognizesCredentials",
    "RemovesUnfinished",
    "Resource",
    "RevokesIdentities",
    "RunHost",
    "Sandbox",
    "Scope",
    "ScriptCall",
    "SecretValues",
    "Secrets",
    "SignsDownloads",
    "SkillCall",
    "SkillMount",
    "Storage",
    "StreamsBlobs",
    "Tokens",
    "Transaction",
    "Upload",
    "Used",
    "UsesService",
    "Values",
    "VerifiedToken",
    "Verifier",
    "Warm",
    "Workspace",
]
