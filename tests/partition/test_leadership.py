"""One leadership with followers: the ISR, the high watermark, and what clients receive."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.metadata.model import Partition
from penstock.partition.epochs import EpochEnd, EpochStart, LeaderEpochs, diverging_epoch
from penstock.partition.leadership import RETRY_MS, InSyncRules, Leadership
from penstock.wire.errors import ErrorCode, KafkaError

BROKERS = {0: 10, 1: 11, 2: 12}
LAG_MS = 1_000


def partition(*isr: int, epoch: int = 0, eligible: tuple[int, ...] = ()) -> Partition:
    return Partition((0, 1, 2), isr, eligible, 0, 5, epoch, 10)


def term(
    *isr: int,
    minimum: int = 1,
    high_watermark: int = 0,
    start: int = 0,
    own_end: int = 0,
    eligible: tuple[int, ...] = (),
) -> Leadership:
    return Leadership(
        0,
        10,
        partition(*isr, eligible=eligible),
        high_watermark=high_watermark,
        start_offset=start,
        own_end=own_end,
        rules=InSyncRules(minimum, LAG_MS),
        brokers=BROKERS,
        now_ms=0,
    )


def fetch(leader: Leadership, replica: int, offset: int, end: int, now_ms: int = 0) -> bool:
    return leader.on_follower_fetch(replica, BROKERS[replica], offset, end, now_ms)


def code_of(error: pytest.ExceptionInfo[KafkaError]) -> ErrorCode:
    return error.value.code


def test_a_leader_alone_commits_what_it_has() -> None:
    """With one replica, its own log end is the high watermark."""
    alone = Leadership(
        0,
        10,
        Partition((0,), (0,), (), 0, 5, 0, 10),
        high_watermark=0,
        start_offset=0,
        own_end=0,
        rules=InSyncRules(3, LAG_MS),
        brokers=BROKERS,
        now_ms=0,
    )
    assert alone.on_own_end(4)
    assert not alone.on_own_end(4)
    assert alone.high_watermark == 4
    # The minimum is 3, but there is only one replica.
    alone.require_insync()
    assert alone.outcome(4) == ErrorCode.NONE


def test_the_high_watermark_is_the_lowest_end_of_the_in_sync_replicas() -> None:
    """An in-sync replica that has not fetched in this leader epoch holds it back. A replica that
    is not in sync does not."""
    leader = term(0, 1)
    assert not leader.on_own_end(10)
    assert fetch(leader, 1, 7, 10)
    assert leader.high_watermark == 7
    assert not fetch(leader, 2, 3, 10)
    assert fetch(leader, 1, 10, 10)
    assert leader.high_watermark == 10
    assert leader.ends() == {0: 10, 1: 10, 2: 3}


def test_the_high_watermark_never_goes_back() -> None:
    """An older fetch may arrive late."""
    leader = term(0, 1, own_end=10)
    fetch(leader, 1, 9, 10)
    assert not fetch(leader, 1, 4, 10)
    assert leader.high_watermark == 9


def test_the_high_watermark_does_not_move_below_min_insync() -> None:
    """Writes with acks=all are refused, before the append or after it."""
    leader = term(0, minimum=2, own_end=10, high_watermark=3)
    assert not leader.on_own_end(12)
    assert leader.high_watermark == 3
    with pytest.raises(KafkaError) as refused:
        leader.require_insync()
    assert code_of(refused) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert leader.outcome(3) == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert leader.outcome(4) is None
    assert leader.configure(InSyncRules(1, LAG_MS))
    assert leader.high_watermark == 12


def test_the_high_watermark_does_not_move_while_there_are_eligible_leaders() -> None:
    """Whatever minimum the leader knows: those replicas may be elected as they are."""
    leader = term(0, minimum=1, own_end=10, eligible=(1,))
    assert not leader.on_own_end(12)
    assert leader.on_partition(partition(0, epoch=1), 0)
    assert leader.high_watermark == 12


def test_a_replica_that_caught_up_is_proposed_and_counts_from_then_on() -> None:
    """The proposal contains the broker epoch it fetched with. There is one proposal at a time."""
    leader = term(0, 1, own_end=10)
    fetch(leader, 1, 10, 10)
    assert leader.propose(0) is None
    fetch(leader, 2, 10, 10)
    proposal = leader.propose(0)
    assert proposal is not None
    assert proposal.isr == ((0, 10), (1, 11), (2, 12))
    assert (proposal.leader_epoch, proposal.partition_epoch) == (5, 0)
    assert leader.propose(0) is None
    assert leader.maximal_isr == {0, 1, 2}
    leader.on_own_end(12)
    assert not fetch(leader, 1, 12, 12)
    assert not leader.on_isr_answer(partition(0, 1, 2, epoch=1), 0)
    assert leader.isr == {0, 1, 2}
    assert fetch(leader, 2, 12, 12)
    assert leader.high_watermark == 12


@pytest.mark.parametrize(
    ("high_watermark", "start", "offset", "joins"),
    [(8, 0, 8, True), (8, 0, 7, False), (2, 9, 9, True), (2, 9, 8, False)],
)
def test_a_replica_that_may_lack_records_is_not_proposed(
    high_watermark: int, start: int, offset: int, joins: bool
) -> None:
    """It must be at or beyond both the high watermark and the start of this leadership."""
    leader = term(0, 1, high_watermark=high_watermark, start=start, own_end=10)
    fetch(leader, 2, offset, 10)
    assert (leader.propose(0) is not None) == joins


def test_a_replica_with_another_broker_epoch_is_not_proposed() -> None:
    """A fetch with an older broker epoch does not count. One with a newer broker epoch waits for
    the metadata."""
    leader = term(0, own_end=10)
    leader.on_brokers({0: 10, 1: 11})
    fetch(leader, 2, 10, 10)
    assert leader.propose(0) is None
    leader.on_brokers({0: 10, 1: 11, 2: 13})
    assert leader.propose(0) is None
    with pytest.raises(KafkaError) as stale:
        fetch(leader, 2, 10, 10)
    assert code_of(stale) == ErrorCode.STALE_BROKER_EPOCH
    leader.on_follower_fetch(2, 13, 10, 10, 0)
    assert leader.propose(0) is not None
    with pytest.raises(KafkaError) as unknown:
        leader.on_follower_fetch(7, 1, 0, 10, 0)
    assert code_of(unknown) == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_a_restarted_replica_must_join_the_isr_again() -> None:
    """That it was in sync before the restart proves nothing: it may have lost records."""
    noted = replace(partition(0, 1, 2), member_epochs=(10, 11, 12))
    rules = InSyncRules(2, LAG_MS)
    leader = Leadership(
        0,
        10,
        noted,
        high_watermark=10,
        start_offset=10,
        own_end=10,
        rules=rules,
        brokers=BROKERS,
        now_ms=0,
    )
    fetch(leader, 1, 10, 10)
    fetch(leader, 2, 10, 10)
    assert leader.propose(0) is None
    leader.on_brokers({0: 10, 1: 11, 2: 13})
    leader.on_follower_fetch(2, 13, 3, 10, 1)
    proposal = leader.propose(1)
    assert proposal is not None
    assert proposal.isr == ((0, 10), (1, 11))
    leader.on_partition(replace(noted, isr=(0, 1), member_epochs=(10, 11), partition_epoch=1), 2)
    leader.on_follower_fetch(2, 13, 10, 10, 3)
    again = leader.propose(RETRY_MS + 3)
    assert again is not None
    assert again.isr == ((0, 10), (1, 11), (2, 13))


def test_a_lagging_replica_is_removed() -> None:
    """Caught up means: at some moment within the allowed lag the replica had everything."""
    leader = term(0, 1, 2, own_end=10)
    fetch(leader, 1, 10, 10, 500)
    fetch(leader, 2, 5, 10, 500)
    assert leader.propose(LAG_MS) is None
    # It has now reached the end as of its last fetch, so it counts as caught up at that time.
    leader.on_own_end(20)
    fetch(leader, 2, 10, 20, 900)
    assert leader.propose(1_500) is None
    proposal = leader.propose(1_501)
    assert proposal is not None
    assert proposal.isr == ((0, 10),)
    # Until the change is in force, both still count.
    assert leader.maximal_isr == {0, 1, 2}
    assert leader.high_watermark == 10
    assert leader.on_partition(partition(0, epoch=1), 0)
    assert leader.high_watermark == 20


def test_a_replica_with_all_records_does_not_lag() -> None:
    """However long ago the last write was."""
    leader = term(0, 1, own_end=10)
    fetch(leader, 1, 10, 10)
    assert leader.propose(100 * LAG_MS) is None
    leader.on_own_end(11)
    assert leader.propose(100 * LAG_MS) is not None


def test_the_high_watermark_waits_for_a_replica_that_is_about_to_join() -> None:
    """Otherwise, under load, it would stay ahead of a follower that is about to join."""
    leader = term(0, own_end=10)
    leader.on_own_end(10)
    fetch(leader, 1, 10, 10, 100)
    assert not leader.on_own_end(15)
    assert fetch(leader, 1, 12, 15, 150)
    assert leader.high_watermark == 12
    leader.on_brokers({0: 10})
    assert leader.high_watermark == 15


def test_a_refused_proposal_is_repeated_later() -> None:
    """Nothing was changed: the proposed replica does not count any more."""
    leader = term(0, own_end=10)
    fetch(leader, 1, 10, 10)
    proposal = leader.propose(0)
    assert proposal is not None
    leader.on_isr_refused(proposal, ErrorCode.INELIGIBLE_REPLICA, 0)
    assert leader.maximal_isr == {0}
    assert leader.propose(RETRY_MS - 1) is None
    again = leader.propose(RETRY_MS)
    assert again is not None
    # A late refusal of the first proposal does not affect the second.
    leader.on_isr_refused(proposal, ErrorCode.INELIGIBLE_REPLICA, RETRY_MS)
    assert leader.maximal_isr == {0, 1}


def test_a_proposal_with_unknown_outcome_counts_until_the_partition_epoch_changes() -> None:
    """If necessary the leader proposes the present ISR, so that the lost proposal can no longer be
    applied."""
    leader = term(0, own_end=10)
    fetch(leader, 1, 10, 10)
    proposal = leader.propose(0)
    assert proposal is not None
    leader.on_isr_refused(proposal, ErrorCode.REQUEST_TIMED_OUT, 0)
    leader.on_brokers({0: 10})
    assert leader.maximal_isr == {0, 1}
    leader.on_own_end(12)
    assert leader.high_watermark == 10
    barrier = leader.propose(RETRY_MS)
    assert barrier is not None
    assert barrier.isr == ((0, 10),)
    leader.on_isr_refused(barrier, ErrorCode.NOT_CONTROLLER, RETRY_MS)
    assert leader.maximal_isr == {0, 1}
    assert leader.on_partition(partition(0, epoch=1), 0)
    assert leader.maximal_isr == {0}
    assert leader.high_watermark == 12


@pytest.mark.parametrize(
    "reason", [ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH]
)
def test_a_leader_with_old_metadata_waits_for_the_update(reason: ErrorCode) -> None:
    """Any proposal based on the old state would fail again."""
    leader = term(0, own_end=10)
    fetch(leader, 1, 10, 10)
    proposal = leader.propose(0)
    assert proposal is not None
    leader.on_isr_refused(proposal, reason, 0)
    assert leader.propose(100 * RETRY_MS) is None
    assert leader.maximal_isr == {0, 1}
    leader.on_partition(partition(0, epoch=3), 0)
    assert leader.propose(100 * RETRY_MS) is not None


def test_the_newest_partition_epoch_wins() -> None:
    """Metadata updates and responses may arrive in any order."""
    leader = term(0, own_end=10)
    leader.on_partition(partition(0, 1, epoch=4), 0)
    assert not leader.on_isr_answer(partition(0, 1, 2, epoch=3), 0)
    assert leader.isr == {0, 1}
    assert leader.partition_epoch == 4
    moved_away = Partition((1, 2), (1, 2), (), 1, 6, 5, 11)
    assert not leader.on_isr_answer(moved_away, 0)
    assert leader.propose(100 * LAG_MS) is None


def test_replicas_can_be_added_and_removed() -> None:
    """A removed replica does not count any more, an added one may fetch."""
    leader = term(0, 1, 2, minimum=3, own_end=10)
    fetch(leader, 1, 10, 10)
    moved = Partition((0, 1), (0, 1), (), 0, 5, 1, 10)
    assert leader.on_partition(moved, 0)
    assert leader.high_watermark == 10
    with pytest.raises(KafkaError):
        fetch(leader, 2, 10, 10)
    grown = Partition((0, 1, 2), (0, 1), (), 0, 5, 2, 10)
    leader.on_partition(grown, 0)
    fetch(leader, 2, 10, 10)
    assert leader.propose(0) is not None


def test_the_latest_offset_is_withheld_until_it_is_certain() -> None:
    """A new leader's high watermark may be behind what clients received before."""
    leader = term(0, 1, high_watermark=4, start=9, own_end=9)
    with pytest.raises(KafkaError) as withheld:
        leader.latest_offset()
    assert code_of(withheld) == ErrorCode.OFFSET_NOT_AVAILABLE
    fetch(leader, 1, 9, 9)
    assert leader.latest_offset() == 9


