"""Keeps the partitions on this broker up to date with the cluster image.

One task applies the changes in order. It creates logs on threads, and begins to lead or follow a
partition once its log exists. Until then the partitions of a new topic answer
NOT_LEADER_OR_FOLLOWER, which every client retries.

A log is deleted when its topic is deleted, or when the metadata of that topic (the same topic id)
no longer lists this broker as a replica. Missing metadata never deletes a log.

A log that failed or could not be opened has no role. `failed_logs` moves the leadership of its
partition to another replica and asks for the log to be reopened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Final, NamedTuple

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.cooperative_yield import Slices, slices_of
from penstock.broker.counters import BrokerCounters, TimedExecutor
from penstock.broker.partitions.deleted_logs import DeletedLogs
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.partitions.replication_throttle import ReplicationThrottle
from penstock.broker.partitions.role_changes import RoleChanges
from penstock.broker.partitions.topic_rules import log_config
from penstock.metadata.configs import BrokerConfigs
from penstock.metadata.image import Changed, TopicChange
from penstock.metadata.model import NO_LEADER, Partition, Topic
from penstock.metadata.topic_ids import to_text
from penstock.partition.retry_window import RetryWindow
from penstock.ports import Buffer, Env
from penstock.records.batch import HEADER_SIZE, read_header
from penstock.storage.data_keys import lacks_key_only
from penstock.storage.directory import LogDirectory
from penstock.storage.errors import StorageError
from penstock.storage.flusher import Flusher
from penstock.storage.log import Log
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode, KafkaError

_BUILT_AT_ONCE: Final = 100
_BUILT_IN_TURN: Final = 25
_CHANGES_AT_ONCE: Final = 200
_NEVER: Final = 1 << 62
_REFUSED_MAX: Final = 100
_log = logging.getLogger(__name__)


class LogFailure(NamedTuple):
    """Why a log is offline."""

    reason: str
    lacks_key: bool
    """Only a key is missing. That says nothing about the disk."""


class Replicas:
    def __init__(
        self,
        env: Env,
        broker_id: int,
        cluster: ClusterView,
        directory: LogDirectory,
        configs: Callable[[], BrokerConfigs],
        flush_threads: int,
        counters: BrokerCounters,
    ) -> None:
        self._env = env
        self._broker_id = broker_id
        self._cluster = cluster
        self._directory = directory
        self._configs = configs
        # Looked up for every request with plain tuples, which are faster to create.
        self._hosted: dict[tuple[str, int], HostedPartition] = {}
        self._by_directory: dict[str, HostedPartition] = {}
        self._due: asyncio.Queue[TopicChange] = asyncio.Queue()
        self._brokers: dict[int, int] = {}
        self._refused: dict[TopicPartition, RetryWindow] = {}
        self._unopened: dict[TopicPartition, LogFailure] = {}
        self._reopening: dict[TopicPartition, int] = {}
        self._failed: list[Callable[[], None]] = []
        self.broker_epoch = -1
        """The epoch of this broker's registration. Without a registration (-1) this broker neither
        leads nor follows."""
        self.role_changes = RoleChanges()
        self.deleted_logs = DeletedLogs(env, directory)
        self.leader_throttle = ReplicationThrottle(broker_id)
        """Limits the bytes that followers fetch from this broker's replicas."""
        self.flusher = Flusher(
            TimedExecutor(env.executor, counters), flush_threads, self._on_flushed
        )
        cluster.listen(self._on_change)

    def __iter__(self) -> Iterator[HostedPartition]:
        return iter(list(self._hosted.values()))

    async def where(self, holds: Callable[[HostedPartition], bool]) -> list[HostedPartition]:
        """Returns the partitions for which `holds` is true. Other tasks run in between, so a
        partition in the result may have been dropped since."""
        slices, found = slices_of(self._env), []
        for hosted in self:
            if holds(hosted):
                found.append(hosted)
            await slices.give_way()
        return found

    def __len__(self) -> int:
        return len(self._hosted)

    def get(self, topic: str, index: int) -> HostedPartition | None:
        return self._hosted.get((topic, index))

    def require(self, topic: str, index: int) -> HostedPartition:
        """Returns the partition, or raises the error that makes a client look for it elsewhere."""
        hosted = self._hosted.get((topic, index))
        if hosted is not None:
            return hosted
        if self._cluster.image.partition(topic, index) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if (topic, index) in self._unopened:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    @property
    def offline(self) -> dict[TopicPartition, str]:
        """The partitions that belong on this broker but whose logs are offline, with the reason."""
        return {each: failure.reason for each, failure in self.failures.items()}

    @property
    def failures(self) -> dict[TopicPartition, LogFailure]:
        """The offline partitions, with the kind of failure."""
        return self._unopened | {
            TopicPartition(*key): LogFailure(hosted.log.failure, hosted.log.lacks_key)
            for key, hosted in self._hosted.items()
            if hosted.log.failure is not None
        }

    @property
    def unopened(self) -> Collection[TopicPartition]:
        """The offline partitions whose logs are not open: they failed to open in this run of the
        broker, or were closed after a failure and not reopened yet."""
        return self._unopened.keys()

    def rest_offline(self) -> None:
        """Gives up the roles of partitions whose logs have failed, whatever found the failure."""
        for hosted in self:
            if hosted.log.failure is not None and (
                hosted.machine.is_beginning or (hosted.leadership or hosted.follower) is not None
            ):
                self._resign(hosted, ErrorCode.KAFKA_STORAGE_ERROR)

    def note_offline(self) -> None:
        """Some logs were taken offline: gives up the roles of their partitions, and notifies the
        listeners."""
        self.rest_offline()
        for tell in self._failed:
            tell()

    def on_failed(self, listener: Callable[[], None]) -> None:
        """Registers a listener that is called when a log has failed."""
        self._failed.append(listener)

    def note_refused(self, topic: str, index: int, records: Buffer | None, now_ms: int) -> None:
        """Notes that a batch was refused for the moment, so that later batches of its producer do
        not overtake it.

        The batch may be damaged, and so may its producer id. Then another producer's batches are
        refused, and sent again, for at most `retry_window.REMEMBERED_MS`.
        """
        if records is None or len(records) < HEADER_SIZE:
            return
        header = read_header(records)
        if header.producer_id < 0:
            return
        topic_partition = TopicPartition(topic, index)
        hosted = self._hosted.get(topic_partition)
        refused = (
            self._refused.get(topic_partition) if hosted is None else hosted.machine.retry_window
        )
        if refused is None:
            # The image does not show this topic yet, or the topic does not exist.
            if len(self._refused) >= _REFUSED_MAX:
                del self._refused[next(iter(self._refused))]
            refused = self._refused[topic_partition] = RetryWindow()
        refused.note(header.producer_id, header.producer_epoch, header.base_sequence, now_ms)

    def monotonic_ms(self) -> int:
        """The monotonic time by which leaders measure replica lag. It is only comparable within
        this process."""
        return int(self._env.clock.monotonic() * 1000 + 0.001)

    # Following the image

    def _on_change(self, changed: Changed) -> None:
        if changed.brokers:
            self._brokers = self._cluster.image.living
            for hosted in self:
                hosted.on_brokers(self._brokers)
        for change in changed.topics:
            self._due.put_nowait(change)
        if changed.configs:
            for topic in self._cluster.image.topics.values():
                self._due.put_nowait(TopicChange(topic.name, topic, topic))

    def review(self, change: TopicChange) -> None:
        """Queues a topic for review although the image shows no change to it."""
        self._due.put_nowait(change)

    def reopen(self, topic: str, index: int) -> None:
        """Queues an offline log to be reopened, with recovery as after a restart.

        A log that failed while it was open may have lost records that were not synced. Reopen such
        a log only when this replica is neither in the ISR nor an eligible leader.
        """
        known = self._cluster.image.topics.get(topic)
        if known is not None and index < len(known.partitions):
            # An older change that is still queued must not reopen the log. It would name this
            # broker as leader, in the leader epoch in which the log failed.
            self._reopening[TopicPartition(topic, index)] = known.partitions[index].leader_epoch
            self.review(TopicChange(topic, known, known))

    async def settled(self) -> None:
        """Waits until everything that the image has shown so far is applied."""
        await self._due.join()
        await self.role_changes.all_begun()

    async def run(self) -> None:
        """Applies changes until cancelled."""
        while True:
            changes = [await self._due.get()]
            # Changes that arrive later are applied in the next round: in order, and in bounded
            # portions.
            while not self._due.empty() and len(changes) < _CHANGES_AT_ONCE:
                changes.append(self._due.get_nowait())
            try:
                await self._apply(changes)
            finally:
                for _ in changes:
                    self._due.task_done()

    async def _apply(self, changes: list[TopicChange]) -> None:
        # If a topic changed several times, only its last state counts. A topic that has been
        # deleted in the meantime must not be hosted again because of an earlier change.
        latest = {change.name: change.after for change in changes}
        for change in changes:
            before, after = change.before, latest[change.name]
            if before is not None and (after is None or after.topic_id != before.topic_id):
                await self._remove(before)
        topics = {name: after for name, after in latest.items() if after is not None}
        slices = slices_of(self._env)
        for topic in topics.values():
            await self._drop_moved(topic, slices)
            await self._reopen_failed(topic)
            await slices.give_way()
        wanted = [
            (topic, index)
            for topic in topics.values()
            for index, partition in enumerate(topic.partitions)
            if self._broker_id in partition.replicas and (topic.name, index) not in self._hosted
        ]
        await self._host(wanted)
        configs = self._configs()
        for topic in topics.values():
            settings = configs.settings(topic.configs)
            for index, partition in enumerate(topic.partitions):
                hosted = self._hosted.get((topic.name, index))
                if hosted is not None:
                    if hosted.settings != settings:
                        hosted.configure(settings)
                    # Decided with the registration and the epochs of this moment: a broker that has
                    # resigned in the meantime gets no role.
                    self._take_role(hosted, partition, configs)
                await slices.give_way()

    async def _host(self, wanted: list[tuple[Topic, int]]) -> None:
        """Finds or creates logs, on a few threads in parallel so that the disk can sync them
        together."""
        missing = []
        for topic, index in wanted:
            log = self._directory.get(topic.name, index)
            if log is not None and log.topic_id != to_text(topic.topic_id):
                # It belongs to an older topic of the same name, deleted while this broker was down.
                await self.deleted_logs.delete(topic.name, index)
                log = None
            if log is not None:
                self._add(topic, index, log)
            elif (topic.name, index) not in self._unopened:
                missing.append((topic, index))
        for start in range(0, len(missing), _BUILT_AT_ONCE):
            async with asyncio.TaskGroup() as threads:
                for first in range(start, start + _BUILT_AT_ONCE, _BUILT_IN_TURN):
                    chunk = missing[first : first + _BUILT_IN_TURN]
                    if chunk:
                        threads.create_task(self._create(chunk))

    async def _create(self, chunk: list[tuple[Topic, int]]) -> None:
        built = await self._env.executor.run(partial(self._build, chunk))
        for (topic, index), made in zip(chunk, built, strict=True):
            if isinstance(made, Log):
                self._add(topic, index, self._directory.adopt(made))
            else:
                self._tell_unopened(TopicPartition(topic.name, index), made)

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
        try:
            self._directory.sync_root()
        except StorageError as error:
            return [error] * len(chunk)
        return built

    def _add(self, topic: Topic, index: int, log: Log) -> None:
        settings = self._configs().settings(topic.configs)
        topic_partition = TopicPartition(topic.name, index)
        self._unopened.pop(topic_partition, None)
        hosted = HostedPartition(topic.name, topic.topic_id, index, log, settings, self.flusher)
        machine = hosted.machine
        machine.retry_window = self._refused.pop(topic_partition, machine.retry_window)
        self._hosted[topic_partition] = hosted
        self._by_directory[log.directory] = hosted

    def _take_role(
        self, hosted: HostedPartition, partition: Partition, configs: BrokerConfigs
    ) -> None:
        before = hosted.leadership, hosted.follower
        broker_id = self._broker_id
        if hosted.log.failure is not None:
            if hosted.machine.is_beginning or before != (None, None):
                hosted.resign(ErrorCode.KAFKA_STORAGE_ERROR)
        elif partition.leader == broker_id and self.broker_epoch == partition.leader_broker_epoch:
            hosted.lead(
                broker_id,
                self.broker_epoch,
                partition,
                self._brokers,
                self.monotonic_ms(),
                configs.int_value("replica.lag.time.max.ms"),
            )
        elif (
            broker_id in partition.replicas
            and partition.leader not in (NO_LEADER, broker_id)
            and self.broker_epoch >= 0
        ):
            hosted.follow(partition, configs.int_value("replica.fetch.backoff.ms"))
        elif hosted.machine.is_beginning or before != (None, None):
            hosted.resign()
        self.role_changes.tell(hosted, *before)

    def _resign(self, hosted: HostedPartition, code: ErrorCode) -> None:
        before = hosted.leadership, hosted.follower
        hosted.resign(code)
        self.role_changes.tell(hosted, *before)

    # Logs that failed

    async def _reopen_failed(self, topic: Topic) -> None:
        if not self._reopening:
            return
        for index, partition in enumerate(topic.partitions):
            topic_partition = TopicPartition(topic.name, index)
            if partition.leader_epoch < self._reopening.get(topic_partition, _NEVER):
                continue
            del self._reopening[topic_partition]
            hosted = self._hosted.get(topic_partition)
            if hosted is not None and hosted.log.failure is not None:
                async with self.flusher.exclusive(hosted.log):
                    self._directory.let_go(*topic_partition, hosted.log.failure)
                self._drop(hosted, ErrorCode.KAFKA_STORAGE_ERROR)
                self.flusher.forget(hosted.log)
                self._unopened[topic_partition] = LogFailure(
                    hosted.log.failure, hosted.log.lacks_key
                )
            if topic_partition in self._unopened:
                await self._open_again(topic, index)

    async def _open_again(self, topic: Topic, index: int) -> None:
        topic_partition = TopicPartition(topic.name, index)
        config = log_config(self._configs().settings(topic.configs))
        now_ms = self._env.clock.wall_ms()
        run = self._env.executor.run
        try:
            if not await run(lambda: self._directory.exists(*topic_partition)):
                del self._unopened[topic_partition]
                return  # The log never existed. It is created like any other.
            report = await run(lambda: self._directory.recover(*topic_partition, config, now_ms))
            log = self._directory.reopen(*topic_partition, config, now_ms)
        except (StorageError, OSError) as error:
            self._tell_unopened(topic_partition, error)
            return
        for note in report.notes:
            _log.warning("%s: %s", report.directory, note)
        if log.topic_id != to_text(topic.topic_id):
            await self.deleted_logs.delete(*topic_partition)
            del self._unopened[topic_partition]
            return
        self._add(topic, index, log)
        _log.warning(
            "%s-%d: reopened the log, which ends at offset %d", *topic_partition, log.end_offset
        )

    def _tell_unopened(self, topic_partition: TopicPartition, error: Exception) -> None:
        failure = LogFailure(str(error), lacks_key_only(error))
        if self._unopened.get(topic_partition) != failure:
            _log.error("the log of %s-%d could not be opened: %s", *topic_partition, error)
        self._unopened[topic_partition] = failure
        for tell in self._failed:
            tell()

    # Leaving

    async def _remove(self, topic: Topic) -> None:
        for index in range(len(topic.partitions)):
            self._unopened.pop(TopicPartition(topic.name, index), None)
            hosted = self._hosted.get((topic.name, index))
            if hosted is not None:
                await self._delete(hosted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                continue
            log = self._directory.get(topic.name, index)
            if log is not None and log.topic_id == to_text(topic.topic_id):
                # The log was found on disk at the start, and its topic was deleted before it was
                # hosted.
                await self.deleted_logs.delete(topic.name, index)

    async def _drop_moved(self, topic: Topic, slices: Slices) -> None:
        """Deletes the logs of partitions that were reassigned to other brokers."""
        if self.broker_epoch < 0:
            return
        for index, partition in enumerate(topic.partitions):
            await slices.give_way()
            log = self._directory.get(topic.name, index)
            if self._broker_id not in partition.replicas:
                self._unopened.pop(TopicPartition(topic.name, index), None)
            if (
                self._broker_id in partition.replicas
                or log is None
                or log.topic_id != to_text(topic.topic_id)
            ):
                continue
            newest = self._cluster.image.partition(topic.name, index)
            if newest is not None and self._broker_id in newest.replicas:
                continue  # It was reassigned back to this broker: the next change shows it.
            _log.info(
                "%s-%d was reassigned to brokers %s: deleting the replica on this broker",
                topic.name,
                index,
                list(partition.replicas),
            )
            hosted = self._hosted.get((topic.name, index))
            if hosted is not None:
                await self._delete(hosted, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            else:
                await self.deleted_logs.delete(topic.name, index)

    async def _delete(self, hosted: HostedPartition, code: ErrorCode) -> None:
        self._drop(hosted, code)
        async with self.flusher.exclusive(hosted.log):
            await self.deleted_logs.delete(hosted.topic, hosted.index)
        self.flusher.forget(hosted.log)

    def _drop(self, hosted: HostedPartition, code: ErrorCode) -> None:
        del self._hosted[hosted.topic, hosted.index]
        self._resign(hosted, code)
        self._by_directory.pop(hosted.log.directory, None)

    def _on_flushed(self, log: Log) -> None:
        hosted = self._by_directory.get(log.directory)
        if hosted is not None and hosted.log is log:
            before = hosted.leadership, hosted.follower
            hosted.on_flushed()
            self.role_changes.tell(hosted, *before)
            if log.failure is not None:
                for tell in self._failed:
                    tell()

    def resign_all(self) -> None:
        """Gives up all roles because the broker stops or has lost its registration.

        Waiting requests are answered with NOT_LEADER_OR_FOLLOWER. This broker neither leads nor
        follows until it has registered again.
        """
        self.broker_epoch = -1
        for hosted in self:
            self._resign(hosted, ErrorCode.NOT_LEADER_OR_FOLLOWER)
