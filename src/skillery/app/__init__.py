"""The composition root: builds core, edge and app (`composition`), runs the server (`server`), and locks the home
(`home`).

This module imports nothing, so that a command that only asks which process holds a home loads no web framework.
"""
