"""Build the parts of trusted publishing from the settings."""

from __future__ import annotations

from skillery import __version__
from skillery.errors import StartupError
from skillery.settings import Settings
from skillery.trust.documents import Documents


def documents_of(settings: Settings) -> Documents:
    """Return the reader of documents. Raise StartupError if an entry of `trust.allow_private` is not valid."""
    try:
        return Documents(settings.trust.allow_private, f"Skillery/{__version__}")
    except ValueError as error:
        raise StartupError(f"setting 'trust.allow_private': {error}") from None
