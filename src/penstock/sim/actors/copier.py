"""Consume, transform, produce: copies one topic to another, with the library's `exactly_once`.

A copy contains the position it was read from. So what must be there in the end follows from the
input alone, and from the group's committed offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from penstock.aio import Consumer, Producer, exactly_once
from penstock.client.errors import ClientError
from penstock.client.interceptors import ProducerRecord
from penstock.client.model import Record
from penstock.sim.actors.readers import BytesConsumer, consumer_keywords, reads_of
from penstock.sim.actors.shared_state import Actor
from penstock.sim.actors.transaction_work import Work
from penstock.sim.history import COPIERS, COPIES, INFO, SOURCE_MARK

BytesRecord = Record[bytes | None, bytes | None]
Made = ProducerRecord[bytes | None, bytes | None]


async def run_copier(actor: Actor, number: int) -> None:
    """Copies until the load is over. After any error it starts again."""
    shared = actor.shared
    while not shared.over.is_set():
        producer: Producer[bytes | None, bytes | None] = Producer(
            shared.bootstrap,
            env=actor.env,
            transactional_id=f"copy-{number}",
            transaction_timeout_ms=actor.draws.choice((3_000, 15_000)),
            delivery_timeout_ms=10_000,
            max_block_ms=8_000,
            allow_auto_create_topics=False,
            **actor.keywords,
        )
        consumer: BytesConsumer = Consumer(
            shared.bootstrap,
            env=actor.env,
            group_id=COPIERS,
            topics=[shared.scenario.topics[0].name],
            isolation_level="read_committed",
            enable_auto_commit=False,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=1_000,
            rebalance_timeout_ms=6_000,
            **consumer_keywords(actor),
        )
        await _copy_on(actor, number, producer, consumer)
        await shared.rest(actor.draws.random())


async def _copy_on(
    actor: Actor,
    number: int,
    producer: Producer[bytes | None, bytes | None],
    consumer: BytesConsumer,
) -> None:
    hand = _Hand(actor, f"copy-{number}")
    try:
        await producer.start()
        await consumer.start()
        await exactly_once(consumer, producer, hand.copy, stop=actor.shared.over)
    except ClientError:
        actor.shared.count("copiers_ended")
    finally:
        hand.rest()
        for client in (consumer, producer):
            with suppress(ClientError):
                await client.close(timeout_s=5.0)


class _Hand:
    """The callback that `exactly_once` calls for the records of each transaction."""

    def __init__(self, actor: Actor, transactional_id: str) -> None:
        self._actor = actor
        self._transactional_id = transactional_id
        self._work: Work | None = None

    def copy(self, records: list[BytesRecord]) -> Iterable[Made]:
        self.rest()
        work = self._work = Work(self._actor, self._transactional_id)
        work.has_read(reads_of(records))
        made: list[Made] = []
        for record in records:
            source = f"{SOURCE_MARK}{record.topic_partition}@{record.offset}"
            note = work.note(f"{COPIES}-{record.partition}", source)
            made.append(ProducerRecord(COPIES, note.value.encode(), None, (), record.partition))
        self._actor.shared.count("copies", len(made))
        # From here on the library owns the transaction, and may commit it at any time.
        work.asks_for_commit()
        return made

    def rest(self) -> None:
        """Ends the entry of the previous transaction. Only its records show whether it
        was committed."""
        if self._work is not None:
            self._work.end(INFO, "the outcome is unknown")
            self._work = None
