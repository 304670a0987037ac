"""Collects the audit events of one broker and passes them on to the outlets.

Repeated refusals are combined first (`security.audit_throttle`). Nothing here waits, so a request
that is audited takes no longer. Without an audit record, `is_enabled` is False and `record` does
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from penstock.broker.audit.log_file import AuditLogFile
from penstock.broker.audit.outlet import PAUSE_S, Outlet, Write
from penstock.broker.audit.settings import AuditSettings
from penstock.broker.identity import Identity
from penstock.ports import Env
from penstock.security.audit import AuditEvent, Origin, connection_refused
from penstock.security.audit_throttle import AuditThrottle

FINISH_TIMEOUT_S: Final = 2.0
"""How long a stopping broker waits until its events are in the topic."""
_USER: Final = "User:"


def origin_of(
    identity: Identity, request_id: str | None = None, client_id: str | None = None
) -> Origin:
    return Origin(
        identity.principal.removeprefix(_USER),
        identity.host,
        identity.listener,
        request_id,
        client_id or None,
    )


class AuditTrail:
    def __init__(self, env: Env, settings: AuditSettings) -> None:
        self._env = env
        self._clock = env.clock
        self._throttle = AuditThrottle()
        self.is_enabled = settings.is_enabled
        self.includes_allowed = settings.includes_allowed
        self._has_topic = settings.is_enabled and settings.has_topic
        self.recorded = 0
        """How many events have happened, whether combined with others or not."""
        self._file = AuditLogFile(
            env.disk, settings.log_path, settings.log_bytes_max, settings.log_files_max
        )
        self._log = Outlet("the audit log", self._write_log, env.clock)
        self._topic: Outlet | None = None
        self._close_topic: Callable[[], None] | None = None

    @property
    def outlets(self) -> tuple[Outlet, ...]:
        return (self._log,) if self._topic is None else (self._log, self._topic)

    def write_to_topic(self, write: Write, close: Callable[[], None]) -> None:
        """From now on events also go to the topic, unless a setting excludes that. `close` is
        called in the end."""
        if self._has_topic:
            self._close_topic = close
            self._topic = Outlet("the topic __audit", write, self._clock)

    def now_ms(self) -> int:
        return self._clock.wall_ms()

    def record(self, event: AuditEvent) -> None:
        """Takes an event. Never waits and never fails."""
        if not self.is_enabled:
            return
        self.recorded += event.count
        if (due := self._throttle.offer(event, self._ticks_ms())) is not None:
            self._put(due)

    def on_connection_refused(self, host: str, listener: str, limit: str) -> None:
        """Takes note of a connection that a limit has refused."""
        self.record(connection_refused(host, listener, self.now_ms(), limit))

    async def run(self) -> None:
        """Writes events until cancelled."""
        if not self.is_enabled:
            return
        async with asyncio.TaskGroup() as tasks:
            for outlet in self.outlets:
                tasks.create_task(outlet.run())
            while True:
                await self._clock.sleep(PAUSE_S)
                self._flush()

    async def finish(self) -> None:
        """Writes everything, before the broker hands over its partitions and stops.

        What cannot be written to the topic in time is in the log only.
        """
        if not self.is_enabled:
            return
        self._flush(everything=True)
        await self._log.drain()
        if self._topic is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(FINISH_TIMEOUT_S):
                    await self._topic.drain()

    async def close(self) -> None:
        """Writes the last events to the log and closes it."""
        if self._close_topic is not None:
            self._close_topic()
        if self.is_enabled:
            self._flush(everything=True)
            await self._log.drain()
            with suppress(OSError):
                await self._env.executor.run(self._file.close)

    def _flush(self, *, everything: bool = False) -> None:
        for event in self._throttle.flush(self._ticks_ms(), everything):
            self._put(event)

    def _put(self, event: AuditEvent) -> None:
        for outlet in self.outlets:
            outlet.put(event)

    async def _write_log(self, events: Sequence[AuditEvent]) -> None:
        lines = "".join(f"{event.to_json()}\n" for event in events).encode()
        await self._env.executor.run(partial(self._file.write, lines))

    def _ticks_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)
