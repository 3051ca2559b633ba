"""A Sigstore instance for tests: a certificate authority, a log of certificates and a log of signatures, with their
trusted root. Each signature is the only entry of its log.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

ISSUER = "https://token.actions.githubusercontent.com"
_SHA256 = ec.ECDSA(hashes.SHA256())
_SCTS = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_ISSUER = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.8")
_MINUTES = timedelta(minutes=10)


class PrivateSigstore:
    """An instance with new keys. `sign` makes a bundle for a digest."""

    def __init__(self) -> None:
        self._now = datetime.now(UTC).replace(microsecond=0)
        self._ca, self._ct, self._rekor = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "private sigstore")])
        self._root = (
            self._builder(self._name, self._ca, timedelta(days=365))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(key_cert_sign=True), critical=True)
            .sign(self._ca, hashes.SHA256())
        )

    def write_trusted_root(self, file: Path) -> str:
        """Write the trusted root, and return its path."""
        certificate = {"rawBytes": _base64(self._root.public_bytes(Encoding.DER))}
        authority = {
            "subject": {"organization": "private", "commonName": "private sigstore"},
            "uri": "https://fulcio.example.org",
            "certChain": {"certificates": [certificate]},
            "validFor": {"start": self._start},
        }
        root = {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [self._log(self._rekor)],
            "certificateAuthorities": [authority],
            "ctlogs": [self._log(self._ct)],
            "timestampAuthorities": [],
        }
        file.write_text(json.dumps(root))
        return str(file)

    def sign(self, sha256: str, subject: str) -> str:
        """Return the bundle with which the workflow `subject` signs the file with this SHA-256."""
        key, digest = ec.generate_private_key(ec.SECP256R1()), bytes.fromhex(sha256)
        signature = _base64(key.sign(digest, ec.ECDSA(Prehashed(hashes.SHA256()))))
        certificate = self._certificate(key, subject)
        public = {"content": _base64(certificate.public_bytes(Encoding.PEM))}
        spec = {
            "data": {"hash": {"algorithm": "sha256", "value": sha256}},
            "signature": {"content": signature, "publicKey": public},
        }
        body = json.dumps({"apiVersion": "0.0.1", "kind": "hashedrekord", "spec": spec}, separators=(",", ":")).encode()
        bundle = {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {"rawBytes": _base64(certificate.public_bytes(Encoding.DER))},
                "tlogEntries": [self._entry(body)],
            },
            "messageSignature": {
                "messageDigest": {"algorithm": "SHA2_256", "digest": _base64(digest)},
                "signature": signature,
            },
        }
        return json.dumps(bundle)

    @property
    def _start(self) -> str:
        return (self._now - _MINUTES).isoformat().replace("+00:00", "Z")

    def _log(self, key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
        public = {"rawBytes": _base64(_der(key)), "keyDetails": "PKIX_ECDSA_P256_SHA_256"}
        return {
            "baseUrl": "https://log.example.org",
            "hashAlgorithm": "SHA2_256",
            "publicKey": {**public, "validFor": {"start": self._start}},
            "logId": {"keyId": _base64(_id(key))},
        }

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, life: timedelta) -> x509.CertificateBuilder:
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._ca.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - _MINUTES)
            .not_valid_after(self._now + life)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(authority, critical=False)
        )

    def _certificate(self, key: ec.EllipticCurvePrivateKey, subject: str) -> x509.Certificate:
        """Return a certificate with a timestamp of the log of certificates, which covers all other extensions."""
        issuer = b"\x0c" + bytes([len(ISSUER)]) + ISSUER.encode()
        builder = (
            self._builder(x509.Name([]), key, _MINUTES)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(subject)]), critical=True)
            .add_extension(x509.UnrecognizedExtension(_ISSUER, issuer), critical=False)
        )
        covered = builder.sign(self._ca, hashes.SHA256()).tbs_certificate_bytes
        milliseconds = int(self._now.timestamp() * 1000)
        entry = struct.pack("!BBQH", 0, 0, milliseconds, 1) + _id(self._ca) + len(covered).to_bytes(3) + covered
        signature = self._ct.sign(entry + bytes(2), _SHA256)
        timestamp = struct.pack("!B32sQHBBH", 0, _id(self._ct), milliseconds, 0, 4, 3, len(signature)) + signature
        scts = struct.pack("!HH", len(timestamp) + 2, len(timestamp)) + timestamp
        in_der = b"\x04" + (bytes([len(scts)]) if len(scts) < 128 else bytes([0x81, len(scts)])) + scts
        extension = x509.UnrecognizedExtension(_SCTS, in_der)
        return builder.add_extension(extension, critical=False).sign(self._ca, hashes.SHA256())

    def _entry(self, body: bytes) -> dict[str, Any]:
        """Return the entry of a log that has only this one."""
        seconds, log_id = int(self._now.timestamp()), _id(self._rekor)
        root = _base64(hashlib.sha256(b"\0" + body).digest())
        promise = {"body": _base64(body), "integratedTime": seconds, "logID": log_id.hex(), "logIndex": 0}
        promised = self._rekor.sign(json.dumps(promise, sort_keys=True, separators=(",", ":")).encode(), _SHA256)
        note = f"log.example.org - 1\n1\n{root}\n"
        signed = _base64(log_id[:4] + self._rekor.sign(note.encode(), _SHA256))
        proof = {"logIndex": "0", "rootHash": root, "treeSize": "1", "hashes": []}
        return {
            "logIndex": "0",
            "logId": {"keyId": _base64(log_id)},
            "kindVersion": {"kind": "hashedrekord", "version": "0.0.1"},
            "integratedTime": str(seconds),
            "inclusionPromise": {"signedEntryTimestamp": _base64(promised)},
            "inclusionProof": {**proof, "checkpoint": {"envelope": f"{note}\n\u2014 log.example.org {signed}\n"}},
            "canonicalizedBody": _base64(body),
        }


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=key_cert_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _der(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _id(key: ec.EllipticCurvePrivateKey) -> bytes:
    return hashlib.sha256(_der(key)).digest()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
