"""Events: what happened to versions, quotas and runs. Webhooks and the hook `events` of plugins get them.

A change calls `record` in its own transaction, so there is an event if and only if there is a change.
"""

from skillery.events.outbox import BY_REQUEST, EVENT_TYPES, record

__all__ = ["BY_REQUEST", "EVENT_TYPES", "record"]
