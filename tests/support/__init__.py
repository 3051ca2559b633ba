"""Shared helpers of the tests: servers, callers, packages, and models of clients."""
