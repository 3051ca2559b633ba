"""The first message of a TLS client, parsed only as far as its host name (RFC 8446 §4, RFC 6066 §3).

The input comes from untrusted code. Every length is checked against the data, and unusual messages are refused instead
of interpreted.
"""

from __future__ import annotations

MAX_BYTES = 16 * 1024
"""Most bytes of the message with its record headers. Real messages have 200 to 2,000 bytes."""
HANDSHAKE_RECORD, CLIENT_HELLO = 22, 1
SERVER_NAME, ENCRYPTED_CLIENT_HELLO = 0, 0xFE0D
HOST_NAME = 0
MAX_RECORD = 1 << 14
MAX_RECORDS = 16
"""Most records of one ClientHello. Clients send one or two. Each additional piece makes the parser start again."""


class BadHello(Exception):
    """Raised if the bytes are not a ClientHello with its host name in plain text."""


class Fields:
    """A cursor over bytes that never reads past their end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise BadHello("a length in the ClientHello points past its end")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, length_size: int) -> bytes:
        return self.take(self.number(length_size))

    @property
    def done(self) -> bool:
        return self._at == len(self._data)


def server_name(received: bytes) -> str | None:
    """Return the host name in the ClientHello at the start of `received`; None while the message is incomplete.

    Raise BadHello for another protocol, for no name or two names, for a repeated extension and for an encrypted hello.
    """
    message = handshake_message(received)
    return None if message is None else name_in(message)


def handshake_message(received: bytes) -> bytes | None:
    """Return the body of the ClientHello, joined from its records; None while the message is incomplete."""
    message = bytearray()
    rest = received[:MAX_BYTES]
    records = 0
    while record := first_record(rest):
        records += 1
        if records > MAX_RECORDS:
            raise BadHello(f"a ClientHello in more than {MAX_RECORDS} records")
        message += record
        rest = rest[5 + len(record) :]
        if message[0] != CLIENT_HELLO:
            raise BadHello("the first TLS message is not a ClientHello")
        size = 4 + int.from_bytes(message[1:4], "big")
        if len(message) > max(size, 4):
            raise BadHello("something follows the ClientHello in its record")
        if len(message) >= 4 and len(message) == size:
            return bytes(message[4:])
    if len(received) >= MAX_BYTES:
        raise BadHello(f"a ClientHello of more than {MAX_BYTES} bytes")
    return None


def first_record(data: bytes) -> bytes | None:
    """Return the content of the TLS record at the start of `data`; None while the record is incomplete."""
    if data[:1] not in {b"", bytes([HANDSHAKE_RECORD])} or data[1:2] not in {b"", b"\x03"}:
        raise BadHello("this is not TLS")
    if len(data) < 5:
        return None
    size = int.from_bytes(data[3:5], "big")
    if not 0 < size <= MAX_RECORD:
        raise BadHello("a TLS record of a forbidden size")
    return data[5 : 5 + size] if len(data) >= 5 + size else None


def name_in(message: bytes) -> str:
    fields = Fields(message)
    fields.take(2 + 32)  # version, random
    fields.vector(1)  # session id
    fields.vector(2)  # ciphers
    fields.vector(1)  # compressions
    extensions = {} if fields.done else extensions_of(fields.vector(2))
    if not fields.done:
        raise BadHello("something follows the extensions of the ClientHello")
    if ENCRYPTED_CLIENT_HELLO in extensions:
        raise BadHello("the ClientHello is encrypted (ECH); whom it is for has to be in the open")
    if SERVER_NAME not in extensions:
        raise BadHello("the ClientHello names no host (SNI)")
    return only_name(extensions[SERVER_NAME])


def extensions_of(data: bytes) -> dict[int, bytes]:
    fields = Fields(data)
    extensions: dict[int, bytes] = {}
    while not fields.done:
        kind = fields.number(2)
        if kind in extensions:
            raise BadHello("an extension of the ClientHello stands there twice")
        extensions[kind] = fields.vector(2)
    return extensions


def only_name(extension: bytes) -> str:
    outer = Fields(extension)
    names = Fields(outer.vector(2))
    kind, name = names.number(1), names.vector(2)
    if kind != HOST_NAME or not names.done or not outer.done:
        raise BadHello("the ClientHello does not name exactly one host (SNI)")
    try:
        return name.decode("ascii").lower()
    except UnicodeDecodeError:
        raise BadHello("the host of the ClientHello (SNI) is not ASCII") from None
