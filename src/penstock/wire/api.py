"""The names and numbers of all APIs, and the versions of each that we advertise.

The version ranges suit the clients in use, including old ones. Some clients look for a certain low
version. If it is missing, they use fewer features or stop compressing. So the minima stay low.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from penstock.wire.messages.cluster import ApiVersionsResponse
from penstock.wire.schema.notation import Versions


class ApiKey(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    END_TRANSACTIONS = 10001
    """Penstock's own API, with a number far from Kafka's: ends many transactions together."""
    DESCRIBE_ROLES = 10002
    """Penstock's own, as the following: Kafka has no roles."""
    ALTER_ROLES = 10003
    CHECK_ACCESS = 10004
    SHARE_STATE = 10005
    """Brokers ask the share coordinator. Kafka's APIs for it (83 to 87) do not suit our states."""
    DESCRIBE_QUEUE = 10006
    """How much a share group has to do on a leader."""

    @property
    def api_name(self) -> str:
        """The name as Kafka and our message classes spell it, for example `OffsetFetch`."""
        return self.name.title().replace("_", "")


class VersionRange(NamedTuple):
    """The versions that we advertise, and the lowest that we really serve (`serve_min`)."""

    min_version: int
    max_version: int
    serve_min: int

    @property
    def served(self) -> Versions:
        return Versions(self.serve_min, self.max_version)


def _range(first: int, last: int, serve_min: int | None = None) -> VersionRange:
    return VersionRange(first, last, first if serve_min is None else serve_min)


SUPPORTED: Final[dict[ApiKey, VersionRange]] = {
    # Older versions of librdkafka compress only if version 0 is advertised, but never send it.
    ApiKey.PRODUCE: _range(0, 12, serve_min=3),
    ApiKey.FETCH: _range(4, 17),
    ApiKey.LIST_OFFSETS: _range(1, 10),
    ApiKey.METADATA: _range(0, 13),
    ApiKey.OFFSET_COMMIT: _range(2, 9),
    ApiKey.OFFSET_FETCH: _range(1, 9),
    ApiKey.FIND_COORDINATOR: _range(0, 6),
    ApiKey.JOIN_GROUP: _range(0, 9),
    ApiKey.HEARTBEAT: _range(0, 4),
    ApiKey.LEAVE_GROUP: _range(0, 5),
    ApiKey.SYNC_GROUP: _range(0, 5),
    ApiKey.DESCRIBE_GROUPS: _range(0, 6),
    ApiKey.LIST_GROUPS: _range(0, 5),
    ApiKey.SASL_HANDSHAKE: _range(0, 1),
    ApiKey.API_VERSIONS: _range(0, 4),
    ApiKey.CREATE_TOPICS: _range(2, 7),
    ApiKey.DELETE_TOPICS: _range(1, 6),
    ApiKey.DELETE_RECORDS: _range(0, 2),
    ApiKey.INIT_PRODUCER_ID: _range(0, 5),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _range(2, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: _range(0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: _range(0, 4),
    ApiKey.END_TXN: _range(0, 5),
    ApiKey.WRITE_TXN_MARKERS: _range(1, 2),
    ApiKey.TXN_OFFSET_COMMIT: _range(0, 5),
    ApiKey.DESCRIBE_ACLS: _range(1, 3),
    ApiKey.CREATE_ACLS: _range(1, 3),
    ApiKey.DELETE_ACLS: _range(1, 3),
    ApiKey.DESCRIBE_CONFIGS: _range(1, 4),
    ApiKey.ALTER_CONFIGS: _range(0, 2),
    ApiKey.ALTER_REPLICA_LOG_DIRS: _range(1, 2),
    ApiKey.DESCRIBE_LOG_DIRS: _range(1, 4),
    ApiKey.SASL_AUTHENTICATE: _range(0, 2),
    ApiKey.CREATE_PARTITIONS: _range(0, 3),
    ApiKey.CREATE_DELEGATION_TOKEN: _range(1, 3),
    ApiKey.RENEW_DELEGATION_TOKEN: _range(1, 2),
    ApiKey.EXPIRE_DELEGATION_TOKEN: _range(1, 2),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: _range(1, 3),
    ApiKey.DELETE_GROUPS: _range(0, 2),
    ApiKey.ELECT_LEADERS: _range(0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _range(0, 1),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _range(0, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _range(0, 0),
    ApiKey.OFFSET_DELETE: _range(0, 0),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _range(0, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: _range(0, 1),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _range(0, 0),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _range(0, 0),
    ApiKey.DESCRIBE_QUORUM: _range(0, 2),
    ApiKey.UPDATE_FEATURES: _range(0, 2),
    ApiKey.DESCRIBE_CLUSTER: _range(0, 2),
    ApiKey.DESCRIBE_PRODUCERS: _range(0, 0),
    ApiKey.UNREGISTER_BROKER: _range(0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: _range(0, 0),
    ApiKey.LIST_TRANSACTIONS: _range(0, 2),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _range(0, 1),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _range(0, 1),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: _range(0, 0),
    ApiKey.PUSH_TELEMETRY: _range(0, 0),
    ApiKey.LIST_CONFIG_RESOURCES: _range(0, 1),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _range(0, 0),
    ApiKey.SHARE_FETCH: _range(1, 2),
    ApiKey.SHARE_ACKNOWLEDGE: _range(1, 2),
    ApiKey.SHARE_GROUP_HEARTBEAT: _range(1, 1),
    ApiKey.SHARE_GROUP_DESCRIBE: _range(1, 1),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: _range(0, 1),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: _range(0, 0),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: _range(0, 0),
    ApiKey.END_TRANSACTIONS: _range(0, 0),
    ApiKey.DESCRIBE_ROLES: _range(0, 0),
    ApiKey.ALTER_ROLES: _range(0, 0),
    ApiKey.CHECK_ACCESS: _range(0, 0),
    ApiKey.SHARE_STATE: _range(0, 0),
    ApiKey.DESCRIBE_QUEUE: _range(0, 0),
}
"""The versions that a broker advertises for APIs with a handler: see `served`, `advertised`."""


def served(keys: Iterable[ApiKey]) -> dict[int, Versions]:
    """Returns the versions that we serve of these APIs, which `codec.decode_request` checks."""
    return {int(key): SUPPORTED[key].served for key in keys}


def advertised(keys: Iterable[ApiKey]) -> list[ApiVersionsResponse.ApiVersion]:
    """Returns the version ranges of these APIs for an ApiVersions response, sorted by key."""
    ranges = ((key, SUPPORTED[key]) for key in sorted(keys))
    return [
        ApiVersionsResponse.ApiVersion(int(key), known.min_version, known.max_version)
        for key, known in ranges
    ]
