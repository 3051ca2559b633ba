"""Skills as the world knows them: Agent Skills, as archives, as single files, and in indexes."""

from skillery.exports.exporting import Export, Exports, File
from skillery.exports.facts import Facts
from skillery.exports.indexing import KINDS, Index, Kind
from skillery.exports.preparing import Preparing

__all__ = ["KINDS", "Export", "Exports", "Facts", "File", "Index", "Kind", "Preparing"]
