"""All errors that the clients raise. Each has an attribute `retriable`.

    ClientError            base of all errors; `retriable` says whether a retry may succeed
      OptionError          an option is unknown or invalid (also a ValueError)
      ConnectFailed        the connection could not be opened                       retriable
        TlsFailed          a certificate is not accepted, or the port has no TLS
      AuthenticationFailed the broker refused the login
      ConnectionLost       the connection ended before the response arrived         retriable
      RequestTimedOut      no response in time; the request may have taken effect   retriable
      NotKafka             the response is not in the Kafka protocol
      ApiNotServed         the broker and this client have no common version of an API
      BrokerError          the broker answered with an error code                   by code
        TopicNotFound      the topic or the partition does not exist
      DeadlineExceeded     retries continued until the deadline; has the last error
      Closed               the producer, consumer or admin has been closed
      UnknownTopicYet      `send_nowait` to a topic without known metadata          retriable
      BufferExhausted      the producer's buffer stayed full for `max_block_ms`     retriable
      DeliveryTimedOut     a record was not acknowledged within `delivery_timeout_ms`
      RecordTooLarge       a record is larger than the producer or the topic allows
      SerializationFailed  a serializer failed
        DeserializationFailed  a deserializer failed; has the record and its position
      Fenced               another client took over the identity of this one
      TransactionAborted   no record of the transaction will be read; repeat it     retriable
      CommitFailed         the group has rebalanced: other members own the partitions now
      LockLost             another worker may have the job: its lock is over
      NoOffset             there is no position to read from, and no reset policy to find one
        OutsideLog         a range is no longer, or not yet, in the log; has the log's bounds

`penstock.encryption` has errors of its own, `EncryptionFailed` and its subclasses; they are
`ClientError`s too. `ErrorCode` has the error codes of Kafka's protocol, which a `BrokerError`
names.
"""

from __future__ import annotations

from penstock.client.consuming.record_decoder import DeserializationFailed
from penstock.client.errors import (
    ApiNotServed,
    AuthenticationFailed,
    BrokerError,
    BufferExhausted,
    ClientError,
    Closed,
    CommitFailed,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    DeliveryTimedOut,
    Fenced,
    LockLost,
    NoOffset,
    NotKafka,
    OptionError,
    OutsideLog,
    RecordTooLarge,
    RequestTimedOut,
    SerializationFailed,
    TlsFailed,
    TopicNotFound,
    TransactionAborted,
    UnknownTopicYet,
)
from penstock.client.routers import RoutingError
from penstock.wire.errors import ErrorCode

__all__ = [
    "ApiNotServed",
    "AuthenticationFailed",
    "BrokerError",
    "BufferExhausted",
    "ClientError",
    "Closed",
    "CommitFailed",
    "ConnectFailed",
    "ConnectionLost",
    "DeadlineExceeded",
    "DeliveryTimedOut",
    "DeserializationFailed",
    "ErrorCode",
    "Fenced",
    "LockLost",
    "NoOffset",
    "NotKafka",
    "OptionError",
    "OutsideLog",
    "RecordTooLarge",
    "RequestTimedOut",
    "RoutingError",
    "SerializationFailed",
    "TlsFailed",
    "TopicNotFound",
    "TransactionAborted",
    "UnknownTopicYet",
]
