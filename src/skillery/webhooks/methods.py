"""The methods for webhooks, as the API calls them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

from skillery.backends import Identity
from skillery.database import Database
from skillery.errors import InvalidParams
from skillery.sandboxing.egress.policy import Denied
from skillery.webhooks import targets
from skillery.webhooks.deliveries import Deliveries
from skillery.webhooks.results import AddedWebhook, RemovedWebhook, WebhookTest
from skillery.webhooks.sending import Sender, message


class Webhooks:
    def __init__(self, database: Database, sender: Sender, deliveries: Deliveries) -> None:
        self.deliveries = deliveries
        self._database = database
        self._sender = sender

    async def add_webhook(
        self, identity: Identity, url: str, events: Sequence[str], skills: Sequence[str]
    ) -> AddedWebhook:
        """Add a webhook. Raise InvalidParams if a param is invalid, or if the host of the URL may not be reached."""
        kinds, patterns = targets.parse_events(events), targets.parse_skills(skills)
        try:
            await self._sender.check(url)
        except Denied as error:
            raise InvalidParams(
                f"'url' cannot be a webhook: {error.reason}",
                hint="An admin of this server can list private addresses in the setting webhooks.allow_private.",
                param="url",
            ) from None
        work = partial(targets.add_webhook, actor=identity, url=url, kinds=kinds, skills=patterns)
        return await self._database.write(work)

    async def remove_webhook(self, identity: Identity, webhook_id: str) -> RemovedWebhook:
        return await self._database.write(partial(targets.remove_webhook, actor=identity, webhook_id=webhook_id))

    async def test_webhook(self, identity: Identity, webhook_id: str) -> WebhookTest:
        """Send an event of the type `test` at once, next to the queue. Raise WebhookNotFound."""
        row = await self._database.read(partial(targets.find_webhook, webhook_id=webhook_id))
        test = message(f"evt_{secrets.token_hex(12)}", "test", datetime.now(UTC), {"by": identity.name})
        begun = time.monotonic()
        async with self._sender.connections() as client:
            sent = await self._sender.send(client, row.url, row.secret, test)
        duration_ms = round((time.monotonic() - begun) * 1000, 1)
        return WebhookTest(
            id=row.id, ok=sent.error is None, status=sent.status, error=sent.error, duration_ms=duration_ms
        )