def test_the_high_watermark_starts_within_the_leaders_own_log() -> None:
    """The high watermark that it knew as a follower may be beyond what is on its disk."""
    assert term(0, high_watermark=9, own_end=4, minimum=2).high_watermark == 4


def test_clients_are_sent_to_a_replica_in_their_rack() -> None:
    """The replica must be in sync and have the offset. The one with the highest log end is chosen,
    or the leader if it is in the same rack."""
    leader = term(0, 1, 2, own_end=10)
    racks: dict[int, str | None] = {0: "a", 1: "b", 2: "b"}
    assert leader.preferred_read_replica("b", racks, 5) is None
    fetch(leader, 1, 8, 10)
    leader.on_follower_fetch(2, 12, 9, 10, 0, log_start_offset=6)
    assert leader.preferred_read_replica("b", racks, 7) == 2
    assert leader.preferred_read_replica("b", racks, 5) == 1
    assert leader.preferred_read_replica("b", racks, 10) is None
    assert leader.preferred_read_replica("a", racks, 5) is None
    assert leader.preferred_read_replica("c", racks, 5) is None
    assert leader.preferred_read_replica(None, racks, 5) is None
    leader.on_partition(partition(0, 1, epoch=1), 0)
    assert leader.preferred_read_replica("b", racks, 7) == 1
    leader.on_brokers({0: 10, 2: 12})
    assert leader.preferred_read_replica("b", racks, 7) is None


