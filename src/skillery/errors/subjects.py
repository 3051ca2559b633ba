"""Errors of one subject each: skills, versions, labels, runs, workspaces, manifests, archives."""

from __future__ import annotations

from skillery.errors.kinds import Busy, Conflict, InvalidParams, NotAllowed, NotFound, Refused, TooLarge


class SkillNotFound(NotFound):
    type = "skill_not_found"


class VersionNotFound(NotFound):
    type = "version_not_found"


class NamespaceNotFound(NotFound):
    type = "namespace_not_found"


class PeopleOnly(Refused):
    """Raised if a model asks for a skill that only people start."""

    type = "people_only"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"Only a person may start '{name}', as its author decided. Ask the user.", findings=[], name=name
        )


class VersionPurged(VersionNotFound):
    """Raised for a version whose files an admin has removed. `data` has its `digest` and `reason`."""

    type = "version_purged"


class VersionRevoked(VersionNotFound):
    """Raised for a version that was yanked as malicious. `data` has its `advisory`, `digest` and `reason`."""

    type = "version_revoked"


class RunRevoked(NotAllowed):
    """Raised if the caller may not run a version that was yanked as security or malicious. `data` has `advisory`."""

    type = "run_revoked"


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


class HoldNotFound(NotFound):
    type = "hold_not_found"


class EvaluationNotFound(NotFound):
    type = "evaluation_not_found"


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
    """Raised if the status of a version does not allow the step. `data["legal"]` lists the methods that it allows."""

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


class QuotaExceeded(TooLarge):
    """Raised if a quota is used up. `data` has its name (`quota`), the used amount (`used`) and the `limit`."""

    type = "quota_exceeded"


class AttestationSubject(InvalidParams):
    """Raised if a signed statement is not about the version."""

    type = "attestation_subject"


class AttestationKey(InvalidParams):
    """Raised if a statement is not signed with a registered key of the caller."""

    type = "attestation_key"
