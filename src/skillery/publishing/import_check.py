"""The import check: the entrypoint of a bundle is imported in the sandbox before the version is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from skillery.backends import Finding, Identity, PublishedFile
from skillery.formats.bundle import Bundle, BundleFile
from skillery.formats.manifest import Permissions, Runtime
from skillery.formats.relative_imports import may_import_relatively, missing_target
from skillery.formats.unfinished_bundle import MAX_CHECKED_BYTES
from skillery.publishing.compile_pool import Compilers
from skillery.publishing.import_findings import RULE, findings_of
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
        relative, runtime = await self.relative(identity, bundle), bundle.manifest.called
        if runtime is None or any(finding.severity == "error" for finding in relative) or not self._seconds:
            return relative
        files = [PublishedFile(file.path, file.content, file.executable) for file in bundle.files]
        folder = await asyncio.to_thread(self._cache.lend, files)
        try:
            outcome = await self._runs.run(identity, self._trial(bundle, runtime, folder), _source())
        finally:
            await asyncio.to_thread(self._cache.take_back, folder)
        return (
            *findings_of(bundle.manifest, runtime, outcome, self._seconds, [file.path for file in files]),
            *relative,
        )

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

    async def relative(self, identity: Identity, bundle: Bundle) -> tuple[Finding, ...]:
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
