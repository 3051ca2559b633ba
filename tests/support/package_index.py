"""A package index of one folder for tests: it can be slow, be unavailable for some time, or serve other files than the
locked ones.
"""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import re
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

PRESSED = "application/vnd.pypi.simple.v1+json"
LONG_AGO = "2025-01-01T00:00:00Z"


class IndexServer:
    """An HTTP server of packages on this computer, which serves until `close`. Subclasses answer its requests."""

    def __init__(self) -> None:
        index = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                return

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        raise NotImplementedError


class PackageIndex(IndexServer):
    """A package index of Python. Its dicts change the handling of single files and packages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.yanked: dict[str, str] = {}
        """File -> reason why it was yanked."""
        self.replaced: dict[str, bytes] = {}
        """File -> content to serve instead."""
        self.failing: dict[str, int] = {}
        """File -> number of requests for which it is missing."""
        self.slow: dict[str, float] = {}
        """Package -> seconds until its files are listed."""
        self.held: dict[str, threading.Event] = {}
        """File -> event after which it is served."""
        self.uploaded: dict[str, str] = {}
        """File -> upload time."""
        self.sizes: dict[str, int] = {}
        """File -> size that the index states instead of the true one."""
        self.unstated: set[str] = set()
        """Files whose size the index does not list. A HEAD request returns it."""
        self.login = ""
        """Required login as `name:password`. "" requires none."""
        self.files_at = ""
        """Another origin for the files."""
        self.asked: list[str] = []
        super().__init__()

    @property
    def url(self) -> str:
        return f"http://{self.login}{'@' if self.login else ''}localhost:{self.port}/simple"

    def _lets_in(self, handler: http.server.BaseHTTPRequestHandler) -> bool:
        shown = f"Basic {base64.b64encode(self.login.encode()).decode()}"
        return not self.login or handler.headers.get("Authorization") == shown

    def close(self) -> None:
        for event in self.held.values():
            event.set()
        super().close()

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        self.asked.append(handler.path)
        if not self._lets_in(handler):
            handler.send_response(401)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        kind, _, name = handler.path.strip("/").partition("/")
        status, body = self._files_of(name) if kind == "simple" else self._file(name)
        try:
            handler.send_response(status)
            handler.send_header("Content-Type", PRESSED if kind == "simple" else "application/octet-stream")
            length = self.sizes.get(name) or len(body) if handler.command == "HEAD" else len(body)
            handler.send_header("Content-Length", str(length))
            handler.end_headers()
            if handler.command != "HEAD":
                handler.wfile.write(body)
        except OSError:  # the client has disconnected
            return

    def _files_of(self, package: str) -> tuple[int, bytes]:
        time.sleep(self.slow.get(package, 0))
        pattern = re.compile(re.escape(package).replace(r"\-", "[-_.]") + r"-\d.*\.(whl|tar\.gz)")
        found = [path for path in sorted(self.folder.iterdir()) if pattern.fullmatch(path.name)]
        files = [self._entry(path) for path in found]
        return (200 if files else 404), json.dumps(
            {"meta": {"api-version": "1.1"}, "name": package, "versions": [], "files": files}
        ).encode()

    def _entry(self, path: Path) -> dict[str, Any]:
        content = path.read_bytes()
        size = {} if path.name in self.unstated else {"size": self.sizes.get(path.name, len(content))}
        return size | {
            "filename": path.name,
            "url": f"{self.files_at}/files/{path.name}",
            "hashes": {"sha256": hashlib.sha256(content).hexdigest()},
            "core-metadata": path.suffix == ".whl",
            "upload-time": self.uploaded.get(path.name, LONG_AGO),
            "yanked": self.yanked.get(path.name, False),
        }

    def _file(self, name: str) -> tuple[int, bytes]:
        if name.endswith(".metadata"):
            return 200, self._metadata(name.removesuffix(".metadata"))
        if name in self.held:
            self.held[name].wait(300)
        if self.failing.get(name, 0) > 0:
            self.failing[name] -= 1
            return 503, b"not now"
        path = self.folder / name
        if not path.is_file():
            return 404, b""
        return 200, self.replaced.get(name, path.read_bytes())

    def _metadata(self, wheel: str) -> bytes:
        """Return the metadata file, which resolvers read instead of the wheel."""
        with zipfile.ZipFile(self.folder / wheel) as archive:
            return archive.read(next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA")))
