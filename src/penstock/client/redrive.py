"""Sends dead letters back to the topics that they came from.

The group `redrive-TOPIC` keeps how far the dead-letter topic was read. Records and progress are
written in one transaction, so a redrive that was interrupted continues where it ended, and no
record is sent twice. Two redrives of one topic at the same time fence each other.

A dead letter that is not selected, or that does not say where it came from, stays a dead letter: it
is appended to the dead-letter topic again, in the same transaction. So the next redrive finds it.
The same happens to letters of share groups without a copy of their record: there is nothing to
send. A redrive reads only what was in the topic when it began.

A job that is sent back to a queue is a new job. It does not expire, and gets a deduplication id of
its own: under the old one, brokers would take it for a duplicate of the job that became the letter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.client.consumer import Consumer
from penstock.client.environment import ClientEnv
from penstock.client.model import Headers, Record
from penstock.client.processing import dead_letter_headers as names
from penstock.client.producing.producer import Producer
from penstock.records.job_headers import DEDUP_ID, EXPIRES_AT
from penstock.topic_partition import TopicPartition

REDRIVEN: Final = "penstock.redriven"
"""The header of a record that was sent back: how often."""
_QUEUES: Final = {
    "__dlq.errors.topic": names.TOPIC,
    "__dlq.errors.partition": names.PARTITION,
    "__dlq.errors.offset": names.OFFSET,
    "__dlq.errors.group": "",
    "__dlq.errors.delivery.count": names.ATTEMPTS,
    "__dlq.errors.message": names.ERROR,
}
"""The headers of dead letters of share groups (KIP-1191) -> the same of our clients."""
_ADDED: Final = frozenset(
    {
        *(names.TOPIC, names.PARTITION, names.OFFSET, names.TIMESTAMP, names.ERROR),
        *(names.ATTEMPTS, *_QUEUES),
    }
)
_DIGITS_MAX: Final = 18
"""A number of so many digits fits into 64 bits."""
_BATCH: Final = 500
_POLL_MS: Final = 500


def redrive_group(topic: str) -> str:
    """Returns the group that keeps how far a dead-letter topic was read."""
    return f"redrive-{topic}"


def redrive_transaction(topic: str) -> str:
    """Returns the transactional id of redrives of a dead-letter topic."""
    return f"penstock-redrive-{topic}"


def fenced_text(topic: str) -> str:
    """Says what happened to a redrive that raised `Fenced`."""
    return (
        f"another redrive of {topic} began meanwhile, and this one ended. Nothing was sent twice; "
        "start it again when the other one is done"
    )


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter, and where it goes if it is sent back."""

    topic: str
    """The topic that it came from; empty if its headers do not say."""
    partition: int | None
    timestamp: int | None
    error: str
    redriven: int
    """How often it was sent back before."""
    headers: Headers
    """Its headers without those that were added when it became a dead letter."""
    is_job: bool = False
    """Whether a share group has given it up."""

    def has_error(self, text: str) -> bool:
        return text.lower() in self.error.lower()


@dataclass(slots=True)
class Redriven:
    """What a redrive did, or would do."""

    total: int = 0
    """How many records were in the dead-letter topic when it began."""
    sent: Counter[str] = field(default_factory=Counter)
    """Records that were sent back, by topic."""
    left: int = 0
    """Records that were not selected."""
    unknown: int = 0
    """Records that do not say where they came from."""
    without_copy: int = 0
    """Letters of share groups that do not copy records, so that there is nothing to send."""
    errors: Counter[str] = field(default_factory=Counter)
    """The errors of the records that were sent back."""

    @property
    def read(self) -> int:
        return self.sent.total() + self.left + self.unknown + self.without_copy


def read_dead_letter(record: Record[Any, Any]) -> DeadLetter:
    """Reads the headers of a dead letter. The last header of a name counts: a record that became a
    dead letter twice has each of them twice."""
    found = {
        _QUEUES.get(name, name): data or b"" for name, data in record.headers if name in _ADDED
    }
    own = tuple(
        (name, data) for name, data in record.headers if name not in _ADDED and name != REDRIVEN
    )
    times = [data for name, data in record.headers if name == REDRIVEN]
    return DeadLetter(
        found.get(names.TOPIC, b"").decode(errors="replace"),
        _number(found.get(names.PARTITION)),
        _number(found.get(names.TIMESTAMP)),
        found.get(names.ERROR, b"").decode(errors="replace"),
        _number(times[-1] if times else None) or 0,
        own,
        is_job=any(name in _QUEUES for name, _ in record.headers),
    )


def _is_without_copy(letter: DeadLetter, record: Record[Any, Any]) -> bool:
    return letter.is_job and record.key is None and record.value is None and not letter.headers


def _sent_headers(letter: DeadLetter, record: Record[Any, Any]) -> Headers:
    """Returns the headers of the record that is sent back."""
    headers = (*letter.headers, (REDRIVEN, str(letter.redriven + 1).encode()))
    if not letter.is_job:
        return headers
    own = tuple(each for each in headers if each[0] not in (DEDUP_ID, EXPIRES_AT))
    dedup_id = f"redriven {record.topic}-{record.partition} {record.offset}"
    return (*own, (DEDUP_ID, dedup_id.encode()))


def _number(data: bytes | None) -> int | None:
    text = (data or b"").decode(errors="replace")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX else None


