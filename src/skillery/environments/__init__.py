"""Environments: packages that skills declare. Publishing locks them, and each server installs each lock once."""
