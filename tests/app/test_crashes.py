"""After kill -9 and on a full disk, a change is complete or absent, and the next start serves."""

from __future__ import annotations

import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Rpc, Server, clean_environment, manifest, skill_files
from tests.support.forms import rounds
from tests.support.processes import eventually

LARGE = "x" * 200_000


def publish_on(rpc: Rpc, stop: threading.Event, acknowledged: list[tuple[str, str]], worker: int) -> None:
    """Publish and upload until the server is gone. Record what the server acknowledged in `acknowledged`."""
    number = 0
    while not stop.is_set():
        number += 1
        name = f"w{worker}.n{number}"
        files = [*skill_files(), {"path": "resources/large.txt", "content": f"{name}{LARGE}"}]
        try:
            rpc("create_skill", manifest=manifest(name), skill_md="# A\n", files=files)
            acknowledged.append(("skill", name))
            content = f"{name}-{'y' * 100_000}"
            blob_id = rpc("create_blob", content=content, kind="text/plain")["blob_id"]
            acknowledged.append(("blob", blob_id))
        except httpx.HTTPError:
            return


def is_longer(items: list[tuple[str, str]], length: int) -> bool:
    return len(items) > length


def check_whole(server: Server, acknowledged: list[tuple[str, str]]) -> None:
    """Assert that the server has everything that it acknowledged, and that all stored files are complete."""
    for kind, name in acknowledged:
        if kind == "blob":
            assert server.rpc.http.get(f"/blobs/{name}").status_code == 200
        else:
            assert server.rpc("read_skill_file", name=name, path="resources/large.txt")["content"] == f"{name}{LARGE}"
    for row in server.rpc("list_skills", limit=1000)["skills"]:
        full = server.rpc("describe_skill", name=row["name"], detail="full")["skill"]
        for file in full["files"]:
            content = server.rpc("read_skill_file", name=row["name"], path=file["path"])
            assert content["encoding"] == "base64" or len(content["content"].encode()) == file["size_bytes"]
    assert not list((server.home / "contents" / "incoming").iterdir())


@pytest.mark.smoke
def test_kill_nine_in_the_middle_of_writes_loses_nothing(start_server: Callable[..., Server]) -> None:
    random.seed(7)
    acknowledged: list[tuple[str, str]] = []
    for _ in range(rounds(3, long=5)):
        server = start_server()
        stop = threading.Event()
        workers = [
            threading.Thread(target=publish_on, args=(Rpc(server.url), stop, acknowledged, random.randrange(10**9)))
            for _ in range(3)
        ]
        for worker in workers:
            worker.start()
        eventually(partial(is_longer, acknowledged, len(acknowledged)))
        time.sleep(random.uniform(0.0, 0.7))
        server.stop(signal.SIGKILL)
        stop.set()
        for worker in workers:
            worker.join()

    last = start_server()

    assert acknowledged
    check_whole(last, acknowledged)


@pytest.mark.full
def test_a_full_disk_is_an_error_in_band_and_the_server_lives(tmp_path: Path, small_disk: list[str]) -> None:
    command = [*small_disk, sys.executable, "-m", "skillery", "serve", "--home", str(tmp_path / "home"), "--port", "0"]
    env = clean_environment({"SKILLERY_SANDBOX": "unsafe-subprocess", "SKILLERY_ALLOW_UNSAFE_SANDBOX": "1"})
    log = tmp_path / "server.log"  # not on the full disk
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log.open("wb"), env=env) as process:
        assert process.stdout is not None
        url = "http://" + process.stdout.readline().decode().split("http://")[1].split()[0]
        rpc = Rpc(url)
        try:
            errors = _fill(rpc)
            assert {error["code"] for error in errors} == {-32603}
            assert {error["data"]["type"] for error in errors} == {"storage_full"}
            stream = rpc.http.post("/blobs", content=os.urandom(20_000_000))
            assert stream.status_code == 503
            assert stream.json()["error"]["data"]["type"] == "storage_full"
            assert rpc.http.get("/healthz").status_code == 200
            assert rpc("load_skills_protocol_guide")["content"]
            refused = rpc.error(
                "create_skill",
                manifest=manifest("full.disk"),
                skill_md="# A",
                files=[*skill_files(), {"path": "resources/x", "content": "z" * 4_000_000}],
            )
            assert refused["data"]["type"] == "storage_full"
            ready = rpc.http.get("/readyz")
            failed = {"database": "failed", "storage": "failed", "cache": "failed", "sandbox": "ok"}
            assert (ready.status_code, ready.json()["checks"]) == (503, failed)
            free = re.findall(
                r'^skillery_disk_free_bytes\{folder="(\w+)"\} (\S+)$', rpc.http.get("/metrics").text, re.M
            )
            assert all(float(count) < 65_536 for _, count in free)
            assert {"home", "cache", "database", "storage"} <= {folder for folder, _ in free}
            line = "folders cannot be written, so publishing and runs fail: home ("
            eventually(lambda: line in log.read_text())
            assert rpc.error("describe_skill", name="full.disk")["code"] == -32003
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(300)


def _fill(rpc: Rpc) -> list[dict[str, Any]]:
    """Store large blobs, then smaller ones, until none fits. Return the errors."""
    errors = []
    for size in (2_000_000, 200_000, 50_000, 5_000):
        for number in range(50):
            reply = rpc.send("create_blob", {"content": f"{size}-{number}-" + "x" * size, "kind": "text/plain"})
            if "error" in reply:
                errors.append(reply["error"])
                break
    return errors


@pytest.mark.full
def test_a_database_damaged_in_the_middle_is_named_at_start(start_server: Callable[..., Server]) -> None:
    server = start_server()
    for number in range(30):
        server.rpc("create_skill", manifest=manifest(f"a.n{number}"), skill_md="# A\n" * 500, files=skill_files())
    server.stop()
    path = server.home / "skillery.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()
    content = bytearray(path.read_bytes())
    page = int.from_bytes(content[16:18], "big")
    for start in range(page * 20, len(content), page):
        content[start : start + 64] = b"\xde\xad\xbe\xef" * 16
    path.write_bytes(content)

    with pytest.raises(AssertionError, match="damaged") as refusal:
        start_server()
    assert "restore a backup" in str(refusal.value)
    assert "Traceback" not in str(refusal.value)
