"""A rescan of all published versions. It continues where an interrupted rescan has ended."""

from __future__ import annotations

import asyncio
import hashlib
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from skillery.commands import AnsweredError, Target, is_terminal, with_client

PAGE = 50
AT_ONCE = 4
COUNTED = 1_000
PUBLISHED = frozenset({"published", "deprecated", "yanked"})


class NewFinding(msgspec.Struct, frozen=True):
    """A finding that a version did not have before."""

    name: str
    version: str
    rule: str
    severity: str
    message: str
    file: str | None
    line: int | None


class Progress(msgspec.Struct):
    """The state of a rescan, which is stored after each page of versions."""

    total: int
    checked: int = 0
    cursor: str = ""
    new: list[NewFinding] = []
    failed: list[str] = []


class Rescan:
    """Checks all versions of a registry again, page by page."""

    def __init__(self, target: Target, *, restart: bool, quiet: bool) -> None:
        self._target = target
        self._quiet = quiet
        # Each registry has its own progress.
        registry = hashlib.sha256((target.url or "").encode()).hexdigest()[:16] if target.url else "home"
        self._file = Path(target.load().settings.home) / "scanner" / f"rescan-{registry}.json"
        if restart:
            self._file.unlink(missing_ok=True)

    def run(self) -> Progress:
        """Check the remaining versions, and return the progress of the whole rescan."""
        done: Progress = with_client(self._target, self._check_all)
        self._file.unlink(missing_ok=True)
        return done

    async def _check_all(self, client: Any) -> Progress:
        """Check page by page, and store the progress after each page."""
        progress = self._stored() or Progress(await self._count(client))
        if progress.cursor and not self._quiet:
            click.echo(f"Continuing after {progress.checked} of {progress.total} versions.", err=True)
        began, checked_before = time.monotonic(), progress.checked
        while True:
            page = await client.list_versions(limit=PAGE, cursor=progress.cursor or None)
            versions = [version for version in page["versions"] if version["status"] in PUBLISHED]
            await self._check_page(client, versions, progress)
            if page["next_cursor"] is None:
                return progress
            progress.cursor = page["next_cursor"]
            self._store(progress)
            self._show(progress, (progress.checked - checked_before) / max(time.monotonic() - began, 0.001))

    async def _check_page(self, client: Any, versions: list[Any], progress: Progress) -> None:
        slots = asyncio.Semaphore(AT_ONCE)

        async def check(version: Any) -> None:
            async with slots:
                await _check(client, version["name"], version["version"], progress)

        await asyncio.gather(*(check(version) for version in versions))

    async def _count(self, client: Any) -> int:
        total, cursor = 0, None
        while True:
            page = await client.list_versions(limit=COUNTED, cursor=cursor)
            total += sum(version["status"] in PUBLISHED for version in page["versions"])
            cursor = page["next_cursor"]
            if cursor is None:
                return total

    def _stored(self) -> Progress | None:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=Progress)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def _store(self, progress: Progress) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = self._file.with_suffix(".partial")
        partial.write_bytes(msgspec.json.encode(progress))
        partial.replace(self._file)

    def _show(self, progress: Progress, rate: float) -> None:
        if self._quiet:
            return
        seconds = max(progress.total - progress.checked, 0) / rate if rate else 0
        speed = f"{rate:.0f}/s, {seconds:.0f} s left"
        text = f"{progress.checked} of {progress.total} versions, {speed}, {len(progress.new)} new"
        click.echo(f"\r\x1b[K{text}" if is_terminal() else text, err=True, nl=not is_terminal())


async def _check(client: Any, name: str, version: str, progress: Progress) -> None:
    """Check one version. A version that cannot be checked does not end the rescan."""
    try:
        answer = await client.recheck_version(name, version)
    except AnsweredError as error:
        progress.failed.append(f"{name}@{version}: {error}")
    else:
        for finding in answer["new"]:
            rule, severity, message = finding["rule"], finding["severity"], finding["message"]
            file_and_line = finding.get("file"), finding.get("line")
            progress.new.append(NewFinding(name, version, rule, severity, message, *file_and_line))
        if any(finding["rule"] == "scanner.failed" for finding in answer["findings"]):
            progress.failed.append(f"{name}@{version}: the scan failed")
    progress.checked += 1
