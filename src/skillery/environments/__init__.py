"""The packages that skills need: pinned when a version is published, installed once for each lock."""

from skillery.environments.builder import Builder
from skillery.environments.folders import Installed
from skillery.environments.jobs import Jobs
from skillery.environments.locks import Locks
from skillery.environments.sources import Sources, address_problem, check_python, fits_this_python, has_login
from skillery.environments.store import Environments

__all__ = [
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
