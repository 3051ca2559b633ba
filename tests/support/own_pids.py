"""Run a command in a separate pid namespace, where it can kill only its own processes.

python tests/support/own_pids.py COMMAND...
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from cellblock.inside import kernel


def main() -> None:
    number = os.getpid()
    kernel.unshare(kernel.NEWPID | kernel.NEWNS)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    first = os.fork()
    if first == 0:
        kernel.mount("proc", "/proc", "proc", 0)
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(number))  # a small number would occur in many names
        leave_with(run())
    leave_with(first)


def run() -> int:
    """Start the command below pid 1 and return its pid."""
    child = os.fork()
    if child == 0:
        os.execv(sys.argv[1], sys.argv[1:])
    return child


def leave_with(child: int) -> NoReturn:
    """Exit with the exit code of the command once it has ended. Reap all other children."""
    while True:
        pid, status = os.wait()
        if pid == child:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


if __name__ == "__main__":
    main()
