"""Rendered parts of pages, kept in memory: the least recently used parts are dropped when the limit is reached.

The key of a part has everything that the part depends on: digests of contents, paths, and RENDERER. It has no caller,
because a page checks the rights of its caller before it asks for a part.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

MOST_BYTES = 64 * 1024 * 1024
RENDERER = "2"
"""Version of the renderer. A change of the HTML needs a new version."""
Key = tuple[str, ...]


class KeptParts:
    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._parts: OrderedDict[Key, tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: Key) -> Any:
        """Return the part, or None."""
        with self._lock:
            if key not in self._parts:
                return None
            self._parts.move_to_end(key)
            return self._parts[key][0]

    def keep(self, key: Key, part: Any, size: int) -> None:
        """Keep a part that takes about `size` bytes. A part that is there already stays."""
        with self._lock:
            if key in self._parts:
                return
            self._parts[key] = part, size
            self._bytes += size
            while self._bytes > self._most_bytes:
                _, (_, dropped) = self._parts.popitem(last=False)
                self._bytes -= dropped
