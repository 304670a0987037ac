"""Checks the log of each partition by what was sent to it and read from it.

E1   An offset has one value.
E2   A value has one offset, if its producer promised to write it once.
E3   No record that was acknowledged with acks=all is skipped by readers that read past it.
E3'  In the end all of these records are there.
E4   A record that was refused is not there.
E5   No record is read that was never sent, or before it was sent.
E8   What one process sent in order is there in order.
E13  What was read once stays, unless the log start offset has moved past it.
I8   The end offset of a partition, as clients receive it, never goes back.

For readers of uncommitted records a log contains aborted records too. `transactions` checks what
readers of committed records see.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from penstock.sim.history import FAIL, OK, Deleted, Drain, Entry, Latest, Poll, Reads, Send, Txn


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that does not hold. `offset` is where to look in the topic partition, or -1."""

    rule: str
    partition_name: str
    text: str
    offset: int = -1

    def __str__(self) -> str:
        return f"{self.rule} {self.partition_name}: {self.text}"


@dataclass(slots=True)
class PartitionLog:
    """What is known about one partition."""

    partition_name: str
    values: dict[int, list[str]] = field(default_factory=dict)
    """By offset, from all reads and from sends that must have been committed."""
    offsets: dict[str, list[int]] = field(default_factory=dict)
    """By value: the offsets at which it was read or acknowledged."""
    first_read_ms: dict[str, float] = field(default_factory=dict)
    read_offsets: dict[str, list[int]] = field(default_factory=dict)
    committed_reads: dict[str, list[int]] = field(default_factory=dict)
    """As `read_offsets`, but only of reads with `read_committed`."""
    first_committed_ms: dict[str, float] = field(default_factory=dict)
    first_uncommitted: dict[str, int] = field(default_factory=dict)
    """By value: the first offset at which it was read with `read_uncommitted`."""
    sends: dict[str, Send] = field(default_factory=dict)
    latest: list[Latest] = field(default_factory=list)
    deleted: list[Deleted] = field(default_factory=list)
    drain: Drain | None = None
    committed_drain: Drain | None = None
    ranks: dict[int, int] = field(default_factory=dict)
    """By offset: how many known offsets come before it."""
    committed_ranks: dict[int, int] = field(default_factory=dict)
    """The same, counting only records that readers of committed records see."""

    def note(self, offset: int, value: str) -> None:
        if value not in (held := self.values.setdefault(offset, [])):
            held.append(value)
        if offset not in (partition_names := self.offsets.setdefault(value, [])):
            partition_names.append(offset)

    def note_read(self, offset: int, value: str, ended_ms: float, committed: bool) -> None:
        self.note(offset, value)
        self.first_read_ms[value] = min(ended_ms, self.first_read_ms.get(value, ended_ms))
        if offset not in (partition_names := self.read_offsets.setdefault(value, [])):
            partition_names.append(offset)
        if not committed:
            self.first_uncommitted[value] = min(offset, self.first_uncommitted.get(value, offset))
            return
        first_ms = self.first_committed_ms.get(value, ended_ms)
        self.first_committed_ms[value] = min(ended_ms, first_ms)
        if offset not in (partition_names := self.committed_reads.setdefault(value, [])):
            partition_names.append(offset)

    def deleted_before(self, now_ms: float, offset: int) -> int:
        """Returns up to where records may have been deleted by then, without deleting the one
        at `offset`."""
        return max(
            (
                each.offset
                for each in self.deleted
                if each.begun_ms < now_ms and each.offset <= offset
            ),
            default=0,
        )


def build_logs(entries: Iterable[Entry]) -> dict[str, PartitionLog]:
    logs: dict[str, PartitionLog] = {}

    def log_of(partition_name: str) -> PartitionLog:
        return logs.setdefault(partition_name, PartitionLog(partition_name))

    def note_reads(reads: Reads, ended_ms: float, committed: bool) -> None:
        for partition_name, records in reads.items():
            for offset, value in records:
                log_of(partition_name).note_read(offset, value, ended_ms, committed)

    for entry in entries:
        match entry:
            case Send():
                log = log_of(entry.partition_name)
                log.sends[entry.value] = entry
                if entry.is_promised and entry.offset >= 0:
                    log.note(entry.offset, entry.value)
            case Poll():
                note_reads(entry.reads, entry.ended_ms, entry.committed)
            case Txn():
                note_reads(entry.reads, entry.ended_ms, True)
            case Drain():
                log = log_of(entry.partition_name)
                if entry.committed:
                    log.committed_drain = entry
                else:
                    log.drain = entry
                note_reads({entry.partition_name: entry.records}, entry.ended_ms, entry.committed)
            case Latest():
                log_of(entry.partition_name).latest.append(entry)
            case Deleted() if entry.status != FAIL:
                log_of(entry.partition_name).deleted.append(entry)
    for log in logs.values():
        log.ranks = {offset: rank for rank, offset in enumerate(sorted(log.values))}
    return logs


