"""Functions for code in a sandbox.

from runtime import blobs, log, progress, summary

text = blobs.read_text(blob_id)
new_id = blobs.write_json({"rows": 3})
log.info("three rows")
progress(3, 10, "reading")
summary("Read three rows.")
"""

from . import blobs, log
from ._host import HostError, SkillError, progress, summary

__all__ = ["HostError", "SkillError", "blobs", "log", "progress", "summary"]
