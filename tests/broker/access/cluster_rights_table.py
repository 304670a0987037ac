"""The cases of `rights_table` that administer topics and the cluster."""

from __future__ import annotations

from typing import Final

from broker.access.rights_table import C, Case, Names, T, either, one
from penstock.security.acls import AclOperation as Op
from penstock.wire import messages as m
from penstock.wire.api import ApiKey
from penstock.wire.messages.base import Request


def _delete_topics(names: Names, version: int, by_id: bool = False) -> Request:
    topic = m.DeleteTopicsRequest.Topic(names.topic)
    if by_id:
        topic = m.DeleteTopicsRequest.Topic(None, names.topic_id)
    if version >= 6:
        return m.DeleteTopicsRequest([topic])
    return m.DeleteTopicsRequest(topic_names=[names.topic])


def _of_cluster(label: str, api: ApiKey, operation: Op, request: type[Request]) -> Case:
    return Case(label, api, lambda names, version: request(), one((C, operation)))


_TOPICS: tuple[Case, ...] = (
    Case(
        "create topics",
        ApiKey.CREATE_TOPICS,
        lambda names, version: m.CreateTopicsRequest(
            [m.CreateTopicsRequest.Topic(names.topic, 1, 1)], validate_only=True
        ),
        either((T, Op.CREATE), (C, Op.CREATE)),
    ),
    Case(
        "delete topics",
        ApiKey.DELETE_TOPICS,
        _delete_topics,
        either((T, Op.DELETE), (C, Op.DELETE)),
    ),
    Case(
        "delete topics by id",
        ApiKey.DELETE_TOPICS,
        lambda names, version: _delete_topics(names, version, by_id=True),
        either((T, Op.DELETE), (C, Op.DELETE)),
        range(6, 7),
        by_id=True,
    ),
    Case(
        "create partitions",
        ApiKey.CREATE_PARTITIONS,
        lambda names, version: m.CreatePartitionsRequest(
            [m.CreatePartitionsRequest.Topic(names.topic, 5, None)], validate_only=True
        ),
        one((T, Op.ALTER)),
    ),
)

_CLUSTER: tuple[Case, ...] = (
    Case(
        "describe acls",
        ApiKey.DESCRIBE_ACLS,
        lambda names, version: m.DescribeAclsRequest(1, None, 1, None, None, 1, 1),
        one((C, Op.DESCRIBE)),
    ),
    Case(
        "create acls",
        ApiKey.CREATE_ACLS,
        lambda names, version: m.CreateAclsRequest(
            [m.CreateAclsRequest.Creation(2, names.topic, 3, "User:other", "*", 3, 3)]
        ),
        one((C, Op.ALTER)),
    ),
    Case(
        "delete acls",
        ApiKey.DELETE_ACLS,
        lambda names, version: m.DeleteAclsRequest(
            [m.DeleteAclsRequest.Filter(2, names.topic, 3, "User:other", "*", 3, 3)]
        ),
        one((C, Op.ALTER)),
    ),
    Case(
        "describe quotas",
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        lambda names, version: m.DescribeClientQuotasRequest(),
        one((C, Op.DESCRIBE_CONFIGS)),
    ),
    Case(
        "alter quotas",
        ApiKey.ALTER_CLIENT_QUOTAS,
        lambda names, version: m.AlterClientQuotasRequest(
            [
                m.AlterClientQuotasRequest.Entry(
                    [m.AlterClientQuotasRequest.Entity("user", "other")],
                    [m.AlterClientQuotasRequest.Op("producer_byte_rate", 0.0, True)],
                )
            ]
        ),
        one((C, Op.ALTER_CONFIGS)),
    ),
    _of_cluster(
        "describe scram users",
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        Op.DESCRIBE,
        m.DescribeUserScramCredentialsRequest,
    ),
    Case(
        "alter scram users",
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        lambda names, version: m.AlterUserScramCredentialsRequest(
            [m.AlterUserScramCredentialsRequest.Deletion("other", 1)]
        ),
        one((C, Op.ALTER)),
    ),
    _of_cluster(
        "list reassignments",
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        Op.DESCRIBE,
        m.ListPartitionReassignmentsRequest,
    ),
    Case(
        "alter reassignments",
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        lambda names, version: m.AlterPartitionReassignmentsRequest(
            topics=[
                m.AlterPartitionReassignmentsRequest.Topic(
                    names.topic, [m.AlterPartitionReassignmentsRequest.Partition(0, [0])]
                )
            ]
        ),
        one((C, Op.ALTER)),
    ),
    Case(
        "elect leaders",
        ApiKey.ELECT_LEADERS,
        lambda names, version: m.ElectLeadersRequest(
            0, [m.ElectLeadersRequest.Topic(names.topic, [0])], 1000
        ),
        one((C, Op.ALTER)),
    ),
    _of_cluster("describe roles", ApiKey.DESCRIBE_ROLES, Op.DESCRIBE, m.DescribeRolesRequest),
    _of_cluster("alter roles", ApiKey.ALTER_ROLES, Op.ALTER, m.AlterRolesRequest),
    _of_cluster("check access", ApiKey.CHECK_ACCESS, Op.DESCRIBE, m.CheckAccessRequest),
    _of_cluster(
        "ask the share coordinator",
        ApiKey.SHARE_STATE,
        Op.CLUSTER_ACTION,
        m.ShareStateRequest,
    ),
    _of_cluster("update features", ApiKey.UPDATE_FEATURES, Op.ALTER, m.UpdateFeaturesRequest),
    Case(
        "unregister a broker",
        ApiKey.UNREGISTER_BROKER,
        lambda names, version: m.UnregisterBrokerRequest(9),
        one((C, Op.ALTER)),
    ),
    Case(
        "alter log dirs",
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        lambda names, version: m.AlterReplicaLogDirsRequest(
            [
                m.AlterReplicaLogDirsRequest.Dir(
                    "/d", [m.AlterReplicaLogDirsRequest.Topic(names.topic, [0])]
                )
            ]
        ),
        one((C, Op.ALTER)),
    ),
    Case(
        "describe log dirs",
        ApiKey.DESCRIBE_LOG_DIRS,
        lambda names, version: m.DescribeLogDirsRequest(None),
        one((C, Op.DESCRIBE)),
        range(3, 5),
    ),
    Case(
        "describe log dirs without a code",
        ApiKey.DESCRIBE_LOG_DIRS,
        lambda names, version: m.DescribeLogDirsRequest(None),
        one((C, Op.DESCRIBE)),
        range(1, 3),
        hidden=True,
    ),
    Case(
        "describe the quorum",
        ApiKey.DESCRIBE_QUORUM,
        lambda names, version: m.DescribeQuorumRequest(
            [
                m.DescribeQuorumRequest.Topic(
                    "__cluster_metadata", [m.DescribeQuorumRequest.Partition(0)]
                )
            ]
        ),
        one((C, Op.DESCRIBE)),
    ),
    _of_cluster(
        "list config resources",
        ApiKey.LIST_CONFIG_RESOURCES,
        Op.DESCRIBE_CONFIGS,
        m.ListConfigResourcesRequest,
    ),
)

CLUSTER_CASES: Final = (*_TOPICS, *_CLUSTER)
