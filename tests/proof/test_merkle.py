"""Merkle trees: each leaf has a proof, and no changed byte passes."""

from __future__ import annotations

import hashlib

import pytest

from skillery.proof.dsse import ProofError
from skillery.proof.merkle import check_leaf, leaf_hash, proof_of, root_of

SIZES = range(1, 200)


def leaves_of(size: int) -> list[bytes]:
    return [leaf_hash(b"leaf %d" % number) for number in range(size)]


def root_of_rfc(leaves: list[bytes]) -> bytes:
    """Return the root as RFC 9162, section 2.1.1 defines it: split at the largest power of two below the size."""
    if len(leaves) == 1:
        return leaves[0]
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + root_of_rfc(leaves[:split]) + root_of_rfc(leaves[split:])).digest()


@pytest.mark.parametrize("size", SIZES)
def test_each_leaf_of_each_size_has_a_proof(size: int) -> None:
    leaves = leaves_of(size)
    root = root_of(leaves)

    assert root == root_of_rfc(leaves)
    for index, leaf in enumerate(leaves):
        proof = proof_of(leaves, index)
        assert len(proof) <= (size - 1).bit_length()
        check_leaf(leaf, index, size, proof, root)


def test_no_leaves_have_the_hash_of_no_bytes() -> None:
    assert root_of([]) == hashlib.sha256(b"").digest()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 11, 64, 199])
def test_any_changed_byte_index_size_or_hash_is_refused(size: int) -> None:
    leaves = leaves_of(size)
    root, index = root_of(leaves), size // 2
    proof = proof_of(leaves, index)

    def is_refused(leaf: bytes, index: int, size: int, proof: list[bytes], root: bytes) -> bool:
        try:
            check_leaf(leaf, index, size, proof, root)
        except ProofError:
            return True
        return False

    for at in range(32):
        assert is_refused(flipped(leaves[index], at), index, size, proof, root)
        assert is_refused(leaves[index], index, size, proof, flipped(root, at))
        for number, node in enumerate(proof):
            changed = [*proof[:number], flipped(node, at), *proof[number + 1 :]]
            assert is_refused(leaves[index], index, size, changed, root)
    assert is_refused(leaves[index], index, size, [*proof, root], root)
    assert not proof or is_refused(leaves[index], index, size, proof[:-1], root)
    assert all(is_refused(leaves[index], other, size, proof, root) for other in range(-1, size + 1) if other != index)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
