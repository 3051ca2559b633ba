"""Modules that every layer may use: the current request, tracing, worker threads and the queue."""
