"""Share groups as operators see them: describe, list, alter and delete offsets, delete groups; and
requests of other types of groups."""

from __future__ import annotations

from typing import Any

import pytest

from groups.consumer.bench import Member as Consumer
from groups.consumer.bench import join_request
from penstock.groups.consumer.records import TopicIdPartition
from penstock.groups.effects import RequestInfo
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)

from .bench import Member, ShareBench, code

INFO = RequestInfo("c", "/127.0.0.1", 1)


def alter(
    bench: ShareBench, offsets: dict[int, int], topic: str = "jobs", group: str = "g"
) -> None:
    bench.tokens += 1
    partitions = [AlterShareGroupOffsetsRequest.Partition(*each) for each in offsets.items()]
    request = AlterShareGroupOffsetsRequest(
        group, [AlterShareGroupOffsetsRequest.Topic(topic, partitions)]
    )
    bench.carry_out(bench.shard.alter_share_offsets(request, INFO, bench.tokens, bench.now))


def altered(bench: ShareBench) -> list[int]:
    response = bench.reply()
    assert isinstance(response, AlterShareGroupOffsetsResponse)
    if response.error_code:
        return [response.error_code]
    return [each.error_code for topic in response.responses for each in topic.partitions]


def delete_offsets(bench: ShareBench, *topics: str) -> None:
    bench.tokens += 1
    request = DeleteShareGroupOffsetsRequest(
        "g", [DeleteShareGroupOffsetsRequest.Topic(name) for name in topics]
    )
    bench.carry_out(bench.shard.delete_share_offsets(request, INFO, bench.tokens, bench.now))


def deleted(bench: ShareBench) -> list[int]:
    response = bench.reply()
    assert isinstance(response, DeleteShareGroupOffsetsResponse)
    if response.error_code:
        return [response.error_code]
    return [topic.error_code for topic in response.responses]


def delete_group(bench: ShareBench) -> None:
    bench.tokens += 1
    request = DeleteGroupsRequest(["g"])
    bench.carry_out(bench.shard.delete_groups(request, INFO, bench.tokens, bench.now))


def group_deleted(bench: ShareBench, token: int | None = None) -> int:
    response = bench.replies[token or bench.tokens]
    assert isinstance(response, DeleteGroupsResponse)
    return response.results[0].error_code


def used(bench: ShareBench) -> Member:
    """Lets a member use the group and leave it."""
    anna = Member("anna")
    bench.settle_members(anna)
    bench.leave(anna)
    return Member("anna")


def test_offsets_of_an_empty_group_are_altered() -> None:
    bench = ShareBench({"jobs": 2})
    anna = used(bench)
    first, second = sorted(bench.states)
    before = bench.states[second]
    alter(bench, {0: 42})
    assert bench.tokens not in bench.replies, "it is answered when the state is begun"
    bench.make_calls()
    assert altered(bench) == [0]
    assert bench.states[first] == (bench.group.epoch, 42)
    assert bench.states[second] == before
    bench.settle_members(anna)
    assert len(anna.assigned) == 2


def test_altering_offsets_creates_the_group() -> None:
    bench = ShareBench({"jobs": 2})
    alter(bench, {1: 7, 5: 1, 0: -3})
    bench.make_calls()
    assert altered(bench) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_REQUEST]
    assert (bench.group.epoch, list(bench.states.values())) == (1, [(1, 7)])
    bench.restart()
    anna = Member("anna")
    bench.settle_members(anna)
    assert len(anna.assigned) == 2
    assert sorted(start for _, start in bench.states.values()) == [-1, 7]


def test_a_failed_alteration_is_reported_and_may_be_repeated() -> None:
    bench = ShareBench({"jobs": 1})
    alter(bench, {0: 7})
    bench.make_calls(failing=True)
    assert altered(bench) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    alter(bench, {0: 8})
    bench.make_calls()
    assert altered(bench) == [0]
    assert [start for _, start in bench.states.values()] == [8]


