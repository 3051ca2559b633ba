"""Runs a command in a pid namespace of its own: whatever it kills, it kills nobody else's.

python tests/support/own_pids.py COMMAND...
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from skillery.sandboxing.linux.cell import kernel


def main() -> None:
    number = os.getpid()
    kernel.unshare(kernel.NEWPID | kernel.NEWNS)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    first = os.fork()
    if first == 0:
        kernel.mount("proc", "/proc", "proc", 0)
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(number))  # a small number would be in everybody's names
        leave_with(run())
    leave_with(first)


def run() -> int:
    """The command, below pid 1."""
    child = os.fork()
    if child == 0:
        os.execv(sys.argv[1], sys.argv[1:])
    return child


def leave_with(child: int) -> NoReturn:
    """When it has ended, and as it has; whoever else is left to us is buried."""
    while True:
        pid, status = os.wait()
        if pid == child:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


if __name__ == "__main__":
    main()
