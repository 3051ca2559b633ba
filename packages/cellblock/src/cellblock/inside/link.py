"""One end of a SOCK_SEQPACKET socket pair. Each message is small and may carry descriptors.

The first messages are JSON objects. Requests for mounts and all answers begin with a NUMBER. A request for a run is
`struct order` of native/cell.c.
"""

from __future__ import annotations

import _socket
import array
import json
import struct

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

MOST_BYTES = 128 * 1024
MOST_DESCRIPTORS = 16
NUMBER = struct.Struct("=q")
"""The number of a request, also of its answer."""
ID_MAP_BYTES = 24
STATUS = struct.Struct("=q")
"""The status of a run in the answer to its request: 0, or CROWDED."""
CROWDED = -1


def id_map(outside: int) -> bytes:
    """Return the text that maps uid or gid 1000 of a run to an id outside."""
    return f"1000 {outside} 1".encode().ljust(ID_MAP_BYTES)


class Link:
    def __init__(self, descriptor: int) -> None:
        # `_socket` instead of `socket`, whose imports would be in every run's memory.
        self._socket = _socket.socket(fileno=descriptor)
        self.descriptor = descriptor

    def say(self, descriptors: Iterable[int] = (), **message: Any) -> None:
        """Send a JSON object. Raise ConnectionError if the other end has closed."""
        self.send(json.dumps(message).encode(), descriptors)

    def send(self, content: bytes, descriptors: Iterable[int] = ()) -> None:
        """Send a message. Raise ConnectionError if the other end has closed."""
        rights = array.array("i", descriptors)
        if rights:
            self._socket.sendmsg([content], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
        else:
            self._socket.send(content)

    def hear(self) -> tuple[dict[str, Any], list[int]]:
        """Return the next message, a JSON object, and its descriptors. Raise EOFError if the other end has closed."""
        content, descriptors = self.receive()
        return json.loads(content), descriptors

    def receive(self) -> tuple[bytes, list[int]]:
        """Return the next message and its descriptors. Raise EOFError if the other end has closed."""
        rights = array.array("i")
        room = _socket.CMSG_LEN(MOST_DESCRIPTORS * rights.itemsize)
        content, extra, _, _ = self._socket.recvmsg(MOST_BYTES, room, _socket.MSG_CMSG_CLOEXEC)
        for _, _, data in extra:
            rights.frombytes(data[: len(data) - len(data) % rights.itemsize])
        if not content:
            raise EOFError("the server has gone")
        return content, list(rights)

    def detach(self) -> None:
        """Forget the descriptor without closing it: in a run, its number belongs to another open file."""
        self._socket.detach()

    def close(self) -> None:
        self._socket.close()
