"""Writes to a shard's partition whose outcome is not reported yet.

The outcome of a write is reported once it is known: committed, or refused by the log. Outcomes are
reported in log order. So a write that fails at once waits until the outcomes of all earlier writes
have been reported. If the leadership ends first, the outcome is unknown, because the next leader
may or may not have the records: the write is abandoned, and nothing is reported any more. A write
that takes long is late, and its outcome is still reported later.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from penstock.broker.coordinators.shard_timers import EARLY_S, ticks_ms
from penstock.broker.error_codes import EXPECTED_ERRORS, code_of
from penstock.broker.partitions.hosted_partition import HostedPartition, Written
from penstock.ports import Clock
from penstock.wire.errors import ErrorCode

OnOutcome = Callable[[ErrorCode | None], None]
"""Called once with a write's outcome: None if it is committed, otherwise why it never will be."""
_log = logging.getLogger(__name__)


def _nothing() -> None:
    """Does nothing. Used where the shard's `unload` already answers the waiting requests."""


class _Write:
    """A write whose outcome is not reported yet."""

    __slots__ = ("abandon", "code", "is_known", "is_late", "late_at_ms", "on_late", "on_outcome")

    def __init__(
        self,
        on_outcome: OnOutcome,
        abandon: Callable[[], None],
        on_late: Callable[[], None],
        late_at_ms: int,
    ) -> None:
        self.on_outcome = on_outcome
        self.abandon = abandon
        self.on_late = on_late
        self.late_at_ms = late_at_ms
        self.is_late = False
        self.code: ErrorCode | None = None
        self.is_known = False


class ShardWrites:
    def __init__(
        self,
        clock: Clock,
        hosted: HostedPartition,
        timeout_ms: int,
        break_off: Callable[[Exception], None],
    ) -> None:
        """`break_off` is called if a write raises and it is unknown what it has written."""
        self._clock = clock
        self._hosted = hosted
        self._timeout_ms = timeout_ms
        self._break_off = break_off
        self._writes: deque[_Write] = deque()
        self._late_timer: asyncio.TimerHandle | None = None

    def write(
        self,
        write: Callable[[], Written],
        on_outcome: OnOutcome,
        abandon: Callable[[], None] = _nothing,
        on_late: Callable[[], None] = _nothing,
    ) -> None:
        """Writes to the partition.

        `on_outcome` is called with the outcome. `abandon` is called instead if the leadership ends
        before the outcome is known. `on_late` may be called before either, if the write takes long.
        """
        pending = _Write(on_outcome, abandon, on_late, ticks_ms(self._clock) + self._timeout_ms)
        self._writes.append(pending)
        try:
            # Below min.insync.replicas nothing is committed, and the client would wait in vain.
            self._hosted.require_insync()
            written = write()
        except EXPECTED_ERRORS as error:
            self._settle(pending, code_of(error))
            return
        except Exception as error:  # noqa: BLE001 - logged; every waiting request is answered
            # Whether the batch is in the log is unknown. Only reading the log again shows it.
            self._break_off(error)
            return
        if self._hosted.when_committed(written.end_offset, partial(self._on_outcome, pending)):
            self._settle(pending, None)
        elif self._late_timer is None:
            self._watch()

    def abandon_all(self) -> None:
        """Abandons every write. One that fails to be abandoned does not stop the others."""
        writes, self._writes = self._writes, deque()
        if self._late_timer is not None:
            self._late_timer.cancel()
        for pending in writes:
            try:
                pending.abandon()
            except Exception:  # noqa: BLE001 - the other requests must be answered
                _log.exception(
                    "could not cancel a pending append to %s-%d",
                    self._hosted.topic,
                    self._hosted.index,
                )

    def _on_outcome(self, pending: _Write, code: ErrorCode | None) -> None:
        # With this code the records are committed in spite of too few in-sync replicas, and will be
        # replayed. Any other code means that the leadership has ended: `abandon_all` follows.
        if code is None or code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
            self._settle(pending, None)

    def _settle(self, pending: _Write, code: ErrorCode | None) -> None:
        pending.code, pending.is_known = code, True
        while self._writes and self._writes[0].is_known:
            first = self._writes.popleft()
            first.on_outcome(first.code)

    # Late writes

    def _watch(self) -> None:
        """Sets the timer for the next write that becomes late."""
        for pending in self._writes:
            if not pending.is_late:
                wait_s = max(EARLY_S, (pending.late_at_ms - ticks_ms(self._clock)) / 1000)
                loop = asyncio.get_running_loop()
                self._late_timer = loop.call_later(wait_s, self._find_late)
                return

    def _find_late(self) -> None:
        self._late_timer = None
        now_ms = ticks_ms(self._clock)
        for pending in list(self._writes):
            if not pending.is_late and pending.late_at_ms <= now_ms:
                pending.is_late = True
                pending.on_late()
        self._watch()
