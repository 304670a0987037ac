"""Copies a topic in transactions until SIGTERM, with confluent-kafka or with our client.

It reads as a group member. Each transaction writes the records that it read, to the partition they
came from, and commits the group's offsets after them. One of `abort_one_in` transactions is aborted
deliberately, after its records were sent. Java's copier (tests/compat/java/Copier.java) takes the
same arguments and does the same.

Events go to standard output, one JSON object per line: `began` when it can be asked to stop,
`aborted` with the reason, `stopped` when it was asked to, `fatal` when it ends by itself, `hung`
when a call of librdkafka does not return. There are two ways in which librdkafka hangs when a
broker leaves: two locks taken in opposite orders (its issue 5476), and offsets of a transaction for
which it waits for a group coordinator that it has given up (5511). Then the program exits, as its
user would end it, and another one takes over. Standard error shows whether a broker kept it
waiting: librdkafka logs every request that was not answered in time.

The program ends when its standard input closes, that is, when the process that started it ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import confluent_kafka as ck

from penstock import aio
from penstock.client.interceptors import ProducerRecord
from penstock.client.model import Record
from penstock.errors import ClientError
from penstock.testing.slowness import patient

DEADLINE_S = 150.0
SESSION_TIMEOUT_MS = 6_000
TRANSACTION_TIMEOUT_MS = int(min(900_000, 2_000 * patient(30.0)))
"""Longer than it takes to notice a hung client, so that none is fenced because of that."""
POLL_S = 0.2
RETRY_S = 0.1
HUNG_S = TRANSACTION_TIMEOUT_MS / 2_000
FATAL = 3
Read = Record[bytes | None, bytes | None]
Made = ProducerRecord[bytes | None, bytes | None]


class Drawn(Exception):
    """This transaction is aborted at random."""


def tell(**what: object) -> None:
    print(json.dumps(what), flush=True)


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parses the arguments, which are positional as in Java's copier."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("client", choices=COPIERS)
    for name in ("bootstrap", "source", "target", "group", "identity"):
        parser.add_argument(name)
    for name in ("size", "pause_ms", "abort_one_in"):
        parser.add_argument(name, type=int)
    return parser.parse_args(arguments)


class Watch:
    """Ends the program when a call takes longer than any change of brokers could explain."""

    def __init__(self) -> None:
        self._call: tuple[str, float] | None = None
        threading.Thread(target=self._look, name="watch", daemon=True).start()

    @contextmanager
    def over(self, name: str) -> Iterator[None]:
        self._call = (name, time.monotonic())
        try:
            yield
        finally:
            self._call = None

    def _look(self) -> None:
        never = threading.Event()
        while not never.wait(1.0):
            call = self._call
            if call is not None and time.monotonic() - call[1] > HUNG_S:
                tell(hung=call[0])
                os._exit(FATAL)


class ConfluentCopier:
    """The loop of confluent-kafka's examples, with complete error handling."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._stopping = threading.Event()
        self._watch = Watch()
        self._has_moved = False
        self._committed = 0
        common = {"bootstrap.servers": given.bootstrap, "socket.timeout.ms": 10_000, "log_level": 6}
        self._consumer = ck.Consumer(
            {
                **common,
                "group.id": given.group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": 1_000,
            }
        )
        self._producer = ck.Producer(
            {
                **common,
                "transactional.id": given.identity,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 2,
            }
        )

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: self._stopping.set())
        tell(began=self._given.identity)
        self._insist("init", lambda: self._producer.init_transactions(DEADLINE_S))
        # With callbacks, partitions are assigned and revoked only inside `consume`.
        self._consumer.subscribe(
            [self._given.source],
            on_assign=self._on_moved,
            on_revoke=self._on_moved,
            on_lost=self._on_moved,
        )
        while not self._stopping.is_set():
            self._has_moved = False
            with self._watch.over("consume"):
                read = self._consumer.consume(self._given.size, POLL_S)
            messages = [message for message in read if message.error() is None]
            if self._has_moved:
                # Some messages may be from before the rebalance, when other members had the
                # partitions.
                self._go_back()
            elif messages:
                self._copy(messages)
        with self._watch.over("close"):
            self._consumer.close()
        tell(stopped=self._committed)

    def _on_moved(self, consumer: ck.Consumer, topic_partitions: list[ck.TopicPartition]) -> None:
        self._has_moved = True

    def _copy(self, messages: list[ck.Message]) -> None:
        given, producer = self._given, self._producer
        signed = self._consumer.consumer_group_metadata()
        ends = {each.partition() or 0: (each.offset() or 0) + 1 for each in messages}
        topic_partitions = [
            ck.TopicPartition(given.source, index, end) for index, end in ends.items()
        ]
        try:
            producer.begin_transaction()
            for each in messages:
                producer.produce(given.target, each.value(), each.key(), each.partition() or 0)
            producer.poll(0)
            self._stopping.wait(given.pause_ms / 1000)
            self._draw()
            self._insist(
                "send_offsets",
                lambda: producer.send_offsets_to_transaction(topic_partitions, signed, DEADLINE_S),
            )
            self._insist("commit", lambda: producer.commit_transaction(DEADLINE_S))
            self._committed += 1
        except (ck.KafkaException, Drawn) as error:
            self._abort(error)

    def _draw(self) -> None:
        if random.randrange(self._given.abort_one_in) == 0:
            with self._watch.over("flush"):
                self._producer.flush(DEADLINE_S)
            raise Drawn

    def _abort(self, error: Exception) -> None:
        if isinstance(error, ck.KafkaException) and error.args[0].fatal():
            raise error
        tell(aborted="drawn" if isinstance(error, Drawn) else str(error))
        self._insist("abort", lambda: self._producer.abort_transaction(DEADLINE_S))
        self._go_back()

    def _go_back(self) -> None:
        """Seeks to the group's committed offsets; everything after them is not copied yet."""

        # The coordinator may be moving, and a partition that was just assigned cannot seek yet.
        def seek() -> None:
            for topic_partition in self._consumer.committed(
                self._consumer.assignment(), DEADLINE_S
            ):
                if topic_partition.error is not None:
                    raise ck.KafkaException(topic_partition.error)
                topic_partition.offset = max(topic_partition.offset, 0)
                self._consumer.seek(topic_partition)

        self._insist("go_back", seek, lambda _: True)

    def _insist(
        self,
        name: str,
        call: Callable[[], None],
        may_again: Callable[[ck.KafkaError], bool] = lambda error: error.retriable(),
    ) -> None:
        """Calls until it succeeds; an operation that may be retried continues where it was."""
        deadline = time.monotonic() + patient(DEADLINE_S)
        with self._watch.over(name):
            while True:
                try:
                    call()
                except ck.KafkaException as error:
                    if not may_again(error.args[0]) or time.monotonic() > deadline:
                        raise
                    threading.Event().wait(RETRY_S)
                else:
                    return


