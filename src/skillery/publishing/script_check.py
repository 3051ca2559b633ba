"""The check of files that are not Python: the syntax of JavaScript and shell, and the exports of JavaScript handlers.

The code runs in the sandbox without network, secrets and blobs: importing a handler runs its first lines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec

from skillery.backends import Finding, Identity, Language, Outcome, PublishedFile
from skillery.failure_types import SERVER_FAILURES
from skillery.formats.bundle import Bundle
from skillery.formats.manifest import Permissions, Runtime
from skillery.formats.package_json import JAVASCRIPT, MODULES, SCRIPTS
from skillery.formats.unfinished_bundle import MAX_CHECKED_BYTES
from skillery.formats.wording import printable
from skillery.publishing.import_check import MOST_LINES, lacks_permission
from skillery.runs.trials import LentFiles, Trial, TrialRuns

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
    """Checks handlers of tools, and the files in scripts/. A skill without such files costs nothing."""

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
            checked = [await self._check(identity, bundle, folder, "javascript", javascript)] if javascript else []
            checked += [await self._check(identity, bundle, folder, "python", shell)] if shell else []
        finally:
            await asyncio.to_thread(self._cache.take_back, folder)
        return tuple(finding for findings in checked for finding in findings)

    async def _check(
        self, identity: Identity, bundle: Bundle, folder: Path, language: Language, paths: Sequence[str]
    ) -> list[Finding]:
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
    failure = outcome.failure
    if failure is not None:
        is_of_server = failure.type in SERVER_FAILURES
        text = (
            f"{'was not' if is_of_server else 'cannot be'} checked: {failure.type}: {printable(failure.message, 400)}"
        )
        yield Finding(RULE, text, "warning" if is_of_server or _may_need_more(bundle) else "error", paths[0], 1)
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


def _may_need_more(bundle: Bundle) -> bool:
    return bool(bundle.manifest.permissions.network or bundle.manifest.permissions.secrets)


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
