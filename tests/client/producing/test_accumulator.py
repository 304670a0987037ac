"""The accumulator and its lanes, under the rules of `model` and by themselves."""

from __future__ import annotations

import gc
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.producing.model import LEADER, World
from penstock.client.errors import DeliveryTimedOut, RecordTooLarge
from penstock.client.producing.accumulator import AccumulatorConfig
from penstock.client.producing.batches import Batch
from penstock.client.producing.sequences import EPOCH_MAX, Identity
from penstock.records.batch import NO_PRODUCER_ID
from penstock.records.record import Record as PackedRecord
from penstock.records.record import build_batch
from penstock.wire.errors import ErrorCode

CONFIG = AccumulatorConfig(
    batch_size=400,
    linger_s=0.01,
    buffer_memory=60_000,
    max_request_size=2_000,
    delivery_timeout_s=30.0,
)


def world_of(**changes: object) -> World:
    return World(Random(1), replace(CONFIG, **changes), partitions=1)  # type: ignore[arg-type]


def identified(**changes: object) -> World:
    world = world_of(**changes)
    world.accumulator.identify(Identity(7, 0))
    return world


def confirmed(**changes: object) -> World:
    """A world whose broker knows the producer: one record was written."""
    world = identified(**changes)
    world.send()
    world.finish()
    world.requests_made.clear()
    return world


@settings(deadline=None, max_examples=100)
@given(
    st.randoms(use_true_random=False),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.01]),
    st.sampled_from([400, 1 << 30]),
)
def test_nothing_is_lost_doubled_or_reordered_whatever_fails(
    random: Random, takes_any_first: bool, expires: bool, linger_s: float, too_large: int
) -> None:
    """Requests are lost before or after they are done, refused for now or for good, split, timed
    out; what is acknowledged is in the log once, at its offset, in the order it was sent."""
    config = replace(
        CONFIG,
        linger_s=linger_s,
        batch_size=800,
        delivery_timeout_s=1.0 if expires else 1e6,
    )
    world = World(random, config)
    for partition in world.partitions.values():
        partition.takes_any_first = takes_any_first
        partition.batch_bytes_max = too_large
    for _ in range(random.randrange(20, 120)):
        step = random.random()
        if step < 0.45:
            for _ in range(random.randrange(1, 20)):
                world.send()
        elif step < 0.6:
            world.now += random.choice((0.001, 0.02, 0.2))
        elif step < 0.85 and world.requests:
            fate = random.choice(("written", "written", "written", "refused", "bad", "deposed"))
            world.answer_next(fate)
        elif step < 0.93 and world.requests:
            world.lose_connection(random.randrange(len(world.requests) + 1))
        world.pump()
    world.finish()
    world.check_log()


@settings(deadline=None, max_examples=40)
@given(st.randoms(use_true_random=False))
def test_without_idempotence_order_holds_and_only_doubles_can_come(random: Random) -> None:
    """One batch at a time on its way per partition: whatever is lost, nothing overtakes."""
    world = World(random, replace(CONFIG, idempotent=False, linger_s=0.0), partitions=1)
    for _ in range(60):
        for _ in range(random.randrange(0, 15)):
            world.send()
        world.pump()
        if world.requests and random.random() < 0.6:
            world.answer_next(random.choice(("written", "refused")))
        elif world.requests:
            world.lose_connection(random.randrange(2))
        world.now += random.choice((0.0, 0.2))
    world.finish()
    values = world.partitions[world.places[0]].values
    first_seen = list(dict.fromkeys(values))
    assert first_seen == [item.value for item in world.sent]
    assert all(item.error() is None for item in world.sent)


def test_a_batch_waits_for_its_linger_unless_it_is_full() -> None:
    """A batch leaves when it has lingered, or at once when it is full."""
    world = confirmed()
    world.send()
    world.pump()
    assert not world.requests
    world.now += CONFIG.linger_s / 2
    world.pump()
    assert not world.requests
    world.now += CONFIG.linger_s / 2
    world.pump()
    assert [batch.count for batch in world.requests[0]] == [1]
    while not world.accumulator.has_filled:
        world.send()
    world.pump()
    assert len(world.requests) == 2
    assert world.requests[1][0].count > 1


