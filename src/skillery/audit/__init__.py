"""The audit trail: every change of state and every refused attempt, append-only and chained by hashes.

`record` is called in the transaction of a change, so the change and its entry are committed together. `Refusals` writes
refused attempts. docs/operate/audit.md describes the entries and what the chain proves.
"""

from skillery.audit.entries import SERVER, Actor, Head, head, local_actor, record, record_at_once
from skillery.audit.refusals import Refusals
from skillery.audit.verification import Fault, Verified, verify

__all__ = [
    "SERVER",
    "Actor",
    "Fault",
    "Head",
    "Refusals",
    "Verified",
    "head",
    "local_actor",
    "record",
    "record_at_once",
    "verify",
]
