"""`python -m skillery` is the command `skillery`."""

import sys

from skillery.cli import main

sys.exit(main())
