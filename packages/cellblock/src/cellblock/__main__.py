"""`python -m cellblock` is the command `cellblock`."""

from __future__ import annotations

import sys

from cellblock.cli import main

if __name__ == "__main__":
    sys.exit(main())
