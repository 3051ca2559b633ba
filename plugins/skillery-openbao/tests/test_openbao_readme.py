"""The README names every setting."""

from __future__ import annotations

from pathlib import Path

from skillery_openbao.settings import OpenBaoSettings

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")


def test_every_setting_has_its_row() -> None:
    assert [name for name in OpenBaoSettings.__struct_fields__ if f"| `{name}` |" not in README] == []
