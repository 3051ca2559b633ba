"""Certificates of servers on loopback, valid or expired."""

from __future__ import annotations

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

HOUR = timedelta(hours=1)
LOOPBACK = ipaddress.ip_address("127.0.0.1")


def certificate(folder: Path, expires_in: timedelta) -> tuple[ssl.SSLContext, Path]:
    """Return the TLS context of a server at 127.0.0.1, and the file of its self-signed certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.SubjectAlternativeName([x509.IPAddress(LOOPBACK)])
    now = datetime.now(UTC)
    built = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), now - 48 * HOUR, now + expires_in
    )
    signed = (
        built.add_extension(address, False)
        .add_extension(x509.BasicConstraints(False, None), True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "certificate.pem"
    file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    key_file = folder / "key.pem"
    form = serialization.PrivateFormat.PKCS8
    key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key_file)
    return context, file
