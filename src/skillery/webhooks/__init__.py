"""Webhooks: targets that get events as signed HTTP requests, and the delivery of events to them and to plugins."""
