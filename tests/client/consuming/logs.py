"""Generates logs with gaps, markers and aborted transactions, and what a reader sees of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import strategies as st

from penstock.client.consuming.buffer import Answer, Ledger, PartitionBuffer, Piece, measure
from penstock.records.aborted import AbortedTransaction
from penstock.records.batch import Codec, read_header
from penstock.records.record import (
    ControlMarker,
    ControlType,
    Record,
    build_batch,
    control_batch,
)

NOW_MS = 1_700_000_000_000
PRODUCER = 7


@dataclass
class MadeLog:
    """A generated log: its batches, the offsets that each isolation level sees, and
    its aborted transactions."""

    batches: list[bytes] = field(default_factory=list)
    all_offsets: list[int] = field(default_factory=list)
    committed_offsets: list[int] = field(default_factory=list)
    aborted: list[tuple[int, int]] = field(default_factory=list)
    """The first offset and the offset of the abort marker, for each aborted transaction."""
    end: int = 0

    def aborted_within(self, batches: Sequence[bytes]) -> list[AbortedTransaction]:
        """Returns the aborted transactions that a broker lists with these
        batches: those that overlap them."""
        first, end = read_header(batches[0]).base_offset, read_header(batches[-1]).next_offset
        return [
            AbortedTransaction(PRODUCER, begin)
            for begin, marker in self.aborted
            if begin < end and marker >= first
        ]

    def seen(self, *, committed_only: bool) -> list[int]:
        return self.committed_offsets if committed_only else self.all_offsets

    def add(
        self,
        kept: Sequence[int],
        span: int,
        codec: Codec = Codec.NONE,
        *,
        transactional: bool = False,
        aborted: bool = False,
        epoch: int = 0,
    ) -> None:
        """Adds a batch that covers `span` offsets. Only the offsets in `kept` have records."""
        base = self.end
        records = [Record(base + at, NOW_MS + base + at, None, value(base + at)) for at in kept]
        batch = build_batch(
            records,
            base_offset=base,
            last_offset_delta=span - 1,
            codec=codec,
            leader_epoch=epoch,
            producer_id=PRODUCER if transactional else -1,
            producer_epoch=0 if transactional else -1,
            base_sequence=0 if transactional else -1,
            transactional=transactional,
        )
        self.batches.append(bytes(batch))
        offsets = [record.offset for record in records]
        self.all_offsets += offsets
        if not aborted:
            self.committed_offsets += offsets
        self.end = base + span

    def mark(self, kind: ControlType) -> None:
        marker = ControlMarker(kind, 0)
        self.batches.append(
            bytes(
                control_batch(
                    marker,
                    producer_id=PRODUCER,
                    producer_epoch=0,
                    timestamp=NOW_MS,
                    offset=self.end,
                )
            )
        )
        self.end += 1


def value(offset: int) -> bytes:
    return b"value of %d" % offset


@st.composite
def logs(draw: st.DrawFn) -> MadeLog:
    log = MadeLog()
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["plain", "plain", "commit", "abort"]))
        if kind == "plain":
            _add_some(draw, log)
            continue
        begin = log.end
        for _ in range(draw(st.integers(1, 3))):
            _add_some(draw, log, transactional=True, aborted=kind == "abort")
            if draw(st.booleans()):
                _add_some(draw, log)
        if kind == "abort":
            log.aborted.append((begin, log.end))
        log.mark(ControlType.ABORT if kind == "abort" else ControlType.COMMIT)
    return log


def _add_some(draw: st.DrawFn, log: MadeLog, **how: bool) -> None:
    span = draw(st.integers(1, 6))
    kept = sorted(draw(st.sets(st.integers(0, span - 1))))
    log.add(kept, span, draw(st.sampled_from([Codec.NONE, Codec.LZ4])), **how)


def piece_of(
    batches: Sequence[bytes],
    aborted: Sequence[AbortedTransaction] = (),
    ledger: Ledger | None = None,
    tail: bytes = b"",
) -> Piece:
    data = memoryview(b"".join(batches) + tail)
    extent = measure(data)
    assert extent is not None
    return Piece(data, extent, Answer(ledger or Ledger(), len(data)), aborted)


def fill(
    buffer: PartitionBuffer, log: MadeLog, cuts: Sequence[int], ledger: Ledger | None = None
) -> None:
    """Pushes all batches of the log into the buffer, in pieces that begin
    at the batches in `cuts`."""
    edges = sorted({0, len(log.batches), *(cut % len(log.batches) for cut in cuts)})
    for first, last in pairwise(edges):
        batches = log.batches[first:last]
        buffer.push(piece_of(batches, log.aborted_within(batches), ledger))