@pytest.mark.parametrize(
    ("offset", "epoch", "found"),
    [
        (10, 2, None),
        (10, 4, None),
        (15, 4, None),
        (12, 2, EpochEnd(2, 10)),
        (12, 3, EpochEnd(2, 10)),
        (20, 4, EpochEnd(4, 15)),
        (16, 5, EpochEnd(4, 15)),
        (3, -1, None),
    ],
)
def test_where_a_followers_log_diverges_from_the_leaders(
    offset: int, epoch: int, found: EpochEnd | None
) -> None:
    """The leader of epoch 6 has stored its epoch at the end of its log."""
    epochs = LeaderEpochs([EpochStart(2, 0), EpochStart(4, 10), EpochStart(6, 15)])
    assert diverging_epoch(epochs, offset, epoch, 15) == found


def test_an_unknown_newer_epoch_is_out_of_range() -> None:
    """A follower with an epoch newer than all of the leader's does not follow this leader."""
    with pytest.raises(KafkaError) as unknown:
        diverging_epoch(LeaderEpochs([EpochStart(2, 0)]), 5, 9, 5)
    assert code_of(unknown) == ErrorCode.OFFSET_OUT_OF_RANGE


def test_the_low_watermark_waits_for_every_replica_that_may_lead_next() -> None:
    """Live followers, in-sync replicas and eligible leaders count, though they may be down. Others
    that are down do not."""
    leader = term(0, 1, minimum=3, own_end=10, high_watermark=10, eligible=(2,))
    leader.on_follower_fetch(1, BROKERS[1], 10, 10, 0, 4)
    assert leader.low_watermark(4) == -1
    leader.on_follower_fetch(2, BROKERS[2], 10, 10, 0, 2)
    leader.on_brokers({0: 10})
    assert leader.low_watermark(4) == 2
    leader.on_partition(partition(0, 1, epoch=1), 0)
    assert leader.low_watermark(4) == 4
    leader.on_partition(partition(0, epoch=2, eligible=(1,)), 0)
    assert leader.low_watermark(6) == 4
