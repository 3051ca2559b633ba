"""The README names every rule and every setting."""

from __future__ import annotations

from pathlib import Path

from skillery_scanner.catalog import RULES
from skillery_scanner.settings import ScannerSettings

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")


def test_every_rule_has_its_row() -> None:
    rows = [f"| `{name}` | {rule.severity} | {rule.owasp} | {rule.title} |" for name, rule in RULES.items()]

    assert [row for row in rows if row not in README] == []


def test_every_setting_has_its_row() -> None:
    assert [name for name in ScannerSettings.__struct_fields__ if f"| `{name}` |" not in README] == []
