"""Checks transactions by what they wrote and what was read.

E4   A reader of committed records never reads a record that was aborted, or before its commit was
     requested.
E5   A transaction does not read what it wrote itself.
E9   Transactions that read from each other have an order: there is no cycle.
E10  A committed transaction is there completely in the end, or not at all.
E11  Copies made in transactions are there once, in order, and exactly up to the group's committed
     offset. A sink's batches are there once, none left out, up to the one its group has committed.
E13  What was read as committed stays committed.

Whether a transaction was committed is known if the request to end it was answered. If not, it was
committed if any reader read a part of it with `read_committed`; then all of it must be there. A
transaction that was neither read nor answered was aborted, because in the end everything is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from penstock.sim.checkers.logs import PartitionLog, Violation
from penstock.sim.history import (
    COPIERS,
    COPIES,
    FAIL,
    OK,
    SINK,
    SOURCE_MARK,
    Committed,
    Drain,
    Entry,
    Send,
    Txn,
)


@dataclass(slots=True)
class Fate:
    """A transaction and its outcome."""

    txn: Txn
    sends: list[Send] = field(default_factory=list)
    was_read: bool = False

    @property
    def is_committed(self) -> bool:
        return self.txn.status == OK or (self.txn.status != FAIL and self.was_read)


Fates = Mapping[str, Fate]


def find_fates(entries: Iterable[Entry], logs: Mapping[str, PartitionLog]) -> dict[str, Fate]:
    """Returns the transactions by name. Also sets `committed_ranks` of the logs."""
    fates: dict[str, Fate] = {}
    for entry in entries:
        if isinstance(entry, Txn):
            fates[entry.name] = Fate(entry)
    for log in logs.values():
        for value, send in log.sends.items():
            fate = fates.get(send.txn)
            if fate is not None:
                fate.sends.append(send)
                fate.was_read = fate.was_read or value in log.committed_reads
    for log in logs.values():
        seen = sorted(
            offset
            for offset, values in log.values.items()
            if all(_may_be_read(log.sends.get(value), fates) for value in values)
        )
        log.committed_ranks = {offset: rank for rank, offset in enumerate(seen)}
    return fates


def _may_be_read(send: Send | None, fates: Fates) -> bool:
    fate = None if send is None else fates.get(send.txn)
    return fate is None or fate.is_committed


def check_txns(
    entries: Iterable[Entry], logs: Mapping[str, PartitionLog], fates: Fates
) -> Iterator[Violation]:
    for log in logs.values():
        yield from _check_aborted(log, fates)
        yield from _check_stays(log)
    for fate in fates.values():
        yield from _check_own(fate)
        yield from _check_whole(fate, logs)
    yield from _check_circles(fates, logs)
    offsets = _last_committed(entries)
    yield from _check_copies(logs, offsets.get(COPIERS, {}))
    yield from _check_sink(fates, offsets.get(SINK))


def _check_aborted(log: PartitionLog, fates: Fates) -> Iterator[Violation]:
    for value, offsets in log.committed_reads.items():
        send = log.sends.get(value)
        fate = None if send is None else fates.get(send.txn)
        if fate is None:
            continue
        txn = fate.txn
        if txn.status == FAIL:
            text = f"{value} was read as committed, but {txn.name} was aborted ({txn.error})"
            yield Violation("E4", log.partition_name, text, offsets[0])
        elif log.first_committed_ms[value] < txn.ending_ms or txn.ending_ms < 0:
            text = f"{value} was read as committed before {txn.name} requested its commit"
            yield Violation("E4", log.partition_name, text, offsets[0])


def _check_stays(log: PartitionLog) -> Iterator[Violation]:
    drain = log.committed_drain
    if drain is None or drain.status != OK:
        return
    kept = dict(drain.records)
    for value, offsets in log.committed_reads.items():
        for offset in offsets:
            if offset >= drain.start_offset and offset not in kept:
                text = f"{value} was read as committed at {offset}, but not in the end"
                yield Violation("E13", log.partition_name, text, offset)
    for offset in log.committed_ranks:
        value = log.values[offset][0]
        send = log.sends.get(value)
        if send is None or send.txn or not send.is_promised:
            continue
        if drain.start_offset <= offset and offset not in kept:
            text = f"{value} was acknowledged at {offset}, but not read as committed in the end"
            yield Violation("E3'", log.partition_name, text, offset)


def _check_own(fate: Fate) -> Iterator[Violation]:
    own = {(send.partition_name, send.value) for send in fate.sends}
    for partition_name, records in fate.txn.reads.items():
        for offset, value in records:
            if (partition_name, value) in own:
                text = f"{fate.txn.name} read {value}, which it had written itself"
                yield Violation("E5", partition_name, text, offset)


def _check_whole(fate: Fate, logs: Mapping[str, PartitionLog]) -> Iterator[Violation]:
    if not fate.is_committed:
        return
    for send in fate.sends:
        log = logs[send.partition_name]
        drain = log.committed_drain
        if drain is None or drain.status != OK or send.offset < drain.start_offset > 0:
            continue  # Deleted, or perhaps deleted if its offset is unknown.
        if send.value not in log.committed_reads:
            told = "was committed" if fate.txn.status == OK else "was read in part"
            text = f"{send.value} is missing, but its transaction {fate.txn.name} {told}"
            yield Violation("E10", send.partition_name, text, send.offset)


def _check_circles(fates: Fates, logs: Mapping[str, PartitionLog]) -> Iterator[Violation]:
    """Walks from each transaction to those it read from. Coming back to one on the path is
    a cycle."""
    before: dict[str, list[str]] = {}
    for name, fate in fates.items():
        if not fate.is_committed:
            continue
        sources: dict[str, None] = {}
        for partition_name, records in fate.txn.reads.items():
            for _, value in records:
                send = logs[partition_name].sends.get(value)
                if send is not None and send.txn and send.txn != name:
                    sources[send.txn] = None
        before[name] = [*sources]
    done: dict[str, bool] = {}
    """False while its sources are being walked, True afterwards."""
    for start in before:
        path: list[tuple[str, Iterator[str]]] = []
        following: str | None = start if start not in done else None
        while following is not None or path:
            if following is not None:
                done[following] = False
                path.append((following, iter(before.get(following, ()))))
            name, sources_left = path[-1]
            following = None
            for source in sources_left:
                if source not in done:
                    following = source
                    break
                if not done[source]:
                    text = f"{name} read from {source}, which read from it, perhaps indirectly"
                    yield Violation("E9", name, text)
            if following is None:
                done[name] = True
                path.pop()


# Copies and batches


def _last_committed(entries: Iterable[Entry]) -> dict[str, Mapping[str, int]]:
    """Returns, by group, the offsets it had committed in the end."""
    found: dict[str, Mapping[str, int]] = {}
    for entry in entries:
        if isinstance(entry, Committed) and entry.status == OK:
            found[entry.group] = entry.offsets
    return found


def _check_copies(
    logs: Mapping[str, PartitionLog], committed: Mapping[str, int]
) -> Iterator[Violation]:
    for partition_name, log in logs.items():
        drain = log.committed_drain
        if not partition_name.startswith(f"{COPIES}-") or drain is None or drain.status != OK:
            continue
        copied: dict[str, list[int]] = {}
        for _, value in drain.records:
            _, mark, source = value.partition(SOURCE_MARK)
            if mark:
                where, _, offset = source.rpartition("@")
                copied.setdefault(where, []).append(int(offset))
        for where, input_log in logs.items():
            is_input = where in copied or (
                where in committed and where.rpartition("-")[2] == partition_name.rpartition("-")[2]
            )
            source_drain = input_log.committed_drain
            if is_input and source_drain is not None and source_drain.status == OK:
                end = committed.get(where, -1)
                yield from _compare(partition_name, where, copied.get(where, []), source_drain, end)


def _compare(
    partition_name: str, where: str, copied: list[int], source: Drain, committed: int
) -> Iterator[Violation]:
    due = [offset for offset, _ in source.records if offset < committed]
    if copied == due:
        return
    twice = sorted({offset for offset in copied if copied.count(offset) > 1})
    missing = sorted({*due} - {*copied})
    more = sorted({*copied} - {*due})
    told = [
        f"{what} {offsets}"
        for what, offsets in (("twice", twice), ("missing", missing), ("not committed", more))
        if offsets
    ]
    text = f"copies of {where} up to {committed}: {', '.join(told) or 'out of order'}"
    yield Violation("E11", partition_name, text, (twice or missing or more or [-1])[0])


def _check_sink(fates: Fates, committed: Mapping[str, int] | None) -> Iterator[Violation]:
    done = sorted(
        (fate.txn.batch, fate.txn.name)
        for fate in fates.values()
        if fate.txn.batch >= 0 and fate.is_committed
    )
    if committed is None:
        return
    last = max(committed.values(), default=-1)
    numbers = [number for number, _ in done]
    if numbers != [*range(1, max(last, 0) + 1)]:
        text = f"the sink's group committed batch {last}, but batches {done} are committed"
        yield Violation("E11", SINK, text)
