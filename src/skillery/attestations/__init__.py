"""Attestations: signed statements about versions, and the keys that sign them."""
