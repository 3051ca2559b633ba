"""Execute the calls in the body of a request: parse each call, execute its method, and encode the reply."""

from __future__ import annotations

import asyncio

import msgspec

from skillery.api.json_texts import TextRefusal, check_text
from skillery.api.rpc.discovery import CALLABLE
from skillery.api.rpc.envelope import (
    Refused,
    Reply,
    batch_reply,
    error_reply,
    is_batch,
    parse_batch,
    parse_call,
    result_reply,
)
from skillery.methods.answers import HeldAnswer, held_answer
from skillery.methods.core import Core
from skillery.methods.errors import INVALID_REQUEST, plain_error
from skillery.methods.execution import Caller, perform


async def answer_body(
    core: Core, identity: Caller, body: bytes, held: HeldAnswer, key: str | None = None
) -> Reply | None:
    """Execute the calls in the body of a request. Return the answer, or None if the body has only notifications.

    `key` is an idempotency key: a call of a method that honours idempotency keys is executed at most once. The bytes of
    the answer are counted in `held`.
    """
    try:
        await check_text(body)
    except TextRefusal as refusal:
        return error_reply(refusal.error)
    held_answer.set(held)
    if not is_batch(body):
        return await _answer_call(core, identity, body, key)
    if key is not None:
        message = "an Idempotency-Key goes with one call, not with a batch"
        hint = "Send the calls one by one, each with a key of its own."
        return error_reply(plain_error(INVALID_REQUEST, message, "invalid_request", hint))
    return await _answer_batch(core, identity, body)


async def _answer_batch(core: Core, identity: Caller, body: bytes) -> Reply | None:
    calls = parse_batch(body)
    if isinstance(calls, Refused):
        return calls.reply
    replies: list[Reply] = []
    for call in calls:
        # Let the server answer other requests between two calls, even if no call awaits anything.
        await asyncio.sleep(0)
        reply = await _answer_call(core, identity, call)
        if reply is not None:
            replies.append(reply)
    return batch_reply(replies)


async def _answer_call(core: Core, identity: Caller, body: bytes | msgspec.Raw, key: str | None = None) -> Reply | None:
    call = parse_call(body)
    if isinstance(call, Refused):
        return call.reply
    result, failed = await perform(core, identity, call.method, call.params, key, CALLABLE)
    if call.id is msgspec.UNSET:
        return None
    return error_reply(failed, call.reply_to) if result is None else result_reply(call.reply_to, result)
