"""The audit trail: every change of state and every refused attempt, append-only and chained by hashes.

`record` is called in the transaction that makes a change, so that neither exists without the other; `Refusals` writes
what was refused. docs/operate/audit.md says what stands in it and what its chain shows.
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
