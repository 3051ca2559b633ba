"""Functions for code in a sandbox. A guest adds its modules.

from runtime import progress, summary

progress(3, 10, "reading")
summary("Read three rows.")
"""

from ._host import HostError, progress, summary

__all__ = ["HostError", "progress", "summary"]
