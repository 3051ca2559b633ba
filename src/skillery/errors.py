"""What can go wrong, in few kinds with speaking children.

The core raises these; only the API edge knows JSON-RPC codes and HTTP statuses. A message names the thing and the
value, `hint` the way out; both are shown to callers, so neither ever holds a host path, SQL or a traceback.
"""

from __future__ import annotations

from typing import Any, ClassVar


class SkilleryError(Exception):
    """Base of everything that is reported to a caller.

    `type` is a stable snake_case word; `hint` a sentence that says what to do next; `data` further JSON-able fields
    of `error.data`.
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
    """Too many logins from one address failed; the next that fails may do so after `retry_after_ms`."""

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
    """A policy said no; `data["findings"]` says why, one object a finding."""

    type = "refused_by_policy"


class Unavailable(SkilleryError):
    """The host cannot do it now: a full disk, a lost database. Reported as an internal error with a clear word."""

    type = "unavailable"


# -- children ----------------------------------------------------------------------------------------------------


class PackagesNotOffered(Refused):
    """Skills that need packages, on a server that has none to give."""

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
    """`data["labels"]` are those that the skill has."""

    type = "label_not_found"


class FileNotInSkill(NotFound):
    type = "file_not_found"


class ResourceNotFound(NotFound):
    """Nothing of that kind is at an address of MCP; `data["uri"]` is it."""

    type = "resource_not_found"


class BlobNotFound(NotFound):
    type = "blob_not_found"


class TokenNotFound(NotFound):
    type = "token_not_found"


class RunNotFound(NotFound):
    type = "run_not_found"


class ToolNotFound(NotFound):
    """`data["near"]` are tools that the caller may have meant."""

    type = "tool_not_found"


class WaiverNotFound(NotFound):
    type = "waiver_not_found"


class EnvironmentNotFound(NotFound):
    """There is no named environment of that name, and no lock of that digest that the caller may see."""

    type = "environment_not_found"


class ContentMissing(NotFound):
    """A storage backend holds nothing under this digest."""

    type = "content_missing"


class VersionExists(Conflict):
    type = "version_exists"


class NameTaken(Conflict):
    """By a skill that its publisher keeps to itself."""

    type = "name_taken"


class SourceUnclear(Conflict):
    """An import into a default source whose earlier paths it mostly does not have."""

    type = "source_unclear"


class ToolProtected(Conflict):
    """A tool that define_tool has not made: it is neither replaced nor removed."""

    type = "tool_protected"


class IllegalStep(Conflict):
    """`data["legal"]` names the methods that take a version on from its status."""

    type = "illegal_step"


class DigestDiffers(Conflict):
    type = "digest_differs"


class RunEnded(Conflict):
    """What cannot be stopped any more; `data["status"]` says how it ended."""

    type = "run_ended"


class IdempotencyKeyReused(Conflict):
    """An Idempotency-Key that stands for another call."""

    type = "idempotency_key_reused"


class CallUnderWay(Busy):
    """The first call with this Idempotency-Key has not been answered yet."""

    type = "call_under_way"


class InvalidIdempotencyKey(InvalidParams):
    type = "invalid_idempotency_key"


class NotPublished(Conflict):
    """A version to which nothing may point: a draft, a rejected or a yanked one."""

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
    """`data["problems"]` lists everything that is wrong: `{"path": "runtime.entrypoint", "message": …}` each,
    with `file` and `line` where a file is meant."""

    type = "invalid_manifest"


class UnresolvableDependencies(InvalidManifest):
    """`data["package"]` and `data["reason"]`: unsatisfiable, unknown_package, yanked or no_wheel."""

    type = "unresolvable_dependencies"


class InvalidBundle(InvalidParams):
    """As InvalidManifest, for the files of a bundle."""

    type = "invalid_bundle"


class InvalidArchive(InvalidParams):
    """What was sent to be imported is no archive, a damaged one, or one that does what an archive of skills has no
    reason to; `data["entry"]` is the path in it that shows so."""

    type = "invalid_archive"


class NotExecutable(InvalidParams):
    type = "not_executable"


class BundleTooLarge(TooLarge):
    type = "bundle_too_large"


class ArchiveTooLarge(TooLarge):
    """`data["entry"]` is the path in it that was one too many, where there is one."""

    type = "archive_too_large"


class BlobTooLarge(TooLarge):
    type = "blob_too_large"


class InputFilesTooLarge(TooLarge):
    """The files that a run was given do not fit into its workspace. `data`: `limit`, in bytes or in files."""

    type = "input_files_too_large"


class AnswerTooLarge(TooLarge):
    """A single result is larger than one answer may be. `data`: `limit`, in bytes."""

    type = "answer_too_large"


class TooManyValues(TooLarge):
    """A request body holds more JSON values than the server decodes at once. `data`: `limit`."""

    type = "too_many_values"


class TooManyEscapes(TooLarge):
    """The texts of a request body hold more escapes than the server decodes at once. `data`: `limit`."""

    type = "too_many_escapes"


class QuotaExceeded(TooLarge):
    """`data`: `quota` (its name), `used`, `limit`."""

    type = "quota_exceeded"


class RateLimited(Busy):
    """One identity has started as many runs as it may for now. `data`: `quota` (its name), `used`, `limit`."""

    type = "rate_limited"


class StorageFull(Unavailable):
    """The same words whether the database or a storage found out, unless it has better ones."""

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
    """A skill that the code of a run called has failed, with an exception or failure of type `failed_as`. The code is
    told; no caller of the server ever is."""

    type = "skill_failed"

    def __init__(self, message: str, *, failed_as: str) -> None:
        super().__init__(message)
        self.failed_as = failed_as


# -- for the person who starts the server --------------------------------------------------------------------------


class StartupError(Exception):
    """The server (or command) does not start; the message is one line that says why and how to mend it."""


class SandboxUnavailable(StartupError):
    """This host cannot enforce what the sandbox promises; nothing is run rather than run weaker."""
