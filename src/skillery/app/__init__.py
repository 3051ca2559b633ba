"""Composition root: core, edge and app (`composition`), `server`, `home`, `bundled`.

Nothing is imported here, so that a query of the home's holder does not load a web framework.
"""
