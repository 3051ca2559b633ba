"""The only place where all parts meet: `building` (services and app), `serving`, `home`, `bundled`.

Nothing is imported here: who only asks who holds a home should not wait for a web framework.
"""
