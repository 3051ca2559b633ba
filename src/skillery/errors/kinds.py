"""The kinds of errors, one for each code of the protocol, and the errors of the server itself."""

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
    token = ""
    """The ended token that the caller has, for admins only: `expired token NAME` or `revoked token NAME`."""


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


# -- the server: its packages, its load and its disk -------------------------------------------------------------------


class PackagesNotOffered(Refused):
    """Raised if a skill needs packages, and this server has no source of packages."""

    type = "packages_not_offered"

    def __init__(self, message: str, *, hint: str | None = None, **data: Any) -> None:
        super().__init__(message, hint=hint, findings=[], **data)


class RequiresUnknown(InvalidParams):
    """Raised if a skill requires a skill that its publisher does not see. `data["near"]` has similar names."""

    type = "requires_unknown"


class RequiresUnsolvable(InvalidParams):
    """Raised if no choice of versions satisfies all ranges, or if two of the chosen skills have one import name.
    `data["required"]` lists the ranges and who needs them, and `data["names"]` the two skills.
    """

    type = "requires_unsolvable"


class RequiresCycle(InvalidParams):
    """Raised if a skill would require itself. `data["path"]` has the names from the first skill to the same skill."""

    type = "requires_cycle"


class RequiresHidden(InvalidParams):
    """Raised if callers of a skill may not see a skill that it requires."""

    type = "requires_hidden"


class RequiresDraft(InvalidParams):
    """Raised if only unpublished versions of a required skill are in the range."""

    type = "requires_draft"


class RequiresPackages(InvalidParams):
    """Raised if a skill and the skills that it requires need different versions of one package."""

    type = "requires_packages"


class PackageIndexUnavailable(Unavailable):
    type = "package_index_unavailable"


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


class TooManyValues(TooLarge):
    """Raised if a request body contains more JSON values, or more long numbers, than `data["limit"]`."""

    type = "too_many_values"


class TooManyEscapes(TooLarge):
    """Raised if the strings in a request body contain more backslashes than `data["limit"]`."""

    type = "too_many_escapes"


class TrustedPublishingOff(Conflict):
    """Raised if the server cannot exchange tokens of CI jobs. The hint says what an admin must change."""

    type = "trusted_publishing_off"


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


class DatabaseUnreachable(StartupError):
    """Raised if the database cannot be reached at the start. A later start may succeed."""


class SandboxUnavailable(StartupError):
    """Raised if this host cannot enforce the guarantees of the sandbox. The server then runs no code, instead of
    running it with weaker guarantees.
    """
