"""Messages with descriptors for scripts of system calls: structures for sendmsg(2) and recvmsg(2)."""

from __future__ import annotations

import ctypes
import struct

TYPE_CHECKING = False  # importing `typing` for this costs every start milliseconds
if TYPE_CHECKING:
    from collections.abc import Sequence

SOL_SOCKET, SCM_RIGHTS = 1, 1
MSG_CMSG_CLOEXEC, MSG_CTRUNC = 0x40000000, 8
RIGHTS = struct.Struct("=QIIi4x")
"""A control message with one descriptor: its length, level, kind, and the descriptor."""
CONTROL_HEAD = struct.Struct("=QII")

Place = tuple[int, int]
"""The address and the length of a part of a message."""


class Piece(ctypes.Structure):
    """The structure iovec."""

    _fields_ = (("start", ctypes.c_void_p), ("length", ctypes.c_size_t))


class Message(ctypes.Structure):
    """The structure msghdr."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint),
        ("pieces", ctypes.POINTER(Piece)),
        ("piece_count", ctypes.c_size_t),
        ("extra", ctypes.c_void_p),
        ("extra_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


def place_of(content: ctypes.Array[ctypes.c_char] | ctypes.c_bool) -> Place:
    return ctypes.addressof(content), ctypes.sizeof(content)


def set_places(message: Message, places: Sequence[Place], extra: ctypes.Array[ctypes.c_char] | None) -> None:
    """Set the places of the parts and of the control message. The caller must keep the memory of the parts."""
    pieces = (Piece * len(places))(*(Piece(start, length) for start, length in places))
    message.pieces, message.piece_count = pieces, len(pieces)
    if extra is not None:
        message.extra, message.extra_length = place_of(extra)
    message.kept = extra


def message(places: Sequence[Place], extra: ctypes.Array[ctypes.c_char] | None) -> Message:
    """Return a message with these places, as `set_places`."""
    made = Message()
    set_places(made, places, extra)
    return made


def rights(descriptor: int) -> ctypes.Array[ctypes.c_char]:
    content = RIGHTS.pack(RIGHTS.size - 4, SOL_SOCKET, SCM_RIGHTS, descriptor)
    return ctypes.create_string_buffer(content, len(content))


def with_descriptor(descriptor: int) -> Message:
    """Return a message of one byte that carries a descriptor."""
    byte = ctypes.create_string_buffer(b"d", 1)
    made = message([place_of(byte)], rights(descriptor))
    made.byte = byte
    return made


def descriptor_count(extra: ctypes.Array[ctypes.c_char]) -> int:
    """Return the number of descriptors in a received control message."""
    length, _, _ = CONTROL_HEAD.unpack_from(extra)
    return int(length - CONTROL_HEAD.size) // 4