def test_one_change_of_a_topic_at_a_time() -> None:
    bench = ShareBench({"jobs": 2})
    alter(bench, {0: 7})
    alter(bench, {1: 7})
    assert altered(bench) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    delete_offsets(bench, "jobs")
    assert deleted(bench) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    delete_group(bench)
    assert group_deleted(bench) == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_group_with_members_is_not_changed() -> None:
    bench = ShareBench()
    bench.settle_members(Member("anna"))
    alter(bench, {0: 7})
    assert altered(bench) == [ErrorCode.NON_EMPTY_GROUP]
    delete_offsets(bench, "jobs")
    assert deleted(bench) == [ErrorCode.NON_EMPTY_GROUP]
    delete_group(bench)
    assert group_deleted(bench) == ErrorCode.NON_EMPTY_GROUP


def test_offsets_of_a_topic_are_deleted() -> None:
    bench = ShareBench({"jobs": 2})
    anna = used(bench)
    delete_offsets(bench, "jobs", "none")
    bench.make_calls()
    assert deleted(bench) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert bench.states == {}
    assert not bench.group.stored.states
    delete_offsets(bench, "jobs")
    assert deleted(bench) == [0], "there is nothing to delete"
    bench.settle_members(anna)
    assert bench.states.keys() == anna.assigned


def test_a_failed_deletion_is_repeated_before_the_partitions_are_used_again() -> None:
    bench = ShareBench({"jobs": 1})
    anna = used(bench)
    delete_offsets(bench, "jobs")
    bench.make_calls(failing=True)
    assert deleted(bench) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    bench.advance(1_000)
    bench.beat(anna)
    assert anna.assigned == set()
    assert [len(call.delete) for call in bench.calls] == [1]
    bench.settle_members(anna)
    assert len(anna.assigned) == 1


def test_a_group_is_deleted_with_its_states() -> None:
    bench = ShareBench()
    used(bench)
    delete_group(bench)
    assert bench.tokens not in bench.replies
    bench.make_calls()
    assert group_deleted(bench) == 0
    assert (bench.states, bench.shard.state.share_groups) == ({}, {})
    assert bench.shard.state.image.share_groups == {}
    bench.restart()
    assert bench.shard.state.share_groups == {}
    delete_group(bench)
    assert group_deleted(bench) == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_whose_states_cannot_be_deleted_stays() -> None:
    bench = ShareBench()
    anna = used(bench)
    delete_group(bench)
    bench.make_calls(failing=True)
    assert group_deleted(bench) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    delete_group(bench)
    token = bench.tokens
    bench.beat(anna)
    bench.make_calls()
    assert group_deleted(bench, token) == ErrorCode.NON_EMPTY_GROUP, "a member joined meanwhile"
    bench.settle_members(anna)
    assert len(anna.assigned) == 4


def test_a_waiting_request_is_answered_when_the_coordinator_moves() -> None:
    bench = ShareBench()
    used(bench)
    delete_group(bench)
    bench.carry_out(bench.shard.unload())
    assert group_deleted(bench) == ErrorCode.NOT_COORDINATOR