class Redrive:
    """One redrive of a dead-letter topic.

    Args:
        bootstrap: the addresses of brokers, or a profile.
        topic: the dead-letter topic.
        to: where all records go, instead of where they came from.
        error: send back only records whose error contains this text.
        limit: send back at most this many records.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        to: str = "",
        error: str = "",
        limit: int | None = None,
        env: ClientEnv | None = None,
        **options: Any,
    ) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._to = to
        self._error = error
        self._limit = limit
        self._env = env
        self._options = options
        self.result = Redriven()
        self._ends: dict[TopicPartition, int] = {}
        self._positions: dict[TopicPartition, int] = {}
        self._counts: dict[str, int] = {}

    async def preview(self) -> Redriven:
        """Counts what `run` would do. Writes nothing."""
        async with self._consumer() as consumer:
            await self._begin(consumer)
            async for records in self._batches(consumer):
                for record in records:
                    self._count(record)
                self._advance(records)
        return self.result

    async def run(self, on_progress: Callable[[Redriven], None] | None = None) -> Redriven:
        """Sends the records back.

        Raises `Fenced` if another redrive of this topic began meanwhile.
        """
        producer = Producer(
            self._bootstrap,
            env=self._env,
            transactional_id=redrive_transaction(self._topic),
            **self._options,
        )
        # The producer is started first: this ends an earlier redrive, whose progress is then final.
        async with producer, self._consumer() as consumer:
            await self._begin(consumer)
            async for records in self._batches(consumer):
                async with producer.transaction() as transaction:
                    for record in records:
                        await self._send(producer, record)
                    self._advance(records)
                    await transaction.send_offsets(self._positions, self._group)
                if on_progress is not None:
                    on_progress(self.result)
        return self.result

    @property
    def _group(self) -> str:
        return redrive_group(self._topic)

    def _consumer(self) -> Consumer[Any, Any]:
        return Consumer(
            self._bootstrap,
            env=self._env,
            group_id=self._group,
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            **self._options,
        )

    async def _begin(self, consumer: Consumer[Any, Any]) -> None:
        count = await consumer.partitions_for(self._topic)
        every = [TopicPartition(self._topic, index) for index in range(count)]
        first = await consumer.beginning_offsets(every)
        self._ends = await consumer.end_offsets(every)
        committed = await consumer.committed(*every)
        consumer.assign(every)
        for each in every:
            known = committed.get(each)
            begin = first[each] if known is None else max(known.offset, first[each])
            self._positions[each] = begin
            consumer.seek(each, begin)
        self.result.total = sum(
            max(0, self._ends[each] - begin) for each, begin in self._positions.items()
        )

    async def _batches(self, consumer: Consumer[Any, Any]) -> AsyncIterator[list[Record[Any, Any]]]:
        """Yields records up to the end that the topic had at the beginning."""
        while self._is_open():
            wanted = _BATCH
            if self._limit is not None:
                wanted = min(wanted, self._limit - self.result.sent.total())
            records = [
                record
                for record in await consumer.poll(timeout_ms=_POLL_MS, max_records=wanted)
                if record.offset < self._ends[record.topic_partition]
            ]
            if records:
                yield records
            for each in self._ends:
                # The last offsets may belong to markers of transactions or to compacted records.
                position = consumer.known_position(each)
                if position is not None and position >= self._ends[each]:
                    self._positions[each] = max(self._positions[each], self._ends[each])

    def _is_open(self) -> bool:
        if self._limit is not None and self.result.sent.total() >= self._limit:
            return False
        return any(self._positions[each] < end for each, end in self._ends.items())

    def _advance(self, records: Iterable[Record[Any, Any]]) -> None:
        for record in records:
            self._positions[record.topic_partition] = record.offset + 1

    def _count(self, record: Record[Any, Any]) -> DeadLetter | None:
        """Counts a record. Returns the dead letter if it is to be sent back."""
        letter = read_dead_letter(record)
        target = self._to or letter.topic
        if not target:
            self.result.unknown += 1
            return None
        if not letter.has_error(self._error):
            self.result.left += 1
            return None
        if _is_without_copy(letter, record):
            self.result.without_copy += 1
            return None
        self.result.sent[target] += 1
        self.result.errors[letter.error.partition("\n")[0][:120]] += 1
        return letter

    async def _send(self, producer: Producer[Any, Any], record: Record[Any, Any]) -> None:
        letter = self._count(record)
        if letter is None:
            await producer.send(
                self._topic,
                record.value,
                key=record.key,
                headers=record.headers,
                partition=record.partition,
                timestamp_ms=record.timestamp,
            )
            return
        target = self._to or letter.topic
        await producer.send(
            target,
            record.value,
            key=record.key,
            headers=_sent_headers(letter, record),
            partition=await self._partition(producer, target, letter),
            timestamp_ms=record.timestamp if letter.timestamp is None else letter.timestamp,
        )

    async def _partition(
        self, producer: Producer[Any, Any], target: str, letter: DeadLetter
    ) -> int | None:
        """Returns the partition that the record came from, or None to let its key decide."""
        if target != letter.topic or letter.partition is None:
            return None
        if target not in self._counts:
            self._counts[target] = await producer.partitions_for(target)
        return letter.partition if letter.partition < self._counts[target] else None
