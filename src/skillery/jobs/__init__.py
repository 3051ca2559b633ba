"""Jobs of Skillery in a sandbox of `cellblock`, for backends that use both. The built-in sandboxes use the same parts.

- `Dialogue` talks to the runtime inside the sandbox. `job_header` and `mounts_of` tell it and the sandbox about the
  job. `GUEST` is the code of Skillery inside a run, which the sandbox must load.
- `RunSession` follows a run to its `Outcome`. `LogPipe` reads its log, also for hosts that follow the log.
- `collection_of` and `collect` save the files of a run that was stopped.
- `limits_of`, `failure_of` and `probe_of` convert values. `run_probes` runs a job in each language.

A name of this module changes only after one release with a deprecation, which the changelog announces.
"""

from __future__ import annotations

from skillery.jobs.collecting import LIMITS as COLLECTING_LIMITS
from skillery.jobs.collecting import Collection, collect, collecting_dialogue, collection_of, try_to_collect
from skillery.jobs.dialogue import Dialogue, NoHost
from skillery.jobs.filling import copy_seconds, filling_seconds
from skillery.jobs.header import GUEST, PROGRAMS, Places, job_header, list_names, mounts_of
from skillery.jobs.outcomes import NO_OP, LogPipe, RunSession, failure_of, limits_of, probe_of, run_probes

__all__ = [
    "COLLECTING_LIMITS",
    "GUEST",
    "NO_OP",
    "PROGRAMS",
    "Collection",
    "Dialogue",
    "LogPipe",
    "NoHost",
    "Places",
    "RunSession",
    "collect",
    "collecting_dialogue",
    "collection_of",
    "copy_seconds",
    "failure_of",
    "filling_seconds",
    "job_header",
    "limits_of",
    "list_names",
    "mounts_of",
    "probe_of",
    "run_probes",
    "try_to_collect",
]
