"""The transport as kombu uses it: queues, exchanges, acknowledgements, prefetch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import ChannelError

import penstock
from celery_transport.task_workers import wait_until
from penstock.errors import ConnectFailed
from penstock.testing import Broker

pytestmark = pytest.mark.xdist_group("celery")


@pytest.fixture
def url(broker: Broker) -> str:
    return f"penstock://{broker.bootstrap}"


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    with Connection(url) as made:
        yield made


@pytest.fixture
def name(broker: Broker) -> str:
    return broker.new_name("queue")


def publish(connection: Connection, body: object, exchange: Any = None, **options: Any) -> None:
    with connection.channel() as channel:
        Producer(channel, exchange).publish(body, **options)


class Receiver:
    """Consumes queues, and keeps the messages."""

    def __init__(self, connection: Connection, *queues: Queue, **options: Any) -> None:
        self.connection = connection
        self.channel = connection.channel()
        self.messages: list[Any] = []
        prefetch = options.pop("prefetch", 0)
        self.channel.basic_qos(0, prefetch, False)
        self.consumer = Consumer(
            self.channel, list(queues), on_message=self.messages.append, **options
        )
        self.consumer.consume()

    def drain(self, count: int) -> list[Any]:
        """Waits until there are `count` messages."""

        def has_all() -> bool:
            with suppress(TimeoutError):
                self.connection.drain_events(timeout=0.2)
            return len(self.messages) >= count

        wait_until(has_all, f"{count} messages have arrived, not {len(self.messages)}")
        return [message.payload for message in self.messages]

    def stays_at(self, count: int) -> None:
        """Nothing more arrives in a second."""
        for _ in range(5):
            with pytest.raises(TimeoutError):
                self.connection.drain_events(timeout=0.2)
        assert len(self.messages) == count


def shared(name: str, exchange: Exchange | None = None, routing_key: str = "") -> Queue:
    return Queue(name, exchange, routing_key, durable=True)


def own(name: str, exchange: Exchange | None = None, routing_key: str = "") -> Queue:
    return Queue(name, exchange, routing_key, durable=False, auto_delete=True)


def test_a_connection_to_nobody_is_a_connection_error() -> None:
    connection = Connection("penstock://localhost:1")
    with pytest.raises(ConnectFailed) as caught:
        connection.connect()
    assert isinstance(caught.value, connection.connection_errors)
    connection.release()


def test_a_message_comes_back_as_it_was_sent(connection: Connection, name: str) -> None:
    shared(name)(connection.default_channel).declare()
    publish(connection, {"a": [1, "ü"]}, routing_key=name, headers={"id": 7}, correlation_id="c")
    receiver = Receiver(connection, shared(name))
    assert receiver.drain(1) == [{"a": [1, "ü"]}]
    message = receiver.messages[0]
    assert message.headers == {"id": 7}
    assert message.properties["correlation_id"] == "c"
    assert message.delivery_info["routing_key"] == name
    assert message.delivery_info["redelivered"] is False
    message.ack()


def test_a_message_that_is_not_acknowledged_goes_to_another_client(url: str, name: str) -> None:
    with Connection(url) as first:
        shared(name)(first.default_channel).declare()
        publish(first, "job", routing_key=name)
        Receiver(first, shared(name)).drain(1)
    with Connection(url) as second:
        receiver = Receiver(second, shared(name))
        assert receiver.drain(1) == ["job"]
        assert receiver.messages[0].delivery_info["redelivered"] is True
        receiver.messages[0].ack()


def test_a_message_can_be_requeued_more_often_than_records_are_delivered(
    connection: Connection, name: str
) -> None:
    """Share groups give a record up after five deliveries."""
    shared(name)(connection.default_channel).declare()
    publish(connection, "job", routing_key=name)
    receiver = Receiver(connection, shared(name))
    for count in range(1, 9):
        assert receiver.drain(count) == ["job"] * count
        receiver.messages[-1].requeue()
    assert receiver.drain(9)
    receiver.messages[-1].ack()
    receiver.stays_at(9)


def test_recover_gives_all_messages_back(connection: Connection, name: str) -> None:
    shared(name)(connection.default_channel).declare()
    publish(connection, "one", routing_key=name)
    receiver = Receiver(connection, shared(name))
    receiver.drain(1)
    receiver.consumer.recover(requeue=True)
    assert receiver.drain(2) == ["one", "one"]
    receiver.messages[1].ack()


def test_a_rejected_message_is_gone(connection: Connection, name: str) -> None:
    shared(name)(connection.default_channel).declare()
    publish(connection, "bad", routing_key=name)
    receiver = Receiver(connection, shared(name))
    receiver.drain(1)
    receiver.messages[0].reject()
    publish(connection, "good", routing_key=name)
    assert receiver.drain(2) == ["bad", "good"]
    receiver.messages[1].ack()
    receiver.stays_at(2)


def test_prefetch_limits_what_a_client_holds(url: str, name: str) -> None:
    """What the first client may not hold is free for the second."""
    with Connection(url) as one:
        shared(name)(one.default_channel).declare()
        for number in range(5):
            publish(one, number, routing_key=name)
        first = Receiver(one, shared(name), prefetch=2)
        first.drain(2)
        first.stays_at(2)
        with Connection(url) as two:
            second = Receiver(two, shared(name))
            second.drain(3)
            payloads = [each.payload for each in (*first.messages, *second.messages)]
            assert sorted(payloads) == [0, 1, 2, 3, 4]
        first.messages[0].ack()
        first.drain(3)
        first.stays_at(3)


def test_a_higher_prefetch_takes_effect(connection: Connection, name: str) -> None:
    """Celery raises it for every task that waits in the worker for its time."""
    shared(name)(connection.default_channel).declare()
    for number in range(4):
        publish(connection, number, routing_key=name)
    receiver = Receiver(connection, shared(name), prefetch=1)
    receiver.drain(1)
    receiver.stays_at(1)
    receiver.channel.basic_qos(0, 3, False)
    receiver.drain(3)
    receiver.stays_at(3)


def test_get_takes_one_message(connection: Connection, name: str) -> None:
    queue = shared(name)(connection.default_channel)
    queue.declare()
    assert queue.get() is None
    publish(connection, "first", routing_key=name)
    publish(connection, "second", routing_key=name)
    found: list[Any] = []

    def has_both() -> bool:
        if (got := queue.get()) is not None:  # A call waits for half a second only.
            found.append(got)
        return len(found) == 2

    wait_until(has_both, "both messages have arrived")
    assert sorted(each.payload for each in found) == ["first", "second"]
    for each in found:
        each.ack()


def test_a_queue_has_a_size_and_can_be_purged(connection: Connection, name: str) -> None:
    queue = shared(name)(connection.default_channel)
    queue.declare()
    for number in range(3):
        publish(connection, number, routing_key=name)
    assert queue.queue_declare(passive=True).message_count == 3
    assert queue.purge() == 3
    wait_until(lambda: queue.queue_declare(passive=True).message_count == 0, "the queue is empty")


def test_an_expired_message_is_not_delivered(connection: Connection, name: str) -> None:
    """Both kinds: the time of a message, and that of its queue."""
    queue = Queue(name, message_ttl=0.001)(connection.default_channel)
    queue.declare()
    publish(connection, "expired with its queue", routing_key=name)
    with Connection(connection.as_uri()) as other:  # It has not declared the queue.
        publish(other, "expired", routing_key=name, expiration=0.001)
        publish(other, "in time", routing_key=name, expiration=3600)
        publish(other, "forever", routing_key=name)
    receiver = Receiver(connection, shared(name))
    assert receiver.drain(2) == ["in time", "forever"]
    for each in receiver.messages:
        each.ack()
    wait_until(lambda: queue.queue_declare(passive=True).message_count == 0, "the queue is empty")


def test_a_queue_with_a_greatest_length_drops_its_oldest_messages(
    connection: Connection, name: str
) -> None:
    queue = Queue(name, max_length=2)(connection.default_channel)
    queue.declare()
    receiver = Receiver(connection, queue)
    publish(connection, 0, routing_key=name)
    assert receiver.drain(1) == [0]  # The leader counts a queue from the first fetch on.
    receiver.messages.pop().ack()
    receiver.consumer.cancel()
    receiver.channel.close()
    for number in range(1, 6):
        publish(connection, number, routing_key=name)
    assert Receiver(connection, queue).drain(2) == [4, 5]


def test_a_queue_with_a_bad_argument_is_refused(connection: Connection, name: str) -> None:
    queue = Queue(name, queue_arguments={"x-message-ttl": -1})(connection.default_channel)
    with pytest.raises(ChannelError, match="x-message-ttl is -1") as caught:
        queue.declare()
    assert caught.value.reply_code == 406


def test_a_deleted_queue_does_not_exist(connection: Connection, name: str) -> None:
    queue = shared(name)(connection.default_channel)
    queue.declare()
    queue.delete()
    with pytest.raises(ChannelError, match="no queue"):
        queue.queue_declare(passive=True)


def test_a_queue_may_have_any_name(connection: Connection, name: str) -> None:
    odd = f"{name}/größe #1"
    shared(odd)(connection.default_channel).declare()
    publish(connection, "odd", routing_key=odd)
    receiver = Receiver(connection, shared(odd))
    assert receiver.drain(1) == ["odd"]
    receiver.messages[0].ack()


def test_a_virtual_host_has_queues_of_its_own(url: str, name: str) -> None:
    with Connection(url) as plain, Connection(f"{url}/{name}-host") as hosted:
        for each in (plain, hosted):
            shared(name)(each.default_channel).declare()
        publish(hosted, "hosted", routing_key=name)
        publish(plain, "plain", routing_key=name)
        for each, expected in ((plain, "plain"), (hosted, "hosted")):
            receiver = Receiver(each, shared(name))
            assert receiver.drain(1) == [expected]
            receiver.messages[0].ack()
            receiver.stays_at(1)


def test_a_client_reaches_queues_that_others_have_bound(url: str, name: str) -> None:
    """It knows only the exchange and the routing key."""
    exchange = Exchange(name, "topic")
    with Connection(url) as consumer, Connection(url) as producer:
        Exchange(name, "topic")(producer.default_channel).declare()
        videos = Receiver(consumer, shared(f"{name}.videos", exchange, "video.#"))
        publish(producer, "first", exchange, routing_key="video.encode.hd")
        publish(producer, "lost", exchange, routing_key="image.crop")
        assert videos.drain(1) == ["first"]
        images = Receiver(consumer, shared(f"{name}.images", exchange, "image.*"))
        publish(producer, "second", exchange, routing_key="image.crop")
        assert images.drain(1) == ["second"]
        for each in (*videos.messages, *images.messages):
            each.ack()


def test_a_fanout_exchange_reaches_every_client(url: str, name: str) -> None:
    exchange = Exchange(name, "fanout", durable=False)
    with Connection(url) as one, Connection(url) as two, Connection(url) as producer:
        first = Receiver(one, own(f"{name}.1", exchange), no_ack=True)
        second = Receiver(two, own(f"{name}.2", exchange), no_ack=True)
        for number in range(3):
            publish(producer, number, exchange)
        assert first.drain(3) == [0, 1, 2]
        assert second.drain(3) == [0, 1, 2]


def test_a_durable_queue_of_a_fanout_exchange_keeps_messages(url: str, name: str) -> None:
    exchange = Exchange(name, "fanout")
    with Connection(url) as connection:
        shared(name, exchange)(connection.default_channel).declare()
        publish(connection, "kept", exchange)
    with Connection(url) as later:
        receiver = Receiver(later, shared(name, exchange))
        assert receiver.drain(1) == ["kept"]
        receiver.messages[0].ack()


def test_a_reply_is_not_lost_between_two_connections_of_a_client(url: str, name: str) -> None:
    """The queue is declared on one connection and consumed on another, as `rpc://` does."""
    with Connection(url) as declaring, Connection(url) as worker, Connection(url) as reading:
        own(name)(declaring.default_channel).declare()
        publish(worker, "reply", routing_key=name)
        receiver = Receiver(reading, own(name), no_ack=True)
        assert receiver.drain(1) == ["reply"]


def test_a_record_that_is_no_message_is_skipped(broker: Broker, url: str, name: str) -> None:
    with Connection(url) as connection:
        shared(name)(connection.default_channel).declare()
        with penstock.Queue(broker.bootstrap, name) as queue:
            queue.put(b"not from kombu")
        publish(connection, "from kombu", routing_key=name)
        receiver = Receiver(connection, shared(name))
        assert receiver.drain(1) == ["from kombu"]
        receiver.messages[0].ack()


def test_the_transport_is_registered_by_entry_point(tmp_path: Path) -> None:
    """A new process finds it without importing Penstock."""
    script = "import celery; app = celery.Celery(broker='penstock://h:1'); "
    script += "print(app.connection().transport.driver_name)"
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == ["penstock"]
