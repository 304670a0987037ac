"""The checks of the share coordinators' log: each rule finds what breaks it, and nothing else."""

from __future__ import annotations

import pytest

from penstock.records.record import Record
from penstock.shares.formats import Entry, ReadNote, Snapshot, record_of
from penstock.shares.image import Delta, ShareImage, StoredSpan
from penstock.shares.state_port import SharePartitionId
from penstock.shares.states import AckType, GiveUpReason, RecordState
from penstock.sim.actors.share_board import ShareBoard
from penstock.sim.checkers.metadata_invariants import InvariantBroken
from penstock.sim.checkers.share_records import ShareRecords, Written
from penstock.sim.checkers.share_states import TrueShareStates
from penstock.sim.history import OK, GivenUp, History, ShareExchange

GROUP = "shares0"
TOPIC_ID = b"\1" * 16
WHERE = SharePartitionId(GROUP, TOPIC_ID, 0)
LIMIT = 3
AVAILABLE, DONE, ARCHIVED = RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED
ARCHIVING = RecordState.ARCHIVING


class Log:
    """The state of a share partition that begins at 0, read by the leader of epoch 2, which is
    broker 1. Offset 0 was released once, offset 1 accepted. Offset 2 may be accepted."""

    def __init__(self) -> None:
        self.board = ShareBoard()
        self.history = History()
        self.records = ShareRecords()
        self.now_ms = 0.0
        self.leader: tuple[int | None, int] = (2, 2)
        self.truth = self.board.judge = TrueShareStates(
            self.board,
            self.history,
            lambda: self.now_ms,
            LIMIT,
            lambda broker, name: self.leader,
            self.records,
        )
        self.truth.names[TOPIC_ID] = "orders"
        self.say(1, AckType.ACCEPT)
        self.say(2, AckType.ACCEPT)
        self.write(
            Snapshot(ShareImage.starting_at(-1, 5)),
            ReadNote(2),
            Delta(5, 0, 0, -1, ()),
            delta(StoredSpan(0, 0, AVAILABLE, 1), StoredSpan(1, 1, DONE, 1)),
        )

    def say(self, offset: int, kind: AckType) -> None:
        self.board.note_sent(GROUP, ("orders-0", offset, offset, int(kind), ""))

    def write(self, *contents: Snapshot | Delta | ReadNote | None) -> None:
        records = (record_of(Entry(WHERE, content)) for content in contents)
        batch = [Record(number, 0, each.key, each.value) for number, each in enumerate(records)]
        self.truth.on_committed("__share_group_state-0", 7, batch)

    def try_writing(self, *contents: Delta) -> str:
        """Returns the rule that is broken."""
        try:
            self.write(*contents)
        except InvariantBroken as error:
            return error.violation.rule
        return ""

    def expire(self, offset: int, expires_ms: int, *, due_ms: int = 0) -> None:
        self.records.written["orders-0", offset] = Written(b"", due_ms, expires_ms)

    def told(self) -> str:
        """Returns the rule that a member found broken."""
        return "" if self.truth.broken is None else self.truth.broken.violation.rule

    def deliver(self, first: int, count: int, *, before_ms: float = 0.0) -> str:
        before = self.truth.view(GROUP, "orders-0", 1)
        found = ("orders-0", first, first, count)
        self.truth.on_delivered(answer(before_ms), found, before)
        return self.told()

    def acknowledge(self, offset: int, kind: AckType, count: int = 1) -> str:
        ack = ("orders-0", offset, offset, int(kind), "NONE")
        self.truth.on_acknowledged(answer(self.now_ms), ack, count)
        return self.told()


def answer(at_ms: float) -> ShareExchange:
    return ShareExchange(
        process="ms0",
        status=OK,
        begun_ms=at_ms,
        ended_ms=at_ms,
        group=GROUP,
        member_id="id",
        broker=1,
        lock_ms=1_000,
    )


def delta(*spans: StoredSpan, start: int = 0, state_epoch: int = 5) -> Delta:
    return Delta(state_epoch, start, 10, 2, spans)


def test_what_a_sound_coordinator_writes_is_accepted() -> None:
    """The start follows what is done, and a snapshot has what was written before."""
    log = Log()
    log.write(delta(StoredSpan(2, 2, DONE, 1)))
    log.say(0, AckType.ACCEPT)
    log.write(delta(StoredSpan(0, 0, DONE, 2)), delta(start=3))
    state = log.truth.states[GROUP, "orders-0"]
    assert (state.start, state.records) == (3, {})
    log.write(delta(StoredSpan(4, 5, AVAILABLE, 2), start=3))
    image = ShareImage(5, 3, 10, 2, [StoredSpan(4, 5, AVAILABLE, 2)])
    log.write(Snapshot(image, 2, 1), ReadNote(2), ReadNote(4), Delta(5, -1, -1, -1, ()))
    assert len(log.history.entries) == 3


@pytest.mark.parametrize(
    "content",
    [
        delta(StoredSpan(1, 1, AVAILABLE, 1)),
        delta(StoredSpan(0, 0, AVAILABLE, 0)),
        delta(state_epoch=4),
        ReadNote(1),
        None,
        Snapshot(ShareImage.starting_at(-1, 6)),
        Snapshot(ShareImage.starting_at(-1, 4)),
        Snapshot(ShareImage(5, 0, 10, 2, [StoredSpan(0, 0, AVAILABLE, 1)]), 2, 1),
    ],
)
def test_a_state_never_goes_back(content: Snapshot | Delta | ReadNote | None) -> None:
    """Records stay done, counts do not decrease, older leaders read nothing, and a state in use is
    neither deleted nor begun again."""
    with pytest.raises(InvariantBroken, match="I19"):
        Log().write(content)


