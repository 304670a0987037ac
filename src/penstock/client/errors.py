"""The errors that clients raise. `penstock.errors` shows their tree.

Each error says whether a retry may succeed (`retriable`), and its message says what to do. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode

_RIGHTS: Final[Mapping[int, str]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        ": the user needs Write to send, Read to read, Describe to see it (penstock acl add)"
    ),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: (
        ": the user needs Read to join it or commit, Describe to see it (penstock acl add)"
    ),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: (
        ": the user needs IdempotentWrite to produce, Alter, Create or Describe to administer "
        "(penstock acl add)"
    ),
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        ": the user needs Write for transactions, Describe to see them (penstock acl add)"
    ),
}
"""The rights that are missing if a broker refuses a request with these codes."""


class ClientError(Exception):
    """Base class of all errors that the clients raise.

    Catch it where any failure is handled in the same way. `retriable` says whether the same call
    may succeed later.

    Example:
        try:
            admin.create_topic("orders")
        except ClientError as error:
            print(error.retriable, error)
        #> False Topic 'orders' already exists: use it, or choose another name.
    """

    retriable: bool = False


class OptionError(ClientError, ValueError):
    """An option is unknown or its value is not valid: correct it. The message suggests a name.

    It is raised when a client is created, before anything is sent. It is also a `ValueError`.

    Example:
        try:
            Producer("localhost:9092", linger=5)
        except errors.OptionError as error:
            print(error)
        #> unknown option 'linger': it is called linger_ms here
    """


class ConnectFailed(ClientError):
    """No connection to a broker could be opened: check the address, and that the broker is running.

    `address` is where the client tried to connect, `reason` why that failed.

    Example:
        try:
            Admin("localhost:1").start()
        except errors.ConnectFailed as error:
            print(error.address, error.retriable)
        #> localhost:1 True
    """

    retriable = True

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot connect to {address}: {reason}")
        self.address = address
        self.reason = reason


class TlsFailed(ConnectFailed):
    """TLS failed: a certificate is not accepted, or the port has no TLS. `reason` says what to set.

    Not retriable: the next attempt would fail in the same way.

    Example:
        try:
            Admin("localhost:8080", security_protocol="SSL").start()
        except errors.TlsFailed as error:
            print(error.reason.partition(":")[0])
        #> it answers without TLS
    """

    retriable = False


class AuthenticationFailed(ClientError):
    """The broker refused the login: check the user name, and the password or token.

    Not retriable: the same login would be refused again. `address` is the broker, `reason` is its
    answer. Neither has a password or token.

    Example:
        login = {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "ann", "sasl_password": "tea"}
        try:
            Admin("localhost:9092", security_protocol="SASL_PLAINTEXT", **login).start()
        except errors.AuthenticationFailed as error:
            print("retry" if error.retriable else "correct the password")
        #> correct the password
    """

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot log in at {address}: {reason}")
        self.address = address
        self.reason = reason


class ConnectionLost(ClientError):
    """The connection ended before the response arrived. The request may have taken effect.

    The clients repeat requests that may be repeated. Others raise this error: find out what
    happened before you repeat them.

    Example:
        with testing.Faults("localhost:9092") as faults, Admin(faults.bootstrap) as admin:
            faults.cut_after(0, api="CreateTopics")
            try:
                admin.create_topic("refunds")
            except errors.ConnectionLost:
                print([topic.name for topic in admin.list_topics()])
        #> ['refunds']
    """

    retriable = True


class RequestTimedOut(ClientError):
    """No response arrived in time. The request may have taken effect.

    Example:
        with Producer("localhost:9092", linger_ms=1_000) as producer:
            delivery = producer.send("orders", b"tea")
            try:
                delivery.result(timeout_s=0.01)
            except errors.RequestTimedOut as error:
                print(error)
        #> not delivered within 0.01 s; it is still on its way
    """

    retriable = True


class NotKafka(ClientError):
    """The server does not answer in the Kafka protocol: check the port, and that it has no TLS.

    Example:
        try:
            Admin("localhost:8080").start()
        except errors.NotKafka as error:
            print("not a broker" if not error.retriable else "try again")
        #> not a broker
    """


class ApiNotServed(ClientError):
    """The broker and this client have no common version of an API: upgrade the older one.

    Example:
        try:
            print(admin.describe_cluster().controller_id)
        except errors.ApiNotServed:
            print("this needs Kafka 2.8 or later")
        #> 0
    """


class BrokerError(ClientError):
    """The broker refused a request. `code` says why; `message` is the broker's explanation.

    `retriable` depends on the code. `subject` names what the error is about, if the request was
    about several things.

    Example:
        try:
            admin.create_topic("orders")
        except BrokerError as error:
            if error.code != errors.ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
    """

    def __init__(self, code: int, message: str | None = None, subject: str = "") -> None:
        self.code = _known(code)
        self.message = message or self.code.message + _RIGHTS.get(self.code, "")
        if self.code != code:
            self.message = message or f"error code {code}, which this client does not know"
        self.subject = subject
        self.retriable = self.code.retriable
        super().__init__(f"{subject}: {self.message}" if subject else self.message)


class TopicNotFound(BrokerError):
    """The topic or the partition does not exist: create it, or correct its name.

    In Kafka the error code is retriable, because metadata of a new topic spreads with a delay. This
    error is not: the code that raises it has already asked the cluster, and waited where that made
    sense.

    Example:
        try:
            admin.describe_topic("refunds")
        except errors.TopicNotFound as error:
            admin.create_topic(error.topic)
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
    """A call was repeated until its timeout. `last` is the error of the last attempt.

    Calls of consumers and admin clients take `default_api_timeout_ms`, unless they have a timeout
    of their own. The call may have taken effect.

    Example:
        producer.send("orders", b"tea")
        try:
            producer.flush(timeout_s=0)
        except errors.DeadlineExceeded as error:
            print(error.last)
        #> 1 batches are not acknowledged yet
    """

    def __init__(self, what: str, seconds: float, last: ClientError) -> None:
        super().__init__(f"{what}: gave up after {seconds:g} s: {last}")
        self.last = last


