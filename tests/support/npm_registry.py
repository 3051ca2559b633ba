"""A registry of npm packages for tests: packages of a few files, and tarballs with any content."""

from __future__ import annotations

import base64
import gzip
import hashlib
import http.server
import io
import json
import tarfile
import urllib.parse
from collections.abc import Mapping
from typing import Any

from tests.support.package_index import IndexServer

LONG_AGO = "2025-01-01T00:00:00.000Z"


def tarball(files: Mapping[str, str | bytes | tarfile.TarInfo], folder: str = "package") -> bytes:
    """Return a package archive. A TarInfo is added as it is, without content."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, content in files.items():
            if isinstance(content, tarfile.TarInfo):
                archive.addfile(content)
                continue
            encoded = content.encode() if isinstance(content, str) else content
            entry = tarfile.TarInfo(f"{folder}/{path}")
            entry.size, entry.mode = len(encoded), 0o644
            archive.addfile(entry, io.BytesIO(encoded))
    return gzip.compress(out.getvalue())


class NpmRegistry(IndexServer):
    """A registry of npm. `folder` is the path of its address, such as `/npm`."""

    def __init__(self, folder: str = "") -> None:
        self.folder = folder
        self.packages: dict[str, dict[str, dict[str, Any]]] = {}
        """Name -> version -> package.json with `dist`."""
        self.files: dict[str, bytes] = {}
        """Path -> tarball."""
        self.times: dict[str, str] = {}
        """When `NAME@VERSION` was published, if not LONG_AGO."""
        self.token = ""
        """Required token. "" requires none."""
        self.public: set[str] = set()
        """Paths that need no token."""
        self.statuses: dict[str, int] = {}
        """Paths with another status."""
        self.logins: dict[str, str] = {}
        """The last header `Authorization` of each path."""
        super().__init__()

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}{self.folder}"

    def add(
        self,
        name: str,
        version: str,
        files: Mapping[str, str | bytes | tarfile.TarInfo] | None = None,
        *,
        archive: bytes | None = None,
        **more: Any,
    ) -> bytes:
        """Publish a package with these files, or with an `archive` of any content. `more` are keys of package.json."""
        about = {"name": name, "version": version, **more}
        listed = {"package.json": json.dumps(about), **(files or {})}
        content = tarball(listed) if archive is None else archive
        path = f"/{name}/-/{name.rpartition('/')[2]}-{version}.tgz"
        integrity = f"sha512-{base64.b64encode(hashlib.sha512(content).digest()).decode()}"
        if "install" in more.get("scripts", {}):
            about["hasInstallScript"] = True
        about["dist"] = {"tarball": f"{self.url}{path}", "integrity": integrity}
        self.packages.setdefault(name, {})[version] = about
        self.files[path] = content
        return content

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        whole = urllib.parse.unquote(handler.path)
        path, login = whole.removeprefix(self.folder), handler.headers.get("Authorization", "")
        self.logins[whole] = login
        status, body = 401, b"{}"
        if path in self.statuses:
            status = self.statuses[path]
        elif not self.token or login == f"Bearer {self.token}" or path in self.public:
            status, body = self._found(path)
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def _found(self, path: str) -> tuple[int, bytes]:
        if path in self.files:
            return 200, self.files[path]
        name, _, version = path.strip("/").rpartition("/")
        if name in self.packages and version in self.packages[name]:
            return 200, json.dumps(self.packages[name][version]).encode()
        versions = self.packages.get(path.strip("/"))
        if versions is None:
            return 404, b'{"error": "not found"}'
        newest = list(versions)[-1]
        name = path.strip("/")
        times = {version: self.times.get(f"{name}@{version}", LONG_AGO) for version in versions}
        document = {"name": name, "dist-tags": {"latest": newest}, "versions": versions, "time": times}
        return 200, json.dumps(document).encode()
