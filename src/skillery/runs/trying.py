"""A run of files that are no published version: what an example of a skill is tried with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from skillery.backends import BlobMount, Failure, FailureType, Job, Outcome, SkillCall, SkillMount
from skillery.formats.ids import new_run_id
from skillery.formats.inputs import InputInvalid, apply_inputs
from skillery.formats.manifest import Manifest, Permissions, Runtime
from skillery.runs.limits import LimitRules


class Trial(msgspec.Struct, frozen=True):
    """The files lie in `folder`. `permissions` are what the run gets of those that the manifest lists."""

    manifest: Manifest
    runtime: Runtime
    digest: str
    folder: Path
    args: Mapping[str, Any]
    blobs: tuple[BlobMount, ...]
    timeout_ms: int
    """At most; the skill's own limit may be lower."""
    permissions: Permissions
    why_less: str
    """Said of a run that has failed for want of the others."""


class Tried(NamedTuple):
    run_id: str
    outcome: Outcome


class Unpublished(NamedTuple):
    """What such a run is of."""

    name: str
    version: str
    digest: str
    version_id: None = None
    skill_id: None = None


def trial_job(trial: Trial, limits: LimitRules) -> tuple[Job, Failure | None]:
    """The job; a failure where the args do not fit the inputs, as in any run."""
    manifest, failure = trial.manifest, None
    try:
        args = apply_inputs(manifest.inputs, trial.args)
    except InputInvalid as error:
        args, failure = dict(trial.args), Failure(FailureType.VALIDATION_ERROR, str(error))
    own = limits.for_skill(trial.runtime.limits, None)
    job = Job(
        run_id=new_run_id(),
        call=SkillCall(manifest.name, trial.runtime.export),
        args=msgspec.json.encode(args),
        skills=(SkillMount(manifest.name, trial.folder, trial.runtime.entrypoint),),
        blobs=trial.blobs,
        limits=msgspec.structs.replace(own, timeout_ms=min(own.timeout_ms, trial.timeout_ms)),
        network=tuple(pattern.text for pattern in trial.permissions.network),
    )
    return job, failure
