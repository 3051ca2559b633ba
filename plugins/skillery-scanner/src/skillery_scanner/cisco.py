"""The optional engine cisco-ai-skill-scanner, in an environment of its own."""

from __future__ import annotations

import base64
import contextlib
import re
import tempfile
import threading
from pathlib import Path
from typing import Any

import msgspec

from skillery.errors import StartupError
from skillery_scanner.catalog import SEVERITIES, File, Match, Severity, Skill
from skillery_scanner.process import ScanFailed, ScanProcess
from skillery_scanner.settings import ScannerSettings

_ANSWER = msgspec.json.Decoder(list[dict[str, Any]])
_NAME = re.compile(r"[^a-z0-9]+")


class CiscoEngine:
    """Scans skills with cisco-ai-skill-scanner, without a network. One process serves all scans."""

    def __init__(self, settings: ScannerSettings) -> None:
        """Raise StartupError if the setting names no working interpreter."""
        if not Path(settings.cisco_python).is_file():
            raise StartupError(f"cisco_python is '{settings.cisco_python}', which is not a file")
        worker = Path(__file__).with_name("cisco_worker.py")
        # A worker that is killed leaves its files, so the server owns their folder.
        self._folder = tempfile.TemporaryDirectory(prefix="skillery-scan-", ignore_cleanup_errors=True)
        self._process = ScanProcess(
            [settings.cisco_python, "-I", str(worker), str(settings.cisco_memory_mb), self._folder.name],
            first_seconds=settings.cisco_seconds,
            seconds=settings.seconds,
        )
        # The process compiles its rules for half a minute, so it starts before the first version arrives.
        threading.Thread(target=self._start, daemon=True).start()

    def _start(self) -> None:
        with contextlib.suppress(ScanFailed):  # the first scan of a version reports the same failure
            self.scan(Skill("start", {}, (File("SKILL.md", b"# Start\n"),)))

    def scan(self, skill: Skill) -> list[Match]:
        """Return the matches. Raise ScanFailed if the scan fails or takes too long."""
        files = {file.path: base64.b64encode(file.content).decode() for file in skill.files}
        answer = self._process.ask(msgspec.json.encode({"files": files}))
        try:
            return [_match(finding) for finding in _ANSWER.decode(answer)]
        except (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError) as error:
            raise ScanFailed(f"the answer of cisco-ai-skill-scanner has an unknown form: {error}") from None

    def close(self) -> None:
        self._process.close()
        self._folder.cleanup()


def _match(finding: dict[str, Any]) -> Match:
    """Return a finding as a match of the rule `cisco.<rule>`. A version of a rule has one name."""
    name = _NAME.sub("-", str(finding["rule"]).lower()).strip("-")
    line = finding["line"] if isinstance(finding["line"], int) and finding["line"] > 0 else None
    return Match(
        f"cisco.{name}", finding["file"], line, finding["excerpt"], _severity(finding["severity"]), finding["about"]
    )


def _severity(name: str) -> Severity:
    """Return the severity. An unknown name is high, so that it is not overlooked; `safe` is info."""
    if name == "safe":
        return "info"
    return next((severity for severity in SEVERITIES if severity == name), "high")
