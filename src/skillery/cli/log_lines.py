"""The log of a command: warnings on stderr."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skillery.settings import Settings


def show_log(settings: Settings) -> None:
    """Log warnings to stderr, one line each. With log level debug, log everything."""
    debug = settings.log_level == "debug"
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines("%(levelname)s: %(message)s") if not debug else logging.Formatter())
    logging.basicConfig(level="DEBUG" if debug else "WARNING", handlers=[handler], force=True)


class _Lines(logging.Formatter):
    """Formatter that omits tracebacks. The log level `debug` shows them."""

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name that logging calls
        return f"{ei[0].__name__}: {ei[1]}"
