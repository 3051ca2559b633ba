"""Environments: packages that skills declare. Publishing locks them, and each server installs each lock once."""

from typing import TYPE_CHECKING

from skillery.context.late_imports import late_names

if TYPE_CHECKING:
    from skillery.environments.builder import Builder
    from skillery.environments.dependency_locks import Locks
    from skillery.environments.folders import Installed
    from skillery.environments.jobs import Jobs
    from skillery.environments.sources import PackageSources, address_problem, check_python, fits_this_python, has_login
    from skillery.environments.store import Environments
else:
    __getattr__ = late_names(
        __name__,
        {
            "builder": ("Builder",),
            "dependency_locks": ("Locks",),
            "folders": ("Installed",),
            "jobs": ("Jobs",),
            "sources": ("PackageSources", "address_problem", "check_python", "fits_this_python", "has_login"),
            "store": ("Environments",),
        },
    )

__all__ = [
    "Builder",
    "Environments",
    "Installed",
    "Jobs",
    "Locks",
    "PackageSources",
    "address_problem",
    "check_python",
    "fits_this_python",
    "has_login",
]
