"""Modules that all other packages may use: the current request, tracing, worker threads and the queue."""