def test_batches_that_left_are_not_kept_for_their_linger() -> None:
    """A lane that lingers for long does not hold on to what other lanes have sent."""
    world = World(Random(1), replace(CONFIG, linger_s=1000.0), partitions=2)
    world.accumulator.identify(Identity(7, 0))
    world.send(place=world.places[0])
    written = 0
    for _ in range(200):
        world.send(place=world.places[1])
        world.pump()
        while world.requests:
            written += 1
            world.answer_next()
    world.requests_made.clear()
    assert written > 10
    alive = [item for item in gc.get_objects() if isinstance(item, Batch)]
    assert sum(batch.place is world.places[1] for batch in alive) <= 1
    assert world.accumulator.next_at() == pytest.approx(CONFIG.delivery_timeout_s)


def test_the_time_to_look_again_is_the_earliest_that_matters() -> None:
    """Linger first, then the deadline of what is on its way."""
    world = identified()
    assert world.accumulator.next_at() is None
    world.send()
    assert world.accumulator.next_at() == pytest.approx(CONFIG.linger_s)
    world.now = CONFIG.linger_s
    world.pump()
    assert world.accumulator.next_at() == pytest.approx(CONFIG.delivery_timeout_s)


def test_while_the_brokers_are_slow_batches_grow() -> None:
    """A batch that is due goes on filling until it is taken."""
    world = identified(linger_s=0.0, batch_size=10_000, idempotent=False)
    world.send()
    world.pump()
    for _ in range(50):
        world.send()
        world.pump()
    assert len(world.requests) == 1
    world.answer_next()
    world.pump()
    assert [batch.count for batch in world.requests[0]] == [50]


def test_hurry_makes_ready_what_lingers() -> None:
    """As for a flush."""
    world = identified(linger_s=1000.0)
    world.send()
    world.pump()
    assert not world.requests
    world.accumulator.hurry()
    world.pump()
    assert len(world.requests) == 1


def test_requests_stay_below_the_largest_request() -> None:
    """Batches of many partitions share a request up to `max_request_size`."""
    world = World(Random(1), replace(CONFIG, max_request_size=1000), partitions=10)
    world.accumulator.identify(Identity(7, 0))
    for place in world.places:
        for _ in range(10):
            world.send(place=place)
    world.accumulator.hurry()
    world.pump()
    for batches in world.requests:
        assert sum(batch.size for batch in batches) <= 1000
        assert len({batch.place for batch in batches}) == len(batches)
    assert len(world.requests[0]) > 1


def test_the_buffer_takes_no_more_than_its_memory() -> None:
    """Appending stops at the bound and goes on when something is acknowledged."""
    world = identified(buffer_memory=5_000)
    while world.send():
        pass
    assert world.accumulator.buffered_bytes <= 5_000
    count = len(world.sent)
    assert count > 20
    world.accumulator.hurry()
    world.pump()
    assert not world.send()
    world.answer_next()
    assert world.send()
    world.finish()
    world.check_log()


def test_a_record_that_can_never_be_sent_is_refused_at_once() -> None:
    """Larger than a request or than the whole buffer."""
    with pytest.raises(RecordTooLarge, match="max_request_size"):
        identified().send(size=2_000)
    with pytest.raises(RecordTooLarge, match="buffer_memory"):
        identified(buffer_memory=3_000, max_request_size=10_000).send(size=2_500)


def test_a_record_larger_than_a_batch_makes_one_alone() -> None:
    """`batch_size` bounds batches, not records."""
    world = identified()
    world.send()
    world.send(size=1_000)
    world.send()
    world.finish()
    world.check_log()
    assert [batch.count for batches in world.requests_made for batch in batches] == [1, 1, 1]


def test_five_batches_of_a_partition_are_on_their_way_at_most() -> None:
    """The broker recognises no more than that."""
    world = confirmed(linger_s=0.0, batch_size=0)
    world.in_flight_max = 100
    for _ in range(20):
        world.send()
    world.pump()
    assert len(world.requests) == 5
    assert [batches[0].sequence for batches in world.requests] == [1, 2, 3, 4, 5]


def test_until_the_broker_knows_the_producer_one_batch_is_on_its_way() -> None:
    """It would take any sequence from a stranger: the second batch, where the first was refused."""
    world = identified(linger_s=0.0, batch_size=0)
    world.partitions[world.places[0]].takes_any_first = True
    for _ in range(5):
        world.send()
    world.pump()
    assert len(world.requests) == 1
    world.answer_next("refused")
    world.finish()
    world.check_log()
    assert len(world.partitions[world.places[0]].values) == 5


