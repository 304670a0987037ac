"""Reads audit events from the topic `__audit`, for `penstock audit` and for the console."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from penstock.client.consumer import Consumer
from penstock.client.errors import RequestTimedOut
from penstock.metadata.model import AUDIT_TOPIC
from penstock.security.audit import AuditEvent, AuditQuery
from penstock.topic_partition import TopicPartition

_POLL_MS: Final = 1000
_EMPTY_POLLS_MAX: Final = 30
"""After so many polls without a record, the cluster is considered as not answering."""

RawConsumer = Consumer[bytes | None, bytes | None]


class FoundEvents:
    """The events that match a query, only the last of them."""

    def __init__(self, query: AuditQuery, limit: int) -> None:
        self.query = query
        self._events: deque[AuditEvent] = deque(maxlen=limit)
        self.left_out = 0
        """How many earlier events match as well."""
        self.unreadable = 0

    def add(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            if not line.strip():
                continue
            try:
                event = AuditEvent.from_json(line)
            except ValueError:
                self.unreadable += 1
                continue
            if self.query.matches(event):
                self.left_out += len(self._events) == self._events.maxlen
                self._events.append(event)

    def in_order(self) -> list[AuditEvent]:
        return sorted(self._events, key=lambda event: event.time_ms)


async def read_audit_topic(consumer: RawConsumer, found: FoundEvents) -> None:
    """Adds the events that the topic has now. Raises `TopicNotFound` if the topic does not exist or
    the user may not see it."""
    number = await consumer.partitions_for(AUDIT_TOPIC)
    partitions = [TopicPartition(AUDIT_TOPIC, index) for index in range(number)]
    ends = await consumer.end_offsets(partitions)
    starts = await consumer.beginning_offsets(partitions)
    if (since_ms := found.query.since_ms) is not None:
        at = await consumer.offsets_for_times(dict.fromkeys(partitions, since_ms))
        starts = {each: ends[each] if (hit := at[each]) is None else hit.offset for each in at}
    left = {each for each in partitions if starts[each] < ends[each]}
    consumer.assign(left)
    for each in left:
        consumer.seek(each, starts[each])
    empty = 0
    while left:
        records = await consumer.poll(_POLL_MS)
        empty = 0 if records else empty + 1
        if empty > _EMPTY_POLLS_MAX:
            raise RequestTimedOut(
                f"the leaders of {AUDIT_TOPIC} do not answer: see penstock status"
            )
        found.add(
            record.value or b""
            for record in records
            if record.offset < ends[record.topic_partition]
        )
        positions = consumer.positions()
        left -= {
            each for each in left if each in positions and positions[each].offset >= ends[each]
        }
