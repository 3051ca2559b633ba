"""The packages that skills need: pinned when a version is published, installed once for each lock."""

from skillery.environments.locking import Locks
from skillery.environments.sources import Sources, check_python
from skillery.environments.uv import Uv

__all__ = ["Locks", "Sources", "Uv", "check_python"]
