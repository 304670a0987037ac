"""The checkers accept a sound history, and each rule detects a history that breaks it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.sim.checkers.history_checks import check_history
from penstock.sim.history import (
    FAIL,
    INFO,
    OK,
    Commit,
    Committed,
    Drain,
    Entry,
    History,
    Joined,
    Latest,
    Poll,
    Probe,
    Reads,
    Send,
)

PARTITION_NAME = "t-0"


def send(number: int, offset: int = -1, status: str = OK, **more: Any) -> Send:
    fields: dict[str, Any] = {
        "process": "p",
        "begun_ms": 10 * number,
        "ended_ms": 10 * number + 5,
        "partition_name": PARTITION_NAME,
        "value": f"p.{number}",
        "number": number,
        "acks": -1,
        **more,
    }
    return Send(status=status, offset=offset, **fields)


def poll(at: float, reads: Reads, process: str = "c", **more: Any) -> Poll:
    return Poll(process=process, status=OK, begun_ms=at, ended_ms=at + 1, reads=reads, **more)


def read(*numbers: int, first: int = 0) -> tuple[tuple[int, str], ...]:
    return tuple((offset, f"p.{number}") for offset, number in enumerate(numbers, start=first))


def drain(*numbers: int, start: int = 0, **more: Any) -> Drain:
    fields: dict[str, Any] = {
        "status": OK,
        "records": read(*numbers, first=start),
        "end_offset": start + len(numbers),
        **more,
    }
    return Drain(
        process="drain",
        begun_ms=900,
        ended_ms=901,
        partition_name=PARTITION_NAME,
        start_offset=start,
        **fields,
    )


def latest(at: float, offset: int) -> Latest:
    return Latest(
        process="l",
        status=OK,
        begun_ms=at,
        ended_ms=at + 1,
        partition_name=PARTITION_NAME,
        offset=offset,
    )


def commit(
    at: float, offset: int, generation: int = 1, status: str = OK, process: str = "c"
) -> Commit:
    return Commit(
        process=process,
        status=status,
        begun_ms=at,
        ended_ms=at + 1,
        group="g",
        generation=generation,
        offsets={PARTITION_NAME: offset},
    )


def committed(at: float, offset: int) -> Committed:
    return Committed(
        process="q",
        status=OK,
        begun_ms=at,
        ended_ms=at + 1,
        group="g",
        offsets={PARTITION_NAME: offset},
    )


def joined(at: float, generation: int) -> Joined:
    return Joined(
        process="c", status=OK, begun_ms=at, ended_ms=at + 1, group="g", generation=generation
    )


def rules(*entries: Entry) -> list[str]:
    return sorted({each.rule for each in check_history(History(entries), [PARTITION_NAME])})


SOUND: list[Entry] = [
    send(0, 0),
    send(1, 1),
    latest(25, 2),
    send(2, status=INFO),
    send(3, 3),
    send(4, status=FAIL),
    send(5, status=INFO),
    send(6, 4, acks=1),
    joined(100, 1),
    poll(101, {PARTITION_NAME: read(0, 1)}, moved=(PARTITION_NAME,)),
    commit(110, 2),
    poll(120, {PARTITION_NAME: read(2, first=2)}),
    committed(130, 2),
    commit(140, 3, status=INFO),
    joined(150, 2),
    committed(160, 3),
    poll(170, {PARTITION_NAME: read(2, 3, first=2)}, moved=(PARTITION_NAME,)),
    commit(180, 4, generation=2),
    committed(190, 4),
    latest(200, 4),
    drain(0, 1, 2, 3),
    Probe(process="t-0", status=OK, begun_ms=800, ended_ms=850, what="produce"),
]


def test_a_sound_history_breaks_no_rule() -> None:
    """Allowed: sends with an unknown outcome that took effect or did not, a lost acks=1 record, and
    a record that is read again after a rebalance."""
    assert rules(*SOUND) == []


BROKEN: dict[str, tuple[str, list[Entry]]] = {
    "one offset, two values": (
        "E1",
        [send(0, 0), send(1, 0), poll(50, {PARTITION_NAME: read(0)}), drain(1)],
    ),
    "acknowledged at one offset, read at another": (
        "E2",
        [send(0, 0), send(1, 1), drain(1, 0)],
    ),
    "written twice by an idempotent producer": ("E2", [send(0, 0), drain(0, 0)]),
    "passed by": (
        "E3",
        [send(0, 0), send(1, 1), send(2, 2), poll(50, {PARTITION_NAME: ((2, "p.2"),)})],
    ),
    "not there in the end": ("E3'", [send(0, 0), send(1, 1), drain(0)]),
    "acknowledged without an offset and not there": ("E3'", [send(0, -1), drain()]),
    "refused and there": ("E4", [send(0, status=FAIL), drain(0)]),
    "never sent": ("E5", [drain(7)]),
    "read before it was sent": ("E5", [send(9, 0), poll(5, {PARTITION_NAME: read(9)}), drain(9)]),
    "left out within a poll": (
        "E6",
        [send(0, 0), send(1, 1), send(2, 2), poll(50, {PARTITION_NAME: ((0, "p.0"), (2, "p.2"))})],
    ),
    "backwards within a poll": (
        "E6",
        [send(0, 0), send(1, 1), poll(50, {PARTITION_NAME: ((1, "p.1"), (0, "p.0"))})],
    ),
    "left out between polls": (
        "E7",
        [
            send(0, 0),
            send(1, 1),
            send(2, 2),
            poll(50, {PARTITION_NAME: read(0)}),
            poll(60, {PARTITION_NAME: read(2, first=2)}),
            drain(0, 1, 2),
        ],
    ),
    "again without a reason": (
        "E7",
        [
            send(0, 0),
            poll(50, {PARTITION_NAME: read(0)}),
            poll(60, {PARTITION_NAME: read(0)}),
            drain(0),
        ],
    ),
    "out of order": ("E8", [send(0, 1), send(1, 0), drain(1, 0)]),
    "read and then gone": (
        "E13",
        [send(0, 0, acks=1), poll(50, {PARTITION_NAME: read(0)}), drain()],
    ),
    "the end went back": ("I8", [send(0, 0), latest(20, 1), latest(30, 0), drain(0)]),
    "the end was further than in the end": ("I8", [send(0, 0), latest(20, 2), drain(0)]),
    "a commit was lost": ("E12", [commit(10, 5), committed(20, -1), drain()]),
    "an older commit came back": (
        "E12",
        [commit(10, 5), commit(20, 6), committed(30, 5), drain()],
    ),
    "an old member overwrote it": (
        "E12",
        [commit(10, 6, generation=2), commit(12, 5, status=INFO), committed(30, 5), drain()],
    ),
    "a commit of an old generation was taken": (
        "E12",
        [joined(10, 2), commit(20, 5, generation=1), drain()],
    ),
    "nobody drained it": ("E14", []),
    "it could not be drained": ("E14", [drain(status=INFO)]),
    "a probe failed": (
        "E14",
        [
            drain(),
            Probe(process=PARTITION_NAME, status=INFO, begun_ms=0, ended_ms=9, what="produce"),
        ],
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_checker_names_the_rule_that_a_history_breaks(name: str) -> None:
    rule, entries = BROKEN[name]
    assert rule in rules(*entries)


def test_a_producer_that_is_not_idempotent_may_write_duplicates() -> None:
    """A producer that is not idempotent may write a record twice, and then out of order."""
    first = send(0, 1, once=False, ordered=False)
    assert rules(first, send(1, 0, once=False, ordered=False), drain(1, 0, 1)) == []


def test_records_below_the_log_start_offset_do_not_count_as_lost() -> None:
    reads = poll(50, {PARTITION_NAME: read(0, 1, 2)})
    assert rules(send(0, 0), send(1, 1), send(2, 2), reads, drain(1, 2, start=1)) == []


def test_a_commit_in_flight_may_be_visible_or_not() -> None:
    """An offset fetch that overlaps a commit may return the old or the new offset."""
    for answer in (5, 6):
        assert rules(commit(10, 5), commit(20, 6), committed(20.5, answer), drain()) == []


def test_a_commit_that_was_given_up_may_arrive_late() -> None:
    """Commits are not numbered: the broker accepts an old one that arrives late, as Kafka does."""
    old = replace(commit(10, 5), late=True)
    assert rules(old, commit(20, 6), committed(30, 5), drain()) == []
