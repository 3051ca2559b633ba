"""Exports: skills as Agent Skills, in archives, as single files and in indexes."""

from skillery.exports.facts import Facts
from skillery.exports.indexes import KINDS, Index, Kind
from skillery.exports.preparation import FactsPreparation
from skillery.exports.skill_exports import Export, Exports, File

__all__ = ["KINDS", "Export", "Exports", "Facts", "FactsPreparation", "File", "Index", "Kind"]
