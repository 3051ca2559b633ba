"""Methods for webhooks."""

from __future__ import annotations

from functools import partial

from skillery.backends import Identity
from skillery.methods import webhook_params as params
from skillery.methods.core import Core
from skillery.webhooks import targets
from skillery.webhooks.results import AddedWebhook, DeadLetterPage, RemovedWebhook, WebhookList, WebhookTest


async def add_webhook(core: Core, identity: Identity, asked: params.AddWebhook) -> AddedWebhook:
    return await core.webhooks.add_webhook(identity, asked.url, asked.events, asked.skills)


async def list_webhooks(core: Core, _: Identity, __: params.ListWebhooks) -> WebhookList:
    return await core.registry.read_page(targets.list_webhooks)


async def test_webhook(core: Core, identity: Identity, asked: params.TestWebhook) -> WebhookTest:
    return await core.webhooks.test_webhook(identity, asked.id)


async def remove_webhook(core: Core, identity: Identity, asked: params.RemoveWebhook) -> RemovedWebhook:
    return await core.webhooks.remove_webhook(identity, asked.id)


async def list_dead_letters(core: Core, _: Identity, asked: params.ListDeadLetters) -> DeadLetterPage:
    work = partial(
        targets.list_dead_letters,
        key=core.registry.cursor_key,
        webhook_id=asked.id,
        limit=asked.limit,
        cursor=asked.cursor,
    )
    return await core.registry.read_page(work)
