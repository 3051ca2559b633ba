"""Errors of builds."""

from __future__ import annotations

import os

from skillery.errors import is_disk_full


class BuildFailed(Exception):
    """Raised if packages cannot be installed. The message names the cause, and the package if it is known.

    If `passing` is true, the cause is temporary, so a retry may succeed.
    """

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.passing = passing


def not_written(error: OSError) -> BuildFailed:
    if is_disk_full(error):
        return BuildFailed("the server has no space left on its disk", passing=True)
    return BuildFailed(f"the files could not be written: {os.strerror(error.errno or 0)}", passing=True)


def too_large(max_mb: int, package: str = "") -> BuildFailed:
    """Return the failure for an environment that is too large. `package` exceeded the limit; "" if that is unknown."""
    since = f"with {package} " if package else ""
    return BuildFailed(f"{since}the packages take more than {max_mb} MiB (the setting packages.max_mb)")
