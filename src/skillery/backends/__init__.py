"""The interface between Skillery and its backends and plugins: Protocols, and the frozen values that they exchange.

Plugin packages may import this package, `skillery.hookimpl`, `skillery.errors`, `skillery.jobs` (for
sandboxes), `skillery.testing`, `skillery.commands` and `skillery.routes`. All other modules of Skillery are private.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import new_class
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from skillery.backends import authenticator, ranker, sandbox, secrets, signer, storage, verifier
from skillery.backends.authenticator import *
from skillery.backends.events import *
from skillery.backends.jobs import *
from skillery.backends.outcomes import *
from skillery.backends.ranker import *
from skillery.backends.sandbox import *
from skillery.backends.secrets import *
from skillery.backends.signer import *
from skillery.backends.storage import *
from skillery.backends.values import *
from skillery.backends.verifier import *
from skillery.failure_types import FailureType

FORMER: Mapping[str, tuple[type, str]] = {
    "Measured": (Sandbox, "figures"),
    "KnowsRegistry": (Storage, "mark find_mark"),
    "RemovesUnfinished": (Storage, "remove_unfinished"),
    "RecognizesCredentials": (Authenticator, "recognizes"),
    "DescribesResource": (Authenticator, "resource"),
    "LimitsFailures": (Authenticator, "note_failure"),
    "ExplainsCredentials": (Authenticator, "explain"),
    "StreamsBlobs": (RunHost, "blob_pieces"),
    "FollowsProgress": (RunHost, "progressed"),
    "KeepsWorkspace": (RunHost, "list_workspace keep_contents"),
}
"""Former optional Protocols, with the Protocol that has their methods now."""

KINDS: Mapping[str, Kind] = {
    module.KIND.name: module.KIND for module in (sandbox, storage, authenticator, ranker, secrets, verifier, signer)
} | {verifier.SIGSTORE.name: verifier.SIGSTORE}
"""All kinds of backends, by name."""

__all__ = [
    "ALL_SCOPES",
    "API_VERSION",
    "LIMITS",
    "AddsRoutes",
    "Authenticator",
    "BlobMount",
    "BlobWriter",
    "Call",
    "Capability",
    "CodeCall",
    "Credentials",
    "Event",
    "EventType",
    "Events",
    "ExplainedCheck",
    "Explanation",
    "Failure",
    "FailureType",
    "Finding",
    "FinishedRun",
    "FollowsLog",
    "HandlerCall",
    "Identity",
    "InputFile",
    "Job",
    "KeepsNames",
    "KeepsSecrets",
    "KeepsTokens",
    "KeepsWarm",
    "KeptFile",
    "Language",
    "Limits",
    "LimitsRuns",
    "ListsContents",
    "Log",
    "LoggedIn",
    "LoginReturn",
    "LoginStart",
    "LogsInBrowsers",
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
    "Ranker",
    "Resource",
    "RevokesIdentities",
    "RunHost",
    "Sandbox",
    "Scope",
    "ScriptCall",
    "SecretValues",
    "Secrets",
    "Signer",
    "SignsDownloads",
    "SigstoreIdentity",
    "SigstoreVerifier",
    "SkillCall",
    "SkillMount",
    "Storage",
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
    "completed_host",
]


if not TYPE_CHECKING:  # a type checker reports the former names

    def __getattr__(name: str) -> type:
        """Return a former optional Protocol, for plugins of earlier releases."""
        if name not in FORMER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        protocol, methods = FORMER[name]
        warnings.warn(
            f"skillery.backends.{name} is a part of {protocol.__name__} now", DeprecationWarning, stacklevel=2
        )
        members = {method: vars(protocol)[method] for method in methods.split()}
        former = runtime_checkable(new_class(name, (Protocol,), {}, lambda body: body.update(members)))
        globals()[name] = former
        return former
