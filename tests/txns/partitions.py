"""Partitions that receive markers: the real producer state over a log of headers in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.partition.guards import Verification
from penstock.partition.producer_errors import ProducerRefused
from penstock.partition.producers import ProducerStates
from penstock.partition.transactions import AbortedEntry, TransactionIndex, aborted_transactions
from penstock.records.aborted import AbortedProducers
from penstock.records.batch import CONTROL, TRANSACTIONAL, BatchHeader
from penstock.records.record import ControlMarker, ControlType, control_batch
from penstock.txns.effects import Marker
from penstock.txns.transaction import Producer
from penstock.wire.errors import ErrorCode


@dataclass(frozen=True)
class Batch:
    header: BatchHeader
    value: str
    """The value that was written; empty for a marker."""
    marker: ControlMarker | None = None


def header_of(offset: int, producer: Producer, sequence: int, attributes: int) -> BatchHeader:
    return BatchHeader(
        offset, 100, 0, 2, 0, attributes, 0, 0, 0, producer.producer_id, producer.epoch, sequence, 1
    )


@dataclass
class Partition:
    """A partition with one replica: every appended batch is replicated."""

    log: list[Batch] = field(default_factory=list)
    states: ProducerStates = field(default_factory=ProducerStates)
    index: TransactionIndex = field(default_factory=TransactionIndex)
    seen: list[str] = field(default_factory=list)
    looked_at: tuple[int, int] = (0, 0)

    def header(self, producer: Producer, sequence: int) -> BatchHeader:
        return header_of(len(self.log), producer, sequence, TRANSACTIONAL)

    def append(
        self, header: BatchHeader, value: str, guard: int, *, numbers_from_zero: bool = True
    ) -> ErrorCode:
        """Appends a batch as a leader does once the coordinator has answered."""
        header = header._replace(base_offset=len(self.log))
        try:
            seen = self.states.check(header, verification=Verification(guard, numbers_from_zero))
        except ProducerRefused as refused:
            return ErrorCode(refused.code)
        if seen is None:
            self._take(Batch(header, value))
        return ErrorCode.NONE

    def mark(self, marker: Marker) -> ErrorCode:
        producer = Producer(marker.producer_id, marker.producer_epoch)
        strict = marker.transaction_version >= 2
        try:
            self.states.check_marker(*producer, marker.coordinator_epoch, strict=strict)
        except ProducerRefused as refused:
            return ErrorCode(refused.code)
        kind = ControlType.COMMIT if marker.committed else ControlType.ABORT
        header = header_of(len(self.log), producer, -1, TRANSACTIONAL | CONTROL)
        self._take(Batch(header, "", ControlMarker(kind, marker.coordinator_epoch)))
        return ErrorCode.NONE

    def _take(self, batch: Batch) -> None:
        self.log.append(batch)
        self._note(batch)

    def _note(self, batch: Batch) -> None:
        if batch.marker is None:
            self.states.update(batch.header)
            return
        ended = self.states.on_control(
            batch.header, batch.marker.type, batch.marker.coordinator_epoch
        )
        if ended is not None and ended.aborted:
            self.index.add(AbortedEntry.of(ended))

    def restart(self) -> None:
        """Simulates a new leader: guards are lost, everything else comes from the log."""
        self.states, self.index = ProducerStates(), TransactionIndex()
        for batch in self.log:
            self._note(batch)

    @property
    def last_stable_offset(self) -> int:
        return self.states.last_stable_offset(len(self.log))

    def committed(self) -> list[str]:
        """Returns what a reader of committed records gets from the start, by the real reader's
        rules."""
        end = self.last_stable_offset
        aborted = aborted_transactions([self.index], 0, end)
        reader = AbortedProducers(aborted)
        values = []
        for batch in self.log[:end]:
            data = b""
            if batch.marker is not None:
                data = bytes(
                    control_batch(
                        batch.marker,
                        producer_id=batch.header.producer_id,
                        producer_epoch=batch.header.producer_epoch,
                        timestamp=0,
                    )
                )
                header = batch.header._replace(batch_length=len(data) - 12)
            else:
                header = batch.header
            if reader.passes(memoryview(data), header, 1 << 20):
                values.append(batch.value)
        return values

    def verify(self) -> None:
        """Checks that what was read before has not changed: values are only added."""
        end = len(self.log), self.last_stable_offset
        if end == self.looked_at:
            return
        self.looked_at = end
        now = self.committed()
        assert now[: len(self.seen)] == self.seen, (self.seen, now)
        self.seen = now
