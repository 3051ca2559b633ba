"""Runs of a skill folder without a registry, in the sandbox that the settings choose.

Limits, mounts, hints and failures are the same as for a published skill. A run leaves no record and no blob.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from skillery.app.builders import bundle_limits, limit_rules, sources_of
from skillery.authoring.folder_host import Finder, FolderHost, RequiredSkills, mounted
from skillery.backends import (
    ALL_SCOPES,
    Failure,
    FailureType,
    Identity,
    Job,
    Outcome,
    Progress,
    PublishedFile,
    Sandbox,
    SkillMount,
)
from skillery.environments.definitions import Defined, Named
from skillery.environments.dependency_locks import check_npm, refuse_packages
from skillery.errors import SkilleryError
from skillery.formats.bundle import BundleFile, SourceFile
from skillery.formats.graders import grade_here
from skillery.formats.imports import Import, RelativeImport, imports_of_all, relative_imports_of_all
from skillery.formats.manifest import Manifest, Permissions
from skillery.formats.npm import NpmLock
from skillery.formats.python_source import Signature, find_signature, source_problem
from skillery.formats.requirements import Pin
from skillery.formats.scripts import Script, describe_scripts
from skillery.formats.wording import Problem
from skillery.plugins import Plugins, load_plugins
from skillery.plugins.hooks import PluginEvents
from skillery.publishing.example_runs import ExampleRuns
from skillery.publishing.folders import SkillFolder
from skillery.publishing.gate import Gate, ScriptCheck, Trials
from skillery.publishing.import_check import ImportCheck
from skillery.publishing.undeclared import Undeclared
from skillery.runs.declarations import checked
from skillery.runs.hints import name_missing_program, with_hint
from skillery.runs.limits import needs_of, why_refused
from skillery.runs.packages import Needing
from skillery.runs.redaction import Redaction
from skillery.runs.trials import Trial, TrialResult, code_job, trial_job
from skillery.settings.load import Settings

if TYPE_CHECKING:
    from skillery.authoring.packages import FolderPackages
    from skillery.environments.named import NamedLock
    from skillery.environments.sources import Choice
    from skillery.formats.import_names import Providers


AUTHOR = Identity("local", "person", ALL_SCOPES, ("*",))


class Allowed(NamedTuple):
    """The permissions that the author gives to runs of the folder: `--allow-network` and `--with-secrets-from`."""

    network: bool = False
    secrets: Mapping[str, str] | None = None

    def permits(self, permissions: Permissions) -> bool:
        """Return whether runs get all these permissions of a manifest."""
        return (self.network or not permissions.network) and (self.secrets is not None or not permissions.secrets)


NOTHING = Allowed()


class FolderRuns:
    """Runs jobs. At most `settings.runs_at_once` run at a time, as on a server."""

    def __init__(
        self,
        settings: Settings,
        sandbox: Sandbox,
        plugins: Plugins,
        allowed: Allowed,
        finder: Finder,
        stack: AsyncExitStack,
    ) -> None:
        """`finder` finds required skills. `stack` closes the parts that are opened at their first use."""
        self.settings = settings
        self.allowed = allowed
        self.limits = limit_rules(settings)
        self._sandbox = sandbox
        self._events = PluginEvents(plugins.manager, settings.hook_seconds)
        self._stack = stack
        self._finder = finder
        self._folder = Path(stack.enter_context(TemporaryDirectory(prefix="skillery-")))
        self._packages: FolderPackages | None = None
        self._opening = asyncio.Lock()
        self._required: RequiredSkills | None = None
        """The skills that the folder under test requires."""
        self._turns = asyncio.Semaphore(settings.runs_at_once)

    def gate(self, timeout_ms: int) -> Gate:
        """Return the gate of publishing, with these runs. `timeout_ms` limits each example."""
        settings, compilers, locks = self.settings, _Compilers(), _Locks(self)
        seconds = settings.publishing.import_seconds
        examples = ExampleRuns(self, self, grade_here, settings.publishing.examples_seconds, timeout_ms)
        return Gate(
            bundle_limits(settings),
            msgspec.structs.asdict(settings.max_limits),
            compilers,
            locks,
            Undeclared(compilers, locks, locks, settings.packages),
            Trials(ImportCheck(self, self, compilers, seconds), ScriptCheck(self, self, seconds), examples),
            self._events,
        )

    def lend(self, files: Sequence[PublishedFile | BundleFile]) -> Path:
        """Return a new folder with these files, as a run finds them. Blocking."""
        folder = Path(mkdtemp(dir=self._folder))
        for file in files:
            path = folder / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.content)
            path.chmod(0o555 if file.executable else 0o444)
        folder.chmod(0o755)
        return folder

    def take_back(self, folder: Path) -> None:
        """Delete a folder that `lend` has returned. Blocking."""
        shutil.rmtree(folder, ignore_errors=True)

    async def run(self, identity: Identity, trial: Trial, code: str) -> Outcome:
        """Run `code` with the files of the trial, without hints and permissions."""
        job, _ = code_job(trial, self.limits, code)
        return await self.execute(await self.complete(job, trial.manifest), Permissions())

    async def try_skill(self, identity: Identity, trial: Trial) -> TrialResult:
        """Run files that are not published. The result has no run id, because nothing is recorded."""
        job, failure = trial_job(trial, self.limits)
        if failure is not None:
            return TrialResult("", Outcome(failure=failure))
        job_or_failure = await self.complete(job, trial.manifest, trial.script)
        outcome = await self.execute(job_or_failure, trial.permissions)
        return TrialResult("", name_missing_program(job, with_hint(job, outcome, trial.why_less)))

    async def run_tests(self, job: Job, permissions: Permissions, on_progress: Callable[[Progress], None]) -> Outcome:
        """Run the tests of a folder. A failed run is an outcome too."""
        permissions = permissions if self.allowed.permits(permissions) else Permissions()
        network = tuple(pattern.text for pattern in permissions.network)
        job = msgspec.structs.replace(job, network=network)
        return with_hint(job, await self.execute(job, permissions, on_progress))

    async def require(self, gate: Gate, skill: SkillFolder) -> None:
        """Find the skills that a folder requires. Further runs mount them. Raise the errors of `Finder.find`."""
        required = await self._finder.find(skill)
        self._required = await mounted(self, gate, required) if required else None

    def required_by(self, manifest: Manifest) -> tuple[tuple[SkillMount, ...], list[Needing]]:
        """Return the mounts of the skills that a skill requires, and those that are imported, for their packages."""
        required = self._required.of(manifest) if self._required is not None else []
        return tuple(skill.mount for skill in required), [skill.needing for skill in required if not skill.mount.stub]

    async def packages(self) -> FolderPackages:
        """Return the locks and environments. The first call opens them, because most folders do not need them. Raise
        StartupError if they cannot be opened.
        """
        async with self._opening:
            if self._packages is None:
                # The import of the database takes as long as a test of most folders.
                from skillery.authoring.packages import open_packages

                self._packages = await open_packages(self.settings, self._sandbox, self._stack)
        return self._packages

    def needs_packages(self, manifest: Manifest) -> bool:
        """Return whether a run of the skill has packages: its own, or the packages of the default environment."""
        runtime = manifest.runtime
        declares = runtime is not None and bool(runtime.dependencies or runtime.requires_python)
        return declares or any(environment.default for environment in self.settings.environments.values())

    async def complete(self, job: Job, manifest: Manifest, script: str = "") -> Job | Failure:
        """Return the job with the skills that its skill requires, and with the packages of all of them."""
        mounts, needing = self.required_by(manifest)
        skills = [Needing(manifest.name, manifest, job.skills[0].folder), *needing]
        job = msgspec.structs.replace(job, skills=(*job.skills, *mounts))
        if not self.needs_packages(manifest) and not any(skill.locked or skill.npm_lock for skill in skills):
            return job
        return await (await self.packages()).in_job(job, skills, script)

    async def execute(
        self,
        job: Job | Failure,
        permissions: Permissions,
        on_progress: Callable[[Progress], None] | None = None,
        caller: FolderHost | None = None,
    ) -> Outcome:
        """Run a job with the permitted secrets, and without their values in the outcome. A Failure is returned as an
        outcome. `caller` is the host of the run whose code calls this run: it waits, so that no turn is needed.
        """
        if isinstance(job, Failure):
            return Outcome(failure=job)
        values = {name: (self.allowed.secrets or {}).get(name) for name in permissions.secrets}
        missing = [name for name, value in values.items() if value is None]
        if missing:
            text = f"the file of --with-secrets-from has no {' and no '.join(missing)}, which permissions.secrets lists"
            return Outcome(failure=Failure(FailureType.SECRET_MISSING, text))
        secrets = {name: value for name, value in values.items() if value is not None}
        job = msgspec.structs.replace(job, environment=secrets)
        async with self._turns if caller is None else nullcontext():
            refusal = await self._refusal(job)
            if refusal is not None:
                return Outcome(failure=refusal)
            with TemporaryDirectory(prefix="skillery-") as blobs:
                host = caller.for_called(job) if caller else FolderHost(Path(blobs), job, on_progress)
                host.calls = self._required.calls(host, job) if self._required is not None else None
                outcome = await checked(await self._sandbox.run(job, host))
        return Redaction(secrets).outcome(outcome) if secrets else outcome

    async def _refusal(self, job: Job) -> Failure | None:
        try:
            await self._sandbox.start()
        except SkilleryError as error:
            return Failure(FailureType.SANDBOX_ERROR, error.message)
        return why_refused(self.settings.sandbox, self._sandbox.capabilities, job, needs_of(job))


class _Compilers:
    """Compiles in this process: the author trusts the folder, and the start of a worker takes time."""

    async def check(self, caller: str, sources: Sequence[SourceFile]) -> dict[str, Problem]:
        problems = {source.path: source_problem(source.path, source.content, source.export) for source in sources}
        return {path: problem for path, problem in problems.items() if problem}

    async def imports(self, caller: str, sources: Mapping[str, bytes]) -> dict[str, tuple[Import, ...]] | None:
        return dict(zip(sources, imports_of_all(tuple(sources.values())), strict=True))

    async def relative_imports(self, caller: str, sources: Sequence[bytes]) -> tuple[tuple[RelativeImport, ...], ...]:
        return relative_imports_of_all(tuple(sources))

    async def signature(self, caller: str, source: SourceFile) -> Signature | None:
        return find_signature(source.content, source.export or "")

    async def scripts(self, caller: str, files: Sequence[tuple[str, bytes]]) -> tuple[Script, ...]:
        return describe_scripts(tuple(files))


class _Locks:
    """The locks of packages and the named environments, opened at their first use."""

    def __init__(self, runs: FolderRuns) -> None:
        self._runs = runs
        environments = runs.settings.environments.items()
        self.defined = Defined(
            [Named(name, **msgspec.structs.asdict(environment)) for name, environment in environments]
        )
        self.npm = sources_of(runs.settings).npm

    async def make(self, requirements: Sequence[str], caller: str = "", **options: Any) -> bytes:
        return await (await self._runs.packages()).locks.make(requirements, **options)

    def check(self, pins: Sequence[Pin]) -> None:
        refuse_packages(list(sources_of(self._runs.settings).refused(pin.name for pin in pins)))

    async def verify(self, requirements: Sequence[str], lock: bytes, caller: str = "") -> None:
        await (await self._runs.packages()).locks.verify(requirements, lock)

    async def choose(self, modules: Sequence[Providers]) -> list[Choice]:
        return await (await self._runs.packages()).locks.choose(modules)

    async def make_npm(
        self,
        requirements: Sequence[str],
        caller: str = "",
        *,
        inferred: Collection[str] = (),
        guide: Mapping[str, str] = {},
        cut_off: str = "",
    ) -> bytes:
        locks = (await self._runs.packages()).locks
        return await locks.make_npm(requirements, inferred=inferred, guide=guide, cut_off=cut_off)

    def check_npm(self, lock: NpmLock) -> None:
        check_npm(self.npm, lock)

    async def find(self, environment: Named) -> NamedLock | None:
        return await (await self._runs.packages()).named.find(environment)


@asynccontextmanager
async def open_runs(settings: Settings, finder: Finder, allowed: Allowed = NOTHING) -> AsyncIterator[FolderRuns]:
    """Context manager: open the sandbox of the settings, which starts in the background. `finder` finds required
    skills. Raise StartupError if the sandbox cannot be opened.
    """
    plugins = load_plugins(settings.plugins_folder)
    sandbox: Sandbox = plugins.open("sandbox", settings)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(sandbox.close)
        starting = asyncio.create_task(sandbox.start())
        # The first run reports an error of the start.
        stack.push_async_callback(asyncio.wait, {starting})
        await asyncio.sleep(0)  # the process of the sandbox starts now, while the caller imports further modules
        yield FolderRuns(settings, sandbox, plugins, allowed, finder, stack)
