"""The storage is never called inside a write transaction: a slow storage must not hold the write lock of SQLite."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Rpc, Server, manifest, skill_files
from tests.maintenance.test_garbage import NO_GRACE

WATCHED_STORAGE = """
import sqlite3
import traceback
from skillery import hookimpl
from skillery.backends import Offer
from skillery.builtin.directory_storage import DirectoryStorage

METHODS = ("begin", "open", "local_path", "delete", "stored_before", "mark", "find_mark")

class Watched(DirectoryStorage):
    def __init__(self, home):
        self.home = home
        super().__init__(home / "contents")

    def watch(self, method):
        with (self.home / "calls").open("a") as calls:
            calls.write(method + "\\n")
        connection = sqlite3.connect(self.home / "skillery.db", timeout=5, isolation_level=None)
        try:
            # Fails if the caller holds the write lock: another writer releases it within the timeout.
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            with (self.home / "inside").open("a") as inside:
                inside.write(f"{method}\\n{''.join(traceback.format_stack())}\\n")
        finally:
            connection.close()

def watched(method):
    def call(self, *args):
        self.watch(method)
        return getattr(super(Watched, self), method)(*args)
    return call

for name in METHODS:
    setattr(Watched, name, watched(name))

@hookimpl
def skillery_storage():
    return Offer("watched", lambda settings, place: Watched(place.home))
"""
WRITES_A_BLOB = """
from runtime import blobs

def main(args):
    return blobs.write_text("y" * 100_000)
"""

READS_BLOBS = """
import os

def main(args):
    return len(os.listdir("/blobs"))
"""


@pytest.mark.full
def test_the_storage_is_called_outside_of_write_transactions(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "watched.py").write_text(WATCHED_STORAGE)
    server = start_server(env={"SKILLERY_PLUGINS_FOLDER": str(folder), "SKILLERY_STORAGE": "watched", **NO_GRACE})
    rpc = Rpc(server.url)

    files = [*skill_files(), {"path": "resources/large.txt", "content": "x" * 200_000}]
    rpc("create_skill", manifest=manifest("a.b"), skill_md="# A\n", files=files)
    assert rpc("read_skill_file", name="a.b", path="resources/large.txt")["content"]
    made = rpc("create_blob", content="z" * 100_000, kind="text/plain")["blob_id"]
    assert rpc.http.get(f"/blobs/{made}").status_code == 200
    assert rpc.http.post("/blobs", content=b"q" * 300_000).status_code == 201
    written = rpc("run_code", language="python", code=WRITES_A_BLOB)["output"]
    assert rpc("read_blob", blob_id=written, max_bytes=10)["content"]
    assert rpc("run_code", language="python", code=READS_BLOBS, input_blobs=[written])["output"] == 1
    rpc("delete_blob", blob_id=made)
    rpc("collect_garbage")

    calls = set((server.home / "calls").read_text().split())
    assert {"begin", "open", "local_path", "delete"} <= calls
    inside = server.home / "inside"
    assert not inside.exists(), inside.read_text()
