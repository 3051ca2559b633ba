"""Tests of events and webhooks."""
