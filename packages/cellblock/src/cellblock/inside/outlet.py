"""Network access of a run: a listening socket in the empty net namespace of the run, on which the host accepts.

The namespace has no route, and no device except `lo`. So the code can only connect to the process that holds the
listening socket. `native/cell.c` has its own version of this function.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct

SET_FLAGS, UP = 0x8914, 1
REQUEST = struct.Struct("=16sH22x")
SETTINGS = {
    "/proc/sys/net/ipv4/tcp_rmem": "4096 16384 32768",
    "/proc/sys/net/ipv4/tcp_wmem": "4096 16384 32768",
    "/proc/sys/net/core/somaxconn": "128",
    "/proc/sys/net/ipv4/ip_unprivileged_port_start": "0",
}
"""The settings of a net namespace in which programs have servers, for the test of the host."""


def hand_over_listener(channel: int, port: int) -> None:
    """Send the host a socket that listens on 127.0.0.1:`port`, as the first message on the channel, and close it here.

    The code can connect to the socket, but cannot accept on it.
    """
    with socket.socket() as listener, socket.socket(fileno=os.dup(channel)) as end:
        fcntl.ioctl(listener, SET_FLAGS, REQUEST.pack(b"lo", UP))  # `lo` gets 127.0.0.1 and ::1 automatically
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
        socket.send_fds(end, [b"d"], [listener.fileno()])
