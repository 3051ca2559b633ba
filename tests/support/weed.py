"""A real object store for tests and benchmarks: SeaweedFS, as `make` installs it into the checkout."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import obstore
import pytest

from skillery_s3.bucket import Bucket
from skillery_s3.settings import S3Settings

WEED = Path(__file__).parents[2] / ".tools" / "seaweedfs" / "bin" / "weed"
BUCKET = "skills"
KEYS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "secret-of-the-tests"}
PROBE = "a-probe-of-the-tests"
ATTEMPTS, START_SECONDS = 3, 300
FIRST_PORT, LAST_PORT = 20_000, 30_000
"""Each server of SeaweedFS has a second port, 10,000 above the first."""


class Weed:
    """A running object store. `stop` and `start` keep its data and its port."""

    def __init__(self, folder: Path) -> None:
        if not WEED.is_file():
            pytest.fail("install the object store of the tests: `make .tools/seaweedfs/.installed` (153 MB)")
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        for _ in range(ATTEMPTS):
            self._ports = _free_ports(5)
            self.endpoint = f"http://127.0.0.1:{self._ports[0]}"
            self._launch()
            if self._is_up():
                return
            # Another process has taken one of the ports in the meantime.
            self.stop()
        pytest.fail(f"SeaweedFS does not start: {self._log()}")

    def start(self) -> None:
        self._launch()
        if not self._is_up():
            pytest.fail(f"SeaweedFS does not start again: {self._log()}")

    def _launch(self) -> None:
        names = ("s3", "master", "volume", "filer", "admin")
        ports = [f"-{name}.port={port}" for name, port in zip(names, self._ports, strict=True)]
        fixed = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-webdav=false", "-admin.ui=false", "-master.telemetry=false"]
        small = ["-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false", "-s3.iam=false"]
        command = [str(WEED), "mini", f"-dir={self._folder}", *ports, *fixed, *small, f"-bucket={BUCKET}"]
        with (self._folder.parent / "weed.log").open("ab") as log:
            environment = {"PATH": os.defpath, "HOME": str(self._folder), "GOMAXPROCS": "2", **KEYS}
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=self._folder)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _is_up(self) -> bool:
        """Wait until an object can be written and read. Return False if it cannot in time.

        The server listens before it has the bucket, and lists objects before it finds their contents.
        """
        bucket = Bucket(S3Settings(bucket=BUCKET, endpoint=self.endpoint, allow_http=True), KEYS)
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self._process is not None and self._process.poll() is None:
            with suppress(Exception):
                obstore.put(bucket.quick, PROBE, b"is it up?")
                obstore.get(bucket.quick, PROBE).bytes()
                obstore.delete(bucket.quick, PROBE)
                return True
            time.sleep(0.1)
        return False

    def _log(self) -> str:
        return (self._folder.parent / "weed.log").read_text()[-2000:]


@contextmanager
def running_weed(folder: Path) -> Iterator[Weed]:
    data = folder / "weed"
    data.mkdir()
    weed = Weed(data)
    try:
        yield weed
    finally:
        weed.stop()
        shutil.rmtree(data, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    """Return ports that are free, as are the ports 10,000 above them."""
    found: list[int] = []
    start = FIRST_PORT + os.getpid() * 37 % (LAST_PORT - FIRST_PORT - 1000)
    for port in range(start, LAST_PORT):
        if _is_free(port) and _is_free(port + 10_000):
            found.append(port)
            if len(found) == count:
                return found
    raise OSError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as tried, suppress(OSError):
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tried.bind(("127.0.0.1", port))
        return True
    return False
