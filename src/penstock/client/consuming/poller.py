"""Returns records to the caller of a consumer: as lists, as runs to iterate over, and as tables.

Every way begins with `ConsumerCore.attend`, which applies what happened since the last poll, and
waits for news while nothing is buffered. Only one task may poll at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic

from penstock.client.consuming.core import ConsumerCore
from penstock.client.consuming.fetcher import let_fetches_start
from penstock.client.errors import ClientError, Closed, OptionError
from penstock.client.model import K, Record, V

if TYPE_CHECKING:
    import pyarrow as pa

_FOREVER_S: Final = 3600.0
"""Iteration has no timeout. It wakes up this often to check again."""


class Poller(Generic[K, V]):
    """Polls one consumer."""

    def __init__(self, core: ConsumerCore) -> None:
        self._core = core
        self._reading = core.reading
        self._options = core.options
        self._clock = core.env.clock
        self._polling = False

    async def poll(self, timeout_ms: int, max_records: int | None) -> list[Record[K, V]]:
        limit = self._options.max_poll_records if max_records is None else max_records
        if limit < 1:
            raise OptionError(f"max_records is {limit}: give 1 or more")
        core = self._core
        deadline = self._clock.monotonic() + timeout_ms / 1000
        self._begin()
        try:
            while True:
                core.news.clear()
                await core.attend()
                records: list[Record[K, V]] = self._reading.collect(limit)
                if records:
                    return self._handed_out(records)
                core.raise_error(again=True)
                if not await core.wait(deadline):
                    return []
        finally:
            self._polling = False

    async def next_run(self) -> bool:
        """Prepares the next records to iterate over. Returns False once the consumer is closed."""
        core, reading = self._core, self._reading
        self._begin()
        try:
            while True:
                core.news.clear()
                reading.drop_run()
                await core.attend()
                if reading.begin_run(self._options.max_poll_records):
                    core.wake_fetcher()
                    reading.run = self._handed_out(reading.run)
                    if reading.run:
                        return True
                    reading.skip_run()
                    continue
                core.raise_error(again=True)
                await core.wait(self._clock.monotonic() + _FOREVER_S)
        except Closed:
            return False
        finally:
            self._polling = False

    async def poll_table(
        self, timeout_ms: int, max_rows: int | None, max_bytes: int | None, *, headers: bool
    ) -> pa.Table:
        from penstock.client.consuming.tables import (  # noqa: PLC0415 -- only when used
            PARTITION_BYTES,
            TablePoll,
        )

        core = self._core
        core.fetch_for_tables(PARTITION_BYTES)
        tables = TablePoll(core.subscription, self._reading, self._options, headers=headers)
        deadline = self._clock.monotonic() + timeout_ms / 1000
        self._begin()
        try:
            while True:
                core.news.clear()
                await core.attend()
                await let_fetches_start()
                table = tables.take(max_rows, max_bytes)
                if table.num_rows:
                    core.meter.records += table.num_rows
                    core.note_handed_out()
                    core.wake_fetcher()
                    return table
                core.raise_error(again=True)
                if not await core.wait(deadline):
                    return table
        finally:
            self._polling = False

    def _begin(self) -> None:
        if self._polling:
            raise ClientError(
                "this consumer is being polled by another task: give each task its own consumer"
            )
        self._polling = True
        self._core.meter.polls += 1

    def _handed_out(self, records: list[Record[K, V]]) -> list[Record[K, V]]:
        core = self._core
        core.meter.records += len(records)
        core.note_handed_out()
        core.wake_fetcher()
        return records if core.chain is None else core.chain.on_consume(records)
