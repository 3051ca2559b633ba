"""Network access of a run: a listening socket in the empty net namespace of the run, on which the host accepts.

The namespace has no route, and no device except `lo`. So the code can only connect to the process that holds the
listening socket.
"""

from __future__ import annotations

import ctypes
import struct

from . import kernel

BACKLOG = 128
SYS_SOCKET, SYS_BIND, SYS_LISTEN, SYS_SENDMSG = (41, 49, 50, 46) if kernel.X86 else (198, 200, 201, 211)
SYS_IOCTL = 16 if kernel.X86 else 29
AF_INET, SOCK_STREAM, SOL_SOCKET, SCM_RIGHTS = 2, 1, 1, 1
SET_FLAGS, UP = 0x8914, 1
REQUEST = struct.Struct("=16sH22x")
ADDRESS = struct.Struct("=H2s4s8x")
RIGHTS = struct.Struct("=QIIi4x")
STEP = "the way to the network"


class Piece(ctypes.Structure):
    _fields_ = (("start", ctypes.c_char_p), ("length", ctypes.c_size_t))


class Message(ctypes.Structure):
    """The structure msghdr of sendmsg(2)."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint),
        ("pieces", ctypes.POINTER(Piece)),
        ("piece_count", ctypes.c_size_t),
        ("extra", ctypes.c_char_p),
        ("extra_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


def with_descriptor(descriptor: int) -> Message:
    """Return a message of one byte that carries a descriptor."""
    rights = RIGHTS.pack(RIGHTS.size - 4, SOL_SOCKET, SCM_RIGHTS, descriptor)
    return Message(None, 0, ctypes.pointer(Piece(b"l", 1)), 1, rights, len(rights), 0)


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
    kernel.call(STEP, SYS_SENDMSG, channel, with_descriptor(listener), 0)
    kernel.close(listener)
