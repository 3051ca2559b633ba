"""What a job needs of the sandbox that runs it, and what to say where that cannot do it."""

from __future__ import annotations

from collections.abc import Callable

from skillery.backends import LIMITS, Capability, Failure, Job, Outcome, SkillCall

NEEDS: tuple[tuple[Capability, Callable[[Job], object]], ...] = (
    (Capability.PYTHON, lambda job: True),
    (Capability.BLOBS, lambda job: job.blobs),
    (Capability.SECRETS, lambda job: job.environment),
    (Capability.NETWORK, lambda job: job.network),
)


def needs_of(job: Job) -> frozenset[str]:
    """Every capability without which the job cannot be what it asks to be."""
    return frozenset(capability for capability, asked in NEEDS if asked(job))


def why_refused(backend: str, capabilities: frozenset[str], job: Job, needs: frozenset[str]) -> Failure | None:
    """Why this backend cannot run the job; None where it can."""
    lacking = sorted(needs - capabilities)
    if not lacking:
        return None
    who = f"the skill '{job.call.skill}'" if isinstance(job.call, SkillCall) else "this code"
    return Failure(
        "SandboxError",
        f"the sandbox '{backend}' of this server lacks {', '.join(lacking)}, which {who} needs; nothing was run. "
        "Ask the admin for a sandbox that has it (the setting `sandbox`; `skillery doctor` shows what there is)",
    )


def degraded(outcome: Outcome, capabilities: frozenset[str]) -> tuple[str, ...]:
    """What was held by weaker means: as the backend says, and every limit that it does not claim to hold."""
    return (*outcome.degraded, *sorted(LIMITS - capabilities - set(outcome.degraded)))
