"""Offsets of consumer groups: commits and fetches under member epochs, deletion and expiry."""

from __future__ import annotations

from penstock.groups.config import GroupConfig
from penstock.groups.effects import RequestInfo
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

from .bench import ConsumerBench, Member

STALE = [ErrorCode.STALE_MEMBER_EPOCH]
UNKNOWN = [ErrorCode.UNKNOWN_MEMBER_ID]


def pair() -> tuple[ConsumerBench, Member, Member]:
    """Returns a stable group of two. The first member had all six partitions before."""
    bench = ConsumerBench()
    a, b = Member("a"), Member("b")
    bench.join(a)
    bench.join(b)
    bench.settle_members(a, b)
    return bench, a, b


def fetch(bench: ConsumerBench, member_id: str | None, epoch: int) -> int:
    topics = [OffsetFetchRequest.GroupTopic("orders", partition_indexes=[0])]
    asked = OffsetFetchRequest.Group("g", member_id, epoch, topics)
    return bench.shard.fetch_offsets(asked, require_stable=False).error_code


def committed(bench: ConsumerBench) -> dict[int, int]:
    held = bench.shard.state.image.offsets_of("g")
    return {about[1]: value.offset for about, value in held.items()}


def test_commits_need_the_epoch_of_the_member() -> None:
    bench, a, _ = pair()
    assert a.epoch == 2
    assert bench.commit("a", 2, {0: 10, 5: 50}) == [0, 0]
    assert bench.commit("a", 3, {0: 11}) == STALE
    assert bench.commit("x", 2, {0: 11}) == UNKNOWN
    assert bench.commit("", -1, {0: 11}) == UNKNOWN
    assert bench.commit("a", 2, {0: 11}, version=8) == [ErrorCode.UNSUPPORTED_VERSION]
    assert committed(bench) == {0: 10, 5: 50}


def test_an_older_epoch_may_commit_what_the_member_has_had_since_then() -> None:
    """KIP-1251. Other partitions may belong to another member."""
    bench, a, b = pair()
    kept = min(each.partition for each in a.owned)
    lost = min(each.partition for each in b.owned)
    assert bench.commit("a", 1, {kept: 1, lost: 2}) == [0, ErrorCode.STALE_MEMBER_EPOCH]
    assert bench.commit("b", 1, {lost: 3}) == STALE, "it has had this partition since epoch 2"
    assert committed(bench) == {kept: 1}


def test_a_member_commits_before_it_gives_up_partitions() -> None:
    bench = ConsumerBench()
    a, b = Member("a"), Member("b")
    bench.join(a)
    bench.join(b)
    had = {each.partition for each in a.owned}
    bench.beat(a)
    revoked = had - {each.partition for each in a.owned}
    assert bench.commit("a", a.epoch, dict.fromkeys(sorted(revoked), 7)) == [0, 0, 0]


