"""`skillery connect`: the settings that connect a client to a server."""

from skillery.cli.connect.command import connect

__all__ = ["connect"]
