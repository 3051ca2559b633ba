"""The row of `skillery doctor` about webhooks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from skillery.backends import Probe
from skillery.cli.database import open_database
from skillery.errors import SkilleryError, StartupError

if TYPE_CHECKING:
    from skillery.database import Database
    from skillery.settings import Settings
    from skillery.webhooks.targets import WebhookCounts

FIX = "skillery webhook list shows the errors, and skillery webhook dead ID the events that were not accepted in time."


def webhooks_probe(settings: Settings) -> Probe:
    """Return the number of webhooks, waiting events and dead letters. A failing webhook does not stop a server."""
    from skillery.app.builders import sender_of

    try:
        sender_of(settings)
        with open_database(settings) as database:
            counts = _counts(database)
    except StartupError as error:
        return Probe("webhooks", False, str(error), "Correct the section [webhooks] of the settings.")
    except SkilleryError as error:
        return Probe("webhooks", False, error.message, "Check the setting 'database'.", required=False)
    if counts is None or not counts.webhooks:
        return Probe("webhooks", True, "none", "skillery webhook add URL sends the events to URL.", off=True)
    bad = counts.failing + counts.gone + counts.dead_letters
    found = (
        f"{counts.webhooks}: {counts.failing} failing, {counts.gone} gone, {counts.waiting} events wait, "
        f"{counts.dead_letters} dead letters"
    )
    return Probe("webhooks", not bad, found, FIX, required=False)


def _counts(database: Database) -> WebhookCounts | None:
    """Return the figures, or None if the database has no tables of this release yet."""
    from skillery.database import migrate
    from skillery.webhooks.targets import count_webhooks

    if database.is_sqlite and not Path(database.url.database or "").exists():
        return None
    return database.read_now(count_webhooks) if migrate.current(database) == migrate.head() else None
