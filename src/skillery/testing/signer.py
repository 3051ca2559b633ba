"""The contract of Signers: subclass SignerContract and provide the fixture `signer`."""

from __future__ import annotations

import threading

import pytest

from skillery.backends import Signer
from skillery.proof.dsse import algorithm_of, keyid_of, seal, verify
from skillery.testing.contracts import Contract

PAYLOADS = [b"", b"x", b"{}", bytes(range(256)), b"x" * 200_000]


class SignerContract(Contract):
    """The contract: each signature is valid with one of the public keys. `repr` of the backend shows no private key."""

    @pytest.fixture
    def signer(self) -> Signer:
        raise NotImplementedError("provide the fixture `signer`: a started backend with a key, or one that makes a key")

    @pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
    def test_each_signature_is_valid(self, signer: Signer, payload: bytes) -> None:
        """`sign` returns the keyid of one of the public keys, and its signature for exactly these bytes."""
        envelope = seal(payload, signer.sign)

        assert verify(envelope, _keys(signer)).payload == payload

    def test_the_key_stays_the_same(self, signer: Signer) -> None:
        """After the first signature, `public_keys` and the keyid of signatures do not change."""
        keyid, _ = signer.sign(b"first")
        keys = signer.public_keys()

        assert signer.sign(b"second")[0] == keyid
        assert signer.public_keys() == keys
        assert keyid in _keys(signer)

    def test_each_key_has_a_known_algorithm(self, signer: Signer) -> None:
        """Each public key is Ed25519 or ECDSA on P-256, in DER."""
        signer.sign(b"first")

        assert {algorithm_of(public_der) for public_der in signer.public_keys()} <= {"ed25519", "ecdsa-p256"}

    def test_several_threads_sign_at_once(self, signer: Signer) -> None:
        """Each of several threads gets the signature for its own bytes. All use one key, also for the first one."""
        envelopes: dict[int, bytes] = {}

        def work(number: int) -> None:
            envelopes[number] = seal(str(number).encode(), signer.sign)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        keys = _keys(signer)
        results = [verify(envelope, keys) for _, envelope in sorted(envelopes.items())]

        assert [result.payload for result in results] == [str(number).encode() for number in range(8)]
        assert len({result.keyids for result in results}) == 1

    def test_repr_shows_no_private_key(self, signer: Signer) -> None:
        """`repr` and `str` of the backend contain no PEM."""
        signer.sign(b"first")

        assert "PRIVATE" not in repr(signer) + str(signer)


def _keys(signer: Signer) -> dict[str, bytes]:
    return {keyid_of(public_der): public_der for public_der in signer.public_keys()}
