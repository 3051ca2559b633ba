"""Errors that are reported to callers: few kinds, each with descriptive subclasses.

The core raises them; only the API edge knows JSON-RPC codes and HTTP statuses. The message names the thing and the
value, `hint` the remedy. Callers see both, so neither contains a host path, SQL or a traceback.
"""

from __future__ import annotations

from typing import Any, ClassVar


class SkilleryError(Exception):
    """Base of all errors that are reported to a caller.

    `type` is a stable snake_case word; `hint` is a sentence with the remedy; `data` contains further JSON values of
    `error.data`.
    """

    type: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str | None = None, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.data = data


# -- kinds: one for each code of the protocol -------------------------------------------------------------------


class InvalidParams(SkilleryError):
    type = "invalid_params"


class NotAuthenticated(SkilleryError):
    type = "not_authenticated"


class TooManyFailedLogins(NotAuthenticated):
    """Too many logins from one address failed. The address may try again after `retry_after_ms`."""

    type = "too_many_failed_logins"

    def __init__(self, message: str, *, retry_after_ms: int, hint: str | None = None, **data: Any) -> None:
        super().__init__(message, hint=hint, retry_after_ms=retry_after_ms, **data)


class NotAllowed(SkilleryError):
    type = "not_allowed"


class NotFound(SkilleryError):
    type = "not_found"


class Conflict(SkilleryError):
    type = "conflict"


class TooLarge(SkilleryError):
    type = "too_large"


class Busy(SkilleryError):
    """The caller may try again after `retry_after_ms`."""

    type = "busy"

    def __init__(self, message: str, *, retry_after_ms: int, hint: str | None = None, **data: Any) -> None:
        super().__init__(message, hint=hint, retry_after_ms=retry_after_ms, **data)


class Refused(SkilleryError):
    """A policy refused the request. `data["findings"]` lists the reasons, one object each."""

    type = "refused_by_policy"


class Unavailable(SkilleryError):
    """The host cannot serve the request now: a full disk, a lost database.

    Reported as an internal error with a clear message.
    """

    type = "unavailable"


# -- children ----------------------------------------------------------------------------------------------------


class PackagesNotOffered(Refused):
    """The skill needs packages, and this server offers none."""

    type = "packages_not_offered"

    def __init__(self, message: str, *, hint: str | None = None, **data: Any) -> None:
        super().__init__(message, hint=hint, findings=[], **data)


class PackageIndexUnavailable(Unavailable):
    type = "package_index_unavailable"


class SkillNotFound(NotFound):
    type = "skill_not_found"


class VersionNotFound(NotFound):
    type = "version_not_found"


class LabelNotFound(NotFound):
    """The skill has no such label. `data["labels"]` lists its labels."""

    type = "label_not_found"


class FileNotInSkill(NotFound):
    type = "file_not_found"


class ResourceNotFound(NotFound):
    """No resource of the expected kind exists at an MCP URI; `data["uri"]` is the URI."""

    type = "resource_not_found"


class BlobNotFound(NotFound):
    type = "blob_not_found"


class TokenNotFound(NotFound):
    type = "token_not_found"


class RunNotFound(NotFound):
    type = "run_not_found"


class WorkspaceNotFound(NotFound):
    type = "workspace_not_found"


class SnapshotNotFound(NotFound):
    type = "snapshot_not_found"


class WorkspaceFileNotFound(NotFound):
    type = "workspace_file_not_found"


class ToolNotFound(NotFound):
    """The tool does not exist. `data["near"]` lists tools that the caller may have meant."""

    type = "tool_not_found"


class WaiverNotFound(NotFound):
    type = "waiver_not_found"


class EnvironmentNotFound(NotFound):
    """No environment has this name, or no lock that the caller may see has this digest."""

    type = "environment_not_found"


class ContentMissing(NotFound):
    """A storage backend has no content under this digest."""

    type = "content_missing"


class VersionExists(Conflict):
    type = "version_exists"


class NameTaken(Conflict):
    """The name belongs to a skill that the caller may not see, or to another source."""

    type = "name_taken"


class SourceUnclear(Conflict):
    """An import into a default source that shares few of the source's earlier paths."""

    type = "source_unclear"


class ToolProtected(Conflict):
    """The tool was not made by define_tool, so it is neither replaced nor removed."""

    type = "tool_protected"


class IllegalStep(Conflict):
    """The version's status does not allow the step. `data["legal"]` names the methods that are allowed."""

    type = "illegal_step"


class DigestDiffers(Conflict):
    type = "digest_differs"


class RunEnded(Conflict):
    """The run has ended and cannot be cancelled any more. `data["status"]` is its final status."""

    type = "run_ended"


class IdempotencyKeyReused(Conflict):
    """The Idempotency-Key was already used for another call."""

    type = "idempotency_key_reused"


