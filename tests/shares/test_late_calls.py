"""Initializations and deletions of group coordinators that arrive late have no effect."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.coordination.effects import Now
from penstock.shares.image import ShareImage
from penstock.shares.state_port import CallOrder
from penstock.shares.state_requests import Delete, Initialize, Read, StateRequest, Summarize
from penstock.shares.state_shard import StateConfig
from penstock.wire.errors import ErrorCode

from .state_driver import JOBS, MAIL, NOW, StateDriver, contents, done, replayed

OK, FENCED = ErrorCode.NONE, ErrorCode.FENCED_STATE_EPOCH
OLD, NEW = CallOrder(4, 1_000), CallOrder(5, 20)
"""The calls of two group coordinators. The second has taken over, and its clock is behind."""
DAY_MS = 24 * 3_600_000


def initialize(order: CallOrder, state_epoch: int = 1, start: int = 0) -> Initialize:
    return Initialize(JOBS, state_epoch, start, order)


def delete(order: CallOrder) -> Delete:
    return Delete(JOBS, order)


def driver_after(*requests: StateRequest, config: StateConfig | None = None) -> StateDriver:
    driver = StateDriver(config)
    for request in requests:
        assert driver.do(request).code == OK
    return driver


def test_a_late_deletion_does_not_delete_a_state_that_was_begun_since() -> None:
    driver = driver_after(initialize(OLD), delete(NEW), initialize(NEW._replace(number=21), 1, 7))
    assert driver.do(delete(OLD)).code == FENCED
    assert driver.do(delete(NEW)).code == FENCED
    assert driver.image() == ShareImage.starting_at(7, 1)


def test_a_late_initialization_does_not_begin_a_deleted_state() -> None:
    """Not even one with a higher state epoch, as the group had it before it was deleted."""
    driver = driver_after(initialize(OLD), delete(NEW))
    late = initialize(OLD, state_epoch=50)
    assert driver.do(late).code == FENCED
    assert driver.do(Summarize(JOBS)).summary is None
    assert driver.do(Read(JOBS, 9)).code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_late_initialization_does_not_begin_the_state_of_a_new_group_again() -> None:
    """The group was deleted and created again, so its epochs begin again."""
    driver = driver_after(initialize(OLD, 50), delete(NEW), initialize(NEW._replace(number=21)))
    leader = driver.writer()
    assert driver.do(leader.write(done(0, 3))).code == OK
    assert driver.do(initialize(OLD, state_epoch=51, start=0)).code == FENCED
    assert driver.image().start_offset == 4
    assert driver.do(leader.write(done(4, 4))).code == OK


def test_a_deletion_that_overtakes_the_initialization_wins() -> None:
    """There was no state when it arrived."""
    driver = driver_after(delete(NEW))
    assert driver.do(initialize(OLD)).code == FENCED
    assert driver.do(Summarize(JOBS)).summary is None


def test_an_initialization_without_effect_makes_earlier_calls_void() -> None:
    """The next coordinator repeats an initialization that was done. Then the deletion of its
    predecessor arrives."""
    driver = driver_after(initialize(OLD, 3), initialize(NEW, 3))
    assert driver.do(delete(OLD._replace(number=2_000))).code == FENCED
    assert driver.image().state_epoch == 3


@pytest.mark.parametrize("again", [initialize, delete])
def test_the_same_call_may_be_repeated(again: Callable[[CallOrder], StateRequest]) -> None:
    driver = driver_after(initialize(OLD), again(NEW))
    before = {where: state.snapshot() for where, state in contents(driver.shard.states).items()}
    assert driver.do(again(NEW)).code == OK
    after = {where: state.snapshot() for where, state in contents(driver.shard.states).items()}
    assert after == before


def test_calls_that_arrive_in_one_batch_are_fenced_too() -> None:
    driver = StateDriver()
    tokens = [driver.ask(each) for each in (initialize(OLD), delete(NEW), initialize(OLD, 9))]
    driver.end_turn()
    driver.commit()
    assert [driver.answers[token].code for token in tokens] == [OK, OK, FENCED]
    assert driver.shard.states.get(JOBS) is None


def test_the_next_share_coordinator_knows_the_deletion() -> None:
    driver = driver_after(initialize(OLD), delete(NEW))
    driver.fail_over()
    assert driver.do(initialize(OLD)).code == FENCED
    assert driver.do(initialize(NEW._replace(number=21))).code == OK


def test_leaders_before_a_deletion_stay_fenced_after_it() -> None:
    driver = driver_after(initialize(OLD))
    leader = driver.writer(leader_epoch=7)
    driver.do(delete(NEW))
    assert driver.do(initialize(NEW._replace(number=21))).code == OK
    assert driver.do(leader.write(done(0, 1))).code == FENCED
    assert driver.read(leader_epoch=6).code == ErrorCode.FENCED_LEADER_EPOCH


def test_deleted_states_do_not_count_as_states() -> None:
    driver = driver_after(initialize(OLD), Initialize(MAIL, 1, 0, OLD), delete(NEW))
    assert driver.shard.states.live_count == 1


@pytest.mark.parametrize(("age_ms", "is_kept"), [(DAY_MS - 1, True), (DAY_MS + 1, False)])
def test_the_marker_of_a_deletion_is_removed_after_a_day(age_ms: int, is_kept: bool) -> None:
    """When the log is trimmed. Until then a new snapshot of it follows."""
    config = StateConfig(trim_after=10, trim_step=1)
    driver = driver_after(delete(NEW), Initialize(MAIL, 1, 0, OLD), config=config)
    leader = driver.writer(MAIL)
    later = Now(NOW.ticks_ms + age_ms, NOW.wall_ms + age_ms)
    for number in range(12):
        driver.ask(leader.write(done(number, number)))
        driver.carry_out(driver.shard.on_turn_ended(later))
        driver.commit()
    assert (JOBS in contents(driver.shard.states)) is is_kept
    assert (JOBS in contents(replayed(driver.log, driver.log_start))) is is_kept
    assert driver.log_start > 0
