"""Network access of a run: a listening socket in the empty net namespace of the run, on which the host accepts.

The namespace has no route, and no device except `lo`. So the code can only connect to the process that holds the
listening socket.
"""

from __future__ import annotations

import struct

from . import kernel, messages

BACKLOG = 128
SYS_SOCKET, SYS_BIND, SYS_LISTEN = (41, 49, 50) if kernel.X86 else (198, 200, 201)
SYS_IOCTL = 16 if kernel.X86 else 29
AF_INET, SOCK_STREAM = 2, 1
SET_FLAGS, UP = 0x8914, 1
REQUEST = struct.Struct("=16sH22x")
ADDRESS = struct.Struct("=H2s4s8x")
STEP = "the way to the network"


def hand_over_listener(channel: int, port: int) -> None:
    """Send the host a socket that listens on 127.0.0.1:`port`, as the first message on the channel, and close it here.

    The code can connect to the socket, but cannot accept on it.
    """
    listener = kernel.opening(STEP, SYS_SOCKET, AF_INET, SOCK_STREAM, 0)
    # `lo` gets 127.0.0.1 and ::1 automatically.
    kernel.call(STEP, SYS_IOCTL, listener, SET_FLAGS, REQUEST.pack(b"lo", UP))
    address = ADDRESS.pack(AF_INET, port.to_bytes(2, "big"), bytes((127, 0, 0, 1)))
    kernel.call(STEP, SYS_BIND, listener, address, len(address))
    kernel.call(STEP, SYS_LISTEN, listener, BACKLOG)
    kernel.call(STEP, kernel.SYS_SENDMSG, channel, messages.with_descriptor(listener), 0)
    kernel.close(listener)
