"""Envelopes and statements, compared with securesystemslib and in-toto's rules."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_public_key,
    load_pem_private_key,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from securesystemslib.dsse import Envelope
from securesystemslib.signer._crypto_signer import CryptoSigner
from securesystemslib.signer._key import SSlibKey

from skillery.proof.dsse import ProofError, SigningKey, algorithm_of, keyid_of, pae, seal, verify
from skillery.proof.statements import check_subject, make_statement, read_statement

DIGEST = f"sha256:{'5f' * 32}"
STATEMENT = make_statement("review", "payments.refund", "1.2.0", DIGEST, {"decision": "approved", "note": "größer"})
KEYS = {"ed25519": SigningKey.new(), "ecdsa-p256": SigningKey(ec.generate_private_key(ec.SECP256R1()))}
ENVELOPE = seal(STATEMENT, *(key.sign for key in KEYS.values()))
SCHEMES = {"ed25519": "ed25519", "ecdsa-p256": "ecdsa-sha2-nistp256"}


def trusted(*keys: SigningKey) -> dict[str, bytes]:
    return {key.keyid: key.public_der for key in keys}


def oracle_key(algorithm: str) -> SSlibKey:
    """Return the public key as securesystemslib knows it, with our keyid."""
    key = KEYS[algorithm]
    public: Any = load_der_public_key(key.public_der)
    return SSlibKey.from_crypto(public, key.keyid, SCHEMES[algorithm])


@pytest.mark.parametrize("algorithm", KEYS)
@given(st.binary(max_size=300))
def test_securesystemslib_accepts_our_envelopes(algorithm: str, payload: bytes) -> None:
    envelope = Envelope.from_dict(_json(seal(payload, KEYS[algorithm].sign)))

    assert envelope.pae() == pae(payload)
    assert list(envelope.verify([oracle_key(algorithm)], 1)) == [KEYS[algorithm].keyid]


@pytest.mark.parametrize("algorithm", KEYS)
@given(st.binary(max_size=300))
def test_envelopes_of_securesystemslib_are_valid(algorithm: str, payload: bytes) -> None:
    key = KEYS[algorithm]
    private: Any = load_pem_private_key(key.pem, None)
    envelope = Envelope(payload, "application/vnd.in-toto+json", {})
    envelope.sign(CryptoSigner(private, oracle_key(algorithm)))

    assert verify(_text(envelope.to_dict()), trusted(key)) == (payload, (key.keyid,))


def test_every_signature_of_an_envelope_must_be_valid() -> None:
    first, second = KEYS.values()

    assert verify(ENVELOPE, trusted(first, second)) == (STATEMENT, (first.keyid, second.keyid))
    with pytest.raises(ProofError, match=f"the unknown key {second.keyid}"):
        verify(ENVELOPE, trusted(first))
    with pytest.raises(ProofError, match="two of one key"):
        verify(seal(STATEMENT, first.sign, first.sign), trusted(first))
    with pytest.raises(ProofError, match="no signature"):
        verify(seal(STATEMENT), trusted(first))


@given(st.data())
def test_an_envelope_with_a_changed_byte_is_refused(data: st.DataObject) -> None:
    """Also bits of base64 that stand for nothing, and letters of names in JSON."""
    at = data.draw(st.integers(0, len(ENVELOPE) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != ENVELOPE[at]))

    with pytest.raises(ProofError):
        verify(ENVELOPE[:at] + bytes([byte]) + ENVELOPE[at + 1 :], trusted(*KEYS.values()))


def test_every_byte_of_an_envelope_counts() -> None:
    """One bit of each byte, without chance."""
    accepted = []
    for at, byte in enumerate(ENVELOPE):
        changed = ENVELOPE[:at] + bytes([byte ^ 1]) + ENVELOPE[at + 1 :]
        try:
            verify(changed, trusted(*KEYS.values()))
        except ProofError:
            continue
        accepted.append(at)

    assert accepted == []


@settings(max_examples=50)
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_arbitrary_bytes_are_no_envelope_and_no_statement(data: bytes) -> None:
    for read in (lambda: verify(data, {}), lambda: read_statement(data)):
        with pytest.raises(ProofError):
            read()


@pytest.mark.parametrize(
    "change",
    [
        lambda envelope: envelope | {"payloadType": "text/plain"},
        lambda envelope: envelope | {"more": 1},
        lambda envelope: envelope | {"payload": envelope["payload"] + "\n"},
        lambda envelope: envelope | {"payload": base64.urlsafe_b64encode(b"\xff\xfe\xfd").decode()},
    ],
)
def test_envelopes_in_another_form_are_refused(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    key = KEYS["ed25519"]

    with pytest.raises(ProofError):
        verify(_text(change(_json(seal(STATEMENT, key.sign)))), trusted(key))


def test_a_key_with_a_false_keyid_is_refused() -> None:
    key, other = KEYS.values()

    with pytest.raises(ProofError, match="which is another key"):
        verify(seal(STATEMENT, key.sign), {key.keyid: other.public_der})


def test_keys_are_read_as_they_were_written() -> None:
    for key in KEYS.values():
        again = SigningKey.read(key.pem)
        assert (again.keyid, again.public_der) == (key.keyid, key.public_der)
        assert key.keyid == keyid_of(key.public_der)


@pytest.mark.parametrize("first", [0, 1, 0x26, 0xC7, 0xEC, 0xED, 0xEE])
def test_keys_of_small_order_are_refused(first: int) -> None:
    """Signatures of such keys of Ed25519 need no private key. Some points have two spellings."""
    order_8 = int.from_bytes(
        bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little"
    )
    prime = 2**255 - 19
    points = {y & 0xFF: y for y in (0, 1, order_8, prime - order_8, prime - 1, prime, prime + 1)}
    begin = KEYS["ed25519"].public_der[:-32]
    for sign in (0, 1 << 255):
        with pytest.raises(ProofError, match="small order"):
            algorithm_of(begin + (points[first] | sign).to_bytes(32, "little"))


def test_other_keys_cannot_sign() -> None:
    options = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    rsa_key = rsa.generate_private_key(65537, 2048).private_bytes(*options)
    p384 = ec.generate_private_key(ec.SECP384R1()).private_bytes(*options)

    for pem in (rsa_key, p384):
        with pytest.raises(ProofError, match="neither"):
            SigningKey.read(pem)
    with pytest.raises(ProofError, match="not a private key"):
        SigningKey.read(b"-----BEGIN PRIVATE KEY-----\n")


def test_a_statement_is_about_exactly_its_version_and_digest() -> None:
    statement = read_statement(STATEMENT)

    assert (statement.word, statement.predicate["note"]) == ("review", "größer")
    check_subject(statement, "payments.refund", "1.2.0", DIGEST)
    other = f"sha256:{'60' * 32}"
    with pytest.raises(ProofError, match=f"is about {DIGEST}, not {other}"):
        check_subject(statement, "payments.refund", "1.2.0", other)
    with pytest.raises(ProofError, match=r"is about 'skillery:payments.refund@1.2.0', not 'skillery:mail.send@1.2.0'"):
        check_subject(statement, "mail.send", "1.2.0", DIGEST)


def _json(envelope: bytes) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.json.decode(envelope)
    return value


def _text(envelope: dict[str, Any]) -> bytes:
    return msgspec.json.encode(envelope)
