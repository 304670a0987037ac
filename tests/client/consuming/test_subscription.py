"""Tests the state of subscribed partitions: tokens, seeks, errors, truncation."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.consuming.logs import MadeLog, piece_of
from penstock.client.consuming.subscription import Need, PartitionState, Subscription
from penstock.client.errors import BrokerError, ClientError, NoOffset
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode

ONE, TWO = TopicPartition("t", 0), TopicPartition("t", 1)


def assigned(offset: int = 0, epoch: int = -1) -> tuple[Subscription, PartitionState]:
    subscription = Subscription()
    subscription.assign([ONE])
    state = subscription.state(ONE)
    subscription.set_position(state, offset, epoch)
    return subscription, state


def log_of(*counts: int, epoch: int = 0) -> MadeLog:
    log = MadeLog()
    for count in counts:
        log.add(range(count), count, epoch=epoch)
    return log


def test_subscribing_and_assigning_exclude_each_other() -> None:
    subscription = Subscription()
    subscription.follow(["a"])
    with pytest.raises(ClientError, match="call unsubscribe"):
        subscription.assign([ONE])
    subscription.clear()
    subscription.assign([ONE])
    with pytest.raises(ClientError, match="call unsubscribe"):
        subscription.follow([], re.compile("a.*"))


def test_a_new_assignment_keeps_the_positions_of_partitions_that_stay() -> None:
    subscription, state = assigned(7)
    subscription.assign([ONE, TWO])
    assert subscription.state(ONE) is state
    assert state.position == 7
    assert subscription.state(TWO).position is None
    subscription.assign([TWO])
    with pytest.raises(ClientError, match="not assigned"):
        subscription.state(ONE)


def test_a_fetch_from_before_a_partition_was_dropped_is_never_current_again() -> None:
    subscription, state = assigned()
    token = state.token
    subscription.drop([ONE])
    subscription.add([ONE])
    assert subscription.current(ONE, token) is None
    assert subscription.current(ONE, subscription.state(ONE).token) is not None


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("seek"), st.integers(0, 30)),
            st.tuples(st.sampled_from(["fetch", "answer", "take", "leave", "refetch"]), st.just(0)),
        ),
        max_size=30,
    )
)
def test_the_next_record_is_always_the_one_at_the_position(
    steps: list[tuple[str, int]],
) -> None:
    """With seeks, late responses, refetches and losses: each record returned is the one at the
    position, and advances it by one."""
    log = log_of(5, 5, 5, 5, 5, 5, 1)
    subscription, state = assigned()
    in_flight: list[tuple[int, int]] = []
    for step, offset in steps:
        if step == "seek":
            subscription.seek(state, offset)
            assert state.position == offset
        elif step == "fetch":
            in_flight.append((state.token, state.fetch_offset))
        elif step == "answer" and in_flight:
            token, asked = in_flight.pop()
            in_flight.clear()
            current = subscription.current(ONE, token)
            if current is not None and asked < log.end:
                current.push(piece_of(log.batches[asked // 5 : asked // 5 + 2]))
        elif step == "leave":
            subscription.drop([ONE])
            subscription.add([ONE])
            state = subscription.state(ONE)
            subscription.set_position(state, 3, -1)
        elif step == "refetch":
            subscription.refetch(state)
        elif step == "take" and (rows := state.buffer.next_rows(3)) is not None:
            at = state.position
            assert at is not None
            assert [row[0] for row in rows.rows] == list(range(at, at + len(rows.rows)))
            state.returned(rows.next_offset, rows.leader_epoch)
            state.buffer.advance_to(rows.next_offset)


def test_paused_failed_and_postponed_partitions_are_not_fetched() -> None:
    subscription, state = assigned()
    assert list(subscription.fetchable(1.0)) == [state]
    state.paused = True
    assert not list(subscription.fetchable(1.0))
    state.paused = False
    state.postpone(5.0)
    assert not list(subscription.fetchable(4.0))
    assert subscription.next_retry(4.0) == 5.0
    assert list(subscription.fetchable(5.0)) == [state]
    state.fail(NoOffset("lost"))
    assert not list(subscription.fetchable(9.0))
    subscription.seek(state, 0)
    assert list(subscription.fetchable(9.0)) == [state]


def test_an_error_is_reported_once_and_repeated_only_without_a_position() -> None:
    subscription, state = assigned()
    refused = BrokerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    state.fail(refused)
    assert subscription.take_error(8.0, again=False) is refused
    assert subscription.take_error(8.0, again=True) is None
    assert state.retry_at == 8.0
    lost = NoOffset("lost")
    state.fail(lost)
    assert subscription.take_error(9.0, again=False) is lost
    assert subscription.take_error(9.0, again=False) is None
    assert subscription.take_error(9.0, again=True) is lost


def test_lag_counts_up_to_the_last_visible_offset() -> None:
    _, state = assigned(10)
    assert state.lag(committed_only=False) is None
    state.high_watermark, state.last_stable_offset = 30, 25
    assert state.lag(committed_only=False) == 20
    assert state.lag(committed_only=True) == 15
    state.returned(26, 0)
    assert state.lag(committed_only=True) == 0


class TestTruncation:
    """KIP-320: a new leader may lack records that the old one had."""

    def moved(self, epoch: int = 4) -> tuple[Subscription, PartitionState]:
        subscription, state = assigned(10, epoch=epoch)
        subscription.on_leader(state, 4)
        assert state.need is Need.NOTHING
        subscription.on_leader(state, 5)
        return subscription, state

    def test_a_new_leader_is_asked_before_the_next_fetch(self) -> None:
        subscription, state = self.moved()
        assert state.need is Need.VALIDATION
        assert not list(subscription.fetchable(0.0))
        assert subscription.needing(Need.VALIDATION, 0.0) == [state]

    def test_no_leader_is_asked_before_the_first_read(self) -> None:
        _, state = self.moved(epoch=-1)
        assert state.need is Need.NOTHING

    def test_fetching_continues_if_the_leader_has_all_records(self) -> None:
        subscription, state = self.moved()
        assert subscription.validated(state, 4, 10, may_reset=False) is None
        assert (state.need, state.position, state.error) == (Need.NOTHING, 10, None)

    def test_reading_continues_where_the_logs_diverge(self) -> None:
        subscription, state = self.moved()
        assert subscription.validated(state, 3, 6, may_reset=True) == 10
        assert (state.need, state.position, state.fetch_offset) == (Need.NOTHING, 6, 6)

    def test_truncation_without_a_reset_policy_is_an_error(self) -> None:
        subscription, state = self.moved()
        assert subscription.validated(state, 3, 6, may_reset=False) is None
        error = subscription.take_error(0.0, again=False)
        assert isinstance(error, NoOffset)
        assert "truncated" in str(error)
        assert state.position == 10

    def test_buffered_records_are_dropped_before_the_position_is_moved(self) -> None:
        """The position itself may be valid although the buffered records after it are not."""
        subscription, state = assigned(0)
        state.push(piece_of(log_of(5, epoch=4).batches))
        state.returned(2, 4)
        state.buffer.advance_to(2)
        subscription.on_leader(state, 4)
        subscription.on_leader(state, 5)
        assert subscription.validated(state, 4, 3, may_reset=True) is None
        assert (state.need, state.position, state.fetch_offset) == (Need.VALIDATION, 2, 2)
        assert not state.buffer
        assert subscription.validated(state, 4, 3, may_reset=True) is None
        assert (state.need, state.position) == (Need.NOTHING, 2)
