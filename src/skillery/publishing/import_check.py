"""The import check: the entrypoint of a bundle is imported in the sandbox before the version is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from skillery.backends import Finding, Identity, PublishedFile
from skillery.formats.bundle import Bundle, BundleFile, SourceFile
from skillery.formats.manifest import Permissions, Runtime
from skillery.formats.relative_imports import may_import_relatively, missing_target
from skillery.formats.unfinished_bundle import MAX_CHECKED_BYTES
from skillery.publishing.compile_pool import Compilers
from skillery.publishing.import_findings import RULE, findings_of, signature_findings
from skillery.runs.trials import LentFiles, Trial, TrialRuns

_INSIDE = Path(__file__).parent / "in_sandbox" / "import_report.py"


class ImportCheck:
    """Imports entrypoints as runs do: with their packages and limits, without network, secrets and blobs."""

    def __init__(self, runs: TrialRuns, cache: LentFiles, compilers: Compilers, seconds: float) -> None:
        """`seconds` limits one import, and also the wait for its packages. With 0, nothing is imported."""
        self._runs = runs
        self._cache = cache
        self._compilers = compilers
        self._seconds = seconds

    async def findings(self, identity: Identity, bundle: Bundle) -> tuple[Finding, ...]:
        """Return findings that say why the entrypoint cannot be imported or called. Raise Unavailable if the client
        disconnects.

        Scripts and handlers of tools are programs: to import them is to run them, so they are not imported.
        """
        relative, runtime = await self._relative(identity, bundle), bundle.manifest.called
        if runtime is None or not self._seconds:
            return relative
        if _refuses(relative):
            return (*relative, *await self._signature(identity, bundle, runtime))
        files = [PublishedFile(file.path, file.content, file.executable) for file in bundle.files]
        folder = await asyncio.to_thread(self._cache.lend, files)
        try:
            outcome = await self._runs.run(identity, self._trial(bundle, runtime, folder), _source())
        finally:
            await asyncio.to_thread(self._cache.take_back, folder)
        paths = [file.path for file in files]
        imported = findings_of(bundle.manifest, runtime, outcome, self._seconds, paths)
        places = {(finding.file, finding.line) for finding in imported}
        signature = await self._signature(identity, bundle, runtime) if _refuses(imported) else ()
        return (*imported, *relative, *(row for row in signature if (row.file, row.line) not in places))

    async def static(self, identity: Identity, bundle: Bundle) -> tuple[Finding, ...]:
        """Return the findings that need no import: relative imports of missing files, and the parameters of the
        entrypoint. No code is run.
        """
        relative, runtime = await self._relative(identity, bundle), bundle.manifest.called
        return relative if runtime is None else (*relative, *await self._signature(identity, bundle, runtime))

    async def _signature(self, identity: Identity, bundle: Bundle, runtime: Runtime) -> tuple[Finding, ...]:
        [content] = [file.content for file in bundle.files if file.path == runtime.entrypoint]
        source = SourceFile(runtime.entrypoint, content, runtime.export)
        return signature_findings(bundle.manifest, runtime, await self._compilers.signature(identity.name, source))

    def _trial(self, bundle: Bundle, runtime: Runtime, folder: Path) -> Trial:
        name = bundle.manifest.name
        return Trial(
            manifest=bundle.manifest,
            runtime=runtime,
            digest=bundle.digest,
            folder=folder,
            args={
                "module": f"skills.{name.replace('-', '_')}",
                "skill": name,
                "entrypoint": runtime.entrypoint,
                "export": runtime.export,
            },
            blobs=(),
            timeout_ms=int(self._seconds * 1000),
            permissions=Permissions(),
            why_less="",
        )

    async def _relative(self, identity: Identity, bundle: Bundle) -> tuple[Finding, ...]:
        """Return a finding for each relative import of a missing file. No code is run."""
        runtime = bundle.manifest.called
        if runtime is None:
            return ()
        files = [file for file in _modules(bundle, runtime) if may_import_relatively(file.content)]
        if not files:
            return ()
        found = await self._compilers.relative_imports(identity.name, [file.content for file in files])
        paths = frozenset(file.path for file in bundle.files)
        return tuple(
            _nowhere(file.path, one.line, f"'{one}'", missing, is_late=one.is_late or file.path != runtime.entrypoint)
            for file, imports in zip(files, found, strict=False)
            for one in imports
            if (missing := missing_target(file.path, runtime.entrypoint, one, paths))
        )


def _refuses(findings: Sequence[Finding]) -> bool:
    return any(finding.severity == "error" for finding in findings)


def _modules(bundle: Bundle, runtime: Runtime) -> Iterator[BundleFile]:
    """Yield the Python files below the folder of the entrypoint, up to MAX_CHECKED_BYTES together."""
    folder, size = runtime.entrypoint.rpartition("/")[0], 0
    for file in bundle.files:
        if file.path.endswith(".py") and file.path.startswith(f"{folder}/" if folder else ""):
            size += file.size
            if size <= MAX_CHECKED_BYTES:
                yield file


def _nowhere(file: str, line: int, text: str, missing: str, *, is_late: bool) -> Finding:
    where = "leads outside the skill" if "." not in missing else f"leads nowhere: the bundle has no {missing}"
    return Finding(RULE, f"{text} {where}", "warning" if is_late else "error", file, line)


@cache
def _source() -> str:
    return _INSIDE.read_text("utf-8")
