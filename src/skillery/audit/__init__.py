"""The audit trail: an append-only list of every change and every refused attempt. Each entry contains the hash of the
previous one.

`record` runs in the transaction that makes a change, so there is an entry if and only if there is a change. `Refusals`
writes refused attempts. docs/operate/audit.md describes the entries, and what the hashes prove.
"""

from skillery.audit.entries import (
    SERVER,
    Actor,
    ChainFault,
    Head,
    Verified,
    head,
    local_actor,
    record,
    record_at_once,
    take_turn,
    verify,
)
from skillery.audit.refusals import Refusals

__all__ = [
    "SERVER",
    "Actor",
    "ChainFault",
    "Head",
    "Refusals",
    "Verified",
    "head",
    "local_actor",
    "record",
    "record_at_once",
    "take_turn",
    "verify",
]
