"""A place that audit events are written to, with a bounded queue in front of it.

The audited request never waits. If events come faster than they can be written, or cannot be
written for a long time, the newest are dropped and counted. What is missing is recorded as an event
of its own, as soon as the outlet works again.

An event whose write has failed is written again. So after an error it may be there twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from penstock.net.throttled_log import ThrottledLog
from penstock.ports import Clock
from penstock.security.audit import AuditEvent, events_dropped

QUEUE_MAX: Final = 10_000
"""How many events wait for one outlet."""
BATCH_MAX: Final = 250
"""How many events are written together."""
PAUSE_S: Final = 2.0
"""How often events are written."""
_log = logging.getLogger(__name__)

Write = Callable[[Sequence[AuditEvent]], Awaitable[None]]


class Outlet:
    def __init__(self, name: str, write: Write, clock: Clock) -> None:
        self._name = name
        """Such as `the audit log`."""
        self._write = write
        self._clock = clock
        self._queue: deque[AuditEvent] = deque()
        self._untold = 0
        self._writing = asyncio.Lock()
        self._log = ThrottledLog(_log)
        self.dropped = 0
        """How many events are missing in this outlet."""

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def put(self, event: AuditEvent) -> None:
        if len(self._queue) < QUEUE_MAX:
            self._queue.append(event)
        else:
            self.dropped += event.count
            self._untold += event.count

    async def run(self) -> None:
        """Writes what is in the queue, every few seconds until cancelled."""
        while True:
            await self._clock.sleep(PAUSE_S)
            await self.drain()

    async def drain(self) -> bool:
        """Writes what is in the queue. Returns whether that succeeded."""
        async with self._writing:
            return await self._drain()

    async def _drain(self) -> bool:
        while self._queue or self._untold:
            count = min(len(self._queue), BATCH_MAX)
            events = [self._queue[index] for index in range(count)]
            untold = 0
            if count == len(self._queue) and self._untold:
                untold = self._untold
                events.append(events_dropped(self._clock.wall_ms(), untold, self._name))
            try:
                await self._write(events)
            except Exception as error:  # noqa: BLE001 - no failure of the record ends the broker
                self._log.warn(
                    f"cannot write audit events to {self._name}, retrying in {PAUSE_S:g} s: "
                    f"{error or type(error).__name__}",
                    self._clock.monotonic(),
                )
                return False
            for _ in range(count):
                self._queue.popleft()
            self._untold -= untold
        return True
