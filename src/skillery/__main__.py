"""The command `skillery`, also as `python -m skillery`."""

import os
import signal
import sys


def main() -> int:
    """Run the command line of this process, and end the process with the exit code."""
    # An import that Ctrl-C interrupts would print a traceback.
    interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interrupts:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from skillery.cli import main as run_command

    if interrupts:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run_command()


if __name__ == "__main__":
    sys.exit(main())
