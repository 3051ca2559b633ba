"""Webhooks with https: the certificate must be valid for the name of the URL."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.conftest import Server
from tests.webhooks.receiver import Receiver, verified


def _certificate(folder: Path, name: str, days: int = 1) -> Path:
    """Write a certificate for a host name, which is its own authority, and its key. Return the file with both."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=10))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    kind, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path = folder / f"{name}{days}.pem"
    path.write_bytes(made.public_bytes(kind) + key.private_bytes(kind, form, serialization.NoEncryption()))
    return path


@pytest.fixture
def receiver_with(receiver: Receiver) -> Callable[[Path], Receiver]:
    """Return a function that returns the receiver with a certificate."""

    def secured(certificate: Path) -> Receiver:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        receiver.stop()
        receiver.tls = context
        receiver.start()
        return receiver

    return secured


def _tested(start_server: Callable[..., Server], target: Receiver, trusted: Path) -> dict[str, object]:
    server = start_server(env={"SSL_CERT_FILE": str(trusted)})
    added = server.rpc("add_webhook", url=target.url)
    target.secret = added["secret"]
    tested: dict[str, object] = server.rpc("test_webhook", id=added["id"])
    server.rpc("remove_webhook", id=added["id"])
    return tested


def test_a_certificate_for_the_name_is_accepted(
    start_server: Callable[..., Server], receiver_with: Callable[[Path], Receiver], tmp_path: Path
) -> None:
    certificate = _certificate(tmp_path, "localhost")
    target = receiver_with(certificate)

    assert _tested(start_server, target, certificate)["ok"]
    [message] = target.requests
    assert message.headers["host"] == f"localhost:{target.port}"
    assert verified(message.headers, message.body, target.secret)


@pytest.mark.parametrize(
    ("name", "days", "is_trusted", "reason"),
    [
        ("other.example", 1, True, "Hostname mismatch"),
        ("localhost", -1, True, "expired"),
        ("localhost", 1, False, "self-signed certificate"),
    ],
)
@pytest.mark.full(after=1)
def test_another_certificate_is_refused(
    start_server: Callable[..., Server],
    receiver_with: Callable[[Path], Receiver],
    tmp_path: Path,
    name: str,
    days: int,
    is_trusted: bool,
    reason: str,
) -> None:
    certificate = _certificate(tmp_path, name, days)
    target = receiver_with(certificate)

    tested = _tested(start_server, target, certificate if is_trusted else _certificate(tmp_path, "another.example"))

    assert not tested["ok"]
    assert reason in str(tested["error"])
    assert target.requests == []
