"""All errors that the clients raise. Each has an attribute `retriable`.

The docstring of `penstock.client.errors`, which defines them, shows the class tree.
"""

from __future__ import annotations

from penstock.client.consuming.record_decoder import DeserializationFailed
from penstock.client.errors import (
    ApiNotServed,
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
    NoOffset,
    NotKafka,
    OptionError,
    OutsideLog,
    RecordTooLarge,
    RequestTimedOut,
    SerializationFailed,
    TopicNotFound,
    TransactionAborted,
    UnknownTopicYet,
)
from penstock.client.routers import RoutingError
from penstock.wire.errors import ErrorCode

__all__ = [
    "ApiNotServed",
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
    "NoOffset",
    "NotKafka",
    "OptionError",
    "OutsideLog",
    "RecordTooLarge",
    "RequestTimedOut",
    "RoutingError",
    "SerializationFailed",
    "TopicNotFound",
    "TransactionAborted",
    "UnknownTopicYet",
]
