"""Git repositories made from the registry: rows of versions become states, objects and packs."""

from skillery.git_views.repositories import ObjectTable, OpenRepository, Repositories, RepositoryAddress, pack_pieces
from skillery.git_views.selection import Depth, Filter, Selected, Selection, WantNotFound

__all__ = [
    "Depth",
    "Filter",
    "ObjectTable",
    "OpenRepository",
    "Repositories",
    "RepositoryAddress",
    "Selected",
    "Selection",
    "WantNotFound",
    "pack_pieces",
]
