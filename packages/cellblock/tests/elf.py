"""A reader of 64-bit ELF files, for the rules that the helper must keep."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

LOAD, DYNAMIC, STACK = 1, 2, 0x6474E551
EXECUTE, WRITE = 1, 2
NULL, STRINGS, RELOCATIONS, RELOCATION_BYTES, PLT_BYTES, TEXT_RELOCATIONS, PLT = 0, 5, 7, 8, 2, 22, 23
DYNAMIC_SYMBOLS = 11
MACHINES = {62: "x86_64", 183: "aarch64"}


@dataclass
class Segment:
    kind: int
    flags: int
    offset: int
    address: int
    file_bytes: int
    bytes: int


class Elf:
    def __init__(self, path: Path) -> None:
        self._content = path.read_bytes()
        assert self._content[:7] == b"\x7fELF\x02\x01\x01", "not a 64-bit little-endian ELF file"
        machine, _, _, start = struct.unpack_from("<HIQQ", self._content, 18)
        size, count = struct.unpack_from("<HH", self._content, 54)
        self.machine = MACHINES[machine]
        self.segments = [self._segment(start + number * size) for number in range(count)]
        dynamic = next((segment for segment in self.segments if segment.kind == DYNAMIC), None)
        self.dynamic = dict(self._pairs(dynamic.offset, dynamic.file_bytes)) if dynamic else {}

    def _segment(self, at: int) -> Segment:
        kind, flags, offset, address, _, file_bytes, size, _ = struct.unpack_from("<IIQQQQQQ", self._content, at)
        return Segment(kind, flags, offset, address, file_bytes, size)

    def _pairs(self, at: int, size: int) -> list[tuple[int, int]]:
        return [pair for pair in struct.iter_unpack("<QQ", self._content[at : at + size]) if pair[0] != NULL]

    def _offset(self, address: int) -> int:
        for part in self.segments:
            if part.kind == LOAD and part.address <= address < part.address + part.file_bytes:
                return address - part.address + part.offset
        raise ValueError(f"no segment has the address {address:#x}")

    def undefined(self) -> set[str]:
        """Return the names that the file takes from other files."""
        (sections,) = struct.unpack_from("<Q", self._content, 40)
        size, count = struct.unpack_from("<HH", self._content, 58)
        names = self._offset(self.dynamic[STRINGS])
        names_of_others = set()
        for header in range(sections, sections + size * count, size):
            _, kind, _, _, start, length = struct.unpack_from("<IIQQQQ", self._content, header)
            symbols = self._content[start : start + length] if kind == DYNAMIC_SYMBOLS else b""
            for name, _, _, section, _, _ in struct.iter_unpack("<IBBHQQ", symbols):
                if section == 0 and name:
                    names_of_others.add(self._content[names + name : self._content.index(b"\0", names + name)].decode())
        return names_of_others

    def relocated(self) -> list[Segment]:
        """Return the segment of each address that the loader changes."""
        relocated_segments = []
        for table, size in ((RELOCATIONS, RELOCATION_BYTES), (PLT, PLT_BYTES)):
            if table in self.dynamic:
                start = self._offset(self.dynamic[table])
                for address, _, _ in struct.iter_unpack("<QQq", self._content[start : start + self.dynamic[size]]):
                    parts = [part for part in self.segments if part.kind == LOAD]
                    relocated_segments += [
                        part for part in parts if part.address <= address < part.address + part.bytes
                    ]
        return relocated_segments