class WorkspaceHeld(Busy):
    """Another run writes the workspace. `data`: `workspace`, `run_id`."""

    type = "workspace_busy"


class CallUnderWay(Busy):
    """The first call with this Idempotency-Key has not been answered yet."""

    type = "call_under_way"


class InvalidIdempotencyKey(InvalidParams):
    type = "invalid_idempotency_key"


class NotPublished(Conflict):
    """A label may not point to this version: it is a draft, in review, rejected or yanked."""

    type = "not_published"


class NothingToGoBackTo(Conflict):
    type = "nothing_to_go_back_to"


class TooManyLabels(Conflict):
    type = "too_many_labels"


class InvalidName(InvalidParams):
    type = "invalid_name"


class InvalidVersion(InvalidParams):
    type = "invalid_version"


class InvalidVersionSpec(InvalidParams):
    type = "invalid_version_spec"


class InvalidLabel(InvalidParams):
    type = "invalid_label"


class InvalidPath(InvalidParams):
    type = "invalid_path"


class InvalidCursor(InvalidParams):
    type = "invalid_cursor"


class InvalidManifest(InvalidParams):
    """`data["problems"]` lists all problems, each `{"path": "runtime.entrypoint", "message": …}`.

    A problem in a file also has `file` and `line`.
    """

    type = "invalid_manifest"


class UnresolvableDependencies(InvalidManifest):
    """The dependencies cannot be resolved.

    `data["package"]` names the package; `data["reason"]` is unsatisfiable, unknown_package, yanked or no_wheel.
    """

    type = "unresolvable_dependencies"


class InvalidBundle(InvalidParams):
    """The files of a bundle are invalid. `data["problems"]` as in InvalidManifest."""

    type = "invalid_bundle"


class InvalidArchive(InvalidParams):
    """The uploaded file is no archive, or a damaged one, or contains entries that no archive of skills needs.

    `data["entry"]` is the path of the entry concerned.
    """

    type = "invalid_archive"


class NotExecutable(InvalidParams):
    type = "not_executable"


class BundleTooLarge(TooLarge):
    type = "bundle_too_large"


class ArchiveTooLarge(TooLarge):
    """The archive exceeds a limit. `data["entry"]` is the path of the entry that exceeds it, if one does."""

    type = "archive_too_large"


class BlobTooLarge(TooLarge):
    type = "blob_too_large"


class WorkspaceNotAccepted(InvalidParams):
    """A skill with permissions runs in no workspace that its manifest does not accept. `data`: `name`."""

    type = "workspace_not_accepted"


class WorkspaceFileTooLarge(TooLarge):
    """A file of a workspace is larger than a read answers. `data`: `size_bytes`, `limit`."""

    type = "workspace_file_too_large"


class InputFilesTooLarge(TooLarge):
    """The input files of a run do not fit into its workspace. `data`: `limit`, in bytes or in files."""

    type = "input_files_too_large"


class AnswerTooLarge(TooLarge):
    """A single result is larger than one answer may be. `data`: `limit`, in bytes."""

    type = "answer_too_large"


class TooManyValues(TooLarge):
    """A request body contains more JSON values than the server decodes at once. `data`: `limit`."""

    type = "too_many_values"


class TooManyEscapes(TooLarge):
    """The texts of a request body contain more escapes than the server decodes at once. `data`: `limit`."""

    type = "too_many_escapes"


class QuotaExceeded(TooLarge):
    """A quota is used up. `data`: `quota` (its name), `used`, `limit`."""

    type = "quota_exceeded"


class RateLimited(Busy):
    """An identity has started its allowed number of runs for now. `data`: `quota` (its name), `used`, `limit`."""

    type = "rate_limited"


class StorageFull(Unavailable):
    """The server has no space left. Database and storage use the same default message."""

    type = "storage_full"

    def __init__(
        self,
        message: str = "the server has no space left to store this",
        *,
        hint: str | None = "Nothing was stored. Free space on the server.",
        **data: Any,
    ) -> None:
        super().__init__(message, hint=hint, **data)


# -- for the code of a run ---------------------------------------------------------------------------------------


class SkillFailed(SkilleryError):
    """A skill that the code of a run called has failed, with an exception or failure of type `failed_as`.

    Only the calling code gets this error, never a caller of the server.
    """

    type = "skill_failed"

    def __init__(self, message: str, *, failed_as: str) -> None:
        super().__init__(message)
        self.failed_as = failed_as


# -- for the person who starts the server --------------------------------------------------------------------------


class StartupError(Exception):
    """The server or command cannot start. The message is one line with the reason and the remedy."""


class SandboxUnavailable(StartupError):
    """This host cannot enforce the sandbox's guarantees. The server refuses to run code with weaker ones."""
