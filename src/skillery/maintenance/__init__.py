"""Maintenance of a registry: integrity checks, garbage collection, backup and restore."""
