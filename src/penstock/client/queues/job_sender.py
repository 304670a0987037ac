"""Puts jobs into the topic of a queue: headers, the partition of a priority, one producer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from penstock.client.admin.operations import ResourceType, describe_configs
from penstock.client.cluster import Cluster
from penstock.client.environment import ClientEnv
from penstock.client.errors import BrokerError, ClientError, OptionError
from penstock.client.model import Headers, RecordMetadata
from penstock.client.producing.deliveries import Delivery
from penstock.client.producing.producer import Producer
from penstock.client.queue_options import QueueOptions
from penstock.client.queues.job_headers import (
    Extras,
    job_headers,
    missing_setting,
    partition_for,
    priority_levels,
)
from penstock.wire.errors import ErrorCode

_FRESH_S: Final = 1.0
"""Settings that are not older than this are not looked up again before a refusal."""


class JobSender:
    """Sends to one topic. Its producer connects when it is first used."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        options: QueueOptions,
        env: ClientEnv,
        serializer: Any,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._options = options
        self._env = env
        self._serializer = serializer
        self._producer: Producer[Any, Any] | None = None
        self._starting = asyncio.Lock()
        self._settings: Mapping[str, str] = {}
        self._settings_at: float | None = None
        self._turn = 0

    async def producer(self) -> Producer[Any, Any]:
        """Returns the producer, connected."""
        async with self._starting:
            if self._producer is None:
                producer: Producer[Any, Any] = Producer(
                    self._options.servers(),
                    env=self._env,
                    value_serializer=self._serializer,
                    **self._options.producer_keywords(),
                )
                await producer.start()
                self._producer = producer
        return self._producer

    async def close(self, timeout_s: float | None) -> None:
        if self._producer is not None:
            await self._producer.close(timeout_s)

    async def send(
        self,
        value: Any,
        key: bytes | str | None,
        headers: Iterable[tuple[str, bytes | None]],
        extras: Extras,
        own_headers: Headers = (),
    ) -> Delivery:
        """Buffers a job. `own_headers` are those that only this client may write."""
        made = job_headers(headers, extras, self._env.clock.wall_ms()) + own_headers
        key_bytes = _key(key)
        producer = await self.producer()
        partition = await self._partition(producer, key_bytes, extras)
        return await producer.send(
            self._topic, value, key=key_bytes, headers=made, partition=partition
        )

    async def put(
        self,
        value: Any,
        key: bytes | str | None,
        headers: Iterable[tuple[str, bytes | None]],
        extras: Extras,
        own_headers: Headers = (),
    ) -> RecordMetadata:
        return await (await self.send(value, key, headers, extras, own_headers))

    async def _partition(
        self, producer: Producer[Any, Any], key: bytes | None, extras: Extras
    ) -> int | None:
        """Returns the partition for the job's priority, or None if the router may choose it."""
        settings = await self._topic_settings(extras)
        levels = priority_levels(settings)
        if levels < 2:
            return None
        count = await producer.partitions_for(self._topic)
        self._turn += 1
        return partition_for(extras.priority or 0, levels, count, key, self._turn)

    async def _topic_settings(self, extras: Extras) -> Mapping[str, str]:
        """Returns the settings, or raises the error for one that the topic does not have."""
        age_s = self._options.metadata_max_age_ms / 1000
        await self._refresh(age_s, is_needed=extras.needs_settings)
        if missing_setting(self._topic, extras, self._settings) is not None:
            await self._refresh(_FRESH_S, is_needed=True)
            refusal = missing_setting(self._topic, extras, self._settings)
            if refusal is not None:
                raise refusal
        return self._settings

    async def _refresh(self, age_s: float, *, is_needed: bool) -> None:
        now = self._env.clock.monotonic()
        if self._settings_at is not None and now - self._settings_at < age_s:
            return
        producer = await self.producer()
        await producer.partitions_for(self._topic)  # creates the topic, if that is allowed
        try:
            entries = await describe_configs(self._cluster, ResourceType.TOPIC, self._topic)
        except ClientError as error:
            hidden = isinstance(error, BrokerError) and error.code in _HIDDEN
            if is_needed or not hidden:
                raise
            # A user without the right to see the settings may still put plain jobs.
            entries = ()
        self._settings = {entry.name: entry.value or "" for entry in entries}
        self._settings_at = now


_HIDDEN: Final = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def _key(key: bytes | str | None) -> bytes | None:
    if key is None or isinstance(key, bytes):
        return key
    if isinstance(key, str):
        return key.encode()
    raise OptionError(f"the key is {key!r}: give bytes or text")
