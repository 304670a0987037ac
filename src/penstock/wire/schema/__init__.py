"""Every message we speak, as tables of facts; `notation.py` explains how to read them.

The tables are the only description of the messages: the codec is compiled from them, the message
classes are generated from them (`python -m penstock.wire.generate`).
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Final

from penstock.wire.schema.notation import MessageSchema, parse_message, split_table

_TABLES: Final[dict[str, str]] = {
    "penstock.wire.schema.produce": "Produce",
    "penstock.wire.schema.fetch": "Fetch ListOffsets OffsetForLeaderEpoch",
    "penstock.wire.schema.cluster": (
        "ApiVersions Metadata DescribeCluster DescribeQuorum UnregisterBroker"
        " DescribeTopicPartitions UpdateFeatures"
    ),
    "penstock.wire.schema.groups": (
        "FindCoordinator JoinGroup SyncGroup Heartbeat LeaveGroup ConsumerGroupHeartbeat"
    ),
    "penstock.wire.schema.group_admin": (
        "DescribeGroups ListGroups DeleteGroups ConsumerGroupDescribe"
    ),
    "penstock.wire.schema.offsets": "OffsetCommit OffsetFetch OffsetDelete",
    "penstock.wire.schema.shares": (
        "ShareGroupHeartbeat ShareGroupDescribe ShareFetch ShareAcknowledge"
        " DescribeShareGroupOffsets AlterShareGroupOffsets DeleteShareGroupOffsets"
    ),
    "penstock.wire.schema.share_state": "ShareState",
    "penstock.wire.schema.queues": "DescribeQueue",
    "penstock.wire.schema.topics": "CreateTopics DeleteTopics CreatePartitions DeleteRecords",
    "penstock.wire.schema.replicas": (
        "ElectLeaders AlterPartitionReassignments ListPartitionReassignments DescribeLogDirs"
        " AlterReplicaLogDirs"
    ),
    "penstock.wire.schema.configs": (
        "DescribeConfigs AlterConfigs IncrementalAlterConfigs DescribeClientQuotas"
        " AlterClientQuotas ListConfigResources"
    ),
    "penstock.wire.schema.telemetry": "GetTelemetrySubscriptions PushTelemetry",
    "penstock.wire.schema.txns": (
        "InitProducerId AddPartitionsToTxn AddOffsetsToTxn EndTxn EndTransactions TxnOffsetCommit"
    ),
    "penstock.wire.schema.txn_admin": (
        "WriteTxnMarkers DescribeProducers DescribeTransactions ListTransactions"
    ),
    "penstock.wire.schema.security": (
        "SaslHandshake SaslAuthenticate DescribeAcls CreateAcls DeleteAcls"
        " DescribeUserScramCredentials AlterUserScramCredentials"
    ),
    "penstock.wire.schema.tokens": (
        "CreateDelegationToken RenewDelegationToken ExpireDelegationToken DescribeDelegationToken"
    ),
    "penstock.wire.schema.roles": "DescribeRoles AlterRoles CheckAccess",
}
"""The APIs each module of tables describes: a request and a response each."""

_EMBEDDED_TABLE: Final = "penstock.wire.schema.embedded"
EMBEDDED: Final = ("ConsumerProtocolSubscription", "ConsumerProtocolAssignment")
"""Messages that are no API's: clients carry them in bytes the broker passes on."""


@cache
def modules_by_message() -> dict[str, str]:
    """The module (of tables and of classes) each message is in, in the order of the tables."""
    modules = {
        api + kind: module.rpartition(".")[2]
        for module, apis in _TABLES.items()
        for api in apis.split()
        for kind in ("Request", "Response")
    }
    return modules | dict.fromkeys(EMBEDDED, _EMBEDDED_TABLE.rpartition(".")[2])


@cache
def _texts(module: str) -> dict[str, str]:
    return split_table(import_module(f"{__name__}.{module}").TABLE)


@cache
def message_schema(name: str) -> MessageSchema:
    """The schema of a message by its name; KeyError for one we do not have."""
    return parse_message(_texts(modules_by_message()[name])[name])
