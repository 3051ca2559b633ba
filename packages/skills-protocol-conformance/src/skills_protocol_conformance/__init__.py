"""Conformance suite for servers of the Skills Protocol v0.1."""

PROTOCOL_VERSION = "0.1"
