"""Exports: skills as Agent Skills, in archives, as single files and in indexes."""

from skillery.exports.facts import Facts, FactsPreparation
from skillery.exports.skill_exports import KINDS, Export, Exports, File, Index, Kind

__all__ = ["KINDS", "Export", "Exports", "Facts", "FactsPreparation", "File", "Index", "Kind"]
