"""The process that scans with the rules of this package: `python -m skillery_scanner.worker MEMORY_MB`.

It reads skills from stdin and writes matches to stdout, each as eight bytes of length and a message of msgpack.
"""

from __future__ import annotations

import resource
import sys
from typing import BinaryIO

import msgspec

from skillery_scanner.catalog import Skill
from skillery_scanner.process import LENGTH
from skillery_scanner.scan import scan

MIB = 1024 * 1024


def main() -> None:
    """Answer requests until stdin ends."""
    memory = int(sys.argv[1]) * MIB
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    # The scan opens no file and no connection.
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
    decoder, encoder = msgspec.msgpack.Decoder(Skill), msgspec.msgpack.Encoder()
    while (request := _read(sys.stdin.buffer)) is not None:
        answer = encoder.encode(scan(decoder.decode(request)))
        sys.stdout.buffer.write(len(answer).to_bytes(LENGTH, "big") + answer)
        sys.stdout.buffer.flush()


def _read(stream: BinaryIO) -> bytes | None:
    head = stream.read(LENGTH)
    return stream.read(int.from_bytes(head, "big")) if len(head) == LENGTH else None


if __name__ == "__main__":
    main()
