"""`skillery mirror`: follow the skills of another server, of a git repository, of an index or of a folder."""

from skillery.cli.mirror.command import mirror

__all__ = ["mirror"]
