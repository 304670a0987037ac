"""The share coordinator's shard: group commit, fencing, snapshots, trimming, deleted topics."""

from __future__ import annotations

import pytest

from penstock.shares.formats import ReadNote, decode
from penstock.shares.image import ShareImage, StoredSpan
from penstock.shares.share_schedule import ShareSchedule
from penstock.shares.state_port import SharePartitionId, StateSummary
from penstock.shares.state_requests import Delete, Initialize, Read, Summarize
from penstock.shares.state_shard import StateConfig
from penstock.shares.states import RecordState
from penstock.wire.errors import ErrorCode

from .state_driver import JOBS, MAIL, NOW, OTHER_TOPIC, TOPIC, StateDriver, contents, done, replayed

OK = ErrorCode.NONE


def test_a_state_is_begun_read_and_written() -> None:
    driver = StateDriver()
    driver.begin(start=-1)
    answer = driver.read()
    assert answer.image == ShareImage.starting_at(-1, 1)
    leader = driver.writer()
    assert driver.do(leader.write(done(0, 4))).code == OK
    assert driver.image().start_offset == 5
    assert driver.do(Summarize(JOBS)).summary == StateSummary(1, 7, 5, 0)


def test_a_summary_counts_what_is_done_after_the_start() -> None:
    driver = StateDriver()
    driver.begin()
    driver.do(driver.writer().write(done(3, 6)))
    assert driver.do(Summarize(JOBS)).summary == StateSummary(1, 7, 0, 4)
    assert driver.do(Summarize(MAIL)).summary is None


def test_a_summary_counts_promoted_records() -> None:
    driver = StateDriver()
    driver.begin()
    promoted = (StoredSpan(2, 3, RecordState.AVAILABLE, 0),)
    delta = done(0, 6)._replace(promoted=promoted, schedule=ShareSchedule(1))
    driver.do(driver.writer().write(delta))
    assert driver.do(Summarize(JOBS)).summary == StateSummary(1, 7, 7, 0, 2)


def test_a_state_that_was_never_begun_is_unknown() -> None:
    driver = StateDriver()
    assert driver.read().code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    driver.begin(MAIL)
    leader = driver.writer(MAIL)
    leader.where = JOBS
    assert driver.do(leader.write(done(0, 1))).code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_changes_of_one_turn_are_one_append() -> None:
    driver = StateDriver()
    driver.begin(JOBS)
    driver.begin(MAIL)
    jobs, mail = driver.writer(JOBS), driver.writer(MAIL)
    flushes = driver.flushes
    first, second = driver.ask(jobs.write(done(0, 4))), driver.ask(mail.write(done(0, 2)))
    assert (driver.flushes, driver.append) == (flushes + 1, None)
    driver.end_turn()
    assert driver.append is not None
    assert len(driver.append.records) == 2
    assert first not in driver.answers
    driver.commit()
    assert driver.answers[first].code == driver.answers[second].code == OK
    assert contents(replayed(driver.log)) == contents(driver.shard.states)


def test_what_arrives_during_an_append_is_the_next_one() -> None:
    driver = StateDriver()
    driver.begin()
    leader = driver.writer()
    first = driver.ask(leader.write(done(0, 0)))
    driver.end_turn()
    others = [driver.ask(leader.write(done(offset, offset))) for offset in (1, 2)]
    driver.commit()
    assert first in driver.answers
    assert driver.append is not None
    assert len(driver.append.records) == 2
    driver.commit()
    assert [driver.answers[token].code for token in others] == [OK, OK]
    assert driver.image().start_offset == 3


# Fencing


def test_a_leader_with_a_lower_epoch_is_fenced() -> None:
    driver = StateDriver()
    driver.begin()
    old = driver.writer(leader_epoch=7)
    driver.writer(leader_epoch=8)
    assert driver.do(old.write(done(0, 1))).code == ErrorCode.FENCED_LEADER_EPOCH
    assert driver.read(leader_epoch=7).code == ErrorCode.FENCED_LEADER_EPOCH
    assert driver.do(old.replace(ShareImage.starting_at(9, 1))).code == (
        ErrorCode.FENCED_LEADER_EPOCH
    )
    assert driver.image().start_offset == 0


def test_the_fence_outlives_the_coordinator() -> None:
    driver = StateDriver()
    driver.begin()
    old = driver.writer(leader_epoch=7)
    driver.read(leader_epoch=8)
    driver.fail_over()
    assert driver.do(old.write(done(0, 1))).code == ErrorCode.FENCED_LEADER_EPOCH


