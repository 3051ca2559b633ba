"""Trusted publishing: rules say which CI jobs may publish which skills, without a stored token.

A job sends the signed token of its CI service. If a rule matches the claims of this token, the job gets a token of the
registry for 15 minutes. A plugin verifies the signature (`skillery.backends.Verifier`).
"""

from skillery.trust.documents import Documents
from skillery.trust.methods import Trust
from skillery.trust.rows import forget_expired
from skillery.trust.rules import RuleRequest

__all__ = ["Documents", "RuleRequest", "Trust", "forget_expired"]