def test_the_start_passes_only_what_is_done() -> None:
    with pytest.raises(InvariantBroken, match=r"I20.*0 is not done"):
        Log().write(delta(start=2))
    log = Log()
    log.truth.states.clear()
    with pytest.raises(InvariantBroken, match=r"I20.*begins at offset 3"):
        log.write(Snapshot(ShareImage.starting_at(-1, 5)), delta(start=3))


def test_a_record_is_done_only_for_a_reason() -> None:
    """A member has said so, or it was delivered as often as the limit allows."""
    Log().write(delta(StoredSpan(3, 3, ARCHIVED, LIMIT)))
    for span in (StoredSpan(3, 3, DONE, LIMIT), StoredSpan(2, 2, ARCHIVED, LIMIT - 1)):
        with pytest.raises(InvariantBroken, match="I21"):
            Log().write(delta(span))
    log = Log()
    log.say(2, AckType.REJECT)
    log.write(delta(StoredSpan(2, 2, ARCHIVED, 1)))


def test_a_record_that_has_expired_may_be_dropped() -> None:
    """Without dead letters, even if its count is not stored. Not before it has expired."""
    for now_ms, rule in ((99.0, "I21"), (100.0, "")):
        log = Log()
        log.expire(0, 100)
        log.now_ms = now_ms
        assert log.try_writing(delta(StoredSpan(0, 0, ARCHIVED, 0))) == rule
        log = Log()
        log.expire(0, 100)
        log.now_ms = now_ms
        assert log.try_writing(delta(start=2)) == ("I20" if rule else "")


def test_a_record_is_archived_after_its_dead_letter() -> None:
    """If its group has dead letters. It is given up first, and then nothing else."""
    letter = StoredSpan(3, 3, ARCHIVING, LIMIT, reason=GiveUpReason.DELIVERY_LIMIT)
    log = Log()
    log.records.has_letters = True
    assert log.try_writing(delta(StoredSpan(3, 3, ARCHIVED, LIMIT))) == "I25"
    assert log.try_writing(delta(letter)) == ""
    assert isinstance(log.history.entries[-1], GivenUp)
    assert log.try_writing(delta(letter)) == "", "it may get another number"
    assert log.try_writing(delta(StoredSpan(3, 3, ARCHIVED, LIMIT))) == "I25"
    log.say(3, AckType.ACCEPT)
    assert log.try_writing(delta(StoredSpan(3, 3, DONE, LIMIT))) == "I19"
    log.records.letters[GROUP, "orders-0", 3] = 0
    assert log.try_writing(delta(StoredSpan(3, 3, ARCHIVED, LIMIT))) == ""
    assert log.try_writing(delta(letter)) == "I19"


@pytest.mark.parametrize(
    ("reason", "kind", "count", "rule"),
    [
        (GiveUpReason.REJECTED, AckType.REJECT, 1, ""),
        (GiveUpReason.REJECTED, AckType.ACCEPT, LIMIT, "I21"),
        (GiveUpReason.DELIVERY_LIMIT, AckType.REJECT, LIMIT - 1, "I21"),
        (GiveUpReason.EXPIRED, AckType.REJECT, LIMIT, "I21"),
        (GiveUpReason.LENGTH_LIMIT, AckType.REJECT, LIMIT, "I21"),
    ],
)
def test_a_record_is_given_up_for_the_reason_that_is_stored(
    reason: GiveUpReason, kind: AckType, count: int, rule: str
) -> None:
    log = Log()
    log.say(3, kind)
    assert log.try_writing(delta(StoredSpan(3, 3, ARCHIVING, count, reason=reason))) == rule


def test_no_record_is_delivered_before_its_time_or_after_it_has_expired() -> None:
    """By the clock of the leader, at any moment of the request."""
    for at_ms, rule in ((99.0, "E42"), (100.0, ""), (199.0, ""), (200.0, "E43")):
        log = Log()
        log.expire(3, 200, due_ms=100)
        assert log.deliver(3, 1, before_ms=at_ms) == rule, at_ms


def test_every_delivery_counts_and_none_is_above_the_limit() -> None:
    assert Log().deliver(0, 2) == ""
    assert Log().deliver(0, 1) == "E38"
    assert Log().deliver(3, LIMIT) == ""
    assert Log().deliver(3, LIMIT + 1) == "E38"
    assert Log().deliver(0, 1, before_ms=-1) == "", "it was stored after the request was sent"


def test_the_count_of_a_leader_that_was_replaced_proves_nothing() -> None:
    """It does not know what its successor has stored."""
    log = Log()
    log.write(ReadNote(3))
    assert log.deliver(0, 1) == ""


def test_a_broker_delivers_only_what_it_leads() -> None:
    """It may lead only for a moment, in another epoch of the metadata."""
    log = Log()
    log.leader = None, 2
    assert log.deliver(3, 1) == "E40"


def test_an_answered_acknowledgement_is_in_the_log() -> None:
    """A release as well, by the delivery count. A renewal is not stored."""
    for offset, kind, count, rule in (
        (1, AckType.ACCEPT, 1, ""),
        (2, AckType.ACCEPT, 1, "E39"),
        (2, AckType.REJECT, 1, "E39"),
        (0, AckType.RELEASE, 1, ""),
        (0, AckType.RELEASE, 2, "E39"),
        (2, AckType.RENEW, 1, ""),
    ):
        assert Log().acknowledge(offset, kind, count) == rule, (offset, kind, count)
