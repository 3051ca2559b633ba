"""Merkle trees of RFC 9162, section 2.1: one hash for many leaves, and proofs that a leaf is one of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from skillery.proof.dsse import ProofError

HASH_BYTES = 32


def leaf_hash(data: bytes) -> bytes:
    """Return the hash of a leaf. The first byte makes it different from each hash of an inner node."""
    return hashlib.sha256(b"\0" + data).digest()


def _node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


def _levels(leaves: Sequence[bytes]) -> list[list[bytes]]:
    """Return the nodes of a tree with at least one leaf, from the leaves to the root.

    A node without a right neighbour is also a node of the next level. The result is the tree of the RFC, which splits
    at the largest power of two.
    """
    levels = [list(leaves)]
    while len(level := levels[-1]) > 1:
        pairs = [_node_hash(level[at], level[at + 1]) for at in range(0, len(level) - 1, 2)]
        levels.append(pairs + level[len(pairs) * 2 :])
    return levels


def root_of(leaves: Sequence[bytes]) -> bytes:
    """Return the root for the hashes of leaves, in their order. Without leaves, the root is the SHA-256 of no bytes."""
    return _levels(leaves)[-1][0] if leaves else hashlib.sha256().digest()


def proof_of(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """Return the hashes with which `check_leaf` computes the root from the leaf `index`, from the leaf upwards."""
    proof = []
    for level in _levels(leaves)[:-1]:
        if index ^ 1 < len(level):
            proof.append(level[index ^ 1])
        index //= 2
    return proof


def check_leaf(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
    """Raise ProofError if the hash `leaf` is not the leaf `index` of the tree with `size` leaves and this root.
    `index` begins with 0.
    """
    if not 0 <= index < size:
        raise ProofError(f"is said to be leaf {index} of {size}")
    node, last, hashes = leaf, size - 1, iter(proof)
    while last:
        if index % 2:
            node = _node_hash(next(hashes, b""), node)
        elif index < last:
            node = _node_hash(node, next(hashes, b""))
        index, last = index // 2, last // 2
    # A second proof for the same leaf would have hashes that nothing uses.
    if node != root or next(hashes, None) is not None:
        raise ProofError("is not a leaf of the sealed tree")