def test_share_groups_are_described_and_listed() -> None:
    bench, anna = ShareBench({"jobs": 1}), Member("anna")
    bench.settle_members(anna)
    found = bench.shard.describe_share_group("g")
    assert (found.group_state, found.group_epoch, found.assignment_epoch) == ("Stable", 2, 2)
    assert found.assignor_name == "simple"
    (member,) = found.members
    assert (member.member_id, member.member_epoch) == ("anna", 2)
    assert member.subscribed_topic_names == ["jobs"]
    (topic,) = member.assignment.topic_partitions
    assert (topic.topic_name, topic.partitions) == ("jobs", [0])
    missing = bench.shard.describe_share_group("none")
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    (classic,) = bench.shard.describe_groups(["g"], 6)
    assert classic.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    (dead,) = bench.shard.describe_groups(["g"], 5)
    assert (dead.error_code, dead.group_state) == (0, "Dead")
    consumer = bench.shard.describe_consumer_group("g")
    assert consumer.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    for states, types, expected in (
        ((), (), 1),
        (("stable",), ("SHARE",), 1),
        (("empty",), (), 0),
        ((), ("consumer",), 0),
    ):
        listed = bench.shard.list_groups(states, types)
        assert len(listed) == expected
        assert [(each.group_type, each.protocol_type) for each in listed] == [
            ("share", "share")
        ] * expected
    topic_id = bench.topics.known["jobs"].topic_id
    assert bench.shard.share_partitions("g") == {topic_id: {0}}
    with pytest.raises(KafkaError, match="no share group"):
        bench.shard.share_partitions("none")


def test_requests_of_other_types_are_refused() -> None:
    bench = ShareBench()
    bench.settle_members(Member("anna"))
    shard, now = bench.shard, bench.now

    def answer_of(method: Any, request: Any) -> int:
        bench.tokens += 1
        bench.carry_out(method(request, INFO, bench.tokens, now))
        return int(getattr(bench.reply(), "error_code", -1))

    assert answer_of(shard.join_group, JoinGroupRequest("g")) == 23
    assert answer_of(shard.sync_group, SyncGroupRequest("g")) == 25
    assert answer_of(shard.heartbeat, HeartbeatRequest("g")) == 25
    assert answer_of(shard.leave_group, LeaveGroupRequest("g")) == 25
    assert answer_of(shard.offset_delete, OffsetDeleteRequest("g")) == 69
    bench.tokens += 1
    consumer = join_request(Consumer("c"))
    bench.carry_out(shard.consumer_heartbeat(consumer, INFO, lambda name: True, bench.tokens, now))
    refused: Any = bench.reply()
    assert refused.error_code == 69
    partition = OffsetCommitRequest.Partition(0, 1)
    topics = [OffsetCommitRequest.Topic("jobs", partitions=[partition])]
    bench.tokens += 1
    bench.carry_out(
        shard.offset_commit(OffsetCommitRequest("g", topics=topics), INFO, bench.tokens, now)
    )
    committed: Any = bench.reply()
    assert committed.topics[0].partitions[0].error_code == 69
    bench.tokens += 1
    in_transaction = TxnOffsetCommitRequest("t", "g", 1, 0)
    bench.carry_out(shard.txn_offset_commit(in_transaction, 0, bench.tokens, now))
    assert "g" not in shard.state.groups


def test_a_classic_group_is_no_share_group() -> None:
    bench = ShareBench()
    bench.tokens += 1
    partition = OffsetCommitRequest.Partition(0, 1)
    request = OffsetCommitRequest(
        "g", topics=[OffsetCommitRequest.Topic("jobs", partitions=[partition])]
    )
    bench.carry_out(bench.shard.offset_commit(request, INFO, bench.tokens, bench.now))
    assert code(bench.beat(Member("anna"))) is ErrorCode.GROUP_ID_NOT_FOUND
    alter(bench, {0: 1})
    assert altered(bench) == [ErrorCode.GROUP_ID_NOT_FOUND]
    delete_offsets(bench, "jobs")
    assert deleted(bench) == [ErrorCode.GROUP_ID_NOT_FOUND]


def test_partitions_are_listed_by_topic() -> None:
    bench = ShareBench({"jobs": 2, "mail": 1})
    anna = Member("anna", ("jobs", "mail"))
    bench.settle_members(anna)
    jobs, mail = (bench.topics.known[name].topic_id for name in ("jobs", "mail"))
    assert bench.shard.share_partitions("g") == {jobs: {0, 1}, mail: {0}}
    assert TopicIdPartition(mail, 0) in anna.assigned
