"""A registry in one file: database and contents as they were at one moment, for either kind of database."""

from skillery.backups.archive import ArchiveHead, DamagedArchive, verify_archive
from skillery.backups.restoring import Restored, restore
from skillery.backups.writing import BackedUp, back_up

__all__ = ["ArchiveHead", "BackedUp", "DamagedArchive", "Restored", "back_up", "restore", "verify_archive"]
