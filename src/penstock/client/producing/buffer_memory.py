"""Waits for memory in the buffer, first come first served.

A record that is sent while others wait for memory waits behind them, however small it is, so that
no sender starves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from penstock.client.errors import BufferExhausted
from penstock.ports import Clock


class BufferMemory:
    def __init__(self, clock: Clock, max_block_s: float, buffer_memory: int) -> None:
        self._clock = clock
        self._max_block_s = max_block_s
        self._buffer_memory = buffer_memory
        self._line: deque[asyncio.Future[None]] = deque()
        self._listeners: list[Callable[[], None]] = []

    @property
    def is_waited_for(self) -> bool:
        return bool(self._line)

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Registers a function that is called on the loop whenever memory was freed."""
        self._listeners.append(listener)

    def on_freed(self) -> None:
        self._call_next()
        for listener in self._listeners:
            listener()

    def _call_next(self) -> None:
        if self._line and not self._line[0].done():
            self._line[0].set_result(None)

    def exhausted(self, waited_s: float) -> BufferExhausted:
        return BufferExhausted(
            f"the producer's buffer of {self._buffer_memory} bytes is full"
            + (f", and stayed full for {waited_s:g} s" if waited_s else "")
            + ": the brokers accept records too slowly; send more slowly, or raise buffer_memory"
            + (" or max_block_ms" if waited_s else ", or use send, which waits")
        )

    async def wait_for(self, attempt: Callable[[], bool]) -> None:
        """Makes the attempt when it is its turn, until it succeeds or `max_block_ms` is over."""
        end = self._clock.monotonic() + self._max_block_s
        turn = asyncio.get_running_loop().create_future()
        is_first = not self._line
        self._line.append(turn)
        try:
            if is_first and attempt():
                return
            while True:
                left_s = end - self._clock.monotonic()
                try:
                    async with asyncio.timeout(max(left_s, 0.0)):
                        await turn
                except TimeoutError:
                    raise self.exhausted(self._max_block_s) from None
                if attempt():
                    return
                turn = self._line[0] = asyncio.get_running_loop().create_future()
        finally:
            self._line.remove(turn)
            self._call_next()
