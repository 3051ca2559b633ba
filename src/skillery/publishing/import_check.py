"""The import check: the entrypoint of a bundle is imported in the sandbox before the version is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from skillery.backends import Failure, FailureType, Finding, Identity, Outcome, PublishedFile
from skillery.failure_types import SERVER_FAILURES
from skillery.formats.bundle import Bundle, BundleFile, SourceFile
from skillery.formats.import_names import own_module, providers_of
from skillery.formats.imports import may_import_relatively, missing_target
from skillery.formats.manifest import Manifest, Permissions, Runtime
from skillery.formats.names import import_name
from skillery.formats.python_source import Signature
from skillery.formats.requirements import DEPENDENCIES
from skillery.formats.unfinished_bundle import MAX_CHECKED_BYTES
from skillery.formats.wording import printable, quoted
from skillery.publishing.compile_pool import Compilers
from skillery.runs.hints import NO_NETWORK, lacks_network
from skillery.runs.requests import has_permissions
from skillery.runs.trials import LentFiles, Trial, TrialRuns

# -- Findings of the import check, from the answer of the sandbox ------------------------------------------------------


RULE = "entrypoint_import"
_OF_CODE = {"ImportError", "ModuleNotFoundError", "NameError", "SyntaxError", "IndentationError", "SystemExit"}
"""Errors of the code itself: they occur with network and secrets too."""
MOST_LINES = 2**31 - 1
"""The largest number of a line in an answer. Larger ones break clients and columns of databases."""
Severity = Literal["error", "warning"]
_LATER = "Do this in the function instead: a run imports the file each time"


class Report(msgspec.Struct, frozen=True):
    """The answer of `in_sandbox/import_report.py`. It is untrusted: the imported code can change every field."""

    type: str = ""
    message: str = ""
    chain: tuple[str, ...] = ()
    file: str = ""
    line: Annotated[int, msgspec.Meta(le=MOST_LINES)] = 0
    module: str = ""
    variable: str = ""
    signature: str = ""
    parameters: tuple[str, ...] = ()


def findings_of(
    manifest: Manifest, runtime: Runtime, outcome: Outcome, seconds: float, paths: Sequence[str]
) -> tuple[Finding, ...]:
    """Return the findings of an import whose run ended with `outcome`. `seconds` was its time limit, and `paths` are
    the files of the bundle.
    """
    if outcome.failure is not None:
        return (_of_failure(manifest, runtime, outcome.failure, seconds),)
    try:
        report = msgspec.json.decode(outcome.result or b"", type=Report)
    except (msgspec.MsgspecError, RecursionError):
        text = "cannot be imported: it changes the process that imports it"
        return (Finding(RULE, text, "error", runtime.entrypoint, 1),)
    if finding := _of_signature(manifest, runtime, report):
        return (finding,)
    return (_of_report(manifest, runtime, report, paths),) if report.type else ()


def signature_findings(manifest: Manifest, runtime: Runtime, signature: Signature | None) -> tuple[Finding, ...]:
    """Return the finding about the parameters of an entrypoint, read from its source, or ()."""
    if signature is None:
        return ()
    report = Report(
        file=runtime.entrypoint, line=signature.line, signature=signature.problem, parameters=signature.parameters
    )
    finding = _of_signature(manifest, runtime, report)
    return (finding,) if finding else ()


def _of_signature(manifest: Manifest, runtime: Runtime, report: Report) -> Finding | None:
    """Return the finding about parameters that do not fit a call with one argument, or None."""
    if report.signature:
        call = f"write def {runtime.export}(args):"
        return _finding(runtime, report, "error", f"{report.signature}, but a run passes one argument: {call}")
    inputs = [name for name in report.parameters if name in manifest.inputs]
    if len(inputs) < 2:
        return None
    text = (
        f"{runtime.export}({', '.join(report.parameters)}) has a parameter for each input, but a run passes one "
        f"argument, the object of all inputs: write def {runtime.export}(args): and read args['{inputs[0]}']"
    )
    return _finding(runtime, report, "error", text)


def _of_failure(manifest: Manifest, runtime: Runtime, failure: Failure, seconds: float) -> Finding:
    """Return the finding for a run that failed without a report, for example by its time limit."""
    text = printable(failure.message, 400)
    if failure.type in SERVER_FAILURES:
        return Finding(RULE, f"was not imported: {text}", "warning", runtime.entrypoint)
    if failure.type == FailureType.TIMEOUT:
        text = f"the import takes longer than {seconds:g} s (the setting publishing.import_seconds). {_LATER}"
        is_slow = bool(runtime.dependencies) or has_permissions(manifest)
        return Finding(RULE, text, "warning" if is_slow else "error", runtime.entrypoint, 1)
    severity: Severity = "warning" if has_permissions(manifest) else "error"
    return Finding(RULE, f"cannot be imported: {failure.type}: {text}", severity, runtime.entrypoint, 1)


def _of_report(manifest: Manifest, runtime: Runtime, report: Report, paths: Sequence[str]) -> Finding:
    """Return the finding for an import that raised an error."""
    if report.variable:
        note = "" if report.variable in manifest.permissions.secrets else " (permissions.secrets does not list it)"
        text = f"needs the variable {quoted(report.variable)}{note} to be imported. {_LATER}"
        return _finding(runtime, report, "warning", text)
    if lacks_network(Failure(report.type, report.message, "\n".join(report.chain))):
        note = "" if manifest.permissions.network else " (permissions.network lists no host)"
        return _finding(runtime, report, "warning", f"needs the network{note} to be imported. {_LATER}")
    if report.type == "ModuleNotFoundError" and report.module:
        return _of_missing(manifest, runtime, report, paths)
    text = f"cannot be imported: {printable(report.type, 100)}: {printable(report.message, 400)}".rstrip(": ")
    if report.type == "SystemExit":
        text = "calls sys.exit when it is imported; put that under: if __name__ == '__main__':"
    if report.type not in _OF_CODE and has_permissions(manifest):
        return _finding(runtime, report, "warning", f"{text}; it may need the network or secrets. {_LATER}")
    return _finding(runtime, report, "error", text)


def _of_missing(manifest: Manifest, runtime: Runtime, report: Report, paths: Sequence[str]) -> Finding:
    """Return the finding for a module that the run does not have, with the remedy."""
    module = report.module[:200]
    own_package = f"skills.{manifest.name.replace('-', '_')}"
    if module.startswith(f"{own_package}."):
        text = f"imports {quoted(module)}, which leads nowhere: the bundle has no such module"
        return _finding(runtime, report, "error", text)
    if any(f"{module}.".startswith(f"{import_name(name)}.") for name in manifest.requires):
        return _finding(
            runtime, report, "warning", f"imports {quoted(module)} of a required skill, which this check does not have"
        )
    if module.split(".")[0] == "skills":
        text = f"imports {quoted(module)}: add its skill to [requires.skills], or use run_code that mounts both skills"
        return _finding(runtime, report, "warning", text)
    if correction := own_module(module, (runtime.entrypoint, paths)):
        return _finding(runtime, report, "error", f"imports {quoted(module)}: {correction}")
    remedy = f"add {quoted(providers_of(module).packages[0])} to {DEPENDENCIES}, or the module to the skill"
    return _finding(runtime, report, "error", f"imports {quoted(module)}, which runs do not have: {remedy}")


def _finding(runtime: Runtime, report: Report, severity: Severity, message: str) -> Finding:
    file, line = (report.file, report.line) if report.file and report.line > 0 else (runtime.entrypoint, 1)
    return Finding(RULE, printable(message, 800), severity, printable(file), line)


def lacks_permission(manifest: Manifest, message: str) -> bool:
    """Return whether code may fail with this message only because a check has no network and no secrets."""
    is_of_network = any(phrase in message for phrase in NO_NETWORK)
    return is_of_network or (has_permissions(manifest) and "SyntaxError" not in message)


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

        Scripts and handlers of tools are not imported, because importing a program runs it.
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
        found_places = {(finding.file, finding.line) for finding in imported}
        signature = await self._signature(identity, bundle, runtime) if _refuses(imported) else ()
        return (*imported, *relative, *(row for row in signature if (row.file, row.line) not in found_places))

    async def static(self, identity: Identity, bundle: Bundle) -> tuple[Finding, ...]:
        """Return the findings that need no run: relative imports of missing files, and the parameters of the
        entrypoint.
        """
        relative, runtime = await self._relative(identity, bundle), bundle.manifest.called
        return relative if runtime is None else (*relative, *await self._signature(identity, bundle, runtime))

    async def _signature(self, identity: Identity, bundle: Bundle, runtime: Runtime) -> tuple[Finding, ...]:
        [content] = [file.content for file in bundle.files if file.path == runtime.entrypoint]
        source = SourceFile(runtime.entrypoint, content, runtime.export)
        return signature_findings(bundle.manifest, runtime, await self._compilers.signature(identity.name, source))

    def _trial(self, bundle: Bundle, runtime: Runtime, folder: Path) -> Trial:
        """Return the run that imports the entrypoint: without permissions and blobs."""
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
        results = await self._compilers.relative_imports(identity.name, [file.content for file in files])
        paths = frozenset(file.path for file in bundle.files)
        return tuple(
            _nowhere(
                file.path,
                imported.line,
                f"'{imported}'",
                missing,
                is_late=imported.is_late or file.path != runtime.entrypoint,
            )
            for file, imports in zip(files, results, strict=False)
            for imported in imports
            if (missing := missing_target(file.path, runtime.entrypoint, imported, paths))
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
    """Return the finding for a relative import of a missing file. With `is_late`, it is only a warning."""
    problem = "leads outside the skill" if "." not in missing else f"leads nowhere: the bundle has no {missing}"
    return Finding(RULE, f"{text} {problem}", "warning" if is_late else "error", file, line)


@cache
def _source() -> str:
    return _INSIDE.read_text("utf-8")
