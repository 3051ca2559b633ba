"""Take the client and the proof from the source of skillery: the package has the same files and import names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES = ("client", "proof")


class ClientFiles(BuildHookInterface[Any]):
    """Add the files of `skillery.client` and `skillery.proof` to the wheel and to the source archive."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        for package in PACKAGES:
            self._add(package, build_data)

    def _add(self, package: str, build_data: dict[str, Any]) -> None:
        folder = Path("src", "skillery", package)
        packed = Path(self.root) / folder  # in a source archive
        source = packed if packed.is_dir() else Path(self.root).parents[1] / folder
        target = folder if self.target_name == "sdist" else Path("skillery", package)
        for file in source.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                build_data["force_include"][str(file)] = str(target / file.relative_to(source))