class OurCopier:
    """`exactly_once`, started again after an exception in the handler has ended it."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        given, stop = self._given, asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        tell(began=given.identity)
        async with (
            aio.Consumer(
                given.bootstrap,
                topics=[given.source],
                group_id=given.group,
                isolation_level="read_committed",
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                session_timeout_ms=SESSION_TIMEOUT_MS,
                heartbeat_interval_ms=1_000,
                request_timeout_ms=10_000,
            ) as consumer,
            aio.Producer(
                given.bootstrap,
                transactional_id=given.identity,
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                linger_ms=2,
                request_timeout_ms=10_000,
            ) as producer,
        ):
            while not stop.is_set():
                try:
                    summary = await aio.exactly_once(
                        consumer, producer, self._made_of, max_records=given.size, stop=stop
                    )
                except Drawn:
                    tell(aborted="drawn")
                else:
                    tell(processed=summary.processed, retried=summary.retried)
        tell(stopped=given.identity)

    async def _made_of(self, records: list[Read]) -> Iterator[Made]:
        await asyncio.sleep(self._given.pause_ms / 1000)
        return self._copies(records, random.randrange(self._given.abort_one_in) == 0)

    def _copies(self, records: list[Read], to_be_aborted: bool) -> Iterator[Made]:
        for each in records:
            yield ProducerRecord(
                self._given.target, each.value, key=each.key, partition=each.partition
            )
        if to_be_aborted:
            raise Drawn


COPIERS: dict[str, type[ConfluentCopier] | type[OurCopier]] = {
    "confluent": ConfluentCopier,
    "ours": OurCopier,
}


def end_with_stdin() -> None:
    def wait() -> None:
        with suppress(OSError):
            while os.read(0, 1):
                pass
        os._exit(FATAL)

    threading.Thread(target=wait, name="stdin", daemon=True).start()


def main() -> int:
    given = options()
    end_with_stdin()
    try:
        COPIERS[given.client](given).run()
    except (ck.KafkaException, ClientError) as error:
        tell(fatal=repr(error))
        # Exit as a crash would: no client may delay the end of the program.
        sys.stdout.flush()
        os._exit(FATAL)
    return 0


if __name__ == "__main__":
    sys.exit(main())
