"""The checks of consumer groups: each rule finds what breaks it, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from penstock.client.membership.protocol import encode_assignment
from penstock.groups.consumer.records import (
    LEFT_FOR_A_WHILE,
    Current,
    CurrentEntry,
    Entry,
    EpochEntry,
    GroupEpoch,
    MemberEntry,
    MemberMetadata,
    TargetEpoch,
    TargetEpochEntry,
    TopicIdPartition,
    record_of,
)
from penstock.groups.formats import GroupValue, OffsetValue, group_record, offset_record
from penstock.records.record import Record
from penstock.sim.actors.consumer_board import Answer, CommitClaim, ConsumerBoard, LiveMember
from penstock.sim.checkers.consumer_groups import TrueConsumerGroups
from penstock.sim.checkers.metadata_invariants import InvariantBroken
from penstock.topic_partition import TopicPartition

GROUP = "consumers0"
TOPIC_ID = b"\1" * 16
ONE, TWO = TopicIdPartition(TOPIC_ID, 0), TopicIdPartition(TOPIC_ID, 1)


class Log:
    """The log of a group with the members `a` and `b`, in epoch 2. `a` owns a partition and reads
    it."""

    def __init__(self) -> None:
        self.board = ConsumerBoard()
        self.truth = self.board.judge = TrueConsumerGroups(self.board)
        self.truth.names[TOPIC_ID] = "orders"
        self.write(
            member("a"),
            member("b"),
            EpochEntry(GROUP, GroupEpoch(2)),
            TargetEpochEntry(GROUP, TargetEpoch(2)),
            owner("a", Current(2, 1, assigned={ONE: 2})),
            owner("b", Current(2, 1)),
        )
        self.board.members["process"] = LiveMember(GROUP, "a")
        self.board.hold("process", ONE)

    def write(self, *entries: Entry) -> None:
        records = (record_of(entry) for entry in entries)
        batch = [Record(number, 0, each.key, each.value) for number, each in enumerate(records)]
        self.truth.on_committed("__consumer_offsets-0", 7, batch)

    def write_generation(self, generation: int, partitions: Mapping[str, int]) -> None:
        """Writes a generation of a classic group, in which each member has one partition."""
        members = [
            GroupValue.Member(
                member_id=name,
                group_instance_id=None,
                client_id="",
                client_host="",
                rebalance_timeout=1,
                session_timeout=1,
                subscription=b"",
                assignment=encode_assignment([TopicPartition("orders", index)]),
            )
            for name, index in partitions.items()
        ]
        self.truth.groups.clear()
        value = GroupValue("consumer", generation, protocol="range", leader="a", members=members)
        record = group_record(GROUP, value)
        self.truth.on_committed("__consumer_offsets-0", 7, [Record(0, 0, record.key, record.value)])

    def commit(self, member_id: str, epoch: int, *, metadata: str = "1") -> None:
        self.board.claims[metadata] = CommitClaim(GROUP, member_id, epoch, "orders-0")
        record = offset_record(GROUP, "orders", 0, OffsetValue(5, metadata=metadata))
        batch = [Record(0, 0, record.key, record.value)]
        self.truth.on_committed("__consumer_offsets-0", 8, batch)

    def told(self) -> str:
        """Returns the rule that a member found broken."""
        return "" if self.truth.broken is None else self.truth.broken.violation.rule


def member(name: str, instance_id: str | None = None) -> MemberEntry:
    return MemberEntry(GROUP, name, MemberMetadata(instance_id=instance_id))


def owner(name: str, current: Current | None) -> CurrentEntry:
    return CurrentEntry(GROUP, name, current)


def test_a_partition_belongs_to_one_member() -> None:
    """Also while the first member must give it up."""
    log = Log()
    log.write(owner("a", Current(2, 1, pending={ONE: 2})))
    with pytest.raises(InvariantBroken, match=r"I15.*belongs to the members a and b"):
        log.write(owner("b", Current(2, 1, assigned={ONE: 2})))


@pytest.mark.parametrize(
    "entry",
    [
        EpochEntry(GROUP, GroupEpoch(1)),
        TargetEpochEntry(GROUP, TargetEpoch(1)),
        TargetEpochEntry(GROUP, TargetEpoch(3)),
        owner("b", Current(1, 1)),
        owner("b", Current(3, 2)),
    ],
)
def test_epochs_do_not_go_back_and_none_is_ahead_of_the_next(entry: Entry) -> None:
    """The epoch of a member is at most that of the target, which is at most that of the group."""
    with pytest.raises(InvariantBroken, match="I15"):
        Log().write(entry)


def test_a_partition_is_taken_from_a_member_that_has_stopped_reading_or_was_removed() -> None:
    """A member that was removed may not know it yet."""
    log = Log()
    with pytest.raises(InvariantBroken, match=r"I16.*which still reads it"):
        log.write(owner("a", Current(2, 1)))
    log = Log()
    log.board.release("process", ONE)
    log.write(owner("a", Current(2, 1)), owner("b", Current(2, 1, assigned={ONE: 2})))
    log = Log()
    log.write(owner("a", None), MemberEntry(GROUP, "a", None), EpochEntry(GROUP, GroupEpoch(3)))
    assert log.board.holder(GROUP, "a", ONE) == ""


def test_a_hold_proves_nothing_if_an_older_request_may_still_arrive() -> None:
    """The coordinator would take it for a release."""
    log = Log()
    log.board.release("process", ONE)
    log.board.members["process"].unanswered.append((0.0, frozenset()))
    log.board.hold("process", ONE)
    log.write(owner("a", Current(2, 1)))


def test_an_instance_id_is_taken_over_from_a_member_that_has_left() -> None:
    """Or that was removed: then the group has a new epoch in between."""
    for epoch, between in ((2, ()), (2, (EpochEntry(GROUP, GroupEpoch(3)),))):
        log = Log()
        log.write(member("c", "i"), owner("c", Current(epoch, 1)))
        entries = (owner("c", None), MemberEntry(GROUP, "c", None), *between, member("d", "i"))
        if between:
            log.write(*entries)
        else:
            with pytest.raises(InvariantBroken, match=r"I15.*which had not left"):
                log.write(*entries)
    log = Log()
    log.write(member("c", "i"), owner("c", Current(LEFT_FOR_A_WHILE, 1)))
    log.write(owner("c", None), MemberEntry(GROUP, "c", None), member("d", "i"))


def test_offsets_are_committed_by_members_under_their_epochs() -> None:
    """An older epoch will do for a partition that the member has had since then."""
    Log().commit("a", 2)
    Log().commit("b", 2)
    for member_id, epoch in (("nobody", 2), ("a", 3), ("a", 1), ("b", 1)):
        with pytest.raises(InvariantBroken, match="I17"):
            Log().commit(member_id, epoch)
    log = Log()
    log.write(
        EpochEntry(GROUP, GroupEpoch(3)),
        TargetEpochEntry(GROUP, TargetEpoch(3)),
        owner("a", Current(3, 2, assigned={ONE: 2})),
    )
    log.commit("a", 2)


def test_a_generation_of_an_interrupted_rebalance_is_not_in_the_log() -> None:
    """A member that joined it may commit for the partitions that it still has, and no others."""
    for partition, is_allowed in ((0, True), (1, False)):
        log = Log()
        log.write_generation(2, {"a": partition})
        if is_allowed:
            log.commit("a", 3)
        else:
            with pytest.raises(InvariantBroken, match="I17"):
                log.commit("a", 3)


def test_what_a_member_is_told_is_in_the_log() -> None:
    """The epoch and the partitions, now or before."""
    for answer, rule in (
        (Answer(GROUP, "a", 2, 2, None), ""),
        (Answer(GROUP, "a", 0, 2, frozenset({ONE})), ""),
        (Answer(GROUP, "a", 2, 2, frozenset({TWO})), "E34"),
        (Answer(GROUP, "a", 2, 3, None), "E34"),
        (Answer(GROUP, "a", 3, 2, None), "E34"),
    ):
        log = Log()
        log.truth.on_answer(answer)
        assert log.told() == rule, answer


def test_a_committed_offset_is_not_older_than_an_acknowledged_one() -> None:
    """One that was not acknowledged may be returned too, if it came later."""
    log = Log()
    for number in "123":
        log.commit("a", 2, metadata=number)
    log.truth.on_acked(log.board.claims["2"], "2")
    least = log.truth.acked(GROUP, "orders-0")
    log.truth.on_fetched(GROUP, "orders-0", "3", least)
    log.truth.on_fetched(GROUP, "orders-0", "2", least)
    assert log.told() == ""
    log.truth.on_fetched(GROUP, "orders-0", "1", least)
    assert log.told() == "E12"


def test_an_acknowledged_commit_is_in_the_log() -> None:
    log = Log()
    log.truth.on_acked(CommitClaim(GROUP, "a", 2, "orders-0"), "lost")
    assert log.told() == "E12"


def test_a_refusal_without_a_reason_is_reported() -> None:
    """Such as GROUP_ID_NOT_FOUND, which would end a member."""
    log = Log()
    log.truth.on_refused(GROUP, "a", "GROUP_ID_NOT_FOUND")
    assert log.told() == "E35"
