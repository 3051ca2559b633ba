"""Helpers for every layer: the current request, tracing, worker threads and the queue."""
