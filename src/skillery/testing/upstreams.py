"""Servers on loopback for runs. They record every byte that they receive."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NAMES = ("api.test", "*.api.test", "other.test")
"""Names in the certificate of a server with TLS."""
LIFE = datetime.timedelta(days=2)


class Upstream:
    """A server for tests. It reads one request per connection, until the bytes `until`, and answers it.

    The answer is 200 with the request line as body, or `answer(head)`."""

    def __init__(
        self, *, tls: bool = False, answer: Callable[[bytes], bytes] | None = None, until: bytes = b"\r\n\r\n"
    ) -> None:
        self.received = bytearray()
        """Bytes from TCP; with TLS, the decrypted bytes."""
        self.connections = 0
        self._answer = answer or echo
        self._until = until
        self._tls = server_context() if tls else None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Read one request, answer it, and record every byte until the client closes the connection."""
        with connection, contextlib.suppress(OSError):
            connection.settimeout(300)
            if self._tls:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with connection:
                head = b""
                while self._until not in head:
                    piece = connection.recv(65536)
                    if not piece:
                        return
                    self.received += piece
                    head += piece
                connection.sendall(self._answer(head))
                connection.shutdown(socket.SHUT_WR)
                while piece := connection.recv(65536):
                    self.received += piece

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)


def echo(head: bytes) -> bytes:
    return ok(head.partition(b"\r\n")[0])


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def redirect(to: str) -> Callable[[bytes], bytes]:
    return lambda head: f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode()


@cache
def authority() -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Return the key and the certificate of an authority. Each process creates its own, and the key is never stored."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests only")])
    key_identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    uses = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    builder = unsigned(issuer, issuer, key).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(uses, critical=True).add_extension(key_identifier, critical=False)
    return key, builder.sign(key, hashes.SHA256())


def unsigned(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    return builder.serial_number(x509.random_serial_number()).not_valid_before(now - LIFE).not_valid_after(now + LIFE)


def ca_pem() -> str:
    """Return the certificate that a client must trust to reach a server with TLS."""
    return authority()[1].public_bytes(serialization.Encoding.PEM).decode()


@cache
def server_context() -> ssl.SSLContext:
    """Return a TLS context with a new certificate of the authority for the names of the tests."""
    signer, issuer = authority()
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName([x509.DNSName(name) for name in NAMES])
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = unsigned(x509.Name([]), issuer.subject, key).add_extension(names, critical=True)
    certificate = builder.add_extension(signed_by, critical=False).sign(signer, hashes.SHA256())
    pem = certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:  # SSLContext can load it only from a file
        path = Path(folder) / "server.pem"
        path.write_bytes(pem)
        context.load_cert_chain(path)
    return context


def client_context() -> ssl.SSLContext:
    return ssl.create_default_context(cadata=ca_pem())


@contextlib.contextmanager
def upstream(
    *, tls: bool = False, answer: Callable[[bytes], bytes] | None = None, until: bytes = b"\r\n\r\n"
) -> Iterator[Upstream]:
    """Context manager that yields a running Upstream."""
    running = Upstream(tls=tls, answer=answer, until=until)
    try:
        yield running
    finally:
        running.close()
