"""Reads single records as bytes, whatever a consumer's deserializers do."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from penstock.client.consuming.core import ConsumerCore
from penstock.client.consuming.partition_control import PartitionControl
from penstock.client.consuming.poller import Poller
from penstock.client.consuming.record_decoder import RecordMaker
from penstock.client.environment import ClientEnv
from penstock.client.model import Record
from penstock.client.options import ConsumerOptions
from penstock.topic_partition import TopicPartition

RawRecord = Record[bytes | None, bytes | None]


class RawReader:
    """Reads from the cluster of a consumer, through its own connections and without a group."""

    def __init__(self, of: ConsumerOptions, env: ClientEnv) -> None:
        bootstrap = [str(address) for address in of.bootstrap]
        options = {"client_id": of.client_id, "auto_offset_reset": "none", "max_poll_records": 1}
        parsed = ConsumerOptions.parse(bootstrap, options)
        self._timeout_ms = of.default_api_timeout_ms
        self._core = ConsumerCore(parsed, env, RecordMaker(None, None))
        self._control = PartitionControl(self._core)
        self._poller: Poller[bytes | None, bytes | None] = Poller(self._core)

    async def __aenter__(self) -> Self:
        await self._core.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._core.close(None)

    async def read(self, topic_partition: TopicPartition, offset: int) -> RawRecord | None:
        """Returns the record at this offset, or None if the log does not have it."""
        self._core.assign([topic_partition])
        self._control.seek(topic_partition, offset)
        found = await self._poller.poll(self._timeout_ms, None)
        return found[0] if found and found[0].offset == offset else None
