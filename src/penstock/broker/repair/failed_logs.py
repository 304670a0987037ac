"""Withdraws replicas whose logs have failed, and opens these logs again.

After a failed write or fsync it is unknown which data of a log is on disk, so the log accepts no
more calls (`storage`). A log that could not be opened or created is treated in the same way:

    1. The partition gives up its role on this broker. Waiting requests get a retriable error.
    2. The broker revokes its durability proof for written records (`durability_proof`), unless only
       a key of the log is missing: that says nothing about the disk.
    3. The replica leaves the ISR and the eligible leader replicas (`metadata.withdrawal`), and
       another replica leads. The leader epoch is raised, so that no leader remembers a fetch that
       vouches for records which may be lost. A replica that only lacks a key may stay eligible: it
       has lost nothing.
    4. Once step 2 is on disk and the metadata shows step 3, the log is opened again as after a
       restart: it is read from the disk and not from the page cache, and truncated where it is not
       valid. Then the replica follows the leader and catches up.

As long as the disk fails, opening the log fails too. It is tried again at increasing intervals. A
log that fails again soon after it was opened also waits longer, because every withdrawal costs a
new leader epoch. If no other replica can lead, the failed log stays offline: it may be the only
copy. Only the operator can decide, by restarting the broker, to go on without the records that may
be lost.

A replica that lacks a key and is eligible can be elected again. It hands over again, at increasing
intervals: if all replicas lack the key, leadership does not move between them all the time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.control.controller import ControllerRuntime
from penstock.broker.error_codes import EXPECTED_ERRORS
from penstock.broker.partitions.replicas import Replicas
from penstock.metadata.decisions import Decision
from penstock.metadata.image import ClusterImage
from penstock.metadata.withdrawal import withdraw
from penstock.ports import Env
from penstock.topic_partition import TopicPartition

LOOK_S: Final = 1.0
REOPEN_FIRST_S: Final = 1.0
REOPEN_MAX_S: Final = 60.0
_log = logging.getLogger(__name__)


class _Failed:
    """The state of one log that is offline."""

    __slots__ = (
        "due_s",
        "epoch",
        "is_told",
        "lacks_key",
        "wait_s",
        "withdraw_s",
        "withdraw_wait_s",
    )

    def __init__(self, epoch: int, due_s: float, wait_s: float) -> None:
        self.epoch = epoch
        """The latest leader epoch in which a leader may have counted a fetch of this replica."""
        self.due_s = due_s
        """When the log may be opened again."""
        self.wait_s = wait_s
        """How long to wait after the next attempt to open it."""
        self.is_told = False
        """It was logged that no other replica can lead."""
        self.lacks_key = False
        """Only a key is missing. It may still fail in another way."""
        self.withdraw_s = 0.0
        """If only a key is missing: when the replica may be withdrawn again."""
        self.withdraw_wait_s = REOPEN_FIRST_S

    def may_withdraw(self, now_s: float) -> bool:
        return not self.lacks_key or now_s >= self.withdraw_s

    def on_withdrawn(self, now_s: float) -> None:
        self.withdraw_s = now_s + self.withdraw_wait_s
        self.withdraw_wait_s = min(REOPEN_MAX_S, 2 * self.withdraw_wait_s)

    def again(self, epoch: int, now_s: float) -> _Failed:
        """Returns the new state of a log that was opened again and has failed again."""
        if now_s - self.due_s > REOPEN_MAX_S:
            return _Failed(epoch, now_s, REOPEN_FIRST_S)
        return _Failed(epoch, max(now_s, self.due_s), self.wait_s)


class FailedLogs:
    """Watches for failed logs. `note` stores on disk that logs have failed, or are open again. Its
    argument says whether to revoke the durability proof for written records."""

    def __init__(
        self,
        env: Env,
        broker_id: int,
        cluster: ClusterView,
        replicas: Replicas,
        controller: ControllerRuntime,
        note: Callable[[bool], None],
    ) -> None:
        self._env = env
        self._broker_id = broker_id
        self._cluster = cluster
        self._replicas = replicas
        self._controller = controller
        self._note_on_disk = note
        self._is_noted_empty = True
        self._failed: dict[TopicPartition, _Failed] = {}
        self._mended: dict[TopicPartition, _Failed] = {}
        self._work = asyncio.Event()
        replicas.on_failed(self._work.set)

    async def run(self) -> None:
        """Handles failed logs until cancelled, at once if a flush has found one."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._work.wait()
            self._work.clear()
            if (
                self._failed
                or self._replicas.unopened
                or await self._replicas.where(lambda hosted: hosted.log.failure is not None)
            ):
                self._look()
            if not self._failed and self._is_noted_empty:
                continue
            is_noted = await self._note()
            self._is_noted_empty = is_noted and not self._failed
            try:
                await self._withdraw()
            except EXPECTED_ERRORS as error:
                _log.warning("could not withdraw failed logs from their ISRs, retrying: %r", error)
            if is_noted:
                self._reopen()

    def _look(self) -> None:
        """Updates the list of failed logs. Some may be gone, because their topic was deleted or
        the replica was moved."""
        self._replicas.rest_offline()
        now_s = self._env.clock.monotonic()
        known, self._failed = self._failed, {}
        for topic_partition, (reason, lacks_key) in self._replicas.failures.items():
            partition = self._cluster.image.partition(*topic_partition)
            if partition is None:
                continue
            failed, before = (
                known.pop(topic_partition, None),
                self._mended.pop(topic_partition, None),
            )
            if failed is None:
                _log.error(
                    "the log of %s-%d failed and is offline on this broker: %s",
                    *topic_partition,
                    reason,
                )
                epoch = partition.leader_epoch
                failed = (
                    before.again(epoch, now_s) if before else _Failed(epoch, now_s, REOPEN_FIRST_S)
                )
            failed.lacks_key = lacks_key
            self._failed[topic_partition] = failed
        self._mended.update(known)

    async def _note(self) -> bool:
        is_void = not all(failed.lacks_key for failed in self._failed.values())
        try:
            await self._env.executor.run(lambda: self._note_on_disk(is_void))
        except OSError as error:
            # It is tried again. The other replicas must not wait for a disk that may never recover.
            _log.warning("could not record on disk that a log has failed, retrying: %s", error)
            return False
        return True

    async def _withdraw(self) -> None:
        now_s = self._env.clock.monotonic()
        topic_partitions = [
            topic_partition
            for topic_partition, failed in self._failed.items()
            if not self._is_out(topic_partition) and failed.may_withdraw(now_s)
        ]
        if not topic_partitions or self._replicas.broker_epoch < 0:
            return

        def make(image: ClusterImage) -> Decision[tuple[TopicPartition, ...]]:
            return withdraw(
                image,
                self._broker_id,
                topic_partitions,
                offline=True,
                locked={each for each in topic_partitions if self._failed[each].lacks_key},
                stopping=image.stopping,
                static=self._controller.static,
            )

        done = await self._controller.decide(make, is_repeated=True)
        for topic_partition in topic_partitions:
            failed = self._failed[topic_partition]
            if topic_partition in done:
                failed.is_told = False
                failed.on_withdrawn(now_s)
            elif not failed.is_told:
                failed.is_told = True
                _log.error(
                    "%s-%d is offline on this broker and no other replica can lead it: start its "
                    "other replicas, or repair the disk and restart this broker",
                    *topic_partition,
                )

    def _is_out(self, topic_partition: TopicPartition) -> bool:
        """Returns whether the replica is withdrawn: neither leader nor in the ISR nor eligible, in
        a leader epoch in which no leader has counted its fetches. If it only lacks a key, it may be
        eligible."""
        partition = self._cluster.image.partition(*topic_partition)
        if partition is None:
            return True
        failed = self._failed[topic_partition]
        return (
            partition.leader_epoch > failed.epoch
            and partition.leader != self._broker_id
            and self._broker_id not in partition.isr
            and (failed.lacks_key or self._broker_id not in partition.eligible_leaders)
        )

    def _reopen(self) -> None:
        now_s = self._env.clock.monotonic()
        for topic_partition, failed in self._failed.items():
            if now_s < failed.due_s or not (
                self._is_out(topic_partition) or topic_partition in self._replicas.unopened
            ):
                continue
            failed.due_s = now_s + failed.wait_s
            failed.wait_s = min(REOPEN_MAX_S, 2 * failed.wait_s)
            self._replicas.reopen(*topic_partition)
