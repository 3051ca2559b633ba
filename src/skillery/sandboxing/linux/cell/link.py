"""One end of a SOCK_SEQPACKET socket pair. Each message is a small JSON object and may carry descriptors."""

from __future__ import annotations

import _socket
import array
import json

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

MOST_BYTES = 128 * 1024
MOST_DESCRIPTORS = 16


class Link:
    def __init__(self, descriptor: int) -> None:
        # `_socket` instead of `socket`, whose imports would be in every run's memory.
        self._socket = _socket.socket(fileno=descriptor)
        self.descriptor = descriptor

    def say(self, descriptors: Iterable[int] = (), **message: Any) -> None:
        """Send a message. Raise ConnectionError if the other end has closed."""
        content, rights = json.dumps(message).encode(), array.array("i", descriptors)
        if rights:
            self._socket.sendmsg([content], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
        else:
            self._socket.send(content)

    def hear(self) -> tuple[dict[str, Any], list[int]]:
        """Return the next message and its descriptors. Raise EOFError if the other end has closed."""
        rights = array.array("i")
        room = _socket.CMSG_LEN(MOST_DESCRIPTORS * rights.itemsize)
        content, extra, _, _ = self._socket.recvmsg(MOST_BYTES, room, _socket.MSG_CMSG_CLOEXEC)
        for _, _, data in extra:
            rights.frombytes(data[: len(data) - len(data) % rights.itemsize])
        if not content:
            raise EOFError("the server has gone")
        return json.loads(content), list(rights)

    def close(self) -> None:
        self._socket.close()
