"""Webhooks: targets that get events as signed HTTP requests, and the delivery of events to them and to plugins."""

from skillery.webhooks.deliveries import Deliveries
from skillery.webhooks.methods import Webhooks
from skillery.webhooks.queue import RetryRules
from skillery.webhooks.sending import Sender

__all__ = ["Deliveries", "RetryRules", "Sender", "Webhooks"]
