"""The tree of errors that clients raise. Each error says whether a retry may succeed.

ClientError            base of all errors; `retriable` says whether a retry may succeed
  OptionError          an option is unknown or invalid (also a ValueError)
  ConnectFailed        the connection could not be opened                       retriable
  ConnectionLost       the connection ended before the response arrived         retriable
  RequestTimedOut      no response in time; the request may have taken effect   retriable
  NotKafka             the response is not in the Kafka protocol
  ApiNotServed         the broker and this client have no common version of an API
  BrokerError          the broker answered with an error code                   depends on the code
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
  NoOffset             there is no position to read from, and no reset policy to find one
    OutsideLog         a range is no longer, or not yet, in the log; has the log's bounds
"""

from __future__ import annotations

from penstock.client.model import TopicPartition
from penstock.wire.errors import ErrorCode


class ClientError(Exception):
    """Base class of all errors that the clients raise."""

    retriable: bool = False


class OptionError(ClientError, ValueError):
    """An option is unknown or its value is invalid. The message suggests the closest valid name."""


class ConnectFailed(ClientError):
    """The connection to a broker could not be opened."""

    retriable = True

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot connect to {address}: {reason}")
        self.address = address
        self.reason = reason


class ConnectionLost(ClientError):
    """The connection ended before the response arrived. The request may have taken effect."""

    retriable = True


class RequestTimedOut(ClientError):
    """No response arrived in time. The request may have taken effect."""

    retriable = True


class NotKafka(ClientError):
    """The peer is not a Kafka broker, or sent something that is not in the Kafka protocol."""


class ApiNotServed(ClientError):
    """The broker and this client have no common version of an API: upgrade the older one."""


class BrokerError(ClientError):
    """The broker refused a request. Has the broker's own message if there was one."""

    def __init__(self, code: int, message: str | None = None, subject: str = "") -> None:
        self.code = _known(code)
        self.message = message or self.code.message
        if self.code != code:
            self.message = message or f"error code {code}, which this client does not know"
        self.subject = subject
        self.retriable = self.code.retriable
        super().__init__(f"{subject}: {self.message}" if subject else self.message)


class TopicNotFound(BrokerError):
    """The topic or the partition does not exist.

    In Kafka the error code is retriable, because metadata of a new topic spreads with a delay. This
    error is not: the code that raises it has already asked the cluster, and waited where that made
    sense.
    """

    def __init__(self, topic: str, partition: int | None = None) -> None:
        subject = f"topic {topic}" if partition is None else f"partition {partition} of {topic}"
        super().__init__(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{subject} does not exist", subject=""
        )
        self.retriable = False
        self.topic = topic
        self.partition = partition


class DeadlineExceeded(ClientError):
    """Retries continued until the deadline. `last` is the last error."""

    def __init__(self, what: str, seconds: float, last: ClientError) -> None:
        super().__init__(f"{what}: gave up after {seconds:g} s: {last}")
        self.last = last


class Closed(ClientError):
    """The client is closed, or was not started: start it, or make a new one if it is closed."""


class UnknownTopicYet(ClientError):
    """`send_nowait` cannot ask the cluster about a topic: call `await partitions_for(topic)`
    first."""

    retriable = True


class BufferExhausted(ClientError):
    """The buffer is full: `send` raises this after `max_block_ms`, `send_nowait` at once."""

    retriable = True


class DeliveryTimedOut(ClientError):
    """It is unknown whether the record was written, unless `last` says that it was not."""

    def __init__(self, message: str, last: ClientError | None = None) -> None:
        super().__init__(message)
        self.last = last


class RecordTooLarge(ClientError):
    """A record is larger than a limit: send a smaller one, or raise that limit."""


class SerializationFailed(ClientError):
    """A key, value or header could not be serialized: correct it or the serializer."""


class Fenced(ClientError):
    """Another client uses the same transactional id or group_instance_id: give each its own."""


class TransactionAborted(ClientError):
    """The transaction was aborted. The same producer may repeat the work in another transaction."""

    retriable = True


class CommitFailed(ClientError):
    """The group has rebalanced, and other members own the partitions now: continue to poll."""


class NoOffset(ClientError):
    """There is no offset to read from, and auto_offset_reset is none: seek to an offset."""


class OutsideLog(NoOffset):
    """A range begins before the start of its partition's log, or ends after its end."""

    def __init__(self, place: TopicPartition, offset: int, log_start: int, log_end: int) -> None:
        self.place = place
        self.offset = offset
        self.log_start = log_start
        self.log_end = log_end
        super().__init__(
            f"{place} does not hold offset {offset}: its log goes from {log_start} to {log_end}"
        )


def check(code: int, message: str | None = None, subject: str = "") -> None:
    """Raises the error that a response contains, if it contains one."""
    if code != ErrorCode.NONE:
        raise BrokerError(code, message, subject)


def outcome(code: int, message: str | None = None, subject: str = "") -> BrokerError | None:
    """Returns the error as a value, for responses about many things of which some may have
    failed."""
    return None if code == ErrorCode.NONE else BrokerError(code, message, subject)


def _known(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
