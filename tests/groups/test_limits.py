"""Size limits of commits, group ids and members: what is merged, split or refused."""

from __future__ import annotations

import pytest

from penstock.groups.config import GroupConfig
from penstock.groups.effects import RequestInfo
from penstock.groups.limits import COMMIT_BATCHES_MAX, STRING_BYTES_MAX, fits_a_string
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    JoinGroupRequest,
    JoinGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

from .world import World

INFO = RequestInfo("client", "/here", 8)
NONE = ErrorCode.NONE
KINDS = ("plain", "transactional")


def commit(world: World, kind: str, group: str, offsets: list[tuple[int, int, str]]) -> list[int]:
    """Commits (partition, offset, metadata) and returns the error code of each."""
    token = f"commit {len(world.replies)}"
    if kind == "plain":
        partitions = [OffsetCommitRequest.Partition(at, to, -1, text) for at, to, text in offsets]
        topics = [OffsetCommitRequest.Topic("t", partitions=partitions)]
        request = OffsetCommitRequest(group, topics=topics)
        world.carry_out(world.shard.offset_commit(request, INFO, token, world.now))
    else:
        asked = [TxnOffsetCommitRequest.Partition(at, to, -1, text) for at, to, text in offsets]
        in_transaction = TxnOffsetCommitRequest(
            "tx", group, 7, 0, -1, "", None, [TxnOffsetCommitRequest.Topic("t", asked)]
        )
        world.carry_out(world.shard.txn_offset_commit(in_transaction, 1, token, world.now))
    reply = world.replies[token]
    assert isinstance(reply, OffsetCommitResponse | TxnOffsetCommitResponse)
    return [each.error_code for each in reply.topics[0].partitions]


def log_bytes(world: World) -> int:
    return sum(len(record.key) + len(record.value or b"") for record in world.log)


@pytest.mark.parametrize("kind", KINDS)
def test_a_partition_that_is_named_twice_is_stored_once_with_its_last_offset(kind: str) -> None:
    """Each entry of the request is answered. One with metadata that is too long does not count."""
    world = World(GroupConfig(offset_metadata_max=5))
    too_large = ErrorCode.OFFSET_METADATA_TOO_LARGE
    asked = [(0, 1, ""), (1, 5, ""), (0, 2, ""), (0, 3, "too long")]
    assert commit(world, kind, "g", asked) == [NONE, NONE, NONE, too_large]
    assert len(world.log) == 2
    world.carry_out(world.shard.on_marker(7, committed=True))
    offsets = world.shard.state.image.offsets_of("g")
    assert {about: value.offset for about, value in offsets.items()} == {("t", 0): 2, ("t", 1): 5}
    assert not world.shard.state.groups["g"].commits_in_flight


@pytest.mark.parametrize("kind", KINDS)
def test_a_small_request_with_a_long_group_id_writes_a_small_log(kind: str) -> None:
    """A 68 KB request once wrote 64 MB of log: one partition was repeated, each time with the
    group id."""
    world = World()
    group = "g" * 30_000
    assert set(commit(world, kind, group, [(0, at, "") for at in range(2_000)])) == {NONE}
    assert log_bytes(world) < 2 * 30_100


@pytest.mark.parametrize("kind", KINDS)
def test_a_large_commit_is_stored_in_several_batches(kind: str) -> None:
    """Each batch is as large as the topic allows. There is one response, when all are committed."""
    world = World()
    world.batch_bytes_max = 20_000
    world.holds_log = True
    request = [OffsetCommitRequest.Partition(at, at) for at in range(1_000)]
    topics = [OffsetCommitRequest.Topic("t", partitions=request)]
    if kind == "plain":
        plain = OffsetCommitRequest("g", topics=topics)
        world.carry_out(world.shard.offset_commit(plain, INFO, "token", world.now))
    else:
        asked = [TxnOffsetCommitRequest.Partition(at, at) for at in range(1_000)]
        many = TxnOffsetCommitRequest(
            "tx", "g", 7, 0, -1, "", None, [TxnOffsetCommitRequest.Topic("t", asked)]
        )
        world.carry_out(world.shard.txn_offset_commit(many, 1, "token", world.now))
    assert len(world.waiting) > 1
    assert {append.producer is None for append in world.waiting} == {kind == "plain"}
    while world.waiting:
        assert "token" not in world.replies
        world.settle_one()
    reply = world.replies["token"]
    assert isinstance(reply, OffsetCommitResponse | TxnOffsetCommitResponse)
    assert {each.error_code for each in reply.topics[0].partitions} == {NONE}
    assert len(world.log) == 1_000
    assert not world.shard.state.groups["g"].commits_in_flight


@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_of_too_many_bytes_is_refused_and_stores_nothing(kind: str) -> None:
    world = World()
    world.batch_bytes_max = 10_000
    group = "g" * 1_000
    count = COMMIT_BATCHES_MAX * 10
    refused = commit(world, kind, group, [(at, 1, "") for at in range(count)])
    assert set(refused) == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    assert world.log == []
    assert group not in world.shard.state.groups
    assert commit(world, kind, group, [(at, 1, "") for at in range(10)]) == [NONE] * 10


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_id_that_does_not_fit_a_record_is_refused(kind: str) -> None:
    """Requests of flexible versions can contain longer strings than records."""
    world = World()
    assert commit(world, kind, "g" * 40_000, [(0, 1, "")]) == [ErrorCode.INVALID_GROUP_ID]
    assert commit(world, kind, "g" * STRING_BYTES_MAX, [(0, 1, "")]) == [NONE]


def test_strings_are_measured_in_bytes() -> None:
    assert fits_a_string(None)
    assert fits_a_string("é" * 16_383)
    assert not fits_a_string("é" * 16_384)
    assert fits_a_string("e" * 32_767)
    assert not fits_a_string("e" * 32_767, 1)


def joined(world: World, **changes: object) -> int:
    values: dict[str, object] = {
        "group_id": "g",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequest.Protocol("range", b"")],
    }
    client = str(changes.pop("client_id", "client"))
    request = JoinGroupRequest(**(values | changes))  # type: ignore[arg-type]
    token = f"join {len(world.replies)}"
    info = RequestInfo(client, "/here", 9)
    world.carry_out(world.shard.join_group(request, info, token, world.now))
    reply = world.replies[token]
    assert isinstance(reply, JoinGroupResponse)
    return reply.error_code


@pytest.mark.parametrize(
    "change",
    [
        {"protocols": [JoinGroupRequest.Protocol("range", bytes(1 << 20))]},
        {"protocols": [JoinGroupRequest.Protocol("r" * 40_000, b"")]},
        {"protocol_type": "c" * 40_000},
        {"group_instance_id": "i" * 32_760},
        {"client_id": "c" * 32_760},
    ],
    ids=["metadata", "protocol name", "protocol type", "instance id", "client id"],
)
def test_a_member_that_does_not_fit_a_record_cannot_join(change: dict[str, object]) -> None:
    """Its group could not store an assignment, so it would stop all other members too."""
    world = World()
    assert joined(world, **change) == ErrorCode.INVALID_REQUEST
    assert joined(world) == ErrorCode.MEMBER_ID_REQUIRED
