"""No request of an administrator blocks the event loop for long, however large it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.metadata.role_plans import CHANGES_MAX
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterRolesRequest,
    AlterRolesResponse,
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeQueueRequest,
    DescribeQueueResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OffsetCommitResponse,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

from .access.clients import AUTHORIZER
from .loop_blocking import at_best, check, occupation, piece_of_work_s
from .test_loop_blocking import (
    BIG,
    GROUPS,
    NAMES,
    PARTITIONS,
    TOPICS,
    Large,
    crowded,
    groups_of,
    offsets_of,
)

ACLS = 10_000
SHARED = 5_000
"""The partitions of which a share group has states."""
SUBSCRIBED = 2_000
TOPIC = 2
NEEDS_AUTHORIZER = {"CreateAcls", "DeleteAcls", "AlterRoles"}
NEEDS_SHARE_STATES = {"DescribeShareGroupOffsets", "DeleteShareGroupOffsets"}


def names_of(count: int) -> list[str]:
    """Names of topics: each of the many topics once."""
    return NAMES[:count]


def partitions_of(count: int) -> CreatePartitionsRequest:
    topics = [CreatePartitionsRequest.Topic(name, 2, None) for name in names_of(count)]
    return CreatePartitionsRequest(topics, 10_000, True)


def more_partitions(count: int) -> CreatePartitionsRequest:
    """Asks for many new partitions of one topic, and says which brokers shall have them."""
    places = [CreatePartitionsRequest.Assignment([0])] * count
    topic = CreatePartitionsRequest.Topic(NAMES[0], 1 + count, places)
    return CreatePartitionsRequest([topic], 10_000, True)


def configs_of(count: int) -> AlterConfigsRequest:
    config = AlterConfigsRequest.Config("retention.ms", "60000")
    resources = [AlterConfigsRequest.Resource(TOPIC, name, [config]) for name in names_of(count)]
    return AlterConfigsRequest(resources, True)


def config_changes_of(count: int) -> IncrementalAlterConfigsRequest:
    config = IncrementalAlterConfigsRequest.Config("retention.ms", 0, "60000")
    resources = [
        IncrementalAlterConfigsRequest.Resource(TOPIC, name, [config]) for name in names_of(count)
    ]
    return IncrementalAlterConfigsRequest(resources, True)


def acls_of(count: int) -> CreateAclsRequest:
    return CreateAclsRequest(
        [
            CreateAclsRequest.Creation(TOPIC, f"t{number}", 3, "User:anna", "*", 3, 3)
            for number in range(count)
        ]
    )


def deleted_acls_of(count: int) -> DeleteAclsRequest:
    return DeleteAclsRequest(
        [
            DeleteAclsRequest.Filter(TOPIC, f"u{number}", 3, "User:anna", None, 1, 1)
            for number in range(count)
        ]
    )


def log_dirs_of(count: int) -> DescribeLogDirsRequest:
    return DescribeLogDirsRequest([DescribeLogDirsRequest.Topic(BIG, list(range(count)))])


def moved_logs_of(count: int) -> AlterReplicaLogDirsRequest:
    topic = AlterReplicaLogDirsRequest.Topic(BIG, list(range(count)))
    return AlterReplicaLogDirsRequest([AlterReplicaLogDirsRequest.Dir("/nowhere", [topic])])


def elections_of(count: int) -> ElectLeadersRequest:
    return ElectLeadersRequest(0, [ElectLeadersRequest.Topic(BIG, list(range(count)))], 10_000)


def moves_of(count: int) -> AlterPartitionReassignmentsRequest:
    made = [AlterPartitionReassignmentsRequest.Partition(at, None) for at in range(count)]
    topic = AlterPartitionReassignmentsRequest.Topic(BIG, made)
    return AlterPartitionReassignmentsRequest(10_000, True, [topic])


def listed_moves_of(count: int) -> ListPartitionReassignmentsRequest:
    topic = ListPartitionReassignmentsRequest.Topic(BIG, list(range(count)))
    return ListPartitionReassignmentsRequest(10_000, [topic])


def described_topics_of(count: int) -> DescribeTopicPartitionsRequest:
    topics = [DescribeTopicPartitionsRequest.Topic(name) for name in names_of(count)]
    return DescribeTopicPartitionsRequest(topics, 2_000, None)


def txn_offsets_of(count: int) -> TxnOffsetCommitRequest:
    made = [TxnOffsetCommitRequest.Partition(at, 5, -1, "") for at in range(count)]
    return TxnOffsetCommitRequest(
        "t", "g", 1, 0, -1, "", None, [TxnOffsetCommitRequest.Topic(BIG, made)]
    )


def txn_partitions_of(count: int) -> AddPartitionsToTxnRequest:
    topic = AddPartitionsToTxnRequest.Topic(BIG, list(range(count)))
    return AddPartitionsToTxnRequest([], "t", 1, 0, [topic])


def checked_partitions_of(count: int) -> AddPartitionsToTxnRequest:
    topic = AddPartitionsToTxnRequest.Topic(BIG, list(range(count)))
    return AddPartitionsToTxnRequest(
        [AddPartitionsToTxnRequest.Transaction("t", 1, 0, True, [topic])]
    )


def markers_of(count: int) -> WriteTxnMarkersRequest:
    topic = WriteTxnMarkersRequest.Topic(BIG, list(range(count)))
    return WriteTxnMarkersRequest([WriteTxnMarkersRequest.Marker(1, 0, True, [topic], 0)])


def quotas_of(count: int) -> AlterClientQuotasRequest:
    op = AlterClientQuotasRequest.Op("producer_byte_rate", 1e9, False)
    return AlterClientQuotasRequest(
        [
            AlterClientQuotasRequest.Entry(
                [AlterClientQuotasRequest.Entity("user", f"u{number}")], [op]
            )
            for number in range(count)
        ],
        True,
    )


def scram_of(count: int) -> AlterUserScramCredentialsRequest:
    """Deletes passwords that nobody has."""
    return AlterUserScramCredentialsRequest(
        [AlterUserScramCredentialsRequest.Deletion(f"u{number}", 1) for number in range(count)], []
    )


def described_scram_of(count: int) -> DescribeUserScramCredentialsRequest:
    return DescribeUserScramCredentialsRequest(
        [DescribeUserScramCredentialsRequest.User(f"u{number}") for number in range(count)]
    )


def roles_of(count: int) -> AlterRolesRequest:
    grant = AlterRolesRequest.Grant(TOPIC, [3], "t", 3)
    return AlterRolesRequest(
        [AlterRolesRequest.Change(0, f"r{number}", [grant]) for number in range(count)]
    )


def quorum_of(count: int) -> DescribeQuorumRequest:
    made = [DescribeQuorumRequest.Partition(at) for at in range(count)]
    return DescribeQuorumRequest([DescribeQuorumRequest.Topic("__cluster_metadata", made)])


def beat_of(count: int) -> ShareGroupHeartbeatRequest:
    return ShareGroupHeartbeatRequest("shared", "m" * 22, 0, None, names_of(count))


def share_offsets_of(count: int) -> DescribeShareGroupOffsetsRequest:
    topic = DescribeShareGroupOffsetsRequest.Topic(BIG, list(range(count)))
    return DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequest.Group("g2", [topic])])


def set_share_offsets_of(count: int) -> AlterShareGroupOffsetsRequest:
    made = [AlterShareGroupOffsetsRequest.Partition(at, 0) for at in range(count)]
    return AlterShareGroupOffsetsRequest("g2", [AlterShareGroupOffsetsRequest.Topic(BIG, made)])


def deleted_share_offsets_of(count: int) -> DeleteShareGroupOffsetsRequest:
    topics = [DeleteShareGroupOffsetsRequest.Topic(name) for name in names_of(count)]
    return DeleteShareGroupOffsetsRequest("g2", topics)


def queues_of(count: int) -> DescribeQueueRequest:
    made = [DescribeQueueRequest.Partition(at, 0) for at in range(count)]
    return DescribeQueueRequest("g2", [DescribeQueueRequest.Topic(BIG, made)])


LARGE: dict[str, Large] = {
    "CreatePartitions": Large(partitions_of, TOPICS, 3, CreatePartitionsResponse),
    "CreatePartitions of one topic": Large(more_partitions, 20_000, 3, CreatePartitionsResponse),
    "AlterConfigs": Large(configs_of, TOPICS, 2, AlterConfigsResponse),
    "IncrementalAlterConfigs": Large(config_changes_of, TOPICS, 1, IncrementalAlterConfigsResponse),
    "CreateAcls": Large(acls_of, ACLS, 3, CreateAclsResponse),
    "DeleteAcls": Large(deleted_acls_of, ACLS, 3, DeleteAclsResponse),
    "DescribeLogDirs": Large(log_dirs_of, PARTITIONS, 4, DescribeLogDirsResponse),
    "AlterReplicaLogDirs": Large(moved_logs_of, PARTITIONS, 2, AlterReplicaLogDirsResponse),
    "ElectLeaders": Large(elections_of, PARTITIONS, 2, ElectLeadersResponse),
    "ElectLeaders of all": Large(
        lambda _: ElectLeadersRequest(0, None, 10_000), 1, 2, ElectLeadersResponse
    ),
    "AlterPartitionReassignments": Large(
        moves_of, PARTITIONS, 1, AlterPartitionReassignmentsResponse
    ),
    "ListPartitionReassignments": Large(
        listed_moves_of, PARTITIONS, 0, ListPartitionReassignmentsResponse
    ),
    "ListPartitionReassignments of all": Large(
        lambda _: ListPartitionReassignmentsRequest(10_000, None),
        1,
        0,
        ListPartitionReassignmentsResponse,
    ),
    "DescribeTopicPartitions": Large(
        described_topics_of, TOPICS, 0, DescribeTopicPartitionsResponse
    ),
    "DescribeTopicPartitions of one topic": Large(
        lambda _: DescribeTopicPartitionsRequest(
            [DescribeTopicPartitionsRequest.Topic(BIG)], 2_000, None
        ),
        1,
        0,
        DescribeTopicPartitionsResponse,
    ),
    "TxnOffsetCommit": Large(txn_offsets_of, PARTITIONS, 3, TxnOffsetCommitResponse),
    "AddPartitionsToTxn": Large(txn_partitions_of, PARTITIONS, 3, AddPartitionsToTxnResponse),
    "AddPartitionsToTxn that checks": Large(
        checked_partitions_of, PARTITIONS, 4, AddPartitionsToTxnResponse
    ),
    "WriteTxnMarkers": Large(markers_of, PARTITIONS, 1, WriteTxnMarkersResponse),
    "AlterClientQuotas": Large(quotas_of, ACLS, 1, AlterClientQuotasResponse),
    "DescribeClientQuotas": Large(
        lambda _: DescribeClientQuotasRequest([], False), 1, 1, DescribeClientQuotasResponse
    ),
    "AlterUserScramCredentials": Large(scram_of, ACLS, 0, AlterUserScramCredentialsResponse),
    "DescribeUserScramCredentials": Large(
        described_scram_of, ACLS, 0, DescribeUserScramCredentialsResponse
    ),
    "AlterRoles": Large(roles_of, CHANGES_MAX, 0, AlterRolesResponse),
    "DescribeQuorum": Large(quorum_of, PARTITIONS, 2, DescribeQuorumResponse),
    "DescribeTransactions": Large(
        lambda count: DescribeTransactionsRequest(groups_of(count)),
        GROUPS,
        0,
        DescribeTransactionsResponse,
    ),
    "FindCoordinator": Large(
        lambda count: FindCoordinatorRequest("", 0, groups_of(count)),
        GROUPS,
        4,
        FindCoordinatorResponse,
    ),
    "ConsumerGroupDescribe": Large(
        lambda count: ConsumerGroupDescribeRequest(groups_of(count)),
        GROUPS,
        1,
        ConsumerGroupDescribeResponse,
    ),
    "ShareGroupDescribe": Large(
        lambda count: ShareGroupDescribeRequest(groups_of(count)),
        GROUPS,
        1,
        ShareGroupDescribeResponse,
    ),
    "ShareGroupHeartbeat": Large(beat_of, SUBSCRIBED, 1, ShareGroupHeartbeatResponse),
    "DescribeShareGroupOffsets": Large(
        share_offsets_of, SHARED, 1, DescribeShareGroupOffsetsResponse
    ),
    "AlterShareGroupOffsets": Large(
        set_share_offsets_of, PARTITIONS, 0, AlterShareGroupOffsetsResponse
    ),
    "DeleteShareGroupOffsets": Large(
        deleted_share_offsets_of, TOPICS, 0, DeleteShareGroupOffsetsResponse
    ),
    "DescribeQueue": Large(queues_of, PARTITIONS, 0, DescribeQueueResponse),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_request_does_not_block_the_event_loop(tmp_path: Path, name: str) -> None:
    large = LARGE[name]

    async def run_case(folder: Path) -> None:
        async with crowded(folder, AUTHORIZER if name in NEEDS_AUTHORIZER else None) as harness:
            await harness.ask(offsets_of(1), 8, OffsetCommitResponse)
            if name in NEEDS_SHARE_STATES:
                states = set_share_offsets_of(SHARED)
                await harness.ask(states, 0, AlterShareGroupOffsetsResponse)
            # The first use of an API compiles its codec, which happens once per process.
            await harness.ask(large.make(1), large.version, large.response)
            before_s = piece_of_work_s()
            request = large.make(large.size)
            answer, meter = await occupation(harness, request, large.version, large.response)
            check(meter, before_s)
            assert getattr(answer, "error_code", ErrorCode.NONE) == ErrorCode.NONE

    at_best(run_case, tmp_path)
