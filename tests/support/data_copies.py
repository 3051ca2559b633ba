"""A registry with two storages, and publishers and readers that put load on a server while its data is copied."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.conftest import Rpc, RpcError, Server, clean_environment, manifest, skill_files
from tests.support.prefork import prefork
from tests.support.processes import eventually

SECOND = """
import itertools
import os
import time
from pathlib import Path
from skillery import hookimpl
from skillery.backends import Offer
from skillery.builtin.directory_storage import DirectoryStorage
from skillery.errors import Unavailable

class Second(DirectoryStorage):
    def __init__(self, folder):
        self.folder = folder
        self.uploads = itertools.count()
        super().__init__(folder)

    def begin(self):
        if (self.folder.parent / "fails").exists():
            raise Unavailable("the second storage is away")
        if next(self.uploads) == int(os.environ.get("SECOND_STALLS_AFTER", "-1")):
            (self.folder.parent / "stalled").touch()
            time.sleep(600)
        return super().begin()

@hookimpl
def skillery_storage():
    return Offer("second", lambda settings, place: Second(Path(os.environ["SECOND_FOLDER"]) / "second"))
"""
LARGE = "large " * 20_000
PAUSE_SECONDS = 0.02
"""Between two calls of a load: commands meet calls at each of their steps, and get most of the processor."""


class Registry:
    """The settings of the servers and commands of one registry."""

    def __init__(self, folder: Path, database: str) -> None:
        plugins = folder / "plugins"
        plugins.mkdir()
        (plugins / "second.py").write_text(SECOND)
        self.folder = folder
        self.env = {
            "SKILLERY_DATABASE": database,
            "SKILLERY_PLUGINS_FOLDER": str(plugins),
            "SECOND_FOLDER": str(folder),
            "SKILLERY_BACKENDS_STORAGE_DIRECTORY_PATH": str(folder / "contents"),
            "SKILLERY_GC_INTERVAL_MINUTES": "0",
        }

    def with_storage(self, name: str) -> dict[str, str]:
        return self.env | {"SKILLERY_STORAGE": name}

    def skillery(self, *args: str, storage: str = "directory") -> subprocess.CompletedProcess[str]:
        arguments = [*args, "--home", str(self.folder / "home")]
        done = prefork().run(arguments, clean_environment(self.with_storage(storage)), b"")
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def stalled_copy(self, target: str, storage: str) -> subprocess.Popen[bytes]:
        """Start a copy as a separate process, which stalls after 20 contents. Wait until it does."""
        command = [sys.executable, "-m", "skillery", "storage", "copy", "--to", target, "--home"]
        env = clean_environment(self.with_storage(storage) | {"SECOND_STALLS_AFTER": "20"})
        copier = subprocess.Popen([*command, str(self.folder / "home")], env=env)
        eventually((self.folder / "stalled").exists, of=copier)
        return copier

    def state(self) -> dict[str, Any]:
        done = self.skillery("storage", "status", "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def publish(rpc: Rpc, name: str, version: str = "1.0.0") -> None:
    files = [*skill_files(), {"path": "resources/large.txt", "content": f"{name} {version} {LARGE}"}]
    rpc("create_skill", manifest=manifest(name, version), skill_md="# S\n", files=files)


class Load:
    """Publishers and readers. `acknowledged` are the published skills, `failures` what a reader or a publisher met."""

    def __init__(self) -> None:
        self.acknowledged: list[str] = []
        self.failures: list[str] = []
        self.reads = 0
        self.url = ""
        self._stop = threading.Event()
        self._names = itertools.count()

    def publish(self) -> None:
        while not self._stop.is_set():
            name = f"load.s{next(self._names)}"
            time.sleep(PAUSE_SECONDS)
            try:
                publish(Rpc(self.url), name)
            except (RpcError, httpx.HTTPError) as error:
                self.failures.append(f"publish: {error}")
                time.sleep(0.05)
            else:
                self.acknowledged.append(name)

    def read(self) -> None:
        while not self._stop.is_set():
            for name in self.acknowledged[-3:]:
                time.sleep(PAUSE_SECONDS)
                try:
                    assert read_large(Rpc(self.url), name).startswith(name)
                    self.reads += 1
                except (RpcError, httpx.HTTPError) as error:
                    self.failures.append(f"read: {error}")

    @contextmanager
    def on(self, server: Server) -> Iterator[None]:
        self._stop.clear()
        self.url = server.url
        threads = [threading.Thread(target=work) for work in (self.publish, self.publish, self.read)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    def wait_for(self, more: int) -> None:
        wanted = len(self.acknowledged) + more
        eventually(lambda: len(self.acknowledged) >= wanted)


def read_large(rpc: Rpc, name: str) -> str:
    content: str = rpc("read_skill_file", name=name, path="resources/large.txt")["content"]
    return content
