"""The transaction checkers accept a sound history, and each rule detects one that breaks it."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.sim.checkers.history_checks import check_history
from penstock.sim.history import (
    COPIERS,
    FAIL,
    INFO,
    OK,
    SINK,
    Committed,
    Deleted,
    Drain,
    Entry,
    History,
    Poll,
    Reads,
    Send,
    Txn,
)

A, B = "t-0", "t-1"
IN, OUT = "orders-0", "copies-0"


def send(partition_name: str, number: int, offset: int, txn: str = "", **more: Any) -> Send:
    fields: dict[str, Any] = {
        "process": "p",
        "status": OK,
        "begun_ms": 10 * number,
        "ended_ms": 10 * number + 5,
        "value": f"v{number}",
        "number": number,
        "acks": -1,
        **more,
    }
    return Send(partition_name=partition_name, offset=offset, txn=txn, **fields)


def txn(name: str, status: str = OK, **more: Any) -> Txn:
    fields: dict[str, Any] = {"begun_ms": 0, "ended_ms": 400, "ending_ms": 100, **more}
    return Txn(process="p", status=status, name=name, transactional_id="x", **fields)


def poll(at: float, reads: Reads, process: str = "c") -> Poll:
    return Poll(
        process=process, status=OK, begun_ms=at, ended_ms=at + 1, reads=reads, committed=True
    )


def drains(partition_name: str, every: Reads | None = None, **kept: str) -> list[Entry]:
    """Returns drains of all records of a partition (`o0="v1"`); `every` are not committed."""
    committed = {int(offset[1:]): value for offset, value in kept.items()}
    both = {**committed, **dict((every or {}).get(partition_name, ()))}
    return [
        Drain(
            process="d",
            status=OK,
            begun_ms=900,
            ended_ms=901,
            partition_name=partition_name,
            start_offset=0,
            end_offset=9,
            records=tuple(sorted(records.items())),
            committed=is_committed,
        )
        for records, is_committed in ((both, False), (committed, True))
    ]


def says(group: str, **offsets: int) -> Committed:
    partition_names = {name.replace("_", "-"): offset for name, offset in offsets.items()}
    return Committed(
        process="q", status=OK, begun_ms=800, ended_ms=801, group=group, offsets=partition_names
    )


def rules(*entries: Entry) -> list[str]:
    partition_names = {entry.partition_name for entry in entries if isinstance(entry, Drain)}
    return sorted({each.rule for each in check_history(History(entries), sorted(partition_names))})


SOUND: list[Entry] = [
    send(A, 1, 0, "T1"),
    send(B, 2, 0, "T1"),
    send(A, 3, 2, "T2"),
    send(A, 4, 4, "T3"),
    send(A, 5, 6),
    txn("T1"),
    txn("T2", FAIL, ending_ms=-1),
    txn("T3", INFO),
    poll(150, {A: ((0, "v1"), (4, "v4"))}),
    poll(160, {A: ((6, "v5"),)}),
    *drains(A, {A: ((2, "v3"),)}, o0="v1", o4="v4", o6="v5"),
    *drains(B, o0="v2"),
]


def test_a_sound_history_breaks_no_rule() -> None:
    """It has a committed transaction, an aborted one, and one with an unknown outcome that turns
    out committed. Aborted records are not a gap for a read_committed consumer."""
    assert rules(*SOUND) == []


def test_a_transaction_with_an_unknown_outcome_is_all_visible_or_not_at_all() -> None:
    """With an unknown outcome, all of its records may be visible or none, but not some of them."""
    entries = [send(A, 1, 0, "T1"), send(B, 2, 0, "T1"), txn("T1", INFO)]
    unread = [*drains(A, {A: ((0, "v1"),)}), *drains(B, {B: ((0, "v2"),)})]
    assert rules(*entries, *unread) == []
    torn = [*drains(A, o0="v1"), *drains(B, {B: ((0, "v2"),)})]
    assert rules(*entries, *torn) == ["E10"]


def copied(offsets: tuple[int, ...], committed: int) -> list[Entry]:
    """Returns a history of three records, and of copies of the records at these offsets."""
    sent: list[Entry] = [send(IN, number, number) for number in range(3)]
    made: list[Entry] = [
        send(OUT, 10 + at, at, "T1", value=f"c.{at}<{IN}@{offset}")
        for at, offset in enumerate(offsets)
    ]
    outputs = {f"o{at}": f"c.{at}<{IN}@{offset}" for at, offset in enumerate(offsets)}
    return [
        *sent,
        *made,
        txn("T1", ending_ms=200),
        says(COPIERS, orders_0=committed),
        *drains(IN, o0="v0", o1="v1", o2="v2"),
        *drains(OUT, None, **outputs),
    ]


def test_copies_match_the_committed_offset_of_the_group() -> None:
    """Every record is copied once, in order, up to the group's committed offset."""
    assert rules(*copied((0, 1), 2)) == []
    assert rules(*copied((), -1)) == []


