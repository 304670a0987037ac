"""Share partitions on a leader: loads, failures of the share coordinator, leadership, the log."""

from __future__ import annotations

import asyncio

from broker.handlers import test_admin_configs as configs
from broker.handlers.test_read_committed import Writers
from broker.harness import BrokerHarness
from broker.shares.share_client import (
    GROUP,
    Member,
    only,
    queue,
    ranges,
    settings,
    share_groups,
    values,
)
from penstock.shares.image import ShareImage, StoredSpan
from penstock.shares.offset_reset import OffsetReset, ResetKind
from penstock.shares.settings import ShareSettings
from penstock.shares.state_port import SharePartitionId
from penstock.shares.states import AckType, RecordState
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

ACCEPT, RELEASE = int(AckType.ACCEPT), int(AckType.RELEASE)


def resign(harness: BrokerHarness) -> None:
    """Ends the leadership of the partition, and begins another one of the same epoch."""
    hosted = harness.hosted("orders")
    before = hosted.leadership, hosted.follower
    hosted.resign()
    harness.broker.replicas.role_changes.tell(hosted, *before)


@share_groups
async def test_the_latest_offset_is_decided_once(harness: BrokerHarness) -> None:
    """It is stored before anything is delivered. A later leader does not decide again."""
    state, topic_id = await queue(harness, start=-1)
    await harness.produce("orders", [b"before"])
    anna = Member(harness, topic_id)
    waiting = asyncio.ensure_future(anna.fetch())
    await harness.until(lambda: len(state.writes) == 1)
    await harness.produce("orders", [b"after"])
    assert values(await waiting) == [b"after"]
    assert (state.writes[0].start_offset, state.writes[0].spans) == (1, ())


@share_groups
async def test_a_group_begins_at_the_earliest_offset(harness: BrokerHarness) -> None:
    _, topic_id = await queue(harness, start=-1)
    settings(harness, ShareSettings(offset_reset=OffsetReset(ResetKind.EARLIEST)))
    await harness.produce("orders", [b"a"])
    assert values(await Member(harness, topic_id).fetch()) == [b"a"]


@share_groups
async def test_a_group_begins_with_records_of_some_age(harness: BrokerHarness) -> None:
    state, topic_id = await queue(harness)
    await harness.produce("orders", [b"a"])
    for duration_ms, start in ((10**13, 0), (0, 1)):
        share_partition = SharePartitionId(f"since-{duration_ms}", topic_id, 0)
        state.begin(share_partition, -1)
        reset = OffsetReset(ResetKind.BY_DURATION, duration_ms)
        settings(harness, ShareSettings(offset_reset=reset))
        member = Member(harness, topic_id, group_id=share_partition.group_id)
        waiting = asyncio.ensure_future(member.ask_fetch())
        image = state.states[share_partition].image
        await harness.until(lambda image=image: image.start_offset >= 0)  # type: ignore[misc]
        assert image.start_offset == start
        member.disconnect()
        await waiting


