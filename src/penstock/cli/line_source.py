"""Reads lines from standard input or a file on a separate thread.

A read may block forever, as at a terminal, and a blocked thread cannot be stopped. So the thread
is a daemon, for which the end of the program does not wait. It reads the file descriptor directly,
because the buffered stream has a lock that a daemon must not hold when the interpreter exits.
Reading ahead is limited. All lines that have arrived since the last call are returned together: a
pipe delivers little at a time, and many lines at once are cheaper to process.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from typing import Final

_CHUNK_BYTES: Final = 64 << 10
_CHUNKS_AHEAD: Final = 64


async def read_lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Yields lists of complete lines without line breaks: all that have arrived."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(_CHUNKS_AHEAD)
    stopped = threading.Event()

    def work() -> None:
        while not stopped.is_set():
            chunk: bytes | OSError
            try:
                chunk = os.read(descriptor, _CHUNK_BYTES)
            except OSError as error:
                chunk = error
            room.acquire()
            if stopped.is_set():
                return
            loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            if not chunk or isinstance(chunk, OSError):
                return

    threading.Thread(target=work, daemon=True, name="penstock-input").start()
    try:
        rest: list[bytes] = []
        last: bytes | OSError = b"."
        while last and not isinstance(last, OSError):
            some = [await chunks.get()]
            while not chunks.empty():
                some.append(chunks.get_nowait())
            room.release(len(some))
            last = some[-1]
            lines = b"".join(part for part in some if isinstance(part, bytes)).split(b"\n")
            rest.append(lines[0])
            if len(lines) > 1:
                lines[0] = b"".join(rest)
                rest = [lines.pop()]
                yield lines
        if isinstance(last, OSError):
            raise last
        if unended := b"".join(rest):
            yield [unended]
    finally:
        stopped.set()
        room.release()
