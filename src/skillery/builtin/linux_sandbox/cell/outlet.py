"""The way out of a run that may use the network: a listener in its own empty net namespace, for the host to accept on.

There is no route and no device but `lo`. Whoever holds the listener's descriptor is the run's only peer.
"""

from __future__ import annotations

import _socket  # and not `socket`: what that one imports would be in every run's memory
import array
import fcntl
import os

from . import kernel

BACKLOG = 128
GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 1


def bring_lo_up(any_socket: _socket.socket) -> None:
    """It then has 127.0.0.1 and ::1 by itself."""
    request = bytearray(b"lo".ljust(16, b"\0") + bytes(24))
    fcntl.ioctl(any_socket.fileno(), GET_FLAGS, request)
    request[16] |= UP
    fcntl.ioctl(any_socket.fileno(), SET_FLAGS, bytes(request))


def hand_over_listener(channel: int, port: int) -> None:
    """Send the host a listener on 127.0.0.1:`port`, as the first thing on the channel. It is not ours any more: the
    code can connect to it, and not accept on it."""
    try:
        listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        bring_lo_up(listener)
        listener.bind(("127.0.0.1", port))
        listener.listen(BACKLOG)
        host = _socket.socket(fileno=os.dup(channel))
        rights = array.array("i", [listener.fileno()])
        host.sendmsg([b"l"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
        host.close()
        listener.close()
    except OSError as error:
        raise kernel.failed("the way to the network", error.errno or 0) from None
