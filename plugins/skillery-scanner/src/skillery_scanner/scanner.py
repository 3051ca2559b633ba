"""The scanner of a server: it scans each version before it is published."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence

import msgspec

from skillery import hookimpl
from skillery.backends import Finding, Place, Publication
from skillery.errors import StartupError
from skillery_scanner.catalog import OWASP, RULES, File, Match, Severity, Skill
from skillery_scanner.cisco import CiscoEngine
from skillery_scanner.process import ScanFailed, ScanProcess
from skillery_scanner.rules.names import popular_names
from skillery_scanner.settings import ScannerSettings, problem, thresholds

log = logging.getLogger(__name__)
MOST_POPULAR = 1_000
POPULAR_SECONDS = 300.0
START_SECONDS = 20.0
"""Time that the first scan of a process may take in addition."""


class Scanner:
    """Scans each version, and turns matches into findings by the thresholds of its namespace."""

    def __init__(self, settings: ScannerSettings, place: Place) -> None:
        """Raise StartupError if the settings are not valid."""
        fault = problem(settings)
        if fault:
            raise StartupError(fault)
        self._settings = settings
        self._popular = _Popular(place.popular_skills, settings.popular)
        self._rules = ScanProcess(
            [sys.executable, "-I", "-m", "skillery_scanner.worker", str(settings.memory_mb)],
            first_seconds=settings.seconds + START_SECONDS,
            seconds=settings.seconds,
        )

        self._cisco = CiscoEngine(settings) if settings.cisco_python else None
        self._engines = [self._scan] if self._cisco is None else [self._scan, self._cisco.scan]

    @hookimpl
    def before_publish(self, publication: Publication) -> list[Finding]:
        """Return the findings of a version. A failed scan is a finding too."""
        skill = Skill(
            publication.name,
            publication.manifest,
            tuple(File(file.path, file.content) for file in publication.files),
            self._popular.names(),
        )
        matches: list[Match] = []
        for engine in self._engines:
            try:
                matches += engine(skill)
            except ScanFailed as error:
                log.error("the scan of %s %s failed: %s", publication.name, publication.version, error)
                matches.append(Match("failed", None, None, str(error)))
        return self.findings(publication.name, matches)

    def _scan(self, skill: Skill) -> list[Match]:
        return msgspec.msgpack.decode(self._rules.ask(msgspec.msgpack.encode(skill)), type=list[Match])

    def findings(self, name: str, matches: Sequence[Match]) -> list[Finding]:
        """Return the findings of a skill for the matches that reach its thresholds."""
        limits = thresholds(self._settings, name)
        findings = []
        for match in matches:
            rule = f"scanner.{match.rule}"
            severity = limits.of_failure if match.rule == "failed" else limits.severity(severity_of(match))
            if severity is not None and not {rule, match.rule} & set(self._settings.ignore):
                findings.append(Finding(rule, message_of(match), severity, match.file, match.line))
        return findings

    def close(self) -> None:
        self._rules.close()
        if self._cisco is not None:
            self._cisco.close()


class _Popular:
    """The popular names. They are read again after some minutes."""

    def __init__(self, read: Callable[[int], Sequence[str]] | None, own: Sequence[str]) -> None:
        self._read = read
        self._own = own
        self._names: tuple[str, ...] = ()
        self._read_at: float | None = None

    def names(self) -> tuple[str, ...]:
        now = time.monotonic()
        if self._read_at is None or now - self._read_at > POPULAR_SECONDS:
            self._names = popular_names(self._read(MOST_POPULAR) if self._read is not None else (), self._own)
            self._read_at = now
        return self._names


def severity_of(match: Match) -> Severity:
    return match.severity or RULES[match.rule].severity


def message_of(match: Match) -> str:
    """Return one sentence with the excerpt, one with the remedy, and the class of the rule."""
    if match.about:
        return f"{match.about}: {match.excerpt} ({severity_of(match)})"
    rule = RULES[match.rule]
    excerpt_text = f": {match.excerpt}" if match.excerpt else ""
    return f"{rule.title}{excerpt_text}. {rule.remedy} ({rule.severity}, {rule.owasp} {OWASP[rule.owasp]})"
