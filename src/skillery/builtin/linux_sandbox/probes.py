"""What `skillery doctor` asks of this host, each tried by doing it."""

from __future__ import annotations

from skillery.backends import Probe
from skillery.builtin.linux_sandbox.cell import landlock

LANDLOCK_MISSING = (
    "Landlock is missing: use a kernel from 5.13 on with `landlock` among its security modules (boot with "
    "lsm=landlock,…), or set allow_degraded"
)


def all_probes() -> list[Probe]:
    version = landlock.abi()
    return [Probe("landlock", version > 0, f"version {version}", LANDLOCK_MISSING)]
