"""Checks what clients at the edges saw: pipelined reads, malformed batches, deleted records.

E15  A read that is sent after a write, on the same connection, sees the write.
E16  A batch whose records cannot be decoded is refused.
E17  Records whose deletion was acknowledged do not come back.
E18  Offsets that an open transaction changes are not returned as stable.
E19  What the only replica of a partition acknowledges is on its disk, with `durability=fsync`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from penstock.sim.checkers.logs import PartitionLog, Violation
from penstock.sim.history import OK, Deleted, Entry, Malformed, Pipelined, Send, Stable


def check_edges(entries: Iterable[Entry], logs: Mapping[str, PartitionLog]) -> Iterator[Violation]:
    for entry in entries:
        match entry:
            case Pipelined() if entry.seen_end < entry.written_end:
                text = (
                    f"{entry.process} wrote up to {entry.written_end}, but the next request on "
                    f"the same connection, {entry.request}, saw the end at {entry.seen_end}"
                )
                yield Violation("E15", entry.partition_name, text, entry.seen_end)
            case Malformed() if entry.status == OK:
                text = f"a malformed batch ({entry.batch}) was acknowledged at {entry.offset}"
                yield Violation("E16", entry.partition_name, text, entry.offset)
            case Deleted() if entry.status == OK:
                yield from _check_deleted(entry, logs.get(entry.partition_name))
            case Send() if entry.synced_end is not None and entry.offset >= entry.synced_end:
                text = (
                    f"{entry.value} was acknowledged at {entry.offset}, but the log was synced "
                    f"only up to {entry.synced_end}"
                )
                yield Violation("E19", entry.partition_name, text, entry.offset)
            case Stable():
                text = (
                    f"{entry.process} got {entry.offset} as a stable offset while its "
                    "transaction was open, which committed another offset"
                )
                yield Violation("E18", entry.group, text)
            case _:
                pass


def _check_deleted(entry: Deleted, log: PartitionLog | None) -> Iterator[Violation]:
    drain = None if log is None else log.drain
    if drain is not None and drain.status == OK and drain.start_offset < entry.offset:
        text = (
            f"records below {entry.offset} were deleted, but the log starts at {drain.start_offset}"
        )
        yield Violation("E17", entry.partition_name, text, drain.start_offset)
