"""Importing: from an archive of skills that others wrote to versions in the registry. Lenient in what is read, strict
in what is kept: every repair is said, and no byte is changed."""

from skillery.importing.entries import ImportLimits
from skillery.importing.importer import Importer, Wish
from skillery.importing.reports import Begun, SkillReport, Summary

__all__ = ["Begun", "ImportLimits", "Importer", "SkillReport", "Summary", "Wish"]