class Closed(ClientError):
    """The client is closed, or was not started: start it, or make a new one if it is closed.

    Example:
        producer.close()
        try:
            producer.send("orders", b"tea")
        except errors.Closed as error:
            print(error)
        #> the producer is closed: make a new one
    """


class UnknownTopicYet(ClientError):
    """`send_nowait` cannot ask the cluster about a topic: call `partitions_for(topic)` first.

    Example:
        try:
            producer.send_nowait("orders", b"tea")
        except errors.UnknownTopicYet:
            producer.partitions_for("orders")
            producer.send_nowait("orders", b"tea")
    """

    retriable = True


class BufferExhausted(ClientError):
    """The producer's buffer is full: the brokers accept records more slowly than they are sent.

    `send` raises it after `max_block_ms`, `send_nowait` at once. Send more slowly, or raise
    `buffer_memory`.

    Example:
        with Producer("localhost:9092", buffer_memory=16_384, linger_ms=100) as producer:
            producer.partitions_for("orders")
            try:
                for _ in range(100):
                    producer.send_nowait("orders", bytes(1_000))
            except BufferExhausted:
                producer.flush()
    """

    retriable = True


class DeliveryTimedOut(ClientError):
    """A record was not acknowledged within `delivery_timeout_ms`. It may have been written.

    `last` is the error of the last attempt, if there was one. If you send the record again, it may
    be stored twice.

    Example:
        with testing.Faults("localhost:9092") as faults:
            faults.silence(api="Produce")
            timeouts = {"request_timeout_ms": 100, "delivery_timeout_ms": 200}
            with Producer(faults.bootstrap, **timeouts) as producer:
                try:
                    producer.send("orders", b"tea").result()
                except errors.DeliveryTimedOut as error:
                    print(type(error.last).__name__)
        #> RequestTimedOut
    """

    def __init__(self, message: str, last: ClientError | None = None) -> None:
        super().__init__(message)
        self.last = last


