"""Errors that callers get. There are a few kinds, and subclasses of these kinds.

The core raises these errors. Only `methods.errors` and the endpoints know their JSON-RPC codes and HTTP statuses. The
message names the thing and the value, `hint` is the remedy. Callers see both, so they must not contain a path of the
host, SQL or a traceback.
"""

from __future__ import annotations

import errno
from typing import Any, ClassVar


class SkilleryError(Exception):
    """Base of all errors that callers get.

    `type` is a stable snake_case word. `hint` is a sentence with the remedy, or None. `data` has further JSON values
    for the member `data` of the error object.
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
    """Raised if too many logins from one address failed. The address may try again after `retry_after_ms`."""

    type = "too_many_failed_logins"

    def __init__(self, message: str, *, retry_after_ms: int, hint: str | None = None, **data: Any) -> None:
        super().__init__(message, hint=hint, retry_after_ms=retry_after_ms, **data)


class ExchangeRefused(NotAuthenticated):
    """Raised if a CI job gets no token. `reason` is for admins only: the text may describe trust rules of others.

    `issuer` is the issuer that has signed the token, or "" if the token is not verified.
    """

    type = "exchange_refused"

    def __init__(self, message: str, *, hint: str | None = None, reason: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason or message
        self.issuer = ""


class NotAllowed(SkilleryError):
    type = "not_allowed"


class NotFound(SkilleryError):
    type = "not_found"


class Conflict(SkilleryError):
    type = "conflict"


class TooLarge(SkilleryError):
    type = "too_large"


class Busy(SkilleryError):
    """Raised if the server has no room for the request. The caller may try again after `retry_after_ms`."""

    type = "busy"

    def __init__(self, message: str, *, retry_after_ms: int, hint: str | None = None, **data: Any) -> None:
        super().__init__(message, hint=hint, retry_after_ms=retry_after_ms, **data)


class Refused(SkilleryError):
    """Raised if a policy refuses the request. `data["findings"]` is a list of the reasons."""

    type = "refused_by_policy"


class Unavailable(SkilleryError):
    """Raised if the server cannot answer the request at present, for example because of a full disk or a lost database.

    Callers get the code of an internal error, with a clear message.
    """

    type = "unavailable"


# -- children ----------------------------------------------------------------------------------------------------


class PackagesNotOffered(Refused):
    """Raised if a skill needs packages, and this server has no source of packages."""

    type = "packages_not_offered"

    def __init__(self, message: str, *, hint: str | None = None, **data: Any) -> None:
        super().__init__(message, hint=hint, findings=[], **data)


class PackageIndexUnavailable(Unavailable):
    type = "package_index_unavailable"


class SkillNotFound(NotFound):
    type = "skill_not_found"


class VersionNotFound(NotFound):
    type = "version_not_found"


class VersionPurged(VersionNotFound):
    """Raised for a version whose files an admin has removed. `data` has its `digest` and `reason`."""

    type = "version_purged"


class LabelNotFound(NotFound):
    """Raised if a skill does not have a label. `data["labels"]` is a list of its labels."""

    type = "label_not_found"


class ReadOnlyRepository(NotAllowed):
    """Raised if a client of git wants to push."""

    type = "read_only_repository"


class RepositoryNotFound(NotFound):
    """Raised if there is no git repository at an address, or the caller sees no skill of it."""

    type = "repository_not_found"


class FileNotInSkill(NotFound):
    type = "file_not_found"


class ResourceNotFound(NotFound):
    """Raised if there is no resource of the expected kind at an MCP URI. `data["uri"]` is the URI."""

    type = "resource_not_found"


class BlobNotFound(NotFound):
    type = "blob_not_found"


class TokenNotFound(NotFound):
    type = "token_not_found"


class IdentityNotFound(NotFound):
    type = "identity_not_found"


class RunNotFound(NotFound):
    type = "run_not_found"


class TaskNotFound(NotFound):
    type = "task_not_found"


class WorkspaceNotFound(NotFound):
    type = "workspace_not_found"


class SnapshotNotFound(NotFound):
    type = "snapshot_not_found"


class WorkspaceFileNotFound(NotFound):
    type = "workspace_file_not_found"


class ToolNotFound(NotFound):
    """Raised if a tool does not exist. `data["near"]` is a list of tools with similar names."""

    type = "tool_not_found"


class WaiverNotFound(NotFound):
    type = "waiver_not_found"


class WebhookNotFound(NotFound):
    type = "webhook_not_found"


class TrustRuleNotFound(NotFound):
    type = "trust_rule_not_found"


class EnvironmentNotFound(NotFound):
    """Raised if no environment has this name, or the caller sees no lock of packages with this SHA-256."""

    type = "environment_not_found"


class ContentMissing(NotFound):
    """Raised if a storage has no content with this digest."""

    type = "content_missing"


class VersionExists(Conflict):
    type = "version_exists"


class NameTaken(Conflict):
    """Raised if the name belongs to a skill that the caller may not see, or to a skill of another source."""

    type = "name_taken"


class SourceUnclear(Conflict):
    """Raised if an import without a stated source contains few of the paths that its default source had before."""

    type = "source_unclear"


class ToolProtected(Conflict):
    """Raised if a tool must not be replaced or removed, because define_tool did not make it."""

    type = "tool_protected"


class IllegalStep(Conflict):
    """Raised if the status of a version does not allow the step. `data["legal"]` is a list of the methods that the
    status allows.
    """

    type = "illegal_step"


class DigestDiffers(Conflict):
    type = "digest_differs"


class RunEnded(Conflict):
    """Raised if a run cannot be cancelled because it has ended. `data["status"]` is its final status."""

    type = "run_ended"


class IdempotencyKeyReused(Conflict):
    """Raised if the Idempotency-Key was used for a different call."""

    type = "idempotency_key_reused"


class WorkspaceHeld(Busy):
    """Raised if another run writes the workspace. `data["run_id"]` is the id of that run."""

    type = "workspace_busy"


class CallUnderWay(Busy):
    """Raised if the server still executes the first call with this Idempotency-Key."""

    type = "call_under_way"


class InvalidIdempotencyKey(InvalidParams):
    type = "invalid_idempotency_key"


class NotPublished(Conflict):
    """Raised if a label must not point to a version because of its status: draft, in review, rejected or yanked."""

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
    """Raised if a manifest is not valid. `data["problems"]` is a list of all problems.

    A problem is an object: `{"path": "runtime.entrypoint", "message": …}`. A problem in a file also has `file` and
    `line`.
    """

    type = "invalid_manifest"


class UnresolvableDependencies(InvalidManifest):
    """Raised if the dependencies of a skill cannot be resolved. `data["package"]` is the name of the package.

    `data["reason"]` is unsatisfiable, unknown_package, yanked or no_wheel.
    """

    type = "unresolvable_dependencies"


class InvalidBundle(InvalidParams):
    """Raised if the files of a bundle are not valid. `data["problems"]` is a list of all problems, as in
    InvalidManifest. If there is only one, `data` may have its `file` and `line` instead.
    """

    type = "invalid_bundle"


class InvalidArchive(InvalidParams):
    """Raised if an uploaded file is not a valid archive, or contains entries that are not allowed in an archive of
    skills.

    `data["entry"]` is the path of the faulty entry, if one is at fault.
    """

    type = "invalid_archive"


class NotExecutable(InvalidParams):
    type = "not_executable"


class RepositoryTooLarge(TooLarge):
    """Raised if a git repository would have too many skills, files or bytes."""

    type = "repository_too_large"


class BundleTooLarge(TooLarge):
    type = "bundle_too_large"


class ArchiveTooLarge(TooLarge):
    """Raised if an archive exceeds a limit. `data["entry"]` is the path of the entry at fault, if one is at fault."""

    type = "archive_too_large"


class BlobTooLarge(TooLarge):
    type = "blob_too_large"


class WorkspaceNotAccepted(InvalidParams):
    """Raised if a skill with permissions would run in a workspace, and its manifest does not accept workspaces.

    `data["name"]` is the name of the skill.
    """

    type = "workspace_not_accepted"


class WorkspaceFileTooLarge(TooLarge):
    """Raised if a file of a workspace is too large for read_workspace_file. `data["limit"]` is the limit in bytes."""

    type = "workspace_file_too_large"


class InputFilesTooLarge(TooLarge):
    """Raised if the input files of a run do not fit into its workspace. `data["limit"]` is the limit in bytes or in
    files.
    """

    type = "input_files_too_large"


class AnswerTooLarge(TooLarge):
    """Raised if a result is larger than one answer may be. `data["limit"]` is the limit in bytes."""

    type = "answer_too_large"


class TooManyValues(TooLarge):
    """Raised if a request body contains more JSON values, or more long numbers, than `data["limit"]`."""

    type = "too_many_values"


class TooManyEscapes(TooLarge):
    """Raised if the strings in a request body contain more backslashes than `data["limit"]`."""

    type = "too_many_escapes"


class QuotaExceeded(TooLarge):
    """Raised if a quota is used up. `data` has the name of the quota (`quota`), the used amount (`used`) and the
    limit (`limit`).
    """

    type = "quota_exceeded"


class TrustedPublishingOff(Conflict):
    """Raised if the server cannot exchange tokens of CI jobs. The hint says what an admin must change."""

    type = "trusted_publishing_off"


class RateLimited(Busy):
    """Raised if an identity has started too many runs. `data` has the same members as in QuotaExceeded."""

    type = "rate_limited"


def is_disk_full(error: OSError) -> bool:
    return error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class StorageFull(Unavailable):
    """Raised if the server has no disk space left. Database and storage raise this error with the same default
    message.
    """

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
    """Raised in a run if a skill that its code called has failed. `failed_as` is the type of the failure or exception.

    Only the calling code gets this error. Callers of the server never get it.
    """

    type = "skill_failed"

    def __init__(self, message: str, *, failed_as: str) -> None:
        super().__init__(message)
        self.failed_as = failed_as


# -- for the person who starts the server --------------------------------------------------------------------------


class StartupError(Exception):
    """Raised if the server or a command cannot start. The message is one line with the reason and the remedy."""


class SandboxUnavailable(StartupError):
    """Raised if this host cannot enforce the guarantees of the sandbox. The server then runs no code, instead of
    running it with weaker guarantees.
    """
