"""The packages that skills need: pinned when a version is published, installed once for each lock."""

from skillery.environments.building import Builder
from skillery.environments.jobs import Jobs
from skillery.environments.keeping import FAILED, Environments
from skillery.environments.locking import Locks
from skillery.environments.shelf import Installed
from skillery.environments.sources import Sources, address_problem, check_python, fits_this_python, has_login

__all__ = [
    "FAILED",
    "Builder",
    "Environments",
    "Installed",
    "Jobs",
    "Locks",
    "Sources",
    "address_problem",
    "check_python",
    "fits_this_python",
    "has_login",
]
