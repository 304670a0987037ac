"""Histories of clients can be written as JSON lines and read back."""

from __future__ import annotations

from penstock.sim.history import (
    INFO,
    OK,
    Commit,
    Committed,
    CopiesRead,
    DelayedSend,
    Drain,
    Entry,
    GivenUp,
    History,
    Joined,
    Latest,
    LettersRead,
    Poll,
    Probe,
    Send,
    ShareExchange,
    ShareLoad,
)
from penstock.sim.history_file import read_history

ENTRIES: list[Entry] = [
    Send(
        process="p0",
        status=INFO,
        begun_ms=1,
        ended_ms=2.5,
        error="the connection broke",
        partition_name="t-0",
        value="p0.1",
        number=1,
        acks=-1,
    ),
    Poll(
        process="c0",
        status=OK,
        begun_ms=3,
        ended_ms=4,
        reads={"t-0": ((0, "p0.1"), (1, "p0.2"))},
        moved=("t-0",),
    ),
    Drain(
        process="d",
        status=OK,
        begun_ms=5,
        ended_ms=6,
        partition_name="t-0",
        start_offset=0,
        end_offset=1,
        records=((0, "p0.1"),),
    ),
    Latest(process="l", status=OK, begun_ms=5, ended_ms=6, partition_name="t-0", offset=1),
    Commit(
        process="c0",
        status=OK,
        begun_ms=5,
        ended_ms=6,
        group="g",
        generation=2,
        offsets={"t-0": 1},
    ),
    Committed(process="c0", status=OK, begun_ms=7, ended_ms=8, group="g", offsets={"t-0": 1}),
    Joined(process="c0", status=OK, begun_ms=7, ended_ms=8, group="g", generation=3),
    Probe(process="p", status=OK, begun_ms=7, ended_ms=8, what="produce to t-0"),
    ShareExchange(
        process="s0",
        status=OK,
        begun_ms=8,
        ended_ms=9,
        group="jobs",
        member_id="m",
        broker=1,
        lock_ms=500.0,
        session="s0.1",
        delivered=(("t-0", 0, 3, 1),),
        acks=(("t-0", 0, 1, 1, "NONE"),),
    ),
    ShareLoad(
        process="b1",
        status=OK,
        begun_ms=8,
        ended_ms=9,
        group="jobs",
        partition_name="t-0",
        leader_epoch=2,
    ),
    LettersRead(
        process="rl",
        status=OK,
        begun_ms=8,
        ended_ms=9,
        partition_name="dlq.jobs-0",
        letters=((0, "jobs", "t-0", 3, 2, "The record has expired."),),
        is_all=True,
    ),
    GivenUp(
        process="log",
        status=OK,
        begun_ms=8,
        ended_ms=9,
        group="jobs",
        partition_name="t-0",
        offset=3,
        deliveries=2,
        reason="EXPIRED",
    ),
    DelayedSend(
        process="delayed0",
        status=OK,
        begun_ms=9,
        ended_ms=10,
        partition_name="later-0",
        value="delayed0.1",
        due_ms=1_000,
        is_promised=True,
        wall_max_ms=900,
    ),
    CopiesRead(
        process="rd",
        status=OK,
        begun_ms=10,
        ended_ms=11,
        partition_name="reminders-0",
        rows=((0, "delayed0.1", 0, 1_001, 890),),
        wall_max_ms=1_010,
    ),
]


def test_every_kind_of_entry_survives_a_round_trip_through_json_lines() -> None:
    assert read_history(History(ENTRIES).lines()).entries == ENTRIES


def test_only_sends_acknowledged_with_acks_all_are_promised() -> None:
    """A response from the leader alone promises nothing, nor does a lost response."""

    def sent(status: str, acks: int) -> Send:
        return Send(
            process="p",
            status=status,
            begun_ms=0,
            ended_ms=1,
            partition_name="t-0",
            value="v",
            number=0,
            acks=acks,
        )

    assert sent(OK, -1).is_promised
    assert not sent(OK, 1).is_promised
    assert not sent(INFO, -1).is_promised