@pytest.mark.parametrize(
    ("offsets", "committed"),
    [((0, 0, 1), 2), ((0,), 2), ((0, 1, 2), 2), ((1, 0), 2), ((0, 1), -1), ((), 1)],
)
def test_copies_that_do_not_match_the_committed_offset_are_reported(
    offsets: tuple[int, ...], committed: int
) -> None:
    """Copied twice, missing, ahead of the committed offset, or out of order."""
    assert rules(*copied(offsets, committed)) == ["E11"]


@pytest.mark.parametrize(
    ("batches", "says_batch", "expected"),
    [([1, 2], 2, []), ([1, 1], 1, ["E11"]), ([1, 3], 3, ["E11"]), ([1, 2], 1, ["E11"])],
)
def test_a_sink_commits_each_batch_once_and_in_order(
    batches: list[int], says_batch: int, expected: list[str]
) -> None:
    """Every batch number occurs once, without gaps, up to the group's committed batch."""
    entries: list[Entry] = [
        txn(f"T{at}", batch=batch, ending_ms=0) for at, batch in enumerate(batches)
    ]
    assert rules(*entries, says(SINK, orders_0=says_batch)) == expected


BROKEN: dict[str, tuple[str, list[Entry]]] = {
    "aborted and read as committed": (
        "E4",
        [send(A, 1, 0, "T1"), txn("T1", FAIL, ending_ms=-1), *drains(A, o0="v1")],
    ),
    "read before anybody asked for a commit": (
        "E4",
        [send(A, 1, 0, "T1"), txn("T1"), poll(50, {A: ((0, "v1"),)}), *drains(A, o0="v1")],
    ),
    "a transaction that reads itself": (
        "E5",
        [send(A, 1, 0, "T1"), txn("T1", reads={A: ((0, "v1"),)}), *drains(A, o0="v1")],
    ),
    "a circle": (
        "E9",
        [
            send(A, 1, 0, "T1"),
            send(A, 2, 1, "T2"),
            send(A, 3, 2, "T3"),
            txn("T1", reads={A: ((1, "v2"),)}),
            txn("T2", reads={A: ((2, "v3"),)}),
            txn("T3", reads={A: ((0, "v1"),)}),
            *drains(A, o0="v1", o1="v2", o2="v3"),
        ],
    ),
    "half of it is missing": (
        "E10",
        [
            send(A, 1, 0, "T1"),
            send(A, 2, 1, "T1"),
            txn("T1"),
            *drains(A, {A: ((1, "v2"),)}, o0="v1"),
        ],
    ),
    "committed once, and then not": (
        "E13",
        [
            send(A, 1, 0, "T1"),
            txn("T1", INFO),
            poll(150, {A: ((0, "v1"),)}),
            *drains(A, {A: ((0, "v1"),)}),
        ],
    ),
    "left out of what is committed": (
        "E6",
        [
            send(A, 1, 0, "T1"),
            send(A, 2, 1, "T1"),
            send(A, 3, 2, "T1"),
            txn("T1"),
            poll(150, {A: ((0, "v1"), (2, "v3"))}),
            *drains(A, o0="v1", o1="v2", o2="v3"),
        ],
    ),
    "outside of transactions, and not read as committed": (
        "E3'",
        [send(A, 1, 0), *drains(A, {A: ((0, "v1"),)})],
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_checker_names_the_rule_that_a_history_breaks(name: str) -> None:
    rule, entries = BROKEN[name]
    assert rule in rules(*entries)


def test_deleted_records_are_not_a_gap() -> None:
    """A reader that was behind continues at the new log start, and may not skip more than that."""
    sends = [send(A, number, number) for number in range(5)]
    deleted = Deleted(
        process="o", status=INFO, begun_ms=100, ended_ms=100, partition_name=A, offset=3
    )
    kept = {f"o{number}": f"v{number}" for number in range(5)}
    first = poll(90, {A: ((0, "v0"),)})
    on = poll(110, {A: ((3, "v3"), (4, "v4"))})
    assert rules(*sends, deleted, first, on, *drains(A, None, **kept)) == []
    more = Deleted(
        process="o", status=INFO, begun_ms=105, ended_ms=105, partition_name=A, offset=99
    )
    assert rules(*sends, deleted, more, first, on, *drains(A, None, **kept)) == []
    too_far = poll(110, {A: ((4, "v4"),)})
    assert rules(*sends, deleted, first, too_far, *drains(A, None, **kept)) == ["E7"]
