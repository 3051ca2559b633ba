"""Incremental backups of a large registry: bytes, seconds and processor time of the first one, of one without changes,
and of one after 100 new versions.

`python -m bench.backups 10000 700` uses 10,000 versions with 700 MB in the storage, on SQLite and on Postgres (or on
the one that a third argument names). The exit code is 1 if the second backup needs over a tenth of the bytes or of the
time of the first one.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.data_copy import Bench, created, fill
from tests.support.data_copies import Load, Registry
from tests.support.postgres import a_postgres

MOST = 0.1


class Backup(NamedTuple):
    seconds: float
    processor_seconds: float
    new_bytes: int
    new_contents: int


def back_up(bench: Bench, title: str) -> Backup:
    started, before = time.perf_counter(), processor_seconds()
    added = json.loads(bench.run("backup", "--json", storage="directory"))
    seconds, processor = time.perf_counter() - started, processor_seconds() - before
    made = Backup(seconds, processor, added["new_bytes"], added["new_contents"])
    print(
        f"  {title}: {seconds:.1f} s, {processor:.1f} s of the processor, {made.new_bytes / 1e6:.1f} MB new, "
        f"{made.new_contents} new contents",
        flush=True,
    )
    return made


def processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main(arguments: Sequence[str]) -> None:
    versions, megabytes = (int(argument) for argument in arguments[:2])
    is_slow = False
    with tempfile.TemporaryDirectory(prefix="skillery-backups-") as name, a_postgres() as postgres:
        for kind in arguments[2:] or ("sqlite", "postgres"):
            folder = Path(name) / kind
            folder.mkdir()
            url = f"sqlite:///{folder / 'first.db'}" if kind == "sqlite" else created(postgres.url, "backups")
            bench = Bench(Registry(folder, url), Load())
            bench.registry.env["SKILLERY_BACKUPS_STORAGE"] = "directory"
            bench.registry.env["SKILLERY_BACKENDS_BACKUP_DIRECTORY_PATH"] = str(folder / "backups")
            print(kind, flush=True)
            fill(bench, versions, megabytes)
            first = back_up(bench, "first")
            second = back_up(bench, "second, without changes")
            fill(bench, 100, 7, prefix="more")
            third = back_up(bench, "third, after 100 new versions")
            for title, backup in (("second", second), ("third", third)):
                ratios = backup.seconds / first.seconds, backup.new_bytes / first.new_bytes
                print(f"  {title}: {ratios[0]:.1%} of the time, {ratios[1]:.2%} of the bytes of the first", flush=True)
            is_slow = is_slow or max(second.seconds / first.seconds, second.new_bytes / first.new_bytes) > MOST
            started = time.perf_counter()
            bench.run("backup", "verify", storage="directory")
            print(f"  verified in {time.perf_counter() - started:.1f} s", flush=True)
    if is_slow:
        raise SystemExit("the second backup needs over a tenth of the first one")


if __name__ == "__main__":
    main(sys.argv[1:])
