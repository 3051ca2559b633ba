"""The gate of publishing: all checks of a bundle, in their order.

`create_skill`, `check_skill` and `skillery test` use the same gate, so that they find the same problems in the same
words. The gate knows no registry: its caller passes what the registry adds (the lock of a stored version, waivers).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec

from skillery.backends import Events, Finding, Identity, Language, Outcome, Publication, PublishedFile
from skillery.failure_types import SERVER_FAILURES
from skillery.formats.bundle import Bundle, BundleFile, BundleLimits
from skillery.formats.check_results import CheckFinding, PermissionsDiff
from skillery.formats.manifest import Permissions, Runtime
from skillery.formats.package_json import JAVASCRIPT, MODULES, SCRIPTS
from skillery.formats.skill_md import SkillMd
from skillery.formats.unfinished_bundle import MAX_CHECKED_BYTES, UnfinishedBundle, begin_bundle
from skillery.formats.wording import printable
from skillery.publishing.builtin_rules import builtin_findings
from skillery.publishing.example_runs import ExampleRuns
from skillery.publishing.file_findings import file_findings
from skillery.publishing.import_check import MOST_LINES, ImportCheck, lacks_permission
from skillery.publishing.npm_locks import NpmRules, with_npm_lock
from skillery.publishing.package_locks import (
    UNDECLARED,
    ImportScan,
    StoredLockOf,
    dependencies_of,
    lock_of,
    with_lock,
    with_toml_lines,
)
from skillery.publishing.undeclared import Undeclared
from skillery.registry.visibility import Visibility
from skillery.runs.requests import has_permissions
from skillery.runs.trials import LentFiles, Trial, TrialRuns

if TYPE_CHECKING:
    from skillery.publishing.compile_pool import Compilers
    from skillery.publishing.package_locks import PackageLocks


# The check of files that are not Python: the syntax of JavaScript and shell, and the exports of JavaScript handlers.
# The code runs in the sandbox without network, secrets and blobs: importing a handler runs its first lines.


RULE = "script_check"
MOST_FILES = 50
SHELL = ".sh"
_INSIDE = Path(__file__).parent / "in_sandbox"


class Fault(msgspec.Struct, frozen=True):
    """A fault of a file, as the sandbox reports it."""

    file: str
    line: Annotated[int, msgspec.Meta(le=MOST_LINES)]
    message: str


class ScriptCheck:
    """Checks handlers of tools and files in scripts/ in the sandbox. A skill without such files starts no run."""

    def __init__(self, runs: TrialRuns, cache: LentFiles, seconds: float) -> None:
        """`seconds` limits the check of one language. With 0, nothing is checked."""
        self._runs = runs
        self._cache = cache
        self._seconds = seconds

    async def findings(self, identity: Identity, bundle: Bundle) -> tuple[Finding, ...]:
        """Return a finding for each file with a fault. Raise Unavailable if the client disconnects."""
        javascript, shell = _paths(bundle, JAVASCRIPT), _paths(bundle, (SHELL,))
        if not (javascript or shell) or not self._seconds:
            return ()
        files = [PublishedFile(file.path, file.content, file.executable) for file in bundle.files]
        folder = await asyncio.to_thread(self._cache.lend, files)
        try:
            results = [await self._check(identity, bundle, folder, "javascript", javascript)] if javascript else []
            results += [await self._check(identity, bundle, folder, "python", shell)] if shell else []
        finally:
            await asyncio.to_thread(self._cache.take_back, folder)
        return tuple(finding for findings in results for finding in findings)

    async def _check(
        self, identity: Identity, bundle: Bundle, folder: Path, language: Language, paths: Sequence[str]
    ) -> list[Finding]:
        """Return the findings of one run, which checks the files `paths` of one language."""
        handlers = {tool.script for tool in bundle.tools}
        trial = Trial(
            manifest=bundle.manifest,
            runtime=bundle.manifest.runtime or Runtime(),
            digest=bundle.digest,
            folder=folder,
            args={
                "root": f"/skills/{bundle.manifest.name}/",
                "files": list(paths),
                "handlers": [path for path in paths if path in handlers],
            },
            blobs=(),
            timeout_ms=int(self._seconds * 1000),
            permissions=Permissions(),
            why_less="",
            language=language,
        )
        outcome = await self._runs.run(identity, trial, _source(language))
        return list(_findings(bundle, outcome, paths))


def _findings(bundle: Bundle, outcome: Outcome, paths: Sequence[str]) -> Iterator[Finding]:
    """Yield the findings of a run of a script check."""
    failure = outcome.failure
    if failure is not None:
        is_of_server = failure.type in SERVER_FAILURES
        text = (
            f"{'was not' if is_of_server else 'cannot be'} checked: {failure.type}: {printable(failure.message, 400)}"
        )
        # The check runs without permissions, which the code may need.
        is_warning = is_of_server or has_permissions(bundle.manifest)
        yield Finding(RULE, text, "warning" if is_warning else "error", paths[0], 1)
        return
    try:
        faults = msgspec.json.decode(outcome.result or b"", type=list[Fault] | None)
    except (msgspec.MsgspecError, RecursionError):
        faults = [Fault(paths[0], 1, "cannot be checked: it changes the process that imports it")]
    if faults is None:
        yield Finding(RULE, "was not checked: this sandbox cannot check scripts", "warning", paths[0], 1)
        return
    for fault in faults[:MOST_FILES]:
        is_late = lacks_permission(bundle.manifest, fault.message)
        yield Finding(
            RULE,
            printable(fault.message, 800),
            "warning" if is_late else "error",
            printable(fault.file),
            max(1, fault.line),
        )


def _paths(bundle: Bundle, endings: tuple[str, ...]) -> list[str]:
    """Return the handlers of tools and the files below scripts/ with one of the endings, up to the limits."""
    handlers, size, paths = {tool.script for tool in bundle.tools}, 0, list[str]()
    for file in bundle.files:
        is_run = file.path in handlers or (file.path.startswith(SCRIPTS) and MODULES not in file.path.split("/"))
        if is_run and file.path.endswith(endings):
            size += file.size
            if size > MAX_CHECKED_BYTES or len(paths) == MOST_FILES:
                break
            paths.append(file.path)
    return paths


@cache
def _source(language: Language) -> str:
    name = "script_report.mjs" if language == "javascript" else "script_report.py"
    return (_INSIDE / name).read_text("utf-8")


Judge = Callable[[Sequence[Finding]], Awaitable[tuple[CheckFinding, ...]]]
"""Function that adds the waivers of the registry to findings."""


class Trials(NamedTuple):
    """The checks that run code of a bundle in the sandbox."""

    imports: ImportCheck
    scripts: ScriptCheck
    examples: ExampleRuns


class Gate:
    """Checks bundles, without storing them."""

    def __init__(
        self,
        limits: BundleLimits,
        most_of: Mapping[str, float],
        compilers: Compilers,
        locks: PackageLocks,
        undeclared: Undeclared,
        trials: Trials,
        events: Events,
    ) -> None:
        """Store the parts. `most_of` maps each limit that a skill can request to the maximum of this server."""
        self.undeclared = undeclared
        self.limits = limits
        self.trials = trials
        self.locks = locks
        self._most_of = most_of
        self._compilers = compilers
        self._events = events

    async def bundle(
        self, caller: str, manifest: Mapping[str, Any], skill_md: str | SkillMd, files: Sequence[BundleFile]
    ) -> Bundle:
        """Return the bundle of these parts. A parsed `skill_md` means an import, which skips tools that are not valid.
        Raise InvalidManifest, InvalidPath, InvalidBundle (each with all problems) or BundleTooLarge.
        """
        lenient = isinstance(skill_md, SkillMd)
        has_npm = self.locks.npm.are_there
        begin = partial(begin_bundle, manifest, skill_md, files, self.limits, lenient, installs_npm=has_npm)
        unfinished, bundle = await asyncio.to_thread(_begin, begin)
        if bundle is None:
            problems = await self._compilers.check(caller, unfinished.sources)
            bundle = await asyncio.to_thread(unfinished.finish, problems)
        return msgspec.structs.replace(bundle, warnings=(*bundle.warnings, *self._limit_warnings(bundle)))

    async def locked(
        self,
        caller: str,
        bundle: Bundle,
        files: Sequence[BundleFile],
        scan: ImportScan | None,
        stored_lock_of: StoredLockOf,
        *,
        lenient: bool = False,
    ) -> tuple[Bundle, ImportScan | None]:
        """Return the bundle with its locks, and the scan for undeclared packages, or None if there was none. `files`
        are the files of the caller, and `scan` an earlier result. Raise the errors of `with_lock` and `with_npm_lock`.
        """

        async def infer() -> ImportScan:
            return scan or await self.undeclared.infer(caller, bundle.files, dependencies_of(bundle))

        with with_toml_lines(files):
            locked, inferred = await with_lock(stored_lock_of, self.locks, self.limits, bundle, caller, infer)
        scan = inferred or scan
        rules = NpmRules((scan or self.undeclared).mode == "lock", lenient, scan.cut_off if scan is not None else "")
        return await with_npm_lock(stored_lock_of, self.locks, self.limits, locked, caller, rules), scan

    async def findings(
        self,
        publication: Publication,
        bundle: Bundle,
        scan: ImportScan | None,
        identity: Identity,
        judge: Judge,
        *,
        trials: bool,
    ) -> tuple[CheckFinding, ...]:
        """Return all findings about a bundle, those that refuse the version first. With `trials`, runs check imports
        and scripts. If a plugin or an undeclared package already refuses the version, no code is imported: only the
        relative imports and the parameters of the entrypoint are checked.
        """
        scan = scan or await self.undeclared.scan(identity.name, bundle.files)
        called = bundle.manifest.called
        undeclared = await self.undeclared.findings(scan, called.entrypoint if called else "", lock_of(bundle))
        of_files = await asyncio.to_thread(file_findings, bundle.files)
        of_plugins = await self._events.before_publish(publication)
        builtin = await asyncio.to_thread(builtin_findings, bundle.files, of_plugins)
        judged = await judge((*of_plugins, *undeclared, *of_files, *builtin))
        if trials and any(finding.refuses for finding in judged):
            judged = (*judged, *await judge(await self.trials.imports.static(identity, bundle)))
        elif trials:
            scripts = await self.trials.scripts.findings(identity, bundle)
            proven = await judge((*await self.trials.imports.findings(identity, bundle), *scripts))
            # An import proves what the scan can only suspect: at the same place, its finding replaces that of the scan.
            proven_places = {(finding.file, finding.line) for finding in proven}
            unproven = (
                finding
                for finding in judged
                if finding.rule != UNDECLARED or (finding.file, finding.line) not in proven_places
            )
            judged = (*proven, *unproven)
        return tuple(sorted(judged, key=lambda finding: not finding.refuses))

    def _limit_warnings(self, bundle: Bundle) -> Iterator[str]:
        runtime = bundle.manifest.runtime
        for key, value in (runtime.limits if runtime else {}).items():
            if value > self._most_of[key]:
                yield (
                    f"runtime.limits.{key} is {value}, above the maximum of {self._most_of[key]} "
                    f"(the setting max_limits.{key}): its runs get {self._most_of[key]}"
                )


def _begin(begin: Callable[[], UnfinishedBundle]) -> tuple[UnfinishedBundle, Bundle | None]:
    """Return the unfinished bundle, and the finished bundle if no file must be compiled, else None. Both steps are in
    one call, to switch threads once and not twice.
    """
    unfinished = begin()
    return unfinished, None if unfinished.sources else unfinished.finish({})


def as_found(findings: Sequence[Finding]) -> tuple[CheckFinding, ...]:
    """Return the findings without waivers."""
    return tuple(
        CheckFinding(finding.rule, finding.message, finding.severity, finding.file, finding.line)
        for finding in findings
    )


def published_files(files: Sequence[BundleFile]) -> tuple[PublishedFile, ...]:
    return tuple(PublishedFile(file.path, file.content, file.executable) for file in files)


def publication_of(bundle: Bundle, identity: Identity) -> Publication:
    return Publication(
        name=bundle.manifest.name,
        version=str(bundle.manifest.version),
        digest=bundle.digest,
        manifest=bundle.manifest.raw,
        files=published_files(bundle.files),
        identity=identity,
    )


# -- Rules for the first status of a new version: published at once, in review, or a draft -----------------------------


Landing = Literal["publish", "review", "draft"]


class PublishingRules(NamedTuple):
    """The first status of new versions, by publisher and permissions, and the visibility of new skills."""

    people: Landing = "publish"
    agents: Landing = "publish"
    visibility: Visibility = "public"
    """The visibility of a new skill."""
    increases: Landing = "publish"
    """First status of a version with more permissions than the published versions. For people and agents."""
    first_permissions: Landing = "publish"
    """First status of the first version of a skill, if the version has permissions."""
    trials: bool = True
    """Whether the entrypoint is imported and the examples run before a version is published."""
    passed: Collection[str] = ()
    """Digests of bundles whose examples have passed before. They count as passed, without `trials` too."""
    reviewed: Literal["publish", "review"] = "publish"
    """`review`: each version waits for a review, also if its policy does not need one."""
    submit: bool | None = None
    """The decision of the publisher for this version: True submits a draft for review, False makes a draft."""

    def status_for(self, identity: Identity, diff: PermissionsDiff, *, is_unproven: bool = False) -> str:
        """Return the first status of a version. `is_unproven` means that examples run only when a reviewer approves the
        version.
        """
        policies = [self.agents if identity.kind == "agent" else self.people]
        if diff.is_increase:
            policies.append(self.increases if diff.against is not None else self.first_permissions)
        if not is_unproven and set(policies) == {"publish"}:
            return "draft" if self.submit is False else "published"
        submits = "review" in policies if self.submit is None else self.submit
        return "in_review" if submits else "draft"
