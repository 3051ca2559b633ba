"""Importing: from an archive of foreign skills to versions in the registry.

Deviations from the formats are accepted on reading and listed in the report. The contents of the files are stored
unchanged, except the name and the version in a skill.toml.
"""

from skillery.importing.entries import ImportLimits
from skillery.importing.importer import Importer
from skillery.importing.publication import ImportOptions
from skillery.importing.reports import Begun, SkillReport, Summary

__all__ = ["Begun", "ImportLimits", "ImportOptions", "Importer", "SkillReport", "Summary"]
