"""The outcome of a batch, and the callbacks that wait for it. Pure.

All records of a batch have the same outcome, so they share one object; a record only needs its
index. A `BatchOutcome` ends once, in one of two ways: it is settled, with the offset of the first
record or an error; or its batch is split, and it forwards everything to the outcomes of the parts.

Callbacks may be added from any thread, without a lock. The adding thread puts the callback into the
list and then checks whether the outcome has ended; the ending thread marks the end and then checks
the list. Whichever comes second sees what the other did, and removing an item from a list is
atomic, so each callback runs exactly once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from penstock.client.errors import ClientError
from penstock.client.model import RecordMetadata
from penstock.topic_partition import TopicPartition

DeliveryCallback = Callable[[RecordMetadata | None, ClientError | None], object]
"""Receives the record's metadata, or the error; the other argument is None."""

NO_OFFSET: Final = -1
NO_APPEND_TIME: Final = -1
_log = logging.getLogger(__name__)


class _RecordWatch(NamedTuple):
    at: int
    timestamp: int
    callback: DeliveryCallback


class _BatchWatch(NamedTuple):
    callback: Callable[[], object]


class BatchOutcome:
    """The outcome of one batch, shared by its records. See the module's docstring."""

    __slots__ = (
        "_watches",
        "append_time_ms",
        "base_offset",
        "count",
        "error",
        "parts",
        "settled",
        "topic_partition",
    )

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.settled = False
        self.base_offset = NO_OFFSET
        self.append_time_ms = NO_APPEND_TIME
        self.count = 0
        """The number of records. Known once the batch has succeeded."""
        self.error: ClientError | None = None
        self.parts: Sequence[tuple[int, BatchOutcome]] = ()
        self._watches: list[_RecordWatch | _BatchWatch] = []

    # -- settling -------------------------------------------------------------------------------

    def succeed(self, base_offset: int, count: int, append_time_ms: int = NO_APPEND_TIME) -> None:
        self.base_offset = base_offset
        self.count = count
        self.append_time_ms = append_time_ms
        self._settle()

    def fail(self, error: ClientError) -> None:
        self.error = error
        self._settle()

    def _settle(self) -> None:
        assert not self.settled and not self.parts
        self.settled = True
        self._run()

    def split(self, parts: Sequence[tuple[int, BatchOutcome]]) -> None:
        """Forwards to the outcomes of the parts. Each comes with the index of its first record."""
        assert not self.settled and not self.parts
        self.parts = parts
        self._run()

    # -- queries --------------------------------------------------------------------------------

    def leaf(self, index: int) -> tuple[BatchOutcome, int]:
        """Returns the part that has, or will have, a record's outcome, and the record's index
        there."""
        outcome = self
        while outcome.parts:
            for first, part in reversed(outcome.parts):
                if index >= first:
                    outcome, index = part, index - first
                    break
        return outcome, index

    def leaves(self) -> list[BatchOutcome]:
        if not self.parts:
            return [self]
        return [leaf for _, part in self.parts for leaf in part.leaves()]

    @property
    def is_over(self) -> bool:
        """Whether the outcome of every record is known."""
        return self.settled or (bool(self.parts) and all(part.is_over for _, part in self.parts))

    def metadata(self, index: int, timestamp: int) -> RecordMetadata:
        """Returns the metadata of a record of a successful batch."""
        offset = self.base_offset + index if self.base_offset >= 0 else NO_OFFSET
        if self.append_time_ms != NO_APPEND_TIME:
            timestamp = self.append_time_ms
        return RecordMetadata(
            self.topic_partition.topic, self.topic_partition.partition, offset, timestamp
        )

    # -- callbacks ------------------------------------------------------------------------------

    def watch_record(self, index: int, timestamp: int, callback: DeliveryCallback) -> None:
        self._watch(_RecordWatch(index, timestamp, callback))

    def watch_batch(self, callback: Callable[[], object]) -> None:
        """Calls the callback when the outcome of every record is known."""
        self._watch(_BatchWatch(callback))

    def _watch(self, watch: _RecordWatch | _BatchWatch) -> None:
        self._watches.append(watch)
        if self.settled or self.parts:
            self._run()

    def _run(self) -> None:
        watches = self._watches
        if len(watches) > 1:
            # Callbacks run in the order of their records; pop takes from the end.
            watches.reverse()
        while watches:
            try:
                watch = watches.pop()
            except IndexError:  # another thread took the last one
                return
            if self.parts:
                self._forward(watch)
            else:
                self._call(watch)

    def _forward(self, watch: _RecordWatch | _BatchWatch) -> None:
        if isinstance(watch, _RecordWatch):
            outcome, index = self.leaf(watch.at)
            outcome.watch_record(index, watch.timestamp, watch.callback)
            return
        waiting = [part for _, part in self.parts]

        def one_over() -> None:
            waiting.pop()
            if not waiting:
                _guarded(watch.callback)

        for _, part in self.parts:
            part.watch_batch(one_over)

    def _call(self, watch: _RecordWatch | _BatchWatch) -> None:
        if isinstance(watch, _BatchWatch):
            _guarded(watch.callback)
        elif self.error is not None:
            error = self.error
            _guarded(lambda: watch.callback(None, error))
        else:
            metadata = self.metadata(watch.at, watch.timestamp)
            _guarded(lambda: watch.callback(metadata, None))


def _guarded(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:  # noqa: BLE001 - user code must not break the client
        _log.exception("a delivery callback failed; the delivery itself is not affected")