class RecordTooLarge(ClientError):
    """A record is larger than a limit: send a smaller one, or raise the limit.

    The limits are the producer's `max_request_size` and the topic's `max.message.bytes`.

    Example:
        try:
            producer.send("orders", bytes(2_000_000))
        except errors.RecordTooLarge:
            producer.send("orders", b"see https://example.com/orders/42")
    """


class SerializationFailed(ClientError):
    """A key, value or header could not be serialized: correct it or the serializer.

    `send` raises it, and nothing was sent. A consumer raises `DeserializationFailed`.

    Example:
        with Producer("localhost:9092", value_serializer=serializers.json) as producer:
            try:
                producer.send("orders", {"tea", "milk"})
            except errors.SerializationFailed:
                producer.send("orders", ["tea", "milk"])
    """


class Fenced(ClientError):
    """Another client took over the transactional id or `group_instance_id`: give each its own.

    This client cannot continue. If it is an older instance of the same application, let it end.

    Example:
        with Producer("localhost:9092", transactional_id="billing-1") as older:
            with Producer("localhost:9092", transactional_id="billing-1"):
                try:
                    with older.transaction():
                        older.send("orders", b"tea")
                except Fenced:
                    print("another instance has taken over")
        #> another instance has taken over
    """


class TransactionAborted(ClientError):
    """The transaction was aborted: no consumer with read_committed will read its records.

    The same producer may repeat the work in another transaction.

    Example:
        with Producer("localhost:9092", transactional_id="billing-1") as producer:
            for _ in range(3):
                try:
                    with producer.transaction():
                        producer.send("orders", b"tea").result()
                    break
                except errors.TransactionAborted as error:
                    print("once more:", error)
    """

    retriable = True


class CommitFailed(ClientError):
    """The group has rebalanced, and other members own the partitions now: continue to poll.

    The new owners read the records again from the last committed offsets.

    Example:
        records = consumer.poll(timeout_ms=10_000)
        try:
            consumer.commit()
        except CommitFailed:
            print("other members will process these records again")
    """


class LockLost(ClientError):
    """This client no longer holds the lock of a job: the job is delivered again, or was given up.

    The lock timed out, the connection was lost, or another broker leads the partition now. If an
    acknowledgement was sent just before the connection was lost, it may have taken effect.

    Example:
        with Queue("localhost:9092", "jobs") as queue:
            queue.put(b"resize cat.png")
            job = queue.take()
            try:
                job.done()
            except errors.LockLost:
                print("another worker will do it again")
    """


class NoOffset(ClientError):
    """There is no offset to read from, and `auto_offset_reset` is "none": seek to an offset.

    Example:
        with Consumer("localhost:9092", topics="orders", auto_offset_reset="none") as consumer:
            try:
                consumer.poll(timeout_ms=10_000)
            except errors.NoOffset:
                consumer.seek_to_beginning()
            print(consumer.poll(timeout_ms=10_000)[0].value)
        #> b'tea'
    """


class OutsideLog(NoOffset):
    """A range begins before the start of its partition's log, or ends after its end.

    The error has `topic_partition` and `offset`, and the bounds `log_start` and `log_end`. Records
    before `log_start` have been deleted.

    Example:
        try:
            consumer.read_table("orders", end={0: 100})
        except errors.OutsideLog as error:
            print(consumer.read_table("orders", end={0: error.log_end}).num_rows)
        #> 3
    """

    def __init__(
        self, topic_partition: TopicPartition, offset: int, log_start: int, log_end: int
    ) -> None:
        self.topic_partition = topic_partition
        self.offset = offset
        self.log_start = log_start
        self.log_end = log_end
        super().__init__(
            f"{topic_partition} does not hold offset {offset}: its log goes from {log_start} to "
            f"{log_end}"
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
