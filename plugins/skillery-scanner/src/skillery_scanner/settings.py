"""Settings of the plugin, from `[plugins.scanner]`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from skillery_scanner.catalog import RULES, SEVERITIES, Severity

Failure = Literal["block", "pass"]
MaybeSeverity = Severity | Literal["never"] | msgspec.UnsetType


class NamespaceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Thresholds of the skills whose names match a pattern. An unset field has the general value."""

    block: MaybeSeverity = msgspec.UNSET
    warn: MaybeSeverity = msgspec.UNSET
    on_failure: Failure | msgspec.UnsetType = msgspec.UNSET


class ScannerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings of the scanner."""

    block: Severity | Literal["never"] = "high"
    """The severity from which a finding refuses a version."""
    warn: Severity | Literal["never"] = "low"
    """The severity from which a finding is stored as a warning."""
    on_failure: Failure = "block"
    """Whether a scan that fails or takes too long refuses a version."""
    seconds: Annotated[float, msgspec.Meta(gt=0, le=600)] = 10.0
    """The time limit of the scan of one version."""
    memory_mb: Annotated[int, msgspec.Meta(ge=128, le=16_384)] = 1_024
    """The memory limit of the process that scans."""
    ignore: tuple[str, ...] = ()
    """Rules that do not apply on this server, such as `scanner.archive`."""
    popular: tuple[str, ...] = ()
    """Names that new names are compared with, in addition to the skills with the most runs."""
    namespaces: dict[str, NamespaceSettings] = {}
    """Thresholds by namespace: `sales.*` covers all names that start with `sales.`."""
    cisco_python: str = ""
    """The Python interpreter of an environment with cisco-ai-skill-scanner. Empty: this engine is not used."""
    cisco_seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 300.0
    """The time limit of the first scan of that engine, which compiles its rules. `seconds` limits later scans."""
    cisco_memory_mb: Annotated[int, msgspec.Meta(ge=512, le=65_536)] = 4_096
    """The memory limit of the process of that engine."""


class Thresholds(msgspec.Struct, frozen=True):
    """The thresholds that apply to one skill."""

    block: Severity | Literal["never"]
    warn: Severity | Literal["never"]
    on_failure: Failure

    @property
    def of_failure(self) -> Literal["error", "warning"]:
        """The severity of the finding that a scan failed. This finding is never left out."""
        return "error" if self.on_failure == "block" else "warning"

    def severity(self, severity: Severity) -> Literal["error", "warning"] | None:
        """Return the severity of a finding for the server, or None if the finding is left out."""
        if _reaches(severity, self.block):
            return "error"
        return "warning" if _reaches(severity, self.warn) else None


def thresholds(settings: ScannerSettings, name: str) -> Thresholds:
    """Return the thresholds of a skill. The longest pattern that covers the name applies."""
    covering = [pattern for pattern in settings.namespaces if _covers(pattern, name)]
    namespace_settings = settings.namespaces[max(covering, key=len)] if covering else NamespaceSettings()
    return Thresholds(
        settings.block if namespace_settings.block is msgspec.UNSET else namespace_settings.block,
        settings.warn if namespace_settings.warn is msgspec.UNSET else namespace_settings.warn,
        settings.on_failure if namespace_settings.on_failure is msgspec.UNSET else namespace_settings.on_failure,
    )


def problem(settings: ScannerSettings) -> str:
    """Return the first problem of the settings that their types do not exclude, or ""."""
    for pattern in settings.namespaces:
        if pattern != "*" and not pattern.endswith(".*"):
            return f"the namespace '{pattern}' must end with '.*', as in '{pattern}.*', or be '*'"
    for rule in settings.ignore:
        if rule.removeprefix("scanner.") == "failed":
            return f"ignore names '{rule}', but a failed scan is always a finding; `on_failure` sets its severity"
        if rule.removeprefix("scanner.") not in RULES and not rule.startswith("scanner.cisco."):
            return f"ignore names the unknown rule '{rule}'; `skillery scan rules` lists all rules"
    return ""


def _covers(pattern: str, name: str) -> bool:
    return pattern == "*" or name.startswith(pattern[:-1])


def _reaches(severity: Severity, limit: Severity | Literal["never"]) -> bool:
    return limit != "never" and SEVERITIES.index(severity) >= SEVERITIES.index(limit)
