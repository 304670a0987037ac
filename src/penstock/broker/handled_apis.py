"""The APIs of brokers, with the module that handles each."""

from __future__ import annotations

from typing import Final

from penstock.wire.api import ApiKey

HANDLED: Final[dict[ApiKey, str]] = {
    ApiKey.PRODUCE: "penstock.broker.handlers.produce",
    ApiKey.FETCH: "penstock.broker.handlers.fetch",
    ApiKey.LIST_OFFSETS: "penstock.broker.handlers.list_offsets",
    ApiKey.METADATA: "penstock.broker.handlers.metadata",
    ApiKey.OFFSET_COMMIT: "penstock.broker.handlers.offset_commit",
    ApiKey.OFFSET_FETCH: "penstock.broker.handlers.offset_fetch",
    ApiKey.FIND_COORDINATOR: "penstock.broker.handlers.find_coordinator",
    ApiKey.JOIN_GROUP: "penstock.broker.handlers.join_group",
    ApiKey.HEARTBEAT: "penstock.broker.handlers.heartbeat",
    ApiKey.LEAVE_GROUP: "penstock.broker.handlers.leave_group",
    ApiKey.SYNC_GROUP: "penstock.broker.handlers.sync_group",
    ApiKey.DESCRIBE_GROUPS: "penstock.broker.handlers.describe_groups",
    ApiKey.LIST_GROUPS: "penstock.broker.handlers.list_groups",
    ApiKey.SASL_HANDSHAKE: "penstock.broker.handlers.sasl_handshake",
    ApiKey.API_VERSIONS: "penstock.broker.handlers.api_versions",
    ApiKey.CREATE_TOPICS: "penstock.broker.handlers.create_topics",
    ApiKey.DELETE_TOPICS: "penstock.broker.handlers.delete_topics",
    ApiKey.DELETE_RECORDS: "penstock.broker.handlers.delete_records",
    ApiKey.INIT_PRODUCER_ID: "penstock.broker.handlers.init_producer_id",
    ApiKey.OFFSET_FOR_LEADER_EPOCH: "penstock.broker.handlers.offset_for_leader_epoch",
    ApiKey.ADD_PARTITIONS_TO_TXN: "penstock.broker.handlers.add_partitions_to_txn",
    ApiKey.ADD_OFFSETS_TO_TXN: "penstock.broker.handlers.add_offsets_to_txn",
    ApiKey.END_TXN: "penstock.broker.handlers.end_txn",
    ApiKey.WRITE_TXN_MARKERS: "penstock.broker.handlers.write_txn_markers",
    ApiKey.TXN_OFFSET_COMMIT: "penstock.broker.handlers.txn_offset_commit",
    ApiKey.DESCRIBE_ACLS: "penstock.broker.handlers.describe_acls",
    ApiKey.CREATE_ACLS: "penstock.broker.handlers.create_acls",
    ApiKey.DELETE_ACLS: "penstock.broker.handlers.delete_acls",
    ApiKey.DESCRIBE_CONFIGS: "penstock.broker.handlers.describe_configs",
    ApiKey.ALTER_CONFIGS: "penstock.broker.handlers.alter_configs",
    ApiKey.ALTER_REPLICA_LOG_DIRS: "penstock.broker.handlers.alter_replica_log_dirs",
    ApiKey.DESCRIBE_LOG_DIRS: "penstock.broker.handlers.describe_log_dirs",
    ApiKey.SASL_AUTHENTICATE: "penstock.broker.handlers.sasl_authenticate",
    ApiKey.CREATE_PARTITIONS: "penstock.broker.handlers.create_partitions",
    ApiKey.CREATE_DELEGATION_TOKEN: "penstock.broker.handlers.create_delegation_token",
    ApiKey.RENEW_DELEGATION_TOKEN: "penstock.broker.handlers.renew_delegation_token",
    ApiKey.EXPIRE_DELEGATION_TOKEN: "penstock.broker.handlers.expire_delegation_token",
    ApiKey.DESCRIBE_DELEGATION_TOKEN: "penstock.broker.handlers.describe_delegation_token",
    ApiKey.DELETE_GROUPS: "penstock.broker.handlers.delete_groups",
    ApiKey.ELECT_LEADERS: "penstock.broker.handlers.elect_leaders",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "penstock.broker.handlers.incremental_alter_configs",
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: "penstock.broker.handlers.alter_partition_reassignments",
    ApiKey.LIST_PARTITION_REASSIGNMENTS: "penstock.broker.handlers.list_partition_reassignments",
    ApiKey.OFFSET_DELETE: "penstock.broker.handlers.offset_delete",
    ApiKey.DESCRIBE_CLIENT_QUOTAS: "penstock.broker.handlers.describe_client_quotas",
    ApiKey.ALTER_CLIENT_QUOTAS: "penstock.broker.handlers.alter_client_quotas",
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (
        "penstock.broker.handlers.describe_user_scram_credentials"
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: "penstock.broker.handlers.alter_user_scram_credentials",
    ApiKey.UPDATE_FEATURES: "penstock.broker.handlers.update_features",
    ApiKey.DESCRIBE_QUORUM: "penstock.broker.handlers.describe_quorum",
    ApiKey.DESCRIBE_CLUSTER: "penstock.broker.handlers.describe_cluster",
    ApiKey.DESCRIBE_PRODUCERS: "penstock.broker.handlers.describe_producers",
    ApiKey.UNREGISTER_BROKER: "penstock.broker.handlers.unregister_broker",
    ApiKey.DESCRIBE_TRANSACTIONS: "penstock.broker.handlers.describe_transactions",
    ApiKey.LIST_TRANSACTIONS: "penstock.broker.handlers.list_transactions",
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: "penstock.broker.handlers.get_telemetry_subscriptions",
    ApiKey.PUSH_TELEMETRY: "penstock.broker.handlers.push_telemetry",
    ApiKey.LIST_CONFIG_RESOURCES: "penstock.broker.handlers.list_config_resources",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: "penstock.broker.handlers.describe_topic_partitions",
    ApiKey.END_TRANSACTIONS: "penstock.broker.handlers.end_transactions",
    ApiKey.DESCRIBE_ROLES: "penstock.broker.handlers.describe_roles",
    ApiKey.ALTER_ROLES: "penstock.broker.handlers.alter_roles",
    ApiKey.CHECK_ACCESS: "penstock.broker.handlers.check_access",
    ApiKey.SHARE_STATE: "penstock.broker.handlers.share_state",
}
"""The APIs that every broker serves, with the module that handles each."""

CONSUMER_GROUP_APIS: Final[dict[ApiKey, str]] = {
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "penstock.broker.handlers.consumer_group_heartbeat",
    ApiKey.CONSUMER_GROUP_DESCRIBE: "penstock.broker.handlers.consumer_group_describe",
}
"""The APIs that brokers serve unless `group.coordinator.rebalance.protocols` leaves them out."""
SHARE_GROUP_APIS: Final[dict[ApiKey, str]] = {
    ApiKey.SHARE_FETCH: "penstock.broker.handlers.share_fetch",
    ApiKey.SHARE_ACKNOWLEDGE: "penstock.broker.handlers.share_acknowledge",
    ApiKey.SHARE_GROUP_HEARTBEAT: "penstock.broker.handlers.share_group_heartbeat",
    ApiKey.SHARE_GROUP_DESCRIBE: "penstock.broker.handlers.share_group_describe",
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: "penstock.broker.handlers.describe_share_group_offsets",
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: "penstock.broker.handlers.alter_share_group_offsets",
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: "penstock.broker.handlers.delete_share_group_offsets",
    ApiKey.DESCRIBE_QUEUE: "penstock.broker.handlers.describe_queue",
}
"""The APIs that brokers serve unless `group.share.enable` is false."""