def test_a_write_that_arrives_after_its_leader_has_read_again_has_no_effect() -> None:
    """Its outcome was unknown, the leader read the state without it, and goes on from there."""
    driver = StateDriver()
    driver.begin()
    before = driver.writer(leader_epoch=7)
    again = driver.writer(leader_epoch=7)
    assert driver.do(before.write(done(0, 1))).code == ErrorCode.FENCED_STATE_EPOCH
    assert driver.do(again.write(done(4, 4))).code == OK
    assert [span[:2] for span in driver.image().spans] == [(4, 4)]


def test_a_read_fences_the_writes_behind_it_in_the_same_batch() -> None:
    driver = StateDriver()
    driver.begin()
    leader = driver.writer()
    before, read = driver.ask(leader.write(done(0, 0))), driver.ask(Read(JOBS, 7))
    behind = driver.ask(leader.write(done(1, 1)))
    driver.end_turn()
    driver.commit()
    codes = [driver.answers[token].code for token in (before, read, behind)]
    assert codes == [OK, OK, ErrorCode.FENCED_STATE_EPOCH]
    image = driver.answers[read].image
    assert image is not None
    assert image.start_offset == 1


def test_a_state_that_begins_again_fences_the_writes_of_the_earlier_one() -> None:
    driver = StateDriver()
    driver.begin(state_epoch=1)
    leader = driver.writer()
    driver.begin(state_epoch=2, start=50)
    assert driver.do(leader.write(done(0, 1, 1))).code == ErrorCode.FENCED_STATE_EPOCH
    # The state epoch alone is not enough: the leader has not read this state.
    assert driver.do(leader.write(done(50, 51, 2))).code == ErrorCode.FENCED_STATE_EPOCH
    assert driver.image() == ShareImage.starting_at(50, 2)
    assert driver.read(leader_epoch=6).code == ErrorCode.FENCED_LEADER_EPOCH


def test_a_state_that_was_deleted_and_begun_with_the_same_epoch_is_another_one() -> None:
    driver = StateDriver()
    driver.begin(state_epoch=1)
    leader = driver.writer()
    driver.do(Delete(JOBS, driver.next_order()))
    driver.begin(state_epoch=1)
    assert driver.do(leader.write(done(0, 1))).code == ErrorCode.FENCED_STATE_EPOCH


@pytest.mark.parametrize("epoch", [0, 1])
def test_an_initialization_with_an_epoch_that_is_not_higher_has_no_effect(epoch: int) -> None:
    driver = StateDriver()
    driver.begin(state_epoch=1, start=5)
    leader = driver.writer()
    before = contents(driver.shard.states)[JOBS].snapshot()
    order = driver.next_order()
    assert driver.do(Initialize(JOBS, epoch, 0, order)).code == OK
    assert contents(driver.shard.states)[JOBS].snapshot() == before._replace(order=order)
    assert driver.do(leader.write(done(5, 5))).code == OK


def test_an_initialization_without_a_start_offset_does_not_begin_a_state_again() -> None:
    """It may be the late call of a group coordinator that was replaced, with a higher epoch."""
    driver = StateDriver()
    driver.begin(state_epoch=1, start=-1)
    leader = driver.writer()
    before = contents(driver.shard.states)[JOBS].snapshot()
    order = driver.next_order()
    assert driver.do(Initialize(JOBS, 5, -1, order)).code == OK
    assert contents(driver.shard.states)[JOBS].snapshot() == before._replace(order=order)
    assert driver.do(leader.write(done(0, 1))).code == OK


def test_an_image_is_replaced_after_records_were_lost() -> None:
    driver = StateDriver()
    driver.begin()
    leader = driver.writer()
    driver.do(leader.write(done(3, 9)))
    shorter = driver.image().copy()
    shorter.truncate(5)
    token = driver.ask(leader.replace(shorter))
    shorter.truncate(0)
    driver.end_turn()
    driver.commit()
    assert driver.answers[token].code == OK
    assert [span[:2] for span in driver.image().spans] == [(3, 4)]
    assert driver.do(leader.write(done(5, 5))).code == OK
    assert contents(replayed(driver.log)) == contents(driver.shard.states)


# Appends that fail, are late, or are lost with their coordinator


def test_a_failed_append_changes_nothing() -> None:
    driver = StateDriver()
    driver.begin()
    leader = driver.writer()
    failed = driver.ask(leader.write(done(0, 3)))
    driver.end_turn()
    later = driver.ask(leader.write(done(4, 4)))
    driver.fail()
    assert driver.answers[failed].code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    driver.commit()
    assert driver.answers[later].code == OK
    assert [span[:2] for span in driver.image().spans] == [(4, 4)]


