"""A scanner for skills: every version is checked before it is published, with rules that need no model.

The setting `[plugins.scanner]` activates the scanner. `skillery scan` scans folders, and published versions again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skillery import hookimpl
from skillery.backends import Offer
from skillery_scanner.settings import ScannerSettings

if TYPE_CHECKING:
    import click

    from skillery.backends import Place
    from skillery_scanner.scanner import Scanner


def _open(settings: ScannerSettings, place: Place) -> Scanner:
    from skillery_scanner.scanner import Scanner

    return Scanner(settings, place)


@hookimpl
def skillery_plugin() -> Offer:
    return Offer("scanner", _open, ScannerSettings)


@hookimpl
def commands() -> list[click.Command]:
    from skillery_scanner.command import scan

    return [scan]
