"""A member of a group as a process; `new_members` describes what it says.

Arguments: KIND BOOTSTRAP GROUP TOPIC INSTANCE PROTOCOL. The kind is `confluent` or `ours`. A topic
that begins with ^ is a regular expression, an instance of - is none. The protocol is `consumer`,
the new one, or `classic`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import Any

import confluent_kafka as ck

from penstock import Consumer
from penstock.errors import ClientError

CLASSIC = {"heartbeat.interval.ms": 300, "session.timeout.ms": 45_000}
"""What the broker decides in the new protocol. No session ends because the machine is busy."""
closing = threading.Event()


def say(*words: object) -> None:
    print(*words, flush=True)


def names(partitions: Iterable[Any]) -> list[str]:
    return sorted(f"{each.topic}-{each.partition}" for each in partitions)


def listen() -> None:
    sys.stdin.readline()
    closing.set()


def run_confluent(bootstrap: str, group: str, topic: str, instance: str, protocol: str) -> None:
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 100,
        "topic.metadata.refresh.interval.ms": 1_000,
        "reconnect.backoff.max.ms": 1_000,
    }
    if instance != "-":
        config["group.instance.id"] = instance
    if protocol == "classic":
        config |= CLASSIC
    consumer: Any = ck.Consumer(config)

    def told(what: str) -> Any:
        return lambda _, partitions: say(what, *names(partitions))

    consumer.subscribe(
        [topic], on_assign=told("assigned"), on_revoke=told("revoked"), on_lost=told("lost")
    )
    owned: list[str] = []
    while not closing.is_set():
        messages = consumer.consume(100, 0.05)
        got = [each for each in messages if each.error() is None]
        for each in messages:
            if each.error() is not None:
                say("error", each.error())
        for each in got:
            say("record", each.topic(), each.partition(), each.offset(), each.value().decode())
        if (now := names(consumer.assignment())) != owned:
            owned = now
            say("owned", *owned)
        if got:
            try:
                consumer.commit(asynchronous=False)
            except ck.KafkaException as error:
                say("error", error)
    consumer.close()


class Told:
    def on_assigned(self, partitions: Iterable[Any]) -> None:
        say("assigned", *names(partitions))

    def on_revoked(self, partitions: Iterable[Any]) -> None:
        say("revoked", *names(partitions))

    def on_lost(self, partitions: Iterable[Any]) -> None:
        say("lost", *names(partitions))


def run_ours(bootstrap: str, group: str, topic: str, instance: str, protocol: str) -> None:
    options: dict[str, Any] = {
        "group_id": group,
        "group_protocol": protocol,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "fetch_max_wait_ms": 100,
        "group_instance_id": None if instance == "-" else instance,
    }
    if protocol == "classic":
        options |= {name.replace(".", "_"): value for name, value in CLASSIC.items()}
    with Consumer(bootstrap.split(","), **options) as consumer:
        if topic.startswith("^"):
            consumer.subscribe(pattern=topic[1:], listener=Told())
        else:
            consumer.subscribe([topic], listener=Told())
        owned: list[str] = []
        while not closing.is_set():
            got = consumer.poll(50)
            for each in got:
                value = (each.value or b"").decode()
                say("record", each.topic, each.partition, each.offset, value)
            if (now := names(consumer.assignment())) != owned:
                owned = now
                say("owned", *owned)
            if got:
                try:
                    consumer.commit()
                except ClientError as error:
                    say("error", error)


if __name__ == "__main__":
    threading.Thread(target=listen, daemon=True).start()
    (run_ours if sys.argv[1] == "ours" else run_confluent)(*sys.argv[2:])
    say("closed")
