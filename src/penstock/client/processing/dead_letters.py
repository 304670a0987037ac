"""Sends records that cannot be handled to the dead-letter topic, with their original bytes.

A consumer with deserializers returns records without their bytes, and serializing them again need
not give the same bytes. So, unless the user gave a producer for dead letters, the record is read
from its partition again as bytes, and those are sent. Dead letters are rare, and such a read takes
milliseconds. The clients for this are opened for the first dead letter and closed with the run.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from penstock.client.consuming.raw_reader import RawReader, RawRecord
from penstock.client.environment import ClientEnv
from penstock.client.errors import NoOffset
from penstock.client.model import Record
from penstock.client.options import ConsumerOptions
from penstock.client.processing.contracts import DeadLetterProducer
from penstock.client.processing.dead_letter_headers import dead_letter_headers


class DeadLetters:
    def __init__(
        self,
        topic: str,
        options: ConsumerOptions,
        env: ClientEnv,
        *,
        deserializes: bool,
        producer: DeadLetterProducer | None,
    ) -> None:
        self._topic = topic
        self._options = options
        self._env = env
        self._deserializes = deserializes
        self._given = producer
        self._producer: DeadLetterProducer | None = None
        self._reader: RawReader | None = None
        self._one_at_a_time = asyncio.Lock()
        self._open = AsyncExitStack()

    async def bury(self, record: Record[Any, Any], error: Exception, attempts: int) -> None:
        """Sends a dead letter and waits until it is acknowledged."""
        if self._given is not None:
            await self._send(self._given, record, error, attempts)
        elif self._deserializes:
            await self.bury_raw(await self._read_again(record), error, attempts)
        else:
            await self.bury_raw(record, error, attempts)

    async def bury_raw(self, record: RawRecord, error: Exception, attempts: int) -> None:
        await self._send(await self._own_producer(), record, error, attempts)

    async def _own_producer(self) -> DeadLetterProducer:
        async with self._one_at_a_time:
            if self._producer is None:
                # Dead letters are rare: most runs need no producer.
                from penstock.client.producing.producer import Producer  # noqa: PLC0415

                bootstrap = [str(address) for address in self._options.bootstrap]
                own: DeadLetterProducer = await self._open.enter_async_context(
                    Producer(bootstrap, env=self._env, client_id=self._options.client_id)
                )
                self._producer = own
            return self._producer

    async def close(self) -> None:
        await self._open.aclose()

    async def _send(
        self,
        producer: DeadLetterProducer,
        record: Record[Any, Any],
        error: Exception,
        attempts: int,
    ) -> None:
        headers = dead_letter_headers(record, error, attempts)
        await (await producer.send(self._topic, record.value, key=record.key, headers=headers))

    async def _read_again(self, record: Record[Any, Any]) -> RawRecord:
        async with self._one_at_a_time:
            if self._reader is None:
                reader = RawReader(self._options, self._env)
                self._reader = await self._open.enter_async_context(reader)
            found = await self._reader.read(record.topic_partition, record.offset)
        if found is None:
            raise NoOffset(
                f"cannot send offset {record.offset} of {record.topic_partition}, whose handler "
                "failed, to "
                "the dead-letter topic: it is no longer in the log; raise the topic's retention"
            )
        return found
