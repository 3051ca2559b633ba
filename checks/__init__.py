"""Checks of the source that no linter has. `python -m checks` is a part of `make check`."""
