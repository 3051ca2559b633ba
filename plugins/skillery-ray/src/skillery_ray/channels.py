"""Connections between servers and nodes: TLS with a certificate that each node makes, and a token.

Servers get the fingerprint of the certificate and the token from Ray, which only members of the cluster can read.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from skillery_ray.wire import Broken, Wire

CONNECT_SECONDS = 10.0
LEASE_SECONDS = 15
"""A connection is the lease of its run. The kernel ends it if the other computer is silent for this time."""
_CLOCK_SKEW = timedelta(days=1)
_LIFETIME = timedelta(days=3650)


class Door(msgspec.Struct, frozen=True):
    """The address of the engine on a node, and the proofs of both sides."""

    host: str
    port: int
    fingerprint: str
    """SHA-256 of the certificate of the engine, in hex."""
    token: str
    """The secret that servers send first."""


def own_certificate() -> tuple[ssl.SSLContext, str]:
    """Return the TLS context of a new self-signed certificate, and its fingerprint."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _LIFETIME)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ) + built.public_bytes(serialization.Encoding.PEM)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.TemporaryDirectory() as folder:  # the ssl module loads certificates only from files
        file = Path(folder) / "certificate.pem"
        file.touch(mode=0o600)
        file.write_bytes(pem)
        context.load_cert_chain(file)
    return context, built.fingerprint(hashes.SHA256()).hex()


def _client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the fingerprint is compared instead: it names exactly one engine
    context.verify_mode = ssl.CERT_NONE
    return context


_CLIENT = _client_context()


def keep_alive(writer: asyncio.StreamWriter) -> None:
    """Let the kernel end the connection if the other computer is silent for LEASE_SECONDS."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 2)):
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LEASE_SECONDS * 1000)


async def connect(door: Door, purpose: str) -> tuple[Wire, dict[str, object]]:
    """Return a connection to an engine, and its answer. Raise Broken if the engine cannot be reached."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(door.host, door.port, ssl=_CLIENT)
            wire = Wire(reader, writer)
            try:
                _check(writer, door)
                keep_alive(writer)
                await wire.send({"op": "hello", "token": door.token, "purpose": purpose})
                return wire, (await wire.receive()).header
            except BaseException:
                wire.close()
                raise
    except (OSError, TimeoutError) as error:
        raise Broken(f"the engine cannot be reached: {error or 'no answer'}") from None


def _check(writer: asyncio.StreamWriter, door: Door) -> None:
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    if hashlib.sha256(certificate or b"").hexdigest() != door.fingerprint:
        raise Broken("the certificate of the engine is not the one that its node has published")
