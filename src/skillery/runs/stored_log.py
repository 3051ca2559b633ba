"""The stored log of a run that has ended, read from any offset."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row

from skillery.contents.blob_rows import BlobRow
from skillery.contents.blobs import Blobs
from skillery.runs.display import line_for_dropped
from skillery.runs.live_output import LogPart, log_part


class StoredLog:
    """The log that was stored when its run ended. Its offsets are those of the live log."""

    has_ended = True
    progress = None

    def __init__(self, row: Row[Any], blob: BlobRow | None, blobs: Blobs) -> None:
        """`row` is the row of the run. `blob` contains the log, or is None if the preview in the row is the whole
        log.
        """
        self._preview: bytes = row.logs_preview.encode()
        self._blob = blob
        self._blobs = blobs
        self._dropped = row.log_dropped_bytes or 0
        self._head = row.log_head_bytes or 0
        self._line = len(line_for_dropped(self._dropped)) if self._dropped else 0
        stored = blob.size_bytes if blob is not None else len(self._preview)
        self.end = stored - self._line + self._dropped

    def read(self, after: int, size: int) -> LogPart:
        """Return at most `size` bytes of the log from the offset `after`. Blocking."""
        start, shift, behind = min(after, self.end), 0, self.end
        if self._dropped:
            if after < self._head:
                behind = self._head
            else:
                start = min(max(after, self._head + self._dropped), self.end)
                shift = self._line - self._dropped
        content = self._bytes(start + shift, min(size, behind - start))
        return log_part(start, content, may_continue=start + len(content) < behind)

    def _bytes(self, start: int, size: int) -> bytes:
        if self._blob is None:
            return self._preview[start : start + size]
        return self._blobs.read_range(self._blob, start, size)