def check_logs(logs: Iterable[PartitionLog]) -> Iterator[Violation]:
    for log in logs:
        yield from _check_offsets(log)
        yield from _check_values(log)
        yield from _check_reads(log)
        yield from _check_lost(log)
        yield from _check_order(log)
        yield from _check_latest(log)
        if log.drain is not None:
            yield from _check_drain(log, log.drain)


def _check_offsets(log: PartitionLog) -> Iterator[Violation]:
    for offset, values in log.values.items():
        if len(values) > 1:
            told = " and ".join(values)
            yield Violation("E1", log.partition_name, f"offset {offset} was read as {told}", offset)


def _check_values(log: PartitionLog) -> Iterator[Violation]:
    for value, offsets in log.offsets.items():
        send = log.sends.get(value)
        if len(offsets) > 1 and send is not None and send.once:
            told = ", ".join(map(str, sorted(offsets)))
            yield Violation("E2", log.partition_name, f"{value} is at offsets {told}", min(offsets))


def _check_reads(log: PartitionLog) -> Iterator[Violation]:
    for value, offsets in log.read_offsets.items():
        send = log.sends.get(value)
        if send is None:
            yield Violation(
                "E5", log.partition_name, f"{value} was read but never sent", offsets[0]
            )
        elif log.first_read_ms[value] < send.begun_ms:
            yield Violation(
                "E5", log.partition_name, f"{value} was read before it was sent", offsets[0]
            )
        elif send.status == FAIL:
            told = f"{value} was refused ({send.error}) but was read"
            yield Violation("E4", log.partition_name, told, offsets[0])


def _check_lost(log: PartitionLog) -> Iterator[Violation]:
    """Finds acknowledged records that readers skipped: they read a later record and never
    this one."""
    # Readers of committed records skip aborted records, so they prove nothing here.
    read_to = max(log.first_uncommitted.values(), default=-1)
    start = 0 if log.drain is None else log.drain.start_offset
    for value, send in log.sends.items():
        if not send.is_promised or value in log.read_offsets or send.offset < start:
            continue
        if send.offset <= read_to:
            told = f"{value} was acknowledged at {send.offset}, but readers skipped it"
            yield Violation("E3", log.partition_name, told, send.offset)


def _check_order(log: PartitionLog) -> Iterator[Violation]:
    last: dict[str, tuple[Send, int]] = {}
    for send in sorted(log.sends.values(), key=lambda send: send.number):
        if send.status != OK or not send.ordered:
            continue
        # A record with acks=1 may be lost, and its offset reused for another record.
        known = [send.offset] if send.is_promised and send.offset >= 0 else []
        at = min(log.read_offsets.get(send.value, known), default=-1)
        if at < 0:
            continue
        before = last.get(send.process)
        if before is not None and at <= before[1]:
            told = f"{send.process} sent {before[0].value} (at {before[1]}) before {send.value}"
            yield Violation("E8", log.partition_name, f"{told} (at {at})", at)
        last[send.process] = (send, at)


def _check_latest(log: PartitionLog) -> Iterator[Violation]:
    told = sorted(
        (entry for entry in log.latest if entry.status == OK), key=lambda entry: entry.ended_ms
    )
    highest: list[tuple[float, int]] = []
    for entry in told:
        before = max((offset for ended, offset in highest if ended < entry.begun_ms), default=-1)
        if entry.offset < before:
            text = f"the log end went back from {before} to {entry.offset}"
            yield Violation("I8", log.partition_name, text, entry.offset)
        if not highest or entry.offset > highest[-1][1]:
            highest.append((entry.ended_ms, entry.offset))


def _check_drain(log: PartitionLog, drain: Drain) -> Iterator[Violation]:
    if drain.status != OK:
        return
    kept = dict(drain.records)
    found = {value for _, value in drain.records}
    for value, send in log.sends.items():
        if send.is_promised and value not in found and not 0 <= send.offset < drain.start_offset:
            at = f" at {send.offset}" if send.offset >= 0 else ""
            text = f"{value} was acknowledged{at} to {send.process}, but is missing in the end"
            yield Violation("E3'", log.partition_name, text, send.offset)
    for value, offsets in log.read_offsets.items():
        for offset in offsets:
            if offset >= drain.start_offset and offset not in kept:
                text = f"{value} was read at {offset}, but is missing in the end"
                yield Violation("E13", log.partition_name, text, offset)
    known = [entry.offset for entry in log.latest if entry.status == OK]
    if known and max(known) > drain.end_offset:
        text = f"the log end was {max(known)}, but is {drain.end_offset} in the end"
        yield Violation("I8", log.partition_name, text, drain.end_offset)
