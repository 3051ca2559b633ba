"""The server's own reaction to a published version, in addition to the hooks of plugins."""

from __future__ import annotations

from skillery.backends import Event, Events, Finding, FinishedRun, Publication
from skillery.exports import FactsPreparation


class PreparingEvents:
    """Passes events to the plugins. Also starts preparing each published skill for the indexes of Agent Skills."""

    def __init__(self, events: Events, preparing: FactsPreparation) -> None:
        self._events = events
        self._preparing = preparing

    async def before_publish(self, publication: Publication) -> list[Finding]:
        return await self._events.before_publish(publication)

    async def after_publish(self, publication: Publication) -> None:
        self._preparing.note(publication.name)
        await self._events.after_publish(publication)

    async def run_finished(self, run: FinishedRun) -> None:
        await self._events.run_finished(run)

    @property
    def has_event_hooks(self) -> bool:
        return self._events.has_event_hooks

    async def events(self, event: Event) -> None:
        await self._events.events(event)
