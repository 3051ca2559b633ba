"""The failure types of runs that Skillery itself reports, with cause and remedy."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class FailureType(StrEnum):
    """Why a run failed, if the reason is not an exception of its code.

    Each member is a str, which is the `type` of a `Failure`. If code raised an exception, the `type` of the `Failure`
    is the class name of the exception instead. The site that `make docs` builds lists `cause` and `remedy`.
    """

    cause: str
    remedy: str
    is_of_server: bool
    """Whether the code of the run cannot be the cause."""

    def __new__(cls, value: str, cause: str, remedy: str, is_of_server: bool = False) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.cause = cause
        member.remedy = remedy
        member.is_of_server = is_of_server
        return member

    TIMEOUT = (
        "TimeoutError",
        "The run took longer than its `timeout_ms`.",
        "Pass a larger `timeout_ms`, or do less in one run. The setting `max_limits.timeout_ms` is the maximum.",
    )
    MEMORY_LIMIT_EXCEEDED = (
        "MemoryLimitExceeded",
        "The run and its processes used more memory than `memory_mb`.",
        "Raise `memory_mb` in the limits of the call or of the manifest, or process the data in pieces.",
    )
    CPU_TIME_EXCEEDED = (
        "CpuTimeExceeded",
        "One process of the run used more CPU time than the timeout of the run allows.",
        "Raise `timeout_ms` or `cpus`, or use fewer threads.",
    )
    PROCESS_EXITED = (
        "ProcessExited",
        "The process ended with an exit status before it returned a result.",
        "Return from the entrypoint instead of calling `os._exit`. For bash, the log shows why the script failed.",
    )
    PROCESS_KILLED = (
        "ProcessKilled",
        "A signal killed the process: a crash in native code, `abort`, a forbidden system call, or `kill`.",
        "The message names the signal. Look for a crash in a native library if it is `SIGSEGV` or `SIGABRT`.",
    )
    CALLER_ENDED = (
        "CallerEnded",
        "The run that called this one ended first.",
        "Read the failure of the calling run (`parent_run_id`), or let it wait for the call.",
    )
    CANCELLED = (
        "Cancelled",
        "A caller cancelled the run: with `cancel_run`, or through MCP.",
        "Run it again if the result is still needed.",
    )
    INVALID_OUTPUT = (
        "InvalidOutput",
        "The returned value is not JSON, or is larger than the setting `limits.result_mb`.",
        "Return JSON values. Write large results to a blob.",
    )
    VALIDATION_ERROR = (
        "ValidationError",
        "The args do not match `[inputs]` of the skill, or the parameters of the tool.",
        "The message names all wrong args, the inputs in brief, and one correct call.",
    )
    QUOTA_EXCEEDED = (
        "QuotaExceeded",
        "The output needs a blob, and the blob quota of the identity is used up.",
        "Delete blobs (`delete_blob`), or ask an admin for a larger quota. `get_usage` shows the numbers.",
    )
    SECRET_NOT_GRANTED = (
        "SecretNotGranted",
        "The skill declares a secret that was not granted to it, or the version is not approved.",
        "An admin runs `skillery secret grant NAME SKILL`, or a reviewer approves the version.",
    )
    SECRET_MISSING = (
        "SecretMissing",
        "The skill declares a secret that has no value on this server.",
        "An admin runs `skillery secret set NAME`.",
    )
    SECRET_UNAVAILABLE = (
        "SecretUnavailable",
        "The backend of secrets did not answer.",
        "Run it again later. An admin finds the reason in the server's log.",
    )
    DEPENDENCY_GONE = (
        "DependencyGone",
        "A skill that the skill requires was purged, hidden, or yanked as malicious.",
        "Publish a version that requires another version. `describe_skill` lists the required versions.",
    )
    ENVIRONMENT_NOT_READY = (
        "EnvironmentNotReady",
        "The packages of the run were still being installed when its timeout ended.",
        "Run it again: installing continues. The message says how many packages are left.",
        True,
    )
    ENVIRONMENT_FAILED = (
        "EnvironmentFailed",
        "The packages of the run cannot be installed on this server.",
        "The message names the package and the reason. `describe_environment` shows the state.",
        True,
    )
    SANDBOX_ERROR = (
        "SandboxError",
        "The host failed: the sandbox did not start or cannot run this job, or the server stopped.",
        "Run it again. If it fails again, an admin runs `skillery doctor` and reads the server's log.",
        True,
    )


SERVER_FAILURES = frozenset(failure for failure in FailureType if failure.is_of_server)
"""The failures that an author cannot repair, and that say nothing about the code."""
