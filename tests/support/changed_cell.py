"""A pytest plugin: sandboxes start the programs in the folder that SKILLERY_TEST_CELL names."""

from __future__ import annotations

import os
from pathlib import Path

from cellblock.host import zygotes

zygotes.HERE = Path(os.environ["SKILLERY_TEST_CELL"])
