"""The rights that each API needs, as data: the table of docs/SECURITY.md in the form of cases.

A case is one way to use an API. `needs` lists sets of rights: each set alone is enough, and all
rights of a set are needed. The code of a right is what a client gets if only that right is missing.
With `hidden` such a client gets no error: what it may not see is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.metadata.config_changes import ResourceType as ConfigResource
from penstock.records.record import Record, build_batch
from penstock.security.acls import AclOperation as Op
from penstock.security.acls import ResourceType
from penstock.wire import messages as m
from penstock.wire.api import ApiKey
from penstock.wire.messages.base import Request

T, G, C, X = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.CLUSTER,
    ResourceType.TRANSACTIONAL_ID,
)
U, K = ResourceType.USER, ResourceType.DELEGATION_TOKEN
CODES: Final = {T: 29, G: 30, C: 31, X: 53, U: 65, K: 65}
"""The error of a missing right, by the type of its resource."""


@dataclass(frozen=True)
class Names:
    """The resources that a request names. Those of both sets have names of equal length."""

    topic: str
    group: str
    transactional_id: str
    topic_id: bytes = bytes(16)
    producer: tuple[int, int] = (77, 0)
    broker_epoch: int = -1
    token_id: str = "none"
    """A token of the user with the same name as the topic."""

    def of(self, resource_type: ResourceType) -> str:
        names = {T: self.topic, G: self.group, X: self.transactional_id, K: self.token_id}
        return {**names, U: f"User:{self.topic}"}.get(resource_type, "")


@dataclass(frozen=True)
class Right:
    resource_type: ResourceType
    operation: Op
    code: int = -1

    @property
    def refusal(self) -> int:
        return CODES[self.resource_type] if self.code < 0 else self.code


Needs = tuple[tuple[Right, ...], ...]
Make = Callable[[Names, int], Request]


@dataclass(frozen=True)
class Case:
    label: str
    api: ApiKey
    make: Make
    needs: Needs
    versions: range | None = None
    """The versions that work this way; None for all that the broker serves."""
    hidden: bool = False
    by_id: bool = False
    """The request names its topic by id, so it cannot ask for an absent one by name."""


def one(*rights: tuple[ResourceType, Op]) -> Needs:
    """Returns needs with one set of rights."""
    return (tuple(Right(*right) for right in rights),)


def either(*rights: tuple[ResourceType, Op]) -> Needs:
    """Returns needs of which each right alone is enough. The code is that of the first."""
    code = CODES[rights[0][0]]
    return tuple((Right(*right, code),) for right in rights)


def _batch(**more: object) -> bytearray:
    # The caller passes names that `build_batch` has.
    return build_batch([Record(0, 1_700_000_000_000, None, b"v")], **more)  # type: ignore[arg-type]


def _produce(names: Names, transactional: bool = False) -> Request:
    producer_id, epoch = names.producer
    records = _batch()
    if transactional:
        records = _batch(
            transactional=True, producer_id=producer_id, producer_epoch=epoch, base_sequence=0
        )
    used = names.transactional_id if transactional else None
    data = [m.ProduceRequest.Partition(0, records)]
    return m.ProduceRequest(
        used, -1, 5000, [m.ProduceRequest.Topic(names.topic, partition_data=data)]
    )


def _fetch(names: Names, version: int, replica: bool = False) -> Request:
    part = m.FetchRequest.Partition(0, fetch_offset=0, partition_max_bytes=1 << 20)
    topic = m.FetchRequest.Topic(names.topic, names.topic_id, [part])
    request = m.FetchRequest(max_wait_ms=0, max_bytes=1 << 20, session_epoch=-1, topics=[topic])
    if replica and version < 15:
        request.replica_id = 0
    elif replica:
        request.replica_state = m.FetchRequest.ReplicaState(0, names.broker_epoch)
        part.current_leader_epoch = 0
    return request


def _metadata(names: Names, version: int, by_id: bool = False) -> Request:
    topic = m.MetadataRequest.Topic(names.topic_id, None)
    if not by_id:
        topic = m.MetadataRequest.Topic(name=names.topic)
    return m.MetadataRequest([topic], allow_auto_topic_creation=version < 4)


def _offset_fetch(names: Names, version: int, everything: bool = False) -> Request:
    topics = [m.OffsetFetchRequest.Topic(names.topic, [0])]
    if version < 8:
        return m.OffsetFetchRequest(names.group, None if everything else topics)
    group_topics = [m.OffsetFetchRequest.GroupTopic(names.topic, partition_indexes=[0])]
    group = m.OffsetFetchRequest.Group(names.group, topics=None if everything else group_topics)
    return m.OffsetFetchRequest(groups=[group])


def _find(key: str, key_type: int, version: int) -> Request:
    if version < 4:
        return m.FindCoordinatorRequest(key, key_type)
    return m.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])


def _join(names: Names, version: int) -> Request:
    # A session timeout that no group accepts: nobody has to wait for a member of a test.
    return m.JoinGroupRequest(
        names.group,
        1,
        1,
        protocol_type="consumer",
        protocols=[m.JoinGroupRequest.Protocol("range", b"")],
    )


def _add_partitions(names: Names, version: int) -> Request:
    topics = [m.AddPartitionsToTxnRequest.Topic(names.topic, [0])]
    if version < 4:
        return m.AddPartitionsToTxnRequest([], names.transactional_id, *names.producer, topics)
    asked = m.AddPartitionsToTxnRequest.Transaction(
        names.transactional_id, *names.producer, False, topics
    )
    return m.AddPartitionsToTxnRequest([asked])


def _txn_offset_commit(names: Names, version: int) -> Request:
    part = m.TxnOffsetCommitRequest.Partition(0, 1)
    return m.TxnOffsetCommitRequest(
        names.transactional_id,
        names.group,
        *names.producer,
        topics=[m.TxnOffsetCommitRequest.Topic(names.topic, [part])],
    )


def _configs(kind: ConfigResource) -> Callable[[Names], tuple[int, str]]:
    def named(names: Names) -> tuple[int, str]:
        texts = {ConfigResource.TOPIC: names.topic, ConfigResource.GROUP: names.group}
        return int(kind), texts.get(kind, "0")

    return named


def _config_cases(kind: ConfigResource, resource_type: ResourceType) -> tuple[Case, ...]:
    named, label = _configs(kind), kind.name.lower().replace("_", "-")
    alter = one((resource_type, Op.ALTER_CONFIGS))
    return (
        Case(
            f"describe configs of a {label}",
            ApiKey.DESCRIBE_CONFIGS,
            lambda names, version: m.DescribeConfigsRequest(
                [m.DescribeConfigsRequest.Resource(*named(names), None)]
            ),
            one((resource_type, Op.DESCRIBE_CONFIGS)),
        ),
        Case(
            f"alter configs of a {label}",
            ApiKey.ALTER_CONFIGS,
            lambda names, version: m.AlterConfigsRequest(
                [m.AlterConfigsRequest.Resource(*named(names))], validate_only=True
            ),
            alter,
        ),
        Case(
            f"alter configs of a {label} incrementally",
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            lambda names, version: m.IncrementalAlterConfigsRequest(
                [m.IncrementalAlterConfigsRequest.Resource(*named(names))], validate_only=True
            ),
            alter,
        ),
    )


_READING: tuple[Case, ...] = (
    Case("produce", ApiKey.PRODUCE, lambda names, version: _produce(names), one((T, Op.WRITE))),
    Case(
        "produce in a transaction",
        ApiKey.PRODUCE,
        lambda names, version: _produce(names, transactional=True),
        one((X, Op.WRITE), (T, Op.WRITE)),
    ),
    Case("fetch by name", ApiKey.FETCH, _fetch, one((T, Op.READ)), range(4, 13)),
    Case("fetch by id", ApiKey.FETCH, _fetch, one((T, Op.READ)), range(13, 18), by_id=True),
    Case(
        "replica fetch",
        ApiKey.FETCH,
        lambda names, version: _fetch(names, version, replica=True),
        ((Right(C, Op.CLUSTER_ACTION, 29),),),
        by_id=True,
    ),
    Case(
        "list offsets",
        ApiKey.LIST_OFFSETS,
        lambda names, version: m.ListOffsetsRequest(
            -1,
            topics=[
                m.ListOffsetsRequest.Topic(
                    names.topic, [m.ListOffsetsRequest.Partition(0, timestamp=-1)]
                )
            ],
        ),
        one((T, Op.DESCRIBE)),
    ),
    Case(
        "offset for leader epoch",
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        lambda names, version: m.OffsetForLeaderEpochRequest(
            topics=[
                m.OffsetForLeaderEpochRequest.Topic(
                    names.topic, [m.OffsetForLeaderEpochRequest.Partition(0, -1, 0)]
                )
            ]
        ),
        either((T, Op.DESCRIBE), (C, Op.CLUSTER_ACTION)),
    ),
    Case("metadata by name", ApiKey.METADATA, _metadata, one((T, Op.DESCRIBE))),
    Case(
        "metadata by id",
        ApiKey.METADATA,
        lambda names, version: _metadata(names, version, by_id=True),
        one((T, Op.DESCRIBE)),
        range(12, 14),
        by_id=True,
    ),
    Case(
        "metadata of all topics",
        ApiKey.METADATA,
        lambda names, version: m.MetadataRequest([] if version == 0 else None),
        one((T, Op.DESCRIBE)),
        hidden=True,
    ),
    Case(
        "describe topic partitions",
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        lambda names, version: m.DescribeTopicPartitionsRequest(
            [m.DescribeTopicPartitionsRequest.Topic(names.topic)]
        ),
        one((T, Op.DESCRIBE)),
    ),
    Case(
        "describe partitions of all topics",
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        lambda names, version: m.DescribeTopicPartitionsRequest(),
        one((T, Op.DESCRIBE)),
        hidden=True,
    ),
    Case(
        "delete records",
        ApiKey.DELETE_RECORDS,
        lambda names, version: m.DeleteRecordsRequest(
            [m.DeleteRecordsRequest.Topic(names.topic, [m.DeleteRecordsRequest.Partition(0, 0)])],
            1000,
        ),
        one((T, Op.DELETE)),
    ),
    Case(
        "describe producers",
        ApiKey.DESCRIBE_PRODUCERS,
        lambda names, version: m.DescribeProducersRequest(
            [m.DescribeProducersRequest.Topic(names.topic, [0])]
        ),
        one((T, Op.READ)),
    ),
)

_GROUPS: tuple[Case, ...] = (
    Case(
        "find a group",
        ApiKey.FIND_COORDINATOR,
        lambda n, v: _find(n.group, 0, v),
        one((G, Op.DESCRIBE)),
    ),
    Case(
        "find a transactional id",
        ApiKey.FIND_COORDINATOR,
        lambda names, version: _find(names.transactional_id, 1, version),
        one((X, Op.DESCRIBE)),
        range(1, 6),
    ),
    Case(
        "find a share group",
        ApiKey.FIND_COORDINATOR,
        lambda names, version: _find(names.group, 2, version),
        one((C, Op.CLUSTER_ACTION)),
        range(1, 6),
    ),
    Case("join", ApiKey.JOIN_GROUP, _join, one((G, Op.READ))),
    Case("sync", ApiKey.SYNC_GROUP, lambda n, v: m.SyncGroupRequest(n.group), one((G, Op.READ))),
    Case(
        "heartbeat", ApiKey.HEARTBEAT, lambda n, v: m.HeartbeatRequest(n.group), one((G, Op.READ))
    ),
    Case(
        "leave",
        ApiKey.LEAVE_GROUP,
        lambda names, version: m.LeaveGroupRequest(names.group),
        one((G, Op.READ)),
    ),
    Case(
        "offset commit",
        ApiKey.OFFSET_COMMIT,
        lambda names, version: m.OffsetCommitRequest(
            names.group,
            topics=[
                m.OffsetCommitRequest.Topic(
                    names.topic, partitions=[m.OffsetCommitRequest.Partition(0, 1)]
                )
            ],
        ),
        one((G, Op.READ), (T, Op.READ)),
    ),
    Case(
        "offset fetch", ApiKey.OFFSET_FETCH, _offset_fetch, one((G, Op.DESCRIBE), (T, Op.DESCRIBE))
    ),
    Case(
        "offset fetch of all topics",
        ApiKey.OFFSET_FETCH,
        lambda names, version: _offset_fetch(names, version, everything=True),
        ((Right(G, Op.DESCRIBE), Right(T, Op.DESCRIBE, 0)),),
        range(2, 10),
    ),
    Case(
        "offset delete",
        ApiKey.OFFSET_DELETE,
        lambda names, version: m.OffsetDeleteRequest(
            names.group,
            [m.OffsetDeleteRequest.Topic(names.topic, [m.OffsetDeleteRequest.Partition(0)])],
        ),
        one((G, Op.DELETE), (T, Op.READ)),
    ),
    Case(
        "describe groups",
        ApiKey.DESCRIBE_GROUPS,
        lambda names, version: m.DescribeGroupsRequest([names.group]),
        one((G, Op.DESCRIBE)),
    ),
    Case(
        "list groups",
        ApiKey.LIST_GROUPS,
        lambda names, version: m.ListGroupsRequest(),
        either((G, Op.DESCRIBE), (C, Op.DESCRIBE)),
        hidden=True,
    ),
    Case(
        "delete groups",
        ApiKey.DELETE_GROUPS,
        lambda names, version: m.DeleteGroupsRequest([names.group]),
        one((G, Op.DELETE)),
    ),
)

_TRANSACTIONS: tuple[Case, ...] = (
    Case(
        "init a transactional producer",
        ApiKey.INIT_PRODUCER_ID,
        lambda names, version: m.InitProducerIdRequest(names.transactional_id, 10_000),
        one((X, Op.WRITE)),
    ),
    Case(
        "init an idempotent producer",
        ApiKey.INIT_PRODUCER_ID,
        lambda names, version: m.InitProducerIdRequest(None, 10_000),
        either((C, Op.IDEMPOTENT_WRITE), (T, Op.WRITE)),
    ),
    Case(
        "add partitions",
        ApiKey.ADD_PARTITIONS_TO_TXN,
        _add_partitions,
        one((X, Op.WRITE), (T, Op.WRITE)),
        range(4),
    ),
    Case(
        "add partitions as a broker",
        ApiKey.ADD_PARTITIONS_TO_TXN,
        _add_partitions,
        one((C, Op.CLUSTER_ACTION)),
        range(4, 6),
    ),
    Case(
        "add offsets",
        ApiKey.ADD_OFFSETS_TO_TXN,
        lambda names, version: m.AddOffsetsToTxnRequest(
            names.transactional_id, *names.producer, names.group
        ),
        one((X, Op.WRITE), (G, Op.READ)),
    ),
    Case(
        "end a transaction",
        ApiKey.END_TXN,
        lambda names, version: m.EndTxnRequest(names.transactional_id, *names.producer, False),
        one((X, Op.WRITE)),
    ),
    Case(
        "end transactions",
        ApiKey.END_TRANSACTIONS,
        lambda names, version: m.EndTransactionsRequest(
            False,
            None,
            members=[m.EndTransactionsRequest.Member(names.transactional_id, *names.producer)],
        ),
        either((X, Op.WRITE), (C, Op.CLUSTER_ACTION)),
    ),
    Case(
        "commit offsets in a transaction",
        ApiKey.TXN_OFFSET_COMMIT,
        _txn_offset_commit,
        one((X, Op.WRITE), (G, Op.READ), (T, Op.READ)),
    ),
    Case(
        "write markers",
        ApiKey.WRITE_TXN_MARKERS,
        lambda names, version: m.WriteTxnMarkersRequest(
            [
                m.WriteTxnMarkersRequest.Marker(
                    *names.producer,
                    False,
                    [m.WriteTxnMarkersRequest.Topic(names.topic, [0])],
                )
            ]
        ),
        either((C, Op.CLUSTER_ACTION), (C, Op.ALTER)),
    ),
    Case(
        "describe transactions",
        ApiKey.DESCRIBE_TRANSACTIONS,
        lambda names, version: m.DescribeTransactionsRequest([names.transactional_id]),
        one((X, Op.DESCRIBE)),
    ),
    Case(
        "list transactions",
        ApiKey.LIST_TRANSACTIONS,
        lambda names, version: m.ListTransactionsRequest(),
        one((X, Op.DESCRIBE)),
        hidden=True,
    ),
)

OPEN_APIS: Final = (
    ApiKey.API_VERSIONS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    ApiKey.PUSH_TELEMETRY,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
)
"""The APIs that need no right. Tokens belong to users."""

CASES: Final = (
    *_READING,
    *_GROUPS,
    *_TRANSACTIONS,
    *_config_cases(ConfigResource.TOPIC, T),
    *_config_cases(ConfigResource.GROUP, G),
    *_config_cases(ConfigResource.BROKER, C),
    *_config_cases(ConfigResource.CLIENT_METRICS, C),
    *_config_cases(ConfigResource.BROKER_LOGGER, C),
)