def test_after_a_failure_nothing_is_sent_until_all_is_answered() -> None:
    """And then everything goes out again, in order, with the same numbers."""
    world = confirmed(linger_s=0.0, batch_size=0)
    for _ in range(5):
        world.send()
    world.pump()
    world.answer_next("refused")
    world.now += 10
    world.send()
    world.pump()
    assert len(world.requests) == 4
    while world.requests:
        world.answer_next()
    world.now += 10
    world.pump()
    assert [batches[0].sequence for batches in world.requests] == [1, 2, 3, 4, 5]
    assert [batches[0].attempts for batches in world.requests] == [2, 2, 2, 2, 2]
    world.finish()
    world.check_log()


def test_a_lane_rests_before_it_tries_again() -> None:
    """Not before the time it was told."""
    world = identified(linger_s=0.0)
    world.send()
    world.pump()
    world.answer_next("refused")
    world.pump()
    assert not world.requests
    assert world.accumulator.next_at() == pytest.approx(0.1)
    world.now = 0.1
    world.pump()
    assert len(world.requests) == 1


def test_a_lane_waits_for_the_old_leader_before_it_asks_the_new_one() -> None:
    """Two brokers at once could answer in any order."""
    world = confirmed(linger_s=0.0, batch_size=0)
    world.send()
    world.pump()
    world.send()
    lanes = world.accumulator.ready(world.now)
    assert world.accumulator.drain(lanes, LEADER + 1, world.now) == []
    assert len(world.accumulator.drain(lanes, LEADER, world.now)) == 1


def test_retries_end_after_as_many_as_were_allowed() -> None:
    """`retries` counts the attempts after the first."""
    world = identified(linger_s=0.0, attempts_max=3)
    world.send()
    for _ in range(3):
        world.now += 1
        world.pump()
        world.answer_next("refused")
    assert world.sent[0].settled
    assert world.sent[0].error() is not None
    assert world.accumulator.buffered_bytes == 0


def test_what_waits_too_long_fails_wherever_it_is() -> None:
    """Open, waiting or on its way: after `delivery_timeout_s` the sender is told."""
    world = identified(linger_s=1000.0, delivery_timeout_s=1.0)
    world.send()
    world.now = 1.0
    world.pump()
    error = world.sent[0].error()
    assert isinstance(error, DeliveryTimedOut)
    assert "delivery_timeout_ms=1000" in str(error)
    assert world.accumulator.buffered_bytes == 0


def test_memory_of_a_request_on_its_way_is_freed_when_it_ends() -> None:
    """Timed out or not, its bytes are still referred to."""
    world = identified(linger_s=0.0, delivery_timeout_s=1.0)
    world.send()
    world.pump()
    world.now = 1.0
    world.pump()
    assert isinstance(world.sent[0].error(), DeliveryTimedOut)
    assert world.accumulator.buffered_bytes > 0
    world.lose_connection(0)
    assert world.accumulator.buffered_bytes == 0


def test_a_timed_out_batch_that_was_written_costs_no_epoch() -> None:
    """The answer to the next batch tells whether it was; only a gap begins a new epoch."""
    for processed, epoch in ((1, 0), (0, 1)):
        world = identified(linger_s=0.0, delivery_timeout_s=1.0)
        world.send()
        world.pump()
        world.finish()
        world.send()
        world.pump()
        world.lose_connection(processed)
        world.now = 5.0
        world.pump()
        world.send()
        world.finish()
        world.check_log()
        assert isinstance(world.sent[1].error(), DeliveryTimedOut)
        assert world.lanes[world.places[0]].numbering.epoch == epoch
        assert len(world.partitions[world.places[0]].values) == 2 + processed


def test_a_refused_batch_gives_its_numbers_back() -> None:
    """When nothing was numbered after it, no new epoch is needed."""
    world = identified(linger_s=0.0)
    world.send()
    world.pump()
    world.answer_next("bad")
    world.send()
    world.finish()
    world.check_log()
    numbering = world.lanes[world.places[0]].numbering
    assert (numbering.epoch, numbering.next_sequence) == (0, 1)


def test_numbers_that_may_be_in_use_are_not_given_back() -> None:
    """A batch that may have been written keeps its numbers even if it is refused later, or the
    next one would pass for its duplicate and be lost."""
    world = identified(linger_s=0.0)
    world.send()
    world.pump()
    world.lose_connection(processed=1)
    world.now += 1
    world.pump()
    world.answer_next("bad")
    world.send()
    world.finish()
    world.check_log()
    assert len(world.partitions[world.places[0]].values) == 2


