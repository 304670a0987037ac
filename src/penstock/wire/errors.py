"""Kafka's error codes, and the exceptions of the protocol.

`ErrorCode` is what responses contain. `KafkaError` carries a code up the stack to the one place
that turns it into a response. `ProtocolError` is for bytes that are not valid Kafka protocol: they
cannot be answered, so the connection is closed.
"""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """Kafka's error codes. If a code is retriable, the same request may succeed later.

    Example:
        code = errors.ErrorCode.NOT_LEADER_OR_FOLLOWER
        print(int(code), code.retriable, code.message)
        #> 6 True this broker is neither leader nor follower of the partition
    """

    retriable: bool
    message: str

    def __new__(cls, code: int, retriable: bool = False, message: str = "") -> ErrorCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.message = message
        return member

    UNKNOWN_SERVER_ERROR = (
        -1,
        False,
        "the broker failed unexpectedly; see its log",
    )
    NONE = 0, False, "no error"
    OFFSET_OUT_OF_RANGE = 1, False, "the offset is not in the range that this partition has"
    CORRUPT_MESSAGE = 2, True, "the records fail their checksum or are malformed"
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "this broker does not know the topic or partition"
    INVALID_FETCH_SIZE = 4, False, "the fetch size is not valid"
    LEADER_NOT_AVAILABLE = 5, True, "the partition has no leader at the moment"
    NOT_LEADER_OR_FOLLOWER = 6, True, "this broker is neither leader nor follower of the partition"
    REQUEST_TIMED_OUT = 7, True, "the request was not completed within its timeout"
    BROKER_NOT_AVAILABLE = 8, False, "the broker is not available"
    REPLICA_NOT_AVAILABLE = 9, True, "the replica is not available"
    MESSAGE_TOO_LARGE = 10, False, "the batch is larger than max.message.bytes allows"
    STALE_CONTROLLER_EPOCH = 11, False, "a newer controller has taken over"
    OFFSET_METADATA_TOO_LARGE = 12, False, "the metadata of the committed offset is too long"
    NETWORK_EXCEPTION = 13, True, "the connection was lost before the response arrived"
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, "the coordinator is still loading its state"
    COORDINATOR_NOT_AVAILABLE = 15, True, "there is no coordinator at the moment"
    NOT_COORDINATOR = 16, True, "this broker does not coordinate that group or transaction"
    INVALID_TOPIC_EXCEPTION = (
        17,
        False,
        "the topic name is not valid, or the operation is not allowed on this topic",
    )
    RECORD_LIST_TOO_LARGE = 18, False, "the batches together are larger than a segment"
    NOT_ENOUGH_REPLICAS = 19, True, "fewer replicas are in sync than min.insync.replicas requires"
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        True,
        "the records were written, but to fewer in-sync replicas than required",
    )
    INVALID_REQUIRED_ACKS = 21, False, "acks must be 0, 1 or -1"
    ILLEGAL_GENERATION = 22, False, "the group has moved on to another generation"
    INCONSISTENT_GROUP_PROTOCOL = (
        23,
        False,
        "the member has no protocol in common with the rest of the group",
    )
    INVALID_GROUP_ID = 24, False, "the group id is not valid"
    UNKNOWN_MEMBER_ID = 25, False, "the group has no such member"
    INVALID_SESSION_TIMEOUT = (
        26,
        False,
        "the session timeout is outside the range that the broker allows",
    )
    REBALANCE_IN_PROGRESS = 27, False, "the group is rebalancing; join again"
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "the offset commit is too large to store"
    TOPIC_AUTHORIZATION_FAILED = 29, False, "not allowed on this topic"
    GROUP_AUTHORIZATION_FAILED = 30, False, "not allowed on this group"
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "not allowed on this cluster"
    INVALID_TIMESTAMP = 32, False, "the timestamp is outside the range the topic accepts"
    UNSUPPORTED_SASL_MECHANISM = 33, False, "the broker does not offer this SASL mechanism"
    ILLEGAL_SASL_STATE = 34, False, "the request does not fit the state of the authentication"
    UNSUPPORTED_VERSION = 35, False, "the broker does not support this version of the API"
    TOPIC_ALREADY_EXISTS = 36, False, "a topic with this name already exists"
    INVALID_PARTITIONS = 37, False, "the number of partitions is not valid"
    INVALID_REPLICATION_FACTOR = (
        38,
        False,
        "the replication factor is below one or above the number of brokers",
    )
    INVALID_REPLICA_ASSIGNMENT = 39, False, "the replica assignment is not valid"
    INVALID_CONFIG = 40, False, "the configuration is not valid"
    NOT_CONTROLLER = 41, True, "this broker is not the controller"
    INVALID_REQUEST = 42, False, "the request contradicts itself or the protocol"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = (
        43,
        False,
        "the record format does not allow this; use record batches of format 2",
    )
    POLICY_VIOLATION = 44, False, "a policy of this cluster forbids it"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, False, "an earlier batch of this producer is missing"
    DUPLICATE_SEQUENCE_NUMBER = (
        46,
        False,
        "this batch was already written, longer ago than the broker remembers",
    )
    INVALID_PRODUCER_EPOCH = 47, False, "a newer producer has taken over this producer id"
    INVALID_TXN_STATE = 48, False, "the transaction is in a state that does not allow this"
    INVALID_PRODUCER_ID_MAPPING = (
        49,
        False,
        "the producer id does not belong to this transactional id",
    )
    INVALID_TRANSACTION_TIMEOUT = 50, False, "the transaction timeout is above the broker's maximum"
    CONCURRENT_TRANSACTIONS = 51, True, "the transaction before this one is still being completed"
    TRANSACTION_COORDINATOR_FENCED = 52, False, "a newer transaction coordinator has taken over"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "not allowed on this transactional id"
    SECURITY_DISABLED = 54, False, "this cluster has no access control"
    OPERATION_NOT_ATTEMPTED = 55, False, "not attempted, because another part of the request failed"
    KAFKA_STORAGE_ERROR = 56, True, "the disk that holds the partition failed"
    LOG_DIR_NOT_FOUND = 57, False, "the broker has no such log directory"
    SASL_AUTHENTICATION_FAILED = 58, False, "authentication failed"
    UNKNOWN_PRODUCER_ID = 59, False, "the broker no longer knows this producer"
    REASSIGNMENT_IN_PROGRESS = 60, False, "the partition's replicas are being moved"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False, "delegation tokens are disabled"
    DELEGATION_TOKEN_NOT_FOUND = 62, False, "there is no such delegation token"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, False, "the delegation token belongs to another principal"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (
        64,
        False,
        "delegation token requests need an authenticated secure connection",
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, False, "not allowed on this delegation token"
    DELEGATION_TOKEN_EXPIRED = 66, False, "the delegation token has expired"
    INVALID_PRINCIPAL_TYPE = 67, False, "principals of this type are not supported"
    NON_EMPTY_GROUP = 68, False, "the group still has members"
    GROUP_ID_NOT_FOUND = 69, False, "there is no such group"
    FETCH_SESSION_ID_NOT_FOUND = 70, True, "the broker has no such fetch session"
    INVALID_FETCH_SESSION_EPOCH = 71, True, "the fetch session is at another epoch"
    LISTENER_NOT_FOUND = (
        72,
        True,
        "the leader has no listener with the name of the one that was used",
    )
    TOPIC_DELETION_DISABLED = 73, False, "topic deletion is disabled"
    FENCED_LEADER_EPOCH = 74, True, "the leader epoch in the request is older than the broker's"
    UNKNOWN_LEADER_EPOCH = 75, True, "the leader epoch in the request is newer than the broker's"
    UNSUPPORTED_COMPRESSION_TYPE = (
        76,
        False,
        "the client does not support this compression, or may not use it",
    )
    STALE_BROKER_EPOCH = 77, False, "the broker epoch is old; the broker has registered again"
    OFFSET_NOT_AVAILABLE = (
        78,
        True,
        "the leader is new and its high watermark has not caught up yet",
    )
    MEMBER_ID_REQUIRED = 79, False, "join again with the member id in this response"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, "the preferred leader is not available"
    GROUP_MAX_SIZE_REACHED = 81, False, "the group is full"
    FENCED_INSTANCE_ID = 82, False, "another member has taken over this group instance id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, "no replica that may become leader is available"
    ELECTION_NOT_NEEDED = 84, True, "the partition already has the requested leader"
    NO_REASSIGNMENT_IN_PROGRESS = 85, False, "no reassignment of this partition is under way"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, "the group is still subscribed to the topic"
    INVALID_RECORD = 87, False, "a record is not valid for this topic"
    UNSTABLE_OFFSET_COMMIT = 88, True, "an open transaction may still change this offset"
    THROTTLING_QUOTA_EXCEEDED = 89, True, "a quota is exceeded; wait as long as the response says"
    PRODUCER_FENCED = 90, False, "a newer producer has taken over this transactional id"
    RESOURCE_NOT_FOUND = 91, False, "there is no such resource"
    DUPLICATE_RESOURCE = 92, False, "the request names a resource twice"
    UNACCEPTABLE_CREDENTIAL = 93, False, "the credential does not meet the rules"
    INCONSISTENT_VOTER_SET = 94, False, "the voters differ from those that this node knows"
    INVALID_UPDATE_VERSION = 95, False, "the feature version to change to is not valid"
    FEATURE_UPDATE_FAILED = 96, False, "the features could not be changed"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, False, "the forwarded principal could not be read"
    SNAPSHOT_NOT_FOUND = 98, False, "there is no such snapshot"
    POSITION_OUT_OF_RANGE = 99, False, "the position is outside the snapshot"
    UNKNOWN_TOPIC_ID = 100, True, "this broker does not know a topic with this id"
    DUPLICATE_BROKER_REGISTRATION = 101, False, "another running broker has this broker id"
    BROKER_ID_NOT_REGISTERED = 102, False, "no broker with this id has registered"
    INCONSISTENT_TOPIC_ID = 103, True, "the log belongs to another topic id"
    INCONSISTENT_CLUSTER_ID = 104, False, "the request is meant for another cluster"
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "there is no such transactional id"
    FETCH_SESSION_TOPIC_ID_ERROR = (
        106,
        True,
        "the fetch session mixes requests with and without topic ids",
    )
    INELIGIBLE_REPLICA = 107, False, "the new ISR contains a replica that is not eligible"
    NEW_LEADER_ELECTED = 108, False, "the change made the controller elect another leader"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False, "the offset has moved to tiered storage"
    FENCED_MEMBER_EPOCH = (
        110,
        False,
        "the member epoch does not match the coordinator's; give up all partitions and join again",
    )
    UNRELEASED_INSTANCE_ID = 111, False, "the member that holds this instance id has not left"
    UNSUPPORTED_ASSIGNOR = 112, False, "the group does not offer this assignor"
    STALE_MEMBER_EPOCH = (
        113,
        False,
        "the member epoch is behind; send the request again after the next heartbeat",
    )
    MISMATCHED_ENDPOINT_TYPE = 114, False, "the request was sent to the wrong kind of endpoint"
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "this kind of endpoint is unknown"
    UNKNOWN_CONTROLLER_ID = 116, False, "there is no controller with this id"
    UNKNOWN_SUBSCRIPTION_ID = (
        117,
        False,
        "the telemetry subscription has changed; ask for the new one",
    )
    TELEMETRY_TOO_LARGE = 118, False, "the telemetry is larger than the broker accepts"
    INVALID_REGISTRATION = 119, False, "the controller refused the registration as not valid"
    TRANSACTION_ABORTABLE = (
        120,
        False,
        "the transaction must be aborted; the producer can continue afterwards",
    )
    INVALID_RECORD_STATE = (
        121,
        False,
        "the record is not in a state that allows this acknowledgement",
    )
    SHARE_SESSION_NOT_FOUND = 122, True, "the broker has no such share session"
    INVALID_SHARE_SESSION_EPOCH = 123, True, "the share session is at another epoch"
    FENCED_STATE_EPOCH = 124, False, "the share state has a newer epoch"
    INVALID_VOTER_KEY = 125, False, "the voter key does not match the receiver's"
    DUPLICATE_VOTER = 126, False, "this voter is already in the set"
    VOTER_NOT_FOUND = 127, False, "there is no such voter"
    INVALID_REGULAR_EXPRESSION = 128, False, "the regular expression is not valid"
    REBOOTSTRAP_REQUIRED = (
        129,
        False,
        "the client's view of the cluster is out of date; start from the bootstrap servers",
    )
    STREAMS_INVALID_TOPOLOGY = 130, False, "the streams topology is not valid"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, False, "the streams topology epoch is not valid"
    STREAMS_TOPOLOGY_FENCED = 132, False, "the streams topology epoch is out of date"
    SHARE_SESSION_LIMIT_REACHED = 133, True, "the broker has reached its limit of share sessions"


class KafkaError(Exception):
    """A request, or a part of it, fails with this code. `message` is for people."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message or code.message

    @property
    def retriable(self) -> bool:
        return self.code.retriable

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


class ProtocolError(ValueError):
    """Bytes that violate the protocol, or a message that cannot be encoded."""