@pytest.mark.parametrize("is_stored", [True, False])
def test_the_outcome_of_a_write_is_unknown_when_its_coordinator_is_lost(is_stored: bool) -> None:
    driver = StateDriver()
    driver.begin()
    leader = driver.writer()
    token = driver.ask(leader.write(done(0, 3)))
    driver.end_turn()
    waiting = driver.ask(leader.write(done(8, 8)))
    driver.fail_over(with_append=is_stored)
    assert driver.answers[token].code == ErrorCode.REQUEST_TIMED_OUT
    assert driver.answers[waiting].code == ErrorCode.NOT_COORDINATOR
    image = driver.read().image
    assert image is not None
    assert image.start_offset == (4 if is_stored else 0)


def test_a_late_append_refuses_what_waits_behind_it() -> None:
    driver = StateDriver()
    driver.begin()
    leader = driver.writer()
    late = driver.ask(leader.write(done(0, 3)))
    driver.end_turn()
    waiting = driver.ask(leader.write(done(8, 8)))
    driver.be_late()
    meanwhile = driver.ask(leader.write(done(9, 9)))
    codes = [driver.answers[token].code for token in (late, waiting, meanwhile)]
    assert codes == [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ]
    driver.commit()
    assert driver.append is None
    assert driver.image().start_offset == 4
    assert driver.do(leader.write(done(4, 4))).code == OK


# Snapshots and trimming


def test_a_snapshot_follows_after_many_updates() -> None:
    driver = StateDriver(StateConfig(snapshot_after=3, trim_step=1))
    driver.begin()
    leader = driver.writer()
    for offset in range(10):
        driver.do(leader.write(done(offset, offset)))
    assert driver.shard.counters.snapshots == 3
    assert driver.log_start > 6
    trimmed = replayed(driver.log, driver.log_start)
    assert contents(trimmed) == contents(driver.shard.states)
    # The fence is part of a snapshot.
    driver.fail_over()
    assert driver.do(leader.write(done(10, 10))).code == OK
    assert driver.image().start_offset == 11


def test_a_share_partition_that_is_seldom_used_does_not_keep_the_log_long() -> None:
    driver = StateDriver(StateConfig(snapshot_after=10, trim_after=20, trim_step=1))
    driver.begin(MAIL, start=3)
    driver.begin(JOBS)
    leader = driver.writer()
    for offset in range(100):
        driver.do(leader.write(done(offset, offset)))
        assert len(driver.log) - driver.log_start < 30
    trimmed = replayed(driver.log, driver.log_start)
    assert contents(trimmed) == contents(driver.shard.states)
    assert driver.image(MAIL).start_offset == 3


def test_the_log_is_trimmed_in_steps() -> None:
    driver = StateDriver(StateConfig(snapshot_after=2, trim_step=20))
    driver.begin()
    leader = driver.writer()
    starts = set()
    for offset in range(60):
        driver.do(leader.write(done(offset, offset)))
        starts.add(driver.log_start)
    assert len(starts) == 1 + driver.log_start // 20


# Deleted topics


def _removals(driver: StateDriver) -> list[SharePartitionId]:
    return [entry.share_partition for entry in map(decode, driver.log) if entry.content is None]


def test_the_states_of_a_deleted_topic_are_removed() -> None:
    driver = StateDriver()
    driver.begin(JOBS)
    driver.begin(MAIL)
    driver.carry_out(driver.shard.remove_topics({TOPIC}, NOW))
    driver.end_turn()
    driver.commit()
    assert list(driver.shard.states) == [MAIL]
    assert list(replayed(driver.log)) == [MAIL]
    driver.fire()
    driver.end_turn()
    assert driver.append is None


def test_the_removal_is_retried_until_it_has_succeeded() -> None:
    driver = StateDriver()
    driver.begin(JOBS)
    driver.carry_out(driver.shard.remove_topics({TOPIC}, NOW))
    driver.end_turn()
    driver.fail()
    assert list(driver.shard.states) == [JOBS]
    driver.fire()
    driver.end_turn()
    driver.commit()
    assert list(driver.shard.states) == []


def test_a_state_that_was_being_begun_when_its_topic_was_deleted_is_removed() -> None:
    driver = StateDriver()
    driver.ask(Initialize(MAIL, 1, 0, driver.next_order()))
    driver.end_turn()
    driver.carry_out(driver.shard.remove_topics({OTHER_TOPIC}, NOW))
    driver.commit()
    assert list(driver.shard.states) == [MAIL]
    driver.fire()
    driver.end_turn()
    driver.commit()
    assert list(driver.shard.states) == []
    assert _removals(driver) == [MAIL]


def test_every_read_appends_a_record() -> None:
    """It proves that the coordinator was not replaced, whose answer would be old."""
    driver = StateDriver()
    driver.begin()
    driver.read()
    driver.read()
    kinds = [type(decode(record).content) for record in driver.log]
    assert kinds[1:] == [ReadNote, ReadNote]