def test_fetches_need_the_epoch_of_the_member() -> None:
    bench, _, _ = pair()
    assert fetch(bench, None, -1) == 0
    assert fetch(bench, "a", 2) == 0
    assert fetch(bench, "a", 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert fetch(bench, "x", 2) == ErrorCode.UNKNOWN_MEMBER_ID


def test_clients_that_are_not_members_commit_to_an_empty_group() -> None:
    bench, a, b = pair()
    bench.leave(a)
    bench.leave(b)
    assert bench.commit("", -1, {0: 11}) == [0]
    assert bench.commit("a", 2, {0: 12}) == UNKNOWN


def test_transactions_get_the_error_of_a_generation() -> None:
    bench, a, _ = pair()
    kept = min(each.partition for each in a.owned)
    lost = next(each for each in range(6) if each not in {one.partition for one in a.owned})

    def commit(member_id: str, epoch: int, partition: int) -> int:
        bench.tokens += 1
        each = TxnOffsetCommitRequest.Partition(partition, 5)
        request = TxnOffsetCommitRequest(
            "t",
            "g",
            7,
            0,
            epoch,
            member_id,
            topics=[TxnOffsetCommitRequest.Topic("orders", [each])],
        )
        bench.carry_out(bench.shard.txn_offset_commit(request, 0, bench.tokens, bench.now))
        response = bench.replies[bench.tokens]
        assert isinstance(response, TxnOffsetCommitResponse)
        return response.topics[0].partitions[0].error_code

    assert commit("a", 2, kept) == 0
    assert commit("a", 1, kept) == 0
    assert commit("", -1, kept) == 0
    assert commit("a", 1, lost) == ErrorCode.ILLEGAL_GENERATION
    assert commit("a", 3, kept) == ErrorCode.ILLEGAL_GENERATION
    assert commit("x", 2, kept) == ErrorCode.UNKNOWN_MEMBER_ID


def delete_offset(bench: ConsumerBench, topic: str) -> int:
    bench.tokens += 1
    each = OffsetDeleteRequest.Topic(topic, [OffsetDeleteRequest.Partition(0)])
    info = RequestInfo("c", "/127.0.0.1", 0)
    request = OffsetDeleteRequest("g", [each])
    bench.carry_out(bench.shard.offset_delete(request, info, bench.tokens, bench.now))
    response = bench.replies[bench.tokens]
    assert isinstance(response, OffsetDeleteResponse)
    return response.error_code or response.topics[0].partitions[0].error_code


def test_offsets_of_topics_that_members_read_are_not_deleted() -> None:
    bench, a, b = pair()
    bench.commit("a", 2, {0: 10})
    assert delete_offset(bench, "orders") == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert delete_offset(bench, "other") == 0
    bench.leave(a)
    bench.leave(b)
    assert delete_offset(bench, "orders") == 0
    assert committed(bench) == {}


def test_offsets_expire_when_nobody_reads_the_topic() -> None:
    config = GroupConfig(offsets_retention_ms=100_000, offsets_retention_check_interval_ms=10_000)
    bench = ConsumerBench(config=config)
    a = Member("a")
    bench.join(a)
    bench.commit("a", 1, {0: 10})
    for _ in range(4):
        bench.advance(40_000)
        bench.beat(a)
    assert committed(bench) == {0: 10}
    bench.leave(a)
    bench.advance(90_000)
    bench.restart()
    bench.advance(5_000)
    assert committed(bench) == {0: 10}, "the time counts since the group became empty"
    bench.advance(20_000)
    assert committed(bench) == {}
    assert "g" not in bench.shard.state.groups, "a group without members and offsets is removed"
    assert "g" not in bench.shard.state.image.consumer_groups
    bench.restart()
    assert not bench.shard.state.groups


def delete_group(bench: ConsumerBench) -> int:
    bench.tokens += 1
    info = RequestInfo("c", "/127.0.0.1", 2)
    request = DeleteGroupsRequest(["g"])
    bench.carry_out(bench.shard.delete_groups(request, info, bench.tokens, bench.now))
    response = bench.replies[bench.tokens]
    assert isinstance(response, DeleteGroupsResponse)
    return response.results[0].error_code


def test_only_an_empty_group_is_deleted() -> None:
    bench, a, b = pair()
    bench.commit("a", 2, {0: 10})
    assert delete_group(bench) == ErrorCode.NON_EMPTY_GROUP
    bench.leave(a)
    bench.leave(b)
    assert delete_group(bench) == 0
    assert delete_group(bench) == ErrorCode.GROUP_ID_NOT_FOUND
    bench.restart()
    assert not bench.shard.state.groups
    assert bench.join(a).member_epoch == 1


def test_a_group_whose_deletion_failed_goes_on() -> None:
    bench = ConsumerBench()
    a = Member("a")
    bench.join(a)
    bench.leave(a)
    bench.fails_log = ErrorCode.NOT_ENOUGH_REPLICAS
    assert delete_group(bench) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.fails_log = None
    assert bench.join(a).error_code == 0
    assert bench.state == "Stable"


def test_offsets_of_deleted_topics_are_forgotten() -> None:
    bench, _, _ = pair()
    bench.commit("a", 2, {0: 10})
    bench.carry_out(bench.shard.forget_topics(["orders"], bench.now))
    assert committed(bench) == {}
