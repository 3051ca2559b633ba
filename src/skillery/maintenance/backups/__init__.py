"""Backups: database and contents of a registry in one file, in one consistent state. For SQLite and Postgres."""

from skillery.maintenance.backups.archive import ArchiveHead, DamagedArchive, verify_archive
from skillery.maintenance.backups.copying import BackedUp, Restored, back_up, restore

__all__ = ["ArchiveHead", "BackedUp", "DamagedArchive", "Restored", "back_up", "restore", "verify_archive"]