def test_a_leader_that_was_deposed_may_have_written_what_it_refused() -> None:
    """The numbers of such a batch are not given back either."""
    world = identified(linger_s=0.0)
    world.send()
    world.pump()
    world.answer_next("deposed")
    world.now += 1
    world.pump()
    world.answer_next("bad")
    world.send()
    world.finish()
    world.check_log()
    assert len(world.partitions[world.places[0]].values) == 2


def test_a_used_up_epoch_asks_for_a_new_producer() -> None:
    """Epochs end at 32767; then the lane waits for another id and begins at 0 under it."""
    world = world_of(linger_s=0.0, batch_size=0)
    world.accumulator.identify(Identity(7, EPOCH_MAX))
    for _ in range(3):
        world.send()
    world.pump()
    world.answer_next()
    world.pump()
    world.answer_next("bad")
    world.answer_next()
    assert world.accumulator.wants_identity
    world.now += 1
    assert world.accumulator.drain(world.accumulator.ready(world.now), LEADER, world.now) == []
    world.accumulator.identify(Identity(8, 0))
    world.finish()
    assert world.partitions[world.places[0]].producer == (8, 0)
    world.check_log()


def test_a_batch_that_is_too_large_is_split_and_later_ones_are_smaller() -> None:
    """Down to single records if need be; the records keep their order and their numbers."""
    world = identified(linger_s=0.0, batch_size=2_000, max_request_size=4_000)
    partition = world.partitions[world.places[0]]
    partition.batch_bytes_max = 300
    for _ in range(40):
        world.send()
    world.pump()
    world.finish()
    world.check_log()
    assert world.meter.splits >= 3
    assert all(item.error() is None for item in world.sent)
    assert partition.producer == (7, 0)
    assert world.accumulator.batch_limit("topic") < 2_000
    assert world.accumulator.batch_limit("another") == 4_000


def test_a_single_record_that_is_too_large_for_the_topic_fails_alone() -> None:
    """Its neighbours arrive."""
    world = identified(linger_s=0.0, batch_size=2_000)
    world.partitions[world.places[0]].batch_bytes_max = 300
    for size in (20, 20, 400, 20, 20):
        world.send(size=size)
    world.finish()
    world.check_log()
    errors = [item.error() for item in world.sent]
    assert isinstance(errors[2], RecordTooLarge)
    assert "max.message.bytes" in str(errors[2])
    assert [error is None for error in errors] == [True, True, False, True, True]


def test_sealed_batches_go_behind_what_was_sent_before() -> None:
    """A table's batch closes the open one, so that order holds between the two ways to send."""
    world = confirmed(linger_s=1000.0)
    world.send()
    lane = world.lanes[world.places[0]]
    data = build_batch([PackedRecord(n, 5, None, b"table") for n in range(3)])
    batch = world.accumulator.append_sealed(lane, data, 3, world.now)
    world.send()
    world.accumulator.hurry()
    world.pump()
    order = [(item.count, item.sequence) for batches in world.requests for item in batches]
    assert order == [(1, 1), (3, 2), (1, 5)]
    while world.requests:
        world.answer_next()
    assert batch.ticket.base_offset == 2
    assert world.accumulator.buffered_bytes == 0


def test_an_idempotent_producer_sends_nothing_before_it_is_somebody() -> None:
    """Batches wait for the producer id; without idempotence they need none."""
    world = world_of(linger_s=0.0)
    world.send()
    lanes = world.accumulator.ready(0.0)
    assert world.accumulator.wants_identity
    assert world.accumulator.drain(lanes, LEADER, 0.0) == []
    anonymous = world_of(linger_s=0.0, idempotent=False)
    anonymous.send()
    taken = anonymous.accumulator.drain(anonymous.accumulator.ready(0.0), LEADER, 0.0)
    assert [batch.producer_id for batch in taken] == [NO_PRODUCER_ID]


def test_another_producer_under_our_id_ends_this_one() -> None:
    """INVALID_PRODUCER_EPOCH is fatal: our numbers are worth nothing any more."""
    world = identified(linger_s=0.0)
    world.partitions[world.places[0]].producer = (7, 3)
    world.send()
    world.pump()
    world.answer_next()
    assert world.fatal is not None
    assert ErrorCode.INVALID_PRODUCER_EPOCH.message in str(world.fatal)


def test_giving_up_takes_everything_out() -> None:
    """As a producer that is closed does: nothing is left to send."""
    world = identified(linger_s=0.0, batch_size=0)
    for _ in range(10):
        world.send()
    world.pump()
    assert len(world.accumulator.fail_all()) == 10
    world.lose_connection(0)
    assert world.accumulator.buffered_bytes == 0
    world.pump()
    assert not world.requests
