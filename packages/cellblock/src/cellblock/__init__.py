"""A sandbox for foreign code on Linux, without dependencies, a daemon or root.

    from cellblock import Sandbox

    with Sandbox() as box:
        done = box.run("def main(args): return args['a'] + 1", {"a": 41})
        assert done.value == 42

`cellblock.parts` has what backends with another isolation use.
"""

from __future__ import annotations

from cellblock.sandbox import AsyncSandbox, Sandbox
from cellblock.values import Busy, Failure, Guest, Host, Job, Limits, Mount, Result, Template, Unavailable

__all__ = [
    "AsyncSandbox",
    "Busy",
    "Failure",
    "Guest",
    "Host",
    "Job",
    "Limits",
    "Mount",
    "Result",
    "Sandbox",
    "Template",
    "Unavailable",
]
