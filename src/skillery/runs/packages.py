"""The packages of a run. A run waits while the environments of its skills are built."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from skillery.backends import Failure, FailureType, Job, PackageMount
from skillery.context.queue import PackageWait, Watch, ignore
from skillery.environments.definitions import Defined, Named, fits_this_python
from skillery.environments.named import NamedEnvironments, NamedLock, pins_of
from skillery.environments.store import Environments
from skillery.errors import InvalidParams
from skillery.formats.manifest import Manifest
from skillery.formats.npm import NPM_LOCK, is_npm_lock
from skillery.formats.requirements import LOCK, InvalidLock, Pin, clash, read_lock
from skillery.formats.wording import quoted


class Needing(NamedTuple):
    """A skill whose packages a run needs, with its manifest and the folder of its files."""

    name: str
    manifest: Manifest
    folder: Path
    lock: str = LOCK
    """The path of its lock of Python packages, of the skill or of the script that runs. "" means no packages."""
    hidden: str = ""
    """The name of the skill in errors, if the caller may not see it."""

    @property
    def owner(self) -> str:
        return self.hidden or f"'{self.name}'"

    @property
    def locked(self) -> _Lock | None:
        declares = needs_packages(self.manifest) if self.lock == LOCK else bool(self.lock)
        return lock_in(self.folder, self.lock) if declares else None

    @property
    def npm_lock(self) -> _Lock | None:
        return lock_in(self.folder, NPM_LOCK)

    @property
    def may_have_packages(self) -> bool:
        return bool(self.manifest.runtime or self.locked or self.npm_lock)


class GivenEnvironment(msgspec.Struct, frozen=True):
    """The named environment of a run, and the digest of its lock. `lock` is None if the environment has no lock yet."""

    name: str
    lock: str | None = None


class RunPackages(NamedTuple):
    """The packages of a run, or the `failure` if the run cannot have them."""

    mounts: tuple[PackageMount, ...] = ()
    failure: Failure | None = None
    waited_ms: float = 0.0
    """Milliseconds for which the run waited for its packages."""
    preload: tuple[str, ...] = ()
    """Modules that a zygote imports ahead of runs."""
    environment: GivenEnvironment | None = None

    def in_job(self, job: Job) -> Job:
        """Return `job` with these packages and modules to preload."""
        return msgspec.structs.replace(job, packages=self.mounts, preload=self.preload) if self.mounts else job


NO_PACKAGES = RunPackages()
_ENVIRONMENT = "the environment"


async def packages_now(
    environments: Environments, named: NamedEnvironments, chosen: Named | None, skills: Sequence[Needing]
) -> RunPackages | None:
    """Return the packages of a run, or None if some are not locked or installed yet. Raise the errors of
    `packages_for`.
    """
    locked = None
    if chosen is not None:
        lock = await named.find(chosen)
        if lock is None:
            return None
        locked = _Locked(chosen, lock)
    locks = _locks(skills, locked)
    if isinstance(locks, Failure):
        return RunPackages(failure=locks, environment=_environment_of(locked))
    mounts = dict[str, PackageMount]()
    for content, pins in locks.values():
        if not pins:
            continue
        mount = environments.find(hashlib.sha256(content).hexdigest())
        if mount is None:
            return None
        mounts[mount.lock] = mount
    return _run_packages(mounts, locked) if locks else NO_PACKAGES


async def packages_for(
    environments: Environments,
    named: NamedEnvironments,
    chosen: Named | None,
    skills: Sequence[Needing],
    timeout_ms: int,
    watch: Watch = ignore,
) -> RunPackages:
    """Return the packages of the named environment `chosen`, if there is one, and then those of the skills. Skills with
    equal locks share one mount. Wait for them up to `timeout_ms`, and pass the progress to `watch`.

    If an environment cannot be built within `timeout_ms`, the answer has a failure. Raise InvalidParams if two locks
    have different versions of a package, because a process can import only one of them.
    """
    began, locked = time.monotonic(), None
    if chosen is not None:
        watch(PackageWait("locking the packages", 0, 0, 0))
        lock = await named.lock(chosen, timeout_ms / 1000)
        if isinstance(lock, Failure):
            environment = GivenEnvironment(chosen.name)
            return RunPackages((), lock, (time.monotonic() - began) * 1000, environment=environment)
        locked = _Locked(chosen, lock)
    locks = _locks(skills, locked)
    if isinstance(locks, Failure):
        return RunPackages(failure=locks, environment=_environment_of(locked))
    mounts = dict[str, PackageMount]()
    for owner, (content, pins) in locks.items():
        seconds_left = max(0.0, timeout_ms / 1000 - (time.monotonic() - began))
        mount = await environments.ready(content, seconds_left, watch) if pins else None
        if isinstance(mount, Failure):
            failure = Failure(mount.type, f"{owner}: {mount.message}")
            waited_ms = (time.monotonic() - began) * 1000
            return RunPackages((), failure, waited_ms, environment=_environment_of(locked))
        if mount is not None:
            mounts[mount.lock] = mount
    return _run_packages(mounts, locked)._replace(waited_ms=(time.monotonic() - began) * 1000)


class _Locked(NamedTuple):
    """The named environment of a run, and its lock."""

    environment: Named
    lock: NamedLock


class _Lock(NamedTuple):
    """The content of a lock, and the packages that it names."""

    content: bytes
    pins: tuple[Pin, ...]


def _locks(skills: Sequence[Needing], locked: _Locked | None) -> dict[str, _Lock] | Failure:
    """Return the locks of a run by their owners, or the failure if a skill needs another Python."""
    locks: dict[str, _Lock] = {}
    of_npm: dict[str, _Lock] = {}
    if locked is not None:
        content = locked.lock.content
        of_kind = of_npm if locked.environment.is_npm else locks
        of_kind[f"{_ENVIRONMENT} '{locked.environment.name}'"] = _Lock(content, pins_of(content))
    locks |= {skill.owner: lock for skill in skills if (lock := skill.locked)}
    failure = next((unfit for skill in skills if (unfit := _unfit(skill))), None)
    if failure is not None:
        return failure
    _check_clash({owner: lock.pins for owner, lock in locks.items()})
    of_npm |= {skill.owner: lock for skill in skills if (lock := skill.npm_lock)}
    _check_npm_clash(of_npm)
    return locks | {f"{owner} (npm)": lock for owner, lock in of_npm.items()}


def _run_packages(mounts: Mapping[str, PackageMount], locked: _Locked | None) -> RunPackages:
    preload = locked.environment.preload if locked is not None and locked.lock.sha256 in mounts else ()
    return RunPackages(tuple(mounts.values()), preload=preload, environment=_environment_of(locked))


def _environment_of(locked: _Locked | None) -> GivenEnvironment | None:
    return GivenEnvironment(locked.environment.name, locked.lock.sha256) if locked is not None else None


def chosen_for(
    defined: Defined,
    manifest: Manifest | None,
    environment: str | None = None,
    script: str = "",
    *,
    alone: bool = False,
) -> Named | None:
    """Return the named environment for a skill's run, or None. `script` is the file that is started, "" the entrypoint.
    `alone` means that the script has a lock or a Python of its own.

    `environment` is the name from the request. None selects the default environment, if the file is Python and the
    skill declares no packages. Raise InvalidParams if the environment is unknown or cannot be used for this run.
    """
    if manifest is not None and (alone or needs_packages(manifest)):
        if environment:
            raise InvalidParams(
                f"'{manifest.name}' declares its own packages: it cannot have the environment {quoted(environment)}",
                hint="Leave 'environment' out.",
                param="environment",
            )
        return None
    if not script or script.endswith(".py"):
        return defined.chosen(environment, "python")
    if environment:
        raise InvalidParams(
            f"'{script}' is not a Python file (.py), and an environment has packages for Python",
            hint="Leave 'environment' out.",
            param="environment",
        )
    return None


def needs_packages(manifest: Manifest) -> bool:
    """Return whether the skill declares dependencies on packages."""
    return manifest.runtime is not None and bool(manifest.runtime.dependencies)


@lru_cache(maxsize=512)
def lock_in(folder: Path, path: str = LOCK) -> _Lock | None:
    """Return the lock in a skill's folder, of Python or npm packages, or None if there is no valid lock.

    The result is cached, because the folder of a version never changes.
    """
    try:
        content = (folder / path).read_bytes()
    except FileNotFoundError:
        return None
    try:
        if path != NPM_LOCK:
            return _Lock(content, read_lock(content))
        pins = pins_of(content) if is_npm_lock(content) else ()
    except InvalidLock:  # the version is older than locks and has another file of that name
        return None
    return _Lock(content, pins) if pins else None


def _check_npm_clash(locks: Mapping[str, _Lock]) -> None:
    """Raise InvalidParams if two owners have different locks of npm packages: a run has one folder for them."""
    (first, lock), *others = locks.items() or [("", None)]
    other = next((owner for owner, another in others if another != lock), None)
    if other is not None:
        with_environment = first.startswith(_ENVIRONMENT)
        raise InvalidParams(
            f"{'' if with_environment else 'skills '}{first} and {other} have different npm packages; "
            f"{'take' if with_environment else 'mount'} one of them",
            hint="Take no environment (environment: '')."
            if with_environment
            else "Mount them in two runs, or run each with execute_skill.",
        )


def _unfit(skill: Needing) -> Failure | None:
    """Return the failure if the skill requires another version of Python, else None."""
    runtime = skill.manifest.runtime
    if (
        skill.lock != LOCK
        or runtime is None
        or not runtime.requires_python
        or fits_this_python(runtime.requires_python)
    ):
        return None
    return Failure(
        FailureType.ENVIRONMENT_FAILED,
        f"{skill.owner} requires Python {runtime.requires_python}, which this server does not have",
    )


def _check_clash(pins: Mapping[str, tuple[Pin, ...]]) -> None:
    """Raise InvalidParams if two locks have different versions of a package. `pins` are the packages of the locks by
    their owners.
    """
    conflict = clash(pins)
    if conflict is None:
        return
    package, owner, version, other_owner, other_version = conflict
    hint = "Mount them in two runs, or run each with execute_skill."
    if owner.startswith(_ENVIRONMENT):
        hint = "Take another environment, or none (environment: ''), or run the skill with execute_skill."
    raise InvalidParams(
        f"{owner} needs {package} {version} and {other_owner} needs {package} {other_version}: "
        "a run can have only one version of a package",
        hint=hint,
        package=package,
    )
