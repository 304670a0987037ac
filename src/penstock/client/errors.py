"""What can go wrong for a client, as one tree in which everything knows whether to try again.

ClientError            base of all; `retriable` says whether the same may succeed later
  OptionError          an option is unknown or wrong (also a ValueError)
  ConnectFailed        nobody answers there                                     retriable
  ConnectionLost       the connection ended before the answer came              retriable
  RequestTimedOut      no answer came in time; the request may have been done   retriable
  NotKafka             the answer is not the Kafka protocol
  ApiNotServed         the broker and this client share no version of an API
  BrokerError          the broker answered with an error code                   as the code says
    TopicNotFound      it knows no such topic, or no such partition of it
  DeadlineExceeded     retries went on until the time was up; says the last reason
  Closed               the producer, consumer or admin has been closed
  UnknownTopicYet      `send_nowait` to a topic that nobody asked about before    retriable
  BufferExhausted      the producer's buffer stayed full for `max_block_ms`     retriable
  DeliveryTimedOut     a record was not acknowledged within `delivery_timeout_ms`
  RecordTooLarge       a record is larger than the producer or the topic allows
  SerializationFailed  a serializer refused
    DeserializationFailed  a deserializer did; knows the record and its place
  Fenced               another client took over this one's identity
  TransactionAborted   nothing of a transaction will be read: do it again        retriable
  CommitFailed         the group has moved on: the partitions belong to others now
  NoOffset             there is no position to read from and no reset policy to find one
    OutsideLog         a range is no longer, or not yet, in the log; knows where that lies
"""

from __future__ import annotations

from penstock.client.model import TopicPartition
from penstock.wire.errors import ErrorCode


class ClientError(Exception):
    """Base of everything the client raises on purpose."""

    retriable: bool = False


class OptionError(ClientError, ValueError):
    """An option is unknown or its value is wrong; the message names the nearest that is right."""


class ConnectFailed(ClientError):
    retriable = True

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot connect to {address}: {reason}")
        self.address = address
        self.reason = reason


class ConnectionLost(ClientError):
    retriable = True


class RequestTimedOut(ClientError):
    retriable = True


class NotKafka(ClientError):
    """The peer is no Kafka broker, or it and we disagree about the protocol."""


class ApiNotServed(ClientError):
    pass


class BrokerError(ClientError):
    """A refusal, with the broker's own words where it had any."""

    def __init__(self, code: int, message: str | None = None, subject: str = "") -> None:
        self.code = _known(code)
        self.message = message or self.code.message
        if self.code != code:
            self.message = message or f"error code {code}, which this client does not know"
        self.subject = subject
        self.retriable = self.code.retriable
        super().__init__(f"{subject}: {self.message}" if subject else self.message)


class TopicNotFound(BrokerError):
    """The code is retriable in Kafka's book, since news of a topic spreads with a delay; whoever
    raises this has asked, and waited if it was worth it."""

    def __init__(self, topic: str, partition: int | None = None) -> None:
        subject = f"topic {topic}" if partition is None else f"partition {partition} of {topic}"
        super().__init__(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{subject} does not exist", subject=""
        )
        self.retriable = False
        self.topic = topic
        self.partition = partition


class DeadlineExceeded(ClientError):
    def __init__(self, what: str, seconds: float, last: ClientError) -> None:
        super().__init__(f"{what}: gave up after {seconds:g} s: {last}")
        self.last = last


class Closed(ClientError):
    pass


class UnknownTopicYet(ClientError):
    """`send_nowait` cannot ask the cluster about a topic: `await partitions_for(topic)` first."""

    retriable = True


class BufferExhausted(ClientError):
    retriable = True


class DeliveryTimedOut(ClientError):
    """Whether the record was written is not known, unless `last` says that it was not."""

    def __init__(self, message: str, last: ClientError | None = None) -> None:
        super().__init__(message)
        self.last = last


class RecordTooLarge(ClientError):
    pass


class SerializationFailed(ClientError):
    pass


class Fenced(ClientError):
    pass


class TransactionAborted(ClientError):
    """The same work may succeed in another transaction, of the same producer."""

    retriable = True


class CommitFailed(ClientError):
    pass


class NoOffset(ClientError):
    pass


class OutsideLog(NoOffset):
    """A range begins before its partition's log, or ends behind it."""

    def __init__(self, place: TopicPartition, offset: int, log_start: int, log_end: int) -> None:
        self.place = place
        self.offset = offset
        self.log_start = log_start
        self.log_end = log_end
        super().__init__(
            f"{place} does not hold offset {offset}: its log goes from {log_start} to {log_end}"
        )


def check(code: int, message: str | None = None, subject: str = "") -> None:
    """Raise the error that a response carries, if it carries one."""
    if code != ErrorCode.NONE:
        raise BrokerError(code, message, subject)


def outcome(code: int, message: str | None = None, subject: str = "") -> BrokerError | None:
    """The same as a value, for answers about many things of which some may have failed."""
    return None if code == ErrorCode.NONE else BrokerError(code, message, subject)


def _known(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
