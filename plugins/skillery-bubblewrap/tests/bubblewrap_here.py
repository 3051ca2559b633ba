"""The backend under test with its bwrap: the one of this machine, or else the one that `make` installs in the
checkout.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from skillery.backends import Place
from skillery_bubblewrap import skillery_sandbox
from skillery_bubblewrap.sandbox import BubblewrapSandbox

CHECKOUT = Path(__file__).parents[3]


def bwrap() -> str:
    """Return the path of bwrap. Without one the test fails; it is never skipped."""
    found = shutil.which("bwrap") or shutil.which("bwrap", path=str(CHECKOUT / ".tools" / "bin"))
    if found is None:
        pytest.fail("install bubblewrap: `make .tools/bin/bwrap`, or apt-get install bubblewrap")
    return found


def make(folder: Path, *, allow_degraded: bool = False) -> BubblewrapSandbox:
    offer = skillery_sandbox()
    sandbox: BubblewrapSandbox = offer.open(offer.settings(program=bwrap()), Place(folder, allow_degraded))
    return sandbox
