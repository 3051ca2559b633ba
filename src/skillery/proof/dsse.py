"""Envelopes of DSSE 1.0 (github.com/secure-systems-lab/dsse): a payload with its signatures, and the keys for both.

A payload is signed, stored and verified as bytes, and never encoded again.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

PAYLOAD_TYPE = "application/vnd.in-toto+json"
CHALLENGE = "skillery add_key "
"""The begin of each text that a client signs to register a key. No signed statement begins like this (`pae`)."""
ED25519, ECDSA_P256 = "ed25519", "ecdsa-p256"
_ECDSA = ec.ECDSA(hashes.SHA256())
# The curve of Ed25519 has eight points of small order. Their y is 0, 1, -1, _ORDER_8 or -_ORDER_8.
_PRIME = (1 << 255) - 19
_ORDER_8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826

Sign = Callable[[bytes], tuple[str, bytes]]
"""Function that returns the keyid and the signature for bytes."""
PublicKey = ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey


class ProofError(Exception):
    """Raised for an envelope, a statement or a key that is not valid. The message is the end of a sentence."""


class ErrorsAbout:
    """Context manager: replace a ProofError by an error of the `kind`, whose message begins with `subject`."""

    def __init__(self, subject: str, kind: Callable[[str], Exception] = ProofError) -> None:
        self._subject = subject
        self._kind = kind

    def __enter__(self) -> None: ...

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, ProofError):
            raise self._kind(f"{self._subject} {error}") from None


class _Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keyid: str
    sig: str


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    payload: str
    payload_type: str
    signatures: tuple[_Signature, ...]


class Opened(NamedTuple):
    """The payload of an envelope, and the keyids of its signatures."""

    payload: bytes
    keyids: tuple[str, ...]


# -- keys --------------------------------------------------------------------------------------------------------------


class SigningKey:
    """A private key, Ed25519 or ECDSA on P-256."""

    def __init__(self, private: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> None:
        self._private = private
        self.public_der = private.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.keyid = keyid_of(self.public_der)

    @classmethod
    def new(cls) -> SigningKey:
        """Return a new Ed25519 key."""
        return cls(ed25519.Ed25519PrivateKey.generate())

    @classmethod
    def read(cls, pem: bytes) -> SigningKey:
        """Return the private key of a PEM file. Raise ProofError if it is not a key that can sign."""
        try:
            private = serialization.load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            # Not chained: the cause may quote the key.
            raise ProofError("is not a private key in PEM without a password") from None
        if isinstance(private, ec.EllipticCurvePrivateKey) and isinstance(private.curve, ec.SECP256R1):
            return cls(private)
        if isinstance(private, ed25519.Ed25519PrivateKey):
            return cls(private)
        raise ProofError("is neither an Ed25519 key nor an ECDSA key on P-256")

    @property
    def pem(self) -> bytes:
        """The private key in PEM, without a password."""
        return self._private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def sign(self, data: bytes) -> tuple[str, bytes]:
        """Return the keyid and the signature for `data`."""
        if isinstance(self._private, ed25519.Ed25519PrivateKey):
            return self.keyid, self._private.sign(data)
        return self.keyid, self._private.sign(data, _ECDSA)


def keyid_of(public_der: bytes) -> str:
    """Return the keyid of a public key in DER: `sha256:` and the SHA-256 in hex."""
    return f"sha256:{hashlib.sha256(public_der).hexdigest()}"


def algorithm_of(public_der: bytes) -> str:
    """Return the algorithm of a public key in DER: ED25519 or ECDSA_P256. Raise ProofError for other keys."""
    return ED25519 if isinstance(_public_key(public_der), ed25519.Ed25519PublicKey) else ECDSA_P256


@lru_cache(maxsize=1024)
def _public_key(public_der: bytes) -> PublicKey:
    try:
        public = serialization.load_der_public_key(public_der)
    except (ValueError, UnsupportedAlgorithm):
        raise ProofError("is not a public key in DER") from None
    if isinstance(public, ec.EllipticCurvePublicKey) and isinstance(public.curve, ec.SECP256R1):
        return public
    if isinstance(public, ed25519.Ed25519PublicKey):
        _refuse_small_order(public)
        return public
    raise ProofError("is neither an Ed25519 key nor an ECDSA key on P-256")


def _refuse_small_order(public: ed25519.Ed25519PublicKey) -> None:
    """Raise ProofError for a key whose signatures need no private key."""
    raw = public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    y = (int.from_bytes(raw, "little") & ((1 << 255) - 1)) % _PRIME
    if y in (0, 1, _ORDER_8) or _PRIME - y in (1, _ORDER_8):
        raise ProofError("is a key of small order, which has no owner")


# -- envelopes ---------------------------------------------------------------------------------------------------------


def pae(payload: bytes) -> bytes:
    """Return the bytes that are signed: the pre-authentication encoding of DSSE."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def seal(payload: bytes, *signers: Sign) -> bytes:
    """Return the envelope of a payload as JSON, with a signature of each signer."""
    data = pae(payload)
    signatures = tuple(_Signature(keyid, to_base64(signature)) for keyid, signature in (sign(data) for sign in signers))
    return msgspec.json.encode(_Envelope(to_base64(payload), PAYLOAD_TYPE, signatures))


