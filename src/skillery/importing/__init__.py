"""Importing: from an archive of foreign skills to versions in the registry.

Reading is lenient, storing is strict: the report lists every repair, and the stored bytes are unchanged.
"""

from skillery.importing.entries import ImportLimits
from skillery.importing.importer import Importer
from skillery.importing.options import ImportOptions
from skillery.importing.reports import Begun, SkillReport, Summary

__all__ = ["Begun", "ImportLimits", "ImportOptions", "Importer", "SkillReport", "Summary"]
