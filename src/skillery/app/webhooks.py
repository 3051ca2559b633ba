"""Build the parts of webhooks from the settings."""

from __future__ import annotations

from datetime import timedelta

from skillery import __version__
from skillery.errors import StartupError
from skillery.settings import Settings
from skillery.webhooks.queue import RetryRules
from skillery.webhooks.sending import Sender


def sender_of(settings: Settings) -> Sender:
    """Return the sender. Raise StartupError if an entry of `webhooks.allow_private` is not an address or network."""
    asked = settings.webhooks
    try:
        return Sender(asked.allow_private, asked.timeout_seconds, settings.public_url, f"Skillery/{__version__}")
    except ValueError as error:
        raise StartupError(f"setting 'webhooks.allow_private': {error}") from None


def retry_rules(settings: Settings) -> RetryRules:
    asked = settings.webhooks
    first, longest = timedelta(seconds=asked.retry_seconds), timedelta(seconds=asked.retry_max_seconds)
    return RetryRules(first, longest, timedelta(hours=asked.give_up_hours))