def compact(envelope: bytes) -> bytes:
    """Return an envelope as `seal` writes it: without blanks and lines. Raise ProofError if it is not an envelope."""
    opened, signatures = _read(envelope)
    return msgspec.json.encode(_Envelope(to_base64(opened.payload), PAYLOAD_TYPE, signatures))


def verify(envelope: bytes, keys: Mapping[str, bytes]) -> Opened:
    """Return the payload of an envelope whose signatures are all valid. `keys` are public keys in DER by keyid.

    Raise ProofError if the envelope or a signature is not valid, or if a signature is of a key that is not in `keys`.
    An envelope is refused even if only one of its signatures is not valid: no byte of it may be changed.
    """
    opened, signatures = _read(envelope)
    data = pae(opened.payload)
    for signature in signatures:
        public_der = keys.get(signature.keyid)
        if public_der is None:
            raise ProofError(f"is signed with the unknown key {signature.keyid}")
        if keyid_of(public_der) != signature.keyid:
            raise ProofError(f"names the key {signature.keyid}, which is another key")
        check_signature(public_der, from_base64(signature.sig), data)
    return opened


def unverified(envelope: bytes) -> Opened:
    """Return the payload and the stated keyids of an envelope, without a check of its signatures. Raise ProofError if
    it is not an envelope.
    """
    return _read(envelope)[0]


def _read(envelope: bytes) -> tuple[Opened, tuple[_Signature, ...]]:
    try:
        read = msgspec.json.decode(envelope, type=_Envelope)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise ProofError("is not an envelope of DSSE") from None
    if read.payload_type != PAYLOAD_TYPE:
        raise ProofError("is not an envelope of an in-toto statement")
    keyids = tuple(signature.keyid for signature in read.signatures)
    if not keyids or len(set(keyids)) < len(keyids):
        raise ProofError("has no signature, or two of one key")
    return Opened(from_base64(read.payload), keyids), read.signatures


def check_signature(public_der: bytes, value: bytes, data: bytes) -> None:
    """Raise ProofError if `value` is not the signature of the key for `data`."""
    public = _public_key(public_der)
    try:
        if isinstance(public, ed25519.Ed25519PublicKey):
            public.verify(value, data)
        else:
            public.verify(value, data, _ECDSA)
    except InvalidSignature:
        raise ProofError(f"has a signature of the key {keyid_of(public_der)} that is not valid") from None


def to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def from_base64(text: str) -> bytes:
    """Return the bytes of a text in base64. Raise ProofError for other texts, also if unused bits are not zero."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if to_base64(data) != text:
        raise ProofError("contains a text that is not base64")
    return data
