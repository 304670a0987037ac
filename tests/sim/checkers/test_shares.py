"""The checks of share groups by the history: each rule finds what breaks it, and nothing else."""

from __future__ import annotations

from penstock.shares.states import AckType
from penstock.sim.checkers.shares import check_shares
from penstock.sim.history import (
    FAIL,
    OK,
    Entry,
    History,
    ShareAck,
    ShareExchange,
    ShareLoad,
    ShareRange,
)
from penstock.sim.history_file import read_history

LOCK_MS = 1_000.0
FIRST: ShareRange = ("orders-0", 3, 5, 1)


def exchange(
    process: str,
    begun_ms: float,
    *,
    delivered: tuple[ShareRange, ...] = (),
    acks: tuple[ShareAck, ...] = (),
    status: str = OK,
    broker: int = 1,
    is_raw: bool = True,
) -> ShareExchange:
    """A request that took 10 ms."""
    return ShareExchange(
        process=process,
        status=status,
        begun_ms=begun_ms,
        ended_ms=begun_ms + 10,
        group="shares0",
        member_id=f"{process}.id",
        broker=broker,
        lock_ms=LOCK_MS,
        session=f"{process}#1" if is_raw else "",
        delivered=delivered,
        acks=acks,
    )


def ack(kind: AckType, code: str = "NONE", offset: int = 4) -> ShareAck:
    return ("orders-0", offset, offset, int(kind), code)


def load(at_ms: float, leader_epoch: int = 2) -> ShareLoad:
    return ShareLoad(
        process="log",
        status=OK,
        begun_ms=at_ms,
        ended_ms=at_ms,
        group="shares0",
        partition_name="orders-0",
        leader_epoch=leader_epoch,
    )


def rules(*entries: Entry) -> list[str]:
    return [each.rule for each in check_shares(entries)]


def test_an_accepted_or_rejected_record_is_not_delivered_again() -> None:
    """A request that was sent before the answer may have been served before."""
    taken = exchange("a", 0, delivered=(FIRST,))
    for kind in (AckType.ACCEPT, AckType.REJECT):
        settled = exchange("a", 100, acks=(ack(kind),))
        assert rules(taken, settled, exchange("b", 110, delivered=(FIRST,))) == ["E36"]
        assert rules(taken, settled, exchange("b", 109, delivered=(FIRST,))) == []
        assert rules(taken, settled, exchange("b", 200, delivered=(("orders-0", 5, 5, 1),))) == []


def test_a_record_may_be_delivered_again_if_its_acknowledgement_was_not_answered() -> None:
    """Neither if it was refused, nor if it was only released."""
    taken = exchange("a", 0, delivered=(FIRST,))
    for said in (
        ack(AckType.RELEASE),
        ack(AckType.ACCEPT, "INVALID_RECORD_STATE"),
        ack(AckType.ACCEPT, ""),
    ):
        settled = exchange("a", 100, acks=(said,))
        assert rules(taken, settled, exchange("b", 200, delivered=(FIRST,))) == [], said


def test_nobody_gets_a_record_that_another_member_has_locked() -> None:
    """The lock is certain as long as requests in the holder's session are answered."""
    taken, alive = exchange("a", 0, delivered=(FIRST,)), exchange("a", 900)
    assert rules(taken, exchange("b", 500, delivered=(FIRST,)), alive) == ["E37"] * 3
    assert rules(taken, exchange("b", 995, delivered=(FIRST,)), exchange("a", 2_000)) == []
    assert rules(taken, exchange("b", 500, delivered=(FIRST,))) == []
    refused = exchange("a", 900, status=FAIL)
    assert rules(taken, exchange("b", 500, delivered=(FIRST,)), refused) == []
    unknown = exchange("a", 0, delivered=(FIRST,), is_raw=False)
    assert rules(unknown, exchange("b", 500, delivered=(FIRST,))) == []


def test_a_lock_ends_with_an_acknowledgement_and_with_a_load_of_another_leader() -> None:
    """Also if it is unknown whether the acknowledgement has arrived. Another broker may deliver
    the record as well: one of the two does not lead any more."""
    taken, alive = exchange("a", 0, delivered=(FIRST,)), exchange("a", 900)
    again = exchange("b", 500, delivered=(("orders-0", 4, 4, 2),))
    assert rules(taken, again, alive) == ["E37"]
    said = exchange("a", 400, acks=(ack(AckType.RELEASE, ""),))
    assert rules(taken, said, again, alive) == []
    assert rules(taken, load(300), again, alive) == []
    assert rules(load(-1), taken, again, load(600), alive) == ["E37"]
    assert rules(load(-1), taken, load(300), again, alive) == ["E37"]
    assert rules(load(-1), taken, load(300, 3), again, alive) == []
    other = exchange("b", 500, delivered=(FIRST,), broker=2)
    assert rules(taken, other, alive) == []


def test_a_renewed_lock_lasts_longer() -> None:
    """If the renewal was answered without an error."""
    taken = exchange("a", 0, delivered=(("orders-0", 4, 4, 1),))
    again, alive = exchange("b", 1_400, delivered=(FIRST,)), exchange("a", 3_000)
    renewed = exchange("a", 800, acks=(ack(AckType.RENEW),))
    refused = exchange("a", 800, acks=(ack(AckType.RENEW, "INVALID_RECORD_STATE"),))
    assert rules(taken, renewed, again, alive) == ["E37"]
    assert rules(taken, refused, again, alive) == []


def test_a_history_of_share_groups_is_written_and_read_again() -> None:
    entries = [exchange("a", 0, delivered=(FIRST,), acks=(ack(AckType.ACCEPT),)), load(3)]
    assert read_history(History(entries).lines()).entries == entries
