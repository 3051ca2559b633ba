"""Stand-in for the module `runtime` of a run, for editors and for unit tests outside a sandbox.

from runtime import blobs, log, progress, summary

blob_id = blobs.write_text("a,b")  # a file in a temporary folder, which is deleted when the process ends
text = blobs.read_text(blob_id)
log.info("one row")                # printed
progress(1, 3, "reading")          # checked, and not shown
summary("Read one row.")           # checked, and not shown

In a run, the module of the sandbox has the same names. It talks to the host of the run.
"""

from runtime import blobs, log
from runtime._told import HostError, SkillError, progress, summary

__all__ = ["HostError", "SkillError", "blobs", "log", "progress", "summary"]
