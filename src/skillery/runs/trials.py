"""Trials: runs of files that are not stored as a version, for the examples of a skill and for checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from skillery.backends import (
    BlobMount,
    CodeCall,
    Failure,
    FailureType,
    HandlerCall,
    Identity,
    Job,
    Language,
    Outcome,
    PublishedFile,
    SkillCall,
    SkillMount,
)
from skillery.formats.inputs import InputInvalid, apply_inputs, with_usage
from skillery.formats.manifest import Manifest, Permissions, Runtime
from skillery.formats.texts import new_run_id
from skillery.formats.tools import Tool, inputs_of
from skillery.runs.limits import LimitRules
from skillery.runs.scripts import tool_args


class Trial(msgspec.Struct, frozen=True):
    """A request to run the files in `folder`, which are not stored as a version.

    The run gets `permissions`: those of the manifest, or fewer.
    """

    manifest: Manifest
    runtime: Runtime
    digest: str
    folder: Path
    args: Mapping[str, Any]
    blobs: tuple[BlobMount, ...]
    timeout_ms: int
    """The time limit in milliseconds. The lower one of this limit and the skill's own limit applies."""
    permissions: Permissions
    why_less: str
    """The reason for reduced permissions, which becomes a hint if the run fails, or ""."""
    language: Language = "python"
    """The language of the code that `TrialRuns.run` gets."""
    tool: Tool | None = None
    """The tool whose handler runs, or None if the entrypoint runs."""

    @property
    def script(self) -> str:
        """The path of the handler that runs, or "" if the entrypoint runs."""
        return (self.tool.script or "") if self.tool is not None else ""


class TrialResult(NamedTuple):
    """The id of the run of a trial, and its outcome."""

    run_id: str
    outcome: Outcome


class RecordedTrials(Protocol):
    """Interface for trials with a record. Implemented by `Runner`, and by `skillery test`, which keeps no records."""

    async def try_skill(self, identity: Identity, trial: Trial) -> TrialResult: ...


class TrialRuns(Protocol):
    """Interface for running code next to the files of a trial, without a record.

    Implemented by `UnrecordedRuns`, and by `skillery test`.
    """

    async def run(self, identity: Identity, trial: Trial, code: str) -> Outcome: ...


class LentFiles(Protocol):
    """Interface for folders with the files of trials. Both methods block. Implemented by `Cache`, and by `skillery
    test`.
    """

    def lend(self, files: Sequence[PublishedFile]) -> Path: ...

    def take_back(self, folder: Path) -> None: ...


class Unpublished(NamedTuple):
    """The name, version and digest of the files of a trial, in place of a VersionRow. The database has no rows for
    them.
    """

    name: str
    version: str
    digest: str
    stored_ids: tuple[None, None] = (None, None)


def trial_job(trial: Trial, limits: LimitRules) -> tuple[Job, Failure | None]:
    """Return the job of a trial, and the failure if its args do not fit the inputs, else None."""
    manifest, failure = trial.manifest, None
    try:
        if trial.tool is None:
            name, inputs = manifest.name, manifest.inputs
            args = apply_inputs(inputs, trial.args, strict=trial.runtime.strict_inputs)
        else:
            name, inputs = trial.tool.name, inputs_of(trial.tool.parameters)
            args = apply_inputs(inputs, tool_args(trial.args))
    except InputInvalid as error:
        message = with_usage(error, name, inputs, trial.args)
        args, failure = dict(trial.args), Failure(FailureType.VALIDATION_ERROR, message)
    skill_limits = limits.for_skill(trial.runtime.limits, None)
    job = Job(
        run_id=new_run_id(),
        call=(
            SkillCall(manifest.name, trial.runtime.export)
            if trial.tool is None
            else HandlerCall(manifest.name, trial.script)
        ),
        args=msgspec.json.encode(args),
        skills=(_mount(trial),),
        blobs=trial.blobs,
        limits=msgspec.structs.replace(skill_limits, timeout_ms=min(skill_limits.timeout_ms, trial.timeout_ms)),
        network=tuple(pattern.text for pattern in trial.permissions.network),
    )
    return job, failure


def _mount(trial: Trial) -> SkillMount:
    name, version = trial.manifest.name, str(trial.manifest.version)
    return SkillMount(name, trial.folder, trial.runtime.entrypoint or None, version=version, digest=trial.digest)


def code_job(trial: Trial, limits: LimitRules, code: str) -> tuple[Job, None]:
    """Return the job that calls `main` of `code` with the args of the trial. The second value is None, as no args are
    checked.
    """
    skill_limits = limits.for_skill(trial.runtime.limits, None)
    job = Job(
        run_id=new_run_id(),
        call=CodeCall(code, "main", trial.language),
        args=msgspec.json.encode(trial.args),
        skills=(_mount(trial),),
        limits=msgspec.structs.replace(skill_limits, timeout_ms=min(skill_limits.timeout_ms, trial.timeout_ms)),
    )
    return job, None
