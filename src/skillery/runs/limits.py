"""The limits of a run: defaults of the server, changed by the skill or the caller up to the maximum of the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from skillery.backends import (
    LIMITS,
    Capability,
    CodeCall,
    Failure,
    FailureType,
    HandlerCall,
    Job,
    Limits,
    Outcome,
    ScriptCall,
)
from skillery.errors import InvalidParams
from skillery.formats.wording import nearest, quoted

ASKABLE = ("memory_mb", "processes", "cpus", "disk_mb", "timeout_ms")
"""The limits that callers and skills can set."""


class LimitRules(msgspec.Struct, frozen=True):
    """The default values and the maximum values of limits on this server."""

    defaults: Limits
    maximum: Mapping[str, float]
    """The highest value of each limit. Callers and skills can set only the limits in ASKABLE."""

    def for_skill(self, declared: Mapping[str, float], timeout_ms: int | None) -> Limits:
        """Return the limits of a skill's run: the defaults, changed by the `declared` ones of its manifest.

        Declared values over the maximum are reduced to it. `timeout_ms` is the value of the caller, or None. Raise
        InvalidParams if `timeout_ms` is invalid.
        """
        limits = {key: min(value, self.maximum[key]) for key, value in declared.items()}
        if timeout_ms is not None:
            limits["timeout_ms"] = self._checked("timeout_ms", timeout_ms)
        return msgspec.structs.replace(self.defaults, **limits)

    def for_code(self, request: Mapping[str, object]) -> Limits:
        """Return the limits of a run of run_code: the defaults, changed by those of `request`. None selects the
        default.

        A `timeout_ms` over the maximum is reduced to the maximum. Raise InvalidParams if another limit is over its
        maximum, or if a limit is unknown or invalid.
        """
        # A key that callers cannot set is an error, also with None.
        checked = {
            key: self._checked(key, value) for key, value in request.items() if value is not None or key not in ASKABLE
        }
        return msgspec.structs.replace(self.defaults, **checked)

    def _not_askable(self, key: str) -> InvalidParams:
        """Return the error for a limit that callers cannot set or that does not exist."""
        if key in self.maximum:
            message = f"the limit '{key}' is the server's; a caller cannot set it"
            hint = f"This server sets {getattr(self.defaults, key)}. A caller can set {', '.join(ASKABLE)}."
            return InvalidParams(message, hint=hint, param=key)
        near = nearest(key, ASKABLE)
        meant = f"Did you mean '{near}'? " if near else ""
        return InvalidParams(
            f"there is no limit {quoted(key)}", hint=f"{meant}The limits are {', '.join(ASKABLE)}.", param=key[:80]
        )

    def _checked(self, key: str, value: object) -> float:
        """Return the value of a limit as a number. Raise InvalidParams if callers cannot set the limit or the value."""
        if key not in ASKABLE:
            raise self._not_askable(key)
        hint = f"Ask for at most {self.maximum[key]}, or leave '{key}' out for {getattr(self.defaults, key)}."
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or (key != "cpus" and not isinstance(value, int)):
            wanted = "a number" if key == "cpus" else "an integer"
            raise InvalidParams(f"the limit '{key}' must be {wanted}, not {value!r}"[:200], hint=hint, param=key)
        assert isinstance(value, int | float)
        if key == "timeout_ms":
            value = min(value, self.maximum[key])
        if not 0 < value <= self.maximum[key]:
            raise InvalidParams(
                f"the limit '{key}' is {value}; this server allows more than 0 and at most {self.maximum[key]}",
                hint=hint,
                param=key,
                maximum=self.maximum[key],
            )
        return value


def timeout_warnings(requested_ms: object, limits: Limits) -> tuple[str, ...]:
    """Return a warning if the run has a lower `timeout_ms` than the `requested_ms` of its caller, else ()."""
    if isinstance(requested_ms, int | float) and requested_ms > limits.timeout_ms:
        return (f"'timeout_ms' is {limits.timeout_ms}, the maximum of this server, instead of {requested_ms:.0f}",)
    return ()


# -- The capabilities that a job needs, and the failure if the sandbox does not have all of them -----------------------


ENDINGS = {
    **dict.fromkeys((".js", ".mjs", ".cjs", ".ts", ".mts", ".cts"), Capability.JAVASCRIPT),
    ".sh": Capability.BASH,
}


def language(job: Job) -> Capability:
    """Return the capability for the language of the job's code.

    A script without an ending in ENDINGS counts as Python, because a Python program starts it.
    """
    if isinstance(job.call, CodeCall):
        return Capability(job.call.language)
    if isinstance(job.call, HandlerCall | ScriptCall):
        return next((needed for ending, needed in ENDINGS.items() if job.call.path.endswith(ending)), Capability.PYTHON)
    return Capability.PYTHON


NEEDS: tuple[tuple[Capability, Callable[[Job], object]], ...] = (
    (Capability.PYTHON, lambda job: language(job) is Capability.PYTHON),
    (Capability.JAVASCRIPT, lambda job: language(job) is Capability.JAVASCRIPT),
    (Capability.BASH, lambda job: language(job) is Capability.BASH),
    (Capability.STUBS, lambda job: any(skill.stub for skill in job.skills)),
    (Capability.BLOBS, lambda job: job.blobs),
    (Capability.FILES, lambda job: job.files),
    (Capability.OUTPUTS, lambda job: job.outputs),
    (Capability.WORKSPACE, lambda job: job.workspace),
    (Capability.PACKAGES, lambda job: job.packages),
    (Capability.SECRETS, lambda job: job.environment),
    (Capability.NETWORK, lambda job: job.network),
)
"""Pairs of a capability, and a function that is true for jobs that need it."""


def needs_of(job: Job) -> frozenset[str]:
    """Return all capabilities that the job needs, except for secrets that are not read yet."""
    return frozenset(capability for capability, is_needed in NEEDS if is_needed(job))


def why_refused(backend: str, capabilities: frozenset[str], job: Job, needs: frozenset[str]) -> Failure | None:
    """Return the failure if the sandbox named `backend` does not have all capabilities in `needs`, else None."""
    missing = sorted(needs - capabilities)
    if not missing:
        return None
    subject = "this code" if isinstance(job.call, CodeCall) else f"the skill '{job.call.skill}'"
    return Failure(
        FailureType.SANDBOX_ERROR,
        f"the sandbox '{backend}' of this server does not have {', '.join(missing)}, which {subject} needs; nothing "
        "was run. Ask the admin for another sandbox (the setting `sandbox`; `skillery doctor` shows the sandboxes)",
    )


def degraded(outcome: Outcome, capabilities: frozenset[str]) -> tuple[str, ...]:
    """Return the limits that the sandbox enforces by weaker means: those of the outcome, and those not in
    `capabilities`.
    """
    return (*outcome.degraded, *sorted(LIMITS - capabilities - set(outcome.degraded)))
