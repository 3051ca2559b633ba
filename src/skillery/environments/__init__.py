"""The packages that skills need: pinned when a version is published, installed once for each lock."""

from skillery.environments.building import Builder
from skillery.environments.keeping import FAILED, Environments
from skillery.environments.locking import Locks
from skillery.environments.sources import Sources, check_python, fits_this_python
from skillery.environments.uv import Uv

__all__ = ["FAILED", "Builder", "Environments", "Locks", "Sources", "Uv", "check_python", "fits_this_python"]