@share_groups
async def test_a_group_without_state_is_refused(harness: BrokerHarness) -> None:
    _, topic_id = await queue(harness)
    stranger = Member(harness, topic_id, group_id="strangers")
    got = only(await stranger.ask_fetch())
    assert got.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await stranger.acknowledge((0, 0, ACCEPT)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@share_groups
async def test_an_unavailable_coordinator_is_a_retriable_error(harness: BrokerHarness) -> None:
    """The error is one that Java's share consumer expects."""
    state, topic_id = await queue(harness)
    await harness.produce("orders", [b"a"])
    state.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    anna = Member(harness, topic_id)
    got = only(await anna.ask_fetch())
    assert got.error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    assert harness.broker.shares.counters.loads_failed == 1
    state.error = None
    assert ranges(await anna.fetch()) == [(0, 0, 1)]
    state.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await anna.acknowledge((0, 0, ACCEPT)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    state.error = None
    assert await anna.acknowledge((0, 0, ACCEPT)) is ErrorCode.NONE, "it was still acquired"


@share_groups
async def test_an_acknowledgement_waits_until_it_is_durable(harness: BrokerHarness) -> None:
    state, topic_id = await queue(harness)
    await harness.produce("orders", [b"a"])
    anna = Member(harness, topic_id)
    await anna.fetch()
    state.may_write.clear()
    waiting = asyncio.ensure_future(anna.acknowledge((0, 0, ACCEPT)))
    await asyncio.sleep(0)
    assert not waiting.done()
    state.may_write.set()
    assert await waiting is ErrorCode.NONE


@share_groups
async def test_a_fenced_leader_drops_what_it_has(harness: BrokerHarness) -> None:
    """The state was reset. The next fetch loads it."""
    state, topic_id = await queue(harness)
    await harness.produce("orders", [b"a", b"b"])
    anna = Member(harness, topic_id)
    await anna.fetch()
    state.begin(SharePartitionId(GROUP, topic_id, 0), 1, epoch=2)
    assert await anna.acknowledge((0, 0, ACCEPT)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ranges(await anna.fetch()) == [(1, 1, 1)]


@share_groups
async def test_a_later_leader_fences_this_one(harness: BrokerHarness) -> None:
    state, topic_id = await queue(harness)
    await harness.produce("orders", [b"a"])
    anna = Member(harness, topic_id)
    await anna.fetch()
    state.states[SharePartitionId(GROUP, topic_id, 0)].leader_epoch = 99
    assert await anna.acknowledge((0, 0, ACCEPT)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    got = only(await anna.ask_fetch())
    assert got.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@share_groups
async def test_the_end_of_a_leadership_ends_waits(harness: BrokerHarness) -> None:
    """The response names the leader that the cluster has, with its address."""
    state, topic_id = await queue(harness)
    await harness.produce("orders", [b"a"])
    anna, ben = Member(harness, topic_id), Member(harness, topic_id, "ben")
    await anna.fetch()
    waiting = asyncio.ensure_future(ben.ask_fetch())
    await harness.until(lambda: harness.broker.shares.parked == 1)
    state.may_write.clear()
    acknowledging = asyncio.ensure_future(anna.acknowledge((0, 0, ACCEPT)))
    await harness.until(lambda: harness.broker.shares.counters.delivered == 1)
    await asyncio.sleep(0)
    resign(harness)
    response = await waiting
    got = only(response)
    assert got.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (got.current_leader.leader_id, got.current_leader.leader_epoch) == (0, 0)
    assert [(each.node_id, each.port) for each in response.node_endpoints] == [(0, 9092)]
    assert await acknowledging is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not list(harness.broker.shares)


@share_groups
async def test_a_deleted_topic_is_unknown(harness: BrokerHarness) -> None:
    _, topic_id = await queue(harness)
    anna = Member(harness, topic_id)
    waiting = asyncio.ensure_future(anna.ask_fetch())
    await harness.until(lambda: harness.broker.shares.parked == 1)
    deleted = DeleteTopicsRequest([DeleteTopicsRequest.Topic("orders")])
    await harness.ask(deleted, 6, DeleteTopicsResponse)
    got = only(await waiting)
    assert got.error_code in (
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )
    assert not list(harness.broker.shares)


@share_groups
async def test_states_of_lost_records_are_cut_off(harness: BrokerHarness) -> None:
    state, topic_id = await queue(harness)
    await harness.produce("orders", [b"a", b"b", b"c"])
    stored = state.states[SharePartitionId(GROUP, topic_id, 0)]
    done = StoredSpan(1, 9, RecordState.ACKNOWLEDGED, 1)
    stored.image = ShareImage(1, 0, 10, 0, [done])
    anna = Member(harness, topic_id)
    assert ranges(await anna.fetch()) == [(0, 0, 1)]
    assert [each.end_offset for each in state.replaced] == [3]
    assert stored.image.spans == [StoredSpan(1, 2, RecordState.ACKNOWLEDGED, 1)]


@share_groups
async def test_deleted_records_are_passed(harness: BrokerHarness) -> None:
    _, topic_id = await queue(harness)
    await harness.produce("orders", [b"a"])
    anna, ben = Member(harness, topic_id), Member(harness, topic_id, "ben")
    await anna.fetch()
    await harness.produce("orders", [b"b"])
    await harness.produce("orders", [b"c"])
    asked = DeleteRecordsRequest.Partition(0, 2)
    request = DeleteRecordsRequest([DeleteRecordsRequest.Topic("orders", [asked])], 10_000)
    await harness.ask(request, 2, DeleteRecordsResponse)
    assert values(await ben.fetch()) == [b"c"]
    assert await anna.acknowledge((0, 0, ACCEPT)) is ErrorCode.NONE


@share_groups
async def test_a_group_that_reads_committed_records(harness: BrokerHarness) -> None:
    _, topic_id = await queue(harness)
    settings(harness, ShareSettings(read_committed=True))
    hosted = harness.hosted("orders")
    writers = Writers(hosted)
    writers.write(1, b"aborted")
    writers.plain(b"plain")
    anna = Member(harness, topic_id)
    waiting = asyncio.ensure_future(anna.fetch())
    await harness.until(lambda: harness.broker.shares.parked == 1)
    writers.end(1, commit=False)
    got = await waiting
    assert (ranges(got), values(got)) == ([(1, 1, 1)], [b"plain"])
    waiting = asyncio.ensure_future(anna.fetch())
    await harness.until(lambda: harness.broker.shares.parked == 1)
    writers.write(2, b"committed")
    writers.end(2, commit=True)
    assert values(await waiting) == [b"committed"]


@share_groups
async def test_markers_are_not_delivered_to_groups_that_read_everything(
    harness: BrokerHarness,
) -> None:
    state, topic_id = await queue(harness)
    writers = Writers(harness.hosted("orders"))
    writers.write(1, b"aborted")
    writers.end(1, commit=False)
    writers.plain(b"plain")
    anna = Member(harness, topic_id)
    got = await anna.fetch()
    assert (ranges(got), values(got)) == ([(0, 0, 1), (2, 2, 1)], [b"aborted", b"plain"])
    assert await anna.acknowledge((0, 0, ACCEPT), (2, 2, ACCEPT)) is ErrorCode.NONE
    image = state.states[SharePartitionId(GROUP, topic_id, 0)].image
    assert image.start_offset == 3


@share_groups
async def test_settings_take_effect_while_a_group_is_used(harness: BrokerHarness) -> None:
    _, topic_id = await queue(harness)
    settings(harness, ShareSettings(in_flight_max=1))
    for each in (b"a", b"b"):
        await harness.produce("orders", [each])
    anna, ben = Member(harness, topic_id), Member(harness, topic_id, "ben")
    assert values(await anna.fetch()) == [b"a"]
    waiting = asyncio.ensure_future(ben.fetch())
    await harness.until(lambda: harness.broker.shares.parked == 1)
    settings(harness, ShareSettings(in_flight_max=10))
    for led in harness.broker.shares:
        led.refresh_settings()
    assert values(await waiting) == [b"b"]


@share_groups
async def test_configs_of_a_group_take_effect_while_it_is_used(harness: BrokerHarness) -> None:
    """A fetch that waits gets records when an administrator allows more of them in flight."""
    _, topic_id = await queue(harness)

    async def allow(locks: int) -> None:
        change = ("share.partition.max.record.locks", configs.SET, str(locks))
        edited = await configs.edit(harness, (configs.GROUP, GROUP, [change]))
        assert edited == [(GROUP, 0, None)]

    await allow(10)
    for number in range(12):
        await harness.produce("orders", [b"%d" % number])
    anna, ben = Member(harness, topic_id), Member(harness, topic_id, "ben")
    assert len(values(await anna.fetch())) == 10
    waiting = asyncio.ensure_future(ben.fetch())
    await harness.until(lambda: harness.broker.shares.parked == 1)
    await allow(20)
    assert values(await waiting) == [b"10", b"11"]


@share_groups
async def test_a_broker_without_a_share_coordinator_refuses_loads(harness: BrokerHarness) -> None:
    topic_id = await harness.create("orders")
    harness.broker.shares.state = None
    got = only(await Member(harness, topic_id).ask_fetch())
    assert got.error_code == ErrorCode.OFFSET_NOT_AVAILABLE


@share_groups
async def test_a_bug_in_a_load_does_not_end_the_broker(harness: BrokerHarness) -> None:
    """The fetch gets a retriable error, and the next one loads the state again."""
    state, topic_id = await queue(harness)
    await harness.produce("orders", [b"a"])
    stored = state.states[SharePartitionId(GROUP, topic_id, 0)]
    image, stored.image = stored.image, None  # type: ignore[assignment]
    anna = Member(harness, topic_id)
    got = only(await anna.ask_fetch())
    assert got.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    stored.image = image
    assert ranges(await anna.fetch()) == [(0, 0, 1)]


@share_groups
async def test_a_member_that_left_before_its_turn_acquires_nothing(harness: BrokerHarness) -> None:
    """The connection closes when the session has begun and nothing was read yet."""
    _, topic_id = await queue(harness)
    await harness.produce("orders", [b"a"])
    anna, ben = Member(harness, topic_id), Member(harness, topic_id, "ben")
    await ben.fetch(max_records=0)
    waiting = asyncio.ensure_future(anna.ask_fetch())
    await harness.until(lambda: len(harness.broker.shares.sessions) == 2)
    anna.disconnect()
    await waiting
    assert ranges(await ben.fetch())[0][:2] == (0, 0)
