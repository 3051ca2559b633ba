"""Take the client from the source of skillery: the package has the same files under the same import names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CLIENT = Path("src", "skillery", "client")


class ClientFiles(BuildHookInterface[Any]):
    """Add the files of `skillery.client` to the wheel and to the source archive."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        packed = Path(self.root) / CLIENT  # in a source archive
        source = packed if packed.is_dir() else Path(self.root).parents[1] / CLIENT
        target = CLIENT if self.target_name == "sdist" else Path("skillery", "client")
        for file in source.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                build_data["force_include"][str(file)] = str(target / file.relative_to(source))
