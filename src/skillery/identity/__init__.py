"""Callers: their tokens, their access, their secret grants, their quotas and their idempotency keys."""
