"""The partitions on this broker, kept in step with the cluster's image.

Changes are worked off in order by one task: logs are made and deleted on threads, and a partition
is led once its log is there. Between a topic's creation and that moment its partitions answer
NOT_LEADER_OR_FOLLOWER, which every client retries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial

from penstock.broker.cluster import ClusterView
from penstock.broker.hosted import HostedPartition, log_config
from penstock.metadata.configs import BrokerConfigs
from penstock.metadata.image import Changed, TopicChange
from penstock.metadata.model import Partition, Topic
from penstock.metadata.topic_ids import to_text
from penstock.ports import Env
from penstock.storage.append_log import AppendLog
from penstock.storage.directory import LogDirectory
from penstock.storage.flusher import Flusher
from penstock.storage.log import Log
from penstock.wire.errors import ErrorCode, KafkaError

_log = logging.getLogger(__name__)

Listener = Callable[[HostedPartition], None]


class Replicas:
    def __init__(
        self,
        env: Env,
        broker_id: int,
        cluster: ClusterView,
        directory: LogDirectory,
        configs: Callable[[], BrokerConfigs],
        flush_threads: int,
    ) -> None:
        self._env = env
        self._broker_id = broker_id
        self._cluster = cluster
        self._directory = directory
        self._configs = configs
        self._hosted: dict[tuple[str, int], HostedPartition] = {}
        self._by_directory: dict[str, HostedPartition] = {}
        self._due: asyncio.Queue[TopicChange] = asyncio.Queue()
        self._leading: list[Listener] = []
        self._resigned: list[Listener] = []
        self.broker_epoch = -1
        self.flusher = Flusher(env.executor, flush_threads, self._on_flushed)
        cluster.listen(self._on_change)

    def __iter__(self) -> Iterator[HostedPartition]:
        return iter(list(self._hosted.values()))

    def get(self, topic: str, index: int) -> HostedPartition | None:
        return self._hosted.get((topic, index))

    def require(self, topic: str, index: int) -> HostedPartition:
        """The partition here, or the error that tells a client where to look."""
        hosted = self._hosted.get((topic, index))
        if hosted is not None:
            return hosted
        if self._cluster.image.partition(topic, index) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def on_leading(self, listener: Listener) -> None:
        self._leading.append(listener)

    def on_resigned(self, listener: Listener) -> None:
        self._resigned.append(listener)

    # Following the image

    def _on_change(self, changed: Changed) -> None:
        for change in changed.topics:
            self._due.put_nowait(change)
        if changed.configs:
            for topic in self._cluster.image.topics.values():
                self._due.put_nowait(TopicChange(topic.name, topic, topic))

    def review(self, change: TopicChange) -> None:
        """Have a topic looked at, though the image has shown no change of it."""
        self._due.put_nowait(change)

    async def settled(self) -> None:
        """Return when everything the image has shown so far is in place here."""
        await self._due.join()

    async def run(self) -> None:
        """Work off changes until cancelled."""
        while True:
            changes = [await self._due.get()]
            while not self._due.empty():
                changes.append(self._due.get_nowait())
            try:
                await self._apply(changes)
            finally:
                for _ in changes:
                    self._due.task_done()

    async def _apply(self, changes: list[TopicChange]) -> None:
        for change in changes:
            before, after = change.before, change.after
            if before is not None and (after is None or after.topic_id != before.topic_id):
                await self._remove(before)
        topics = {change.name: change.after for change in changes if change.after is not None}
        wanted = [
            (topic, index)
            for topic in topics.values()
            for index, partition in enumerate(topic.partitions)
            if self._broker_id in partition.replicas and (topic.name, index) not in self._hosted
        ]
        await self._host(wanted)
        for topic in topics.values():
            settings = self._configs().settings(topic.configs)
            for index, partition in enumerate(topic.partitions):
                hosted = self._hosted.get((topic.name, index))
                if hosted is not None:
                    hosted.configure(settings)
                    self._take_role(hosted, partition)

    async def _host(self, wanted: list[tuple[Topic, int]]) -> None:
        """Find or make the logs, many at a time on one thread's turn."""
        missing = []
        for topic, index in wanted:
            log = self._directory.get(topic.name, index)
            if log is not None and log.topic_id != to_text(topic.topic_id):
                # Of a topic that was deleted under the same name while this broker was away.
                await self._env.executor.run(self._directory.delete(topic.name, index))
                log = None
            if log is None:
                missing.append((topic, index))
            else:
                self._add(topic, index, log)
        for start in range(0, len(missing), 100):
            chunk = missing[start : start + 100]
            built = await self._env.executor.run(partial(self._build, chunk))
            for (topic, index), made in zip(chunk, built, strict=True):
                if isinstance(made, Log):
                    self._add(topic, index, self._directory.adopt(made))
                else:
                    _log.error("%s-%d could not be created: %s", topic.name, index, made)

    def _build(self, chunk: list[tuple[Topic, int]]) -> list[Log | Exception]:
        built: list[Log | Exception] = []
        for topic, index in chunk:
            try:
                log = self._directory.build(
                    topic.name,
                    index,
                    topic_id=to_text(topic.topic_id),
                    config=log_config(self._configs().settings(topic.configs)),
                    now_ms=self._env.clock.wall_ms(),
                )
            except Exception as error:  # noqa: BLE001 - one bad partition must not hide the others
                built.append(error)
            else:
                built.append(log)
        return built

    def _add(self, topic: Topic, index: int, log: Log) -> None:
        settings = self._configs().settings(topic.configs)
        hosted = HostedPartition(topic.name, topic.topic_id, index, log, settings, self.flusher)
        self._hosted[topic.name, index] = hosted
        self._by_directory[log.directory] = hosted

    def _take_role(self, hosted: HostedPartition, partition: Partition) -> None:
        leads = (
            partition.leader == self._broker_id
            and partition.leader_broker_epoch == self.broker_epoch
        )
        led = hosted.leadership is not None
        if leads:
            hosted.lead(self._broker_id, partition)
            if not led:
                for listener in self._leading:
                    listener(hosted)
        elif led:
            self._resign(hosted, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _resign(self, hosted: HostedPartition, code: ErrorCode) -> None:
        hosted.resign(code)
        for listener in self._resigned:
            listener(hosted)

    async def _remove(self, topic: Topic) -> None:
        for index in range(len(topic.partitions)):
            hosted = self._hosted.pop((topic.name, index), None)
            if hosted is None:
                continue
            self._resign(hosted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            async with self.flusher.exclusive(hosted.log):
                self._by_directory.pop(hosted.log.directory, None)
                free_space = self._directory.delete(topic.name, index)
            self.flusher.forget(hosted.log)
            await self._env.executor.run(free_space)

    def _on_flushed(self, log: AppendLog) -> None:
        hosted = self._by_directory.get(log.directory)
        if hosted is not None:
            hosted.on_flushed()

    def resign_all(self) -> None:
        """The broker stops: whoever waits is told to look elsewhere."""
        for hosted in self:
            if hosted.leadership is not None:
                self._resign(hosted, ErrorCode.NOT_LEADER_OR_FOLLOWER)
