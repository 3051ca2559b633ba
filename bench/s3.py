"""`python -m bench.s3`: upload and download of one large content by the storage `s3`, compared with its client library.

`python -m bench.s3 1024` measures 1024 MiB. Each measurement runs in its own process, in turn, against one SeaweedFS on
this machine. The exit code is 1 if the storage takes 200 MiB of memory or more, or has less than 80 % of the library's
throughput.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import obstore

from bench.report import Report, median
from skillery.backends import Place
from skillery_s3 import open_storage
from skillery_s3.bucket import Bucket
from skillery_s3.settings import MIB, S3Settings
from tests.support.weed import BUCKET, KEYS, running_weed

ROUNDS = 3
MOST_MIB = 200
LEAST_RATIO = 0.8
PIECE = 256 * 1024
"""The size of the pieces in which the server receives and sends blobs."""
Taken = dict[str, float]


def main() -> int:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(WORK[sys.argv[2]](sys.argv[3], Path(sys.argv[4]))))
        return 0
    mib = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    with tempfile.TemporaryDirectory(prefix="skillery-s3-") as folder, running_weed(Path(folder)) as weed:
        source = Path(folder) / "source"
        _write_source(source, mib)
        taken: dict[str, list[Taken]] = {what: [] for what in WORK}
        for _ in range(ROUNDS):
            for what in WORK:
                taken[what].append(_in_a_process(what, weed.endpoint, source))
    return _print(mib, taken)


def _write_source(path: Path, mib: int) -> None:
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(MIB))


def _in_a_process(what: str, endpoint: str, source: Path) -> Taken:
    command = [sys.executable, "-m", "bench.s3", "--one", what, endpoint, str(source)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=os.environ | KEYS)
    measured: Taken = json.loads(done.stdout)
    return measured


def _print(mib: int, taken: dict[str, list[Taken]]) -> int:
    report, is_good = Report(), True
    rows: list[list[str]] = []
    for what in ("upload", "download"):
        library, storage = taken[f"library {what}"], taken[f"storage {what}"]
        seconds = median([one["seconds"] for one in library]), median([one["seconds"] for one in storage])
        peak = max(one["peak_mib"] for one in storage)
        ratio = seconds[0] / seconds[1]
        rows.append([what, f"{mib / seconds[0]:.0f}", f"{mib / seconds[1]:.0f}", f"{ratio:.2f}", f"{peak:.0f}"])
        is_good &= peak < MOST_MIB and ratio >= LEAST_RATIO
    report.text(f"{mib} MiB, medians of {ROUNDS}, SeaweedFS on the same machine.")
    report.table(["what", "obstore MiB/s", "skillery-s3 MiB/s", "ratio", "peak memory of skillery-s3, MiB"], rows)
    print(report.markdown())
    return 0 if is_good else 1


def _settings(endpoint: str) -> S3Settings:
    return S3Settings(bucket=BUCKET, endpoint=endpoint, allow_http=True, prefix="bench")


def _library_upload(endpoint: str, source: Path) -> Taken:
    settings = _settings(endpoint)
    store = Bucket(settings).store

    def work() -> None:
        obstore.put(store, "library", source, chunk_size=settings.part_mb * MIB, max_concurrency=settings.parts_at_once)

    return _measured(work)


def _library_download(endpoint: str, _source: Path) -> Taken:
    store = Bucket(_settings(endpoint)).store

    def work() -> None:
        for _ in obstore.get(store, "library").stream(min_chunk_size=PIECE):
            pass

    return _measured(work)


def _storage_upload(endpoint: str, source: Path) -> Taken:
    digest = _digest(source)
    storage = open_storage(_settings(endpoint), Place(source.parent))

    def work() -> None:
        upload = storage.begin()
        with source.open("rb") as file:
            while piece := file.read(PIECE):
                upload.write(piece)
        upload.commit(digest)

    return _measured(work)


def _storage_download(endpoint: str, source: Path) -> Taken:
    digest = _digest(source)
    storage = open_storage(_settings(endpoint), Place(source.parent))

    def work() -> None:
        with storage.open(digest) as stream:
            while stream.read(PIECE):
                pass

    return _measured(work)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _measured(work: Callable[[], None]) -> Taken:
    started = time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    lines = Path("/proc/self/status").read_text().splitlines()
    return {"seconds": seconds, "peak_mib": next(int(line.split()[1]) / 1024 for line in lines if "VmHWM" in line)}


WORK: dict[str, Callable[[str, Path], Taken]] = {
    "library upload": _library_upload,
    "storage upload": _storage_upload,
    "library download": _library_download,
    "storage download": _storage_download,
}


if __name__ == "__main__":
    sys.exit(main())
