"""The composition root: it builds core, edge and app (`composition`), and runs the server (`server`) on a home
(`home`).

This module imports nothing, so that a command that only reads the lock of a home does not load the web framework.
"""
