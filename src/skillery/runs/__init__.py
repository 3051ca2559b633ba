"""Runs of skills, tools and code, from a request to a record. No transaction is open while the sandbox executes
code.
"""
