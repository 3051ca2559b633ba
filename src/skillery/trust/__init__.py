"""Trusted publishing: rules say which CI jobs may publish which skills, without a stored token.

A job sends the signed token of its CI service. If a rule matches the claims of this token, the job gets a token of the
registry for 15 minutes. A plugin verifies the signature (`skillery.backends.Verifier`).
"""
