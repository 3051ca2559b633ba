"""packaging/nginx.conf and packaging/Caddyfile: a proxy of the distribution in front of a real server."""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.cli.test_cli import skillery
from tests.conftest import ASKS_FOR_TOKENS, Rpc, Server
from tests.support.processes import eventually, free_port

ROOT = Path(__file__).parents[2]
NAME = "skills.example.org"
BINARIES = f"{ROOT / '.tools/bin'}:/usr/local/sbin:/usr/sbin:/usr/local/bin:/usr/bin:/bin"


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a self-signed certificate and its key. Return the two paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = folder / "proxy.crt", folder / "proxy.key"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    pem = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    files[1].write_bytes(key.private_bytes(*pem))
    return files


def nginx_command(program: str, folder: Path, port: int, upstream: str) -> list[str]:
    """Return a command that runs the packaged file with the addresses and the certificate of this test, without
    root.
    """
    certificate, key = make_certificate(folder)
    site = (ROOT / "packaging" / "nginx.conf").read_text("utf-8")
    for printed, here in (
        ("127.0.0.1:8080", upstream),
        ("listen 443", f"listen 127.0.0.1:{port}"),
        ("/etc/ssl/skills.example.org.crt", str(certificate)),
        ("/etc/ssl/skills.example.org.key", str(key)),
    ):
        assert printed in site
        site = site.replace(printed, here)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"{kind}_temp_path {folder};\n" for kind in kinds)
    frame = f"daemon off;\npid {folder}/pid;\nerror_log stderr;\nevents {{}}\n"
    (folder / "nginx.conf").write_text(f"{frame}http {{\naccess_log off;\n{places}{site}\n}}\n", "utf-8")
    return [program, "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")]


def caddy_command(program: str, folder: Path, port: int, upstream: str) -> list[str]:
    certificate, key = make_certificate(folder)
    site = (ROOT / "packaging" / "Caddyfile").read_text("utf-8")
    assert "127.0.0.1:8080" in site
    site = re.sub(r"^skills\.example\.org \{", f"{NAME}:{port} {{\n\ttls {certificate} {key}", site, flags=re.MULTILINE)
    options = "{\n\tadmin off\n\tauto_https disable_redirects\n\tskip_install_trust\n}\n"
    (folder / "Caddyfile").write_text(options + site.replace("127.0.0.1:8080", upstream), "utf-8")
    return [program, "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def running(command: list[str], folder: Path, port: int) -> Iterator[None]:
    environment = {"PATH": BINARIES, "HOME": str(folder)}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=environment)
    try:
        eventually(lambda: listens(port), of=process, problem=(folder / "log").read_text)
        yield
    finally:
        process.terminate()
        process.wait(300)


@pytest.mark.parametrize(("proxy", "command_of"), [("nginx", nginx_command), ("caddy", caddy_command)])
def test_a_proxy_adds_tls_and_names_the_caller(
    proxy: str,
    command_of: Callable[[str, Path, int, str], list[str]],
    start_server: Callable[..., Server],
    tmp_path: Path,
) -> None:
    program = shutil.which(proxy, path=BINARIES)
    if program is None:
        pytest.skip(f"{proxy} is not installed; apt-get install {proxy}")
    settings = {"SKILLERY_ALLOWED_HOSTS": NAME, "SKILLERY_TRUSTED_PROXIES": "127.0.0.1"}
    server = start_server(env={**ASKS_FOR_TOKENS, **settings})
    made = skillery("token", "create", "--name", "ann", "--scope", "admin", "--json", SKILLERY_HOME=str(server.home))
    token = made.json["token"]
    folder = tmp_path / proxy
    folder.mkdir()
    port = free_port()
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    with (
        running(command_of(program, folder, port, server.url.removeprefix("http://")), folder, port),
        httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=unchecked, timeout=300) as client,
    ):

        def send(verb: str, path: str, token: str, content: bytes = b"", **headers: str) -> httpx.Response:
            every = {"Host": NAME, "Authorization": f"Bearer {token}", "X-Forwarded-For": "203.0.113.9", **headers}
            return client.request(verb, path, content=content, headers=every, extensions={"sni_hostname": NAME})

        blob = send("POST", "/blobs", token, bytes(3 << 20)).json()
        content = send("GET", f"/blobs/{blob['blob_id']}", token).content
        refused = send("GET", "/tools", "sky_wrong")
        here = f"{NAME}:{port}"
        same = send("GET", "/tools", token, Host=here, Origin=f"https://{here}")
        other = send("GET", "/tools", token, Host=here, Origin=f"https://{NAME}:{port + 1}")
        entries = refused_logins(Rpc(server.url, token))

    assert content == bytes(3 << 20)
    assert refused.status_code == 401
    assert (same.status_code, other.status_code) == (200, 403)
    assert [entry["address"] for entry in entries] == ["127.0.0.1"]


def refused_logins(rpc: Rpc) -> list[dict[str, Any]]:
    """Wait for the entry of the refused login, which the server writes shortly after the response."""
    found: list[dict[str, Any]] = eventually(lambda: rpc("list_audit", action="login")["entries"])
    return found
