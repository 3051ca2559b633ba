"""The README names every setting."""

from __future__ import annotations

from pathlib import Path

from skillery_openbao.settings import OpenBaoSettings, TransitSettings

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")


def test_every_setting_has_its_row() -> None:
    names = {*OpenBaoSettings.__struct_fields__, *TransitSettings.__struct_fields__}
    assert [name for name in names if f"| `{name}` |" not in README] == []
