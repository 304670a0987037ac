"""The shards of one internal topic: one for each partition that this broker leads.

A shard is loaded when a leadership begins, and unloaded when it ends. A shard that could not be
loaded, or was dropped because of a bug, is loaded again.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.coordinators.shard_shell import ShardShell
from penstock.broker.error_codes import EXPECTED_ERRORS
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.ports import Env
from penstock.wire.errors import ErrorCode, KafkaError, ProtocolError
from penstock.wire.java import partition_of

_LOAD_AGAIN_S, _LOAD_AGAIN_MAX_S = 0.25, 10.0
_log = logging.getLogger(__name__)

Shell = TypeVar("Shell", bound=ShardShell[Any, Any, Any])


class LedShards(ABC, Generic[Shell]):
    """The shards of one internal topic whose partitions this broker leads."""

    def __init__(
        self,
        env: Env,
        topic: str,
        broker_id: int,
        cluster: ClusterView,
        spawn: Callable[..., None],
    ) -> None:
        self._env = env
        self.topic = topic
        self._broker_id = broker_id
        self._cluster = cluster
        self._spawn = spawn
        self._shells: dict[int, Shell] = {}

    @abstractmethod
    def make(self, hosted: HostedPartition) -> Shell:
        """Creates a shell for a leadership that has begun."""

    def on_retired(self, shell: Shell) -> None:
        """Called when a shell is no longer used, so that its counters can be kept."""

    def on_leading(self, hosted: HostedPartition) -> None:
        if hosted.topic == self.topic:
            self.on_resigned(hosted)
            self._spawn(self._load(self._install(hosted)))

    def on_resigned(self, hosted: HostedPartition) -> None:
        if hosted.topic == self.topic:
            shell = self._shells.pop(hosted.index, None)
            if shell is not None:
                self.on_retired(shell)
                shell.unload()

    def _install(self, hosted: HostedPartition) -> Shell:
        shell = self.make(hosted)
        shell.on_broken = partial(self._on_broken, shell)
        self._shells[hosted.index] = shell
        return shell

    def _on_broken(self, shell: Shell) -> None:
        if self._shells.get(shell.hosted.index) is shell:
            self._spawn(self._load_after(shell, _LOAD_AGAIN_S))

    async def _load_after(self, shell: Shell, pause_s: float) -> None:
        await self._env.clock.sleep(pause_s)
        again = self._replace(shell)
        if again is not None:
            await self._load(again)

    def _replace(self, shell: Shell) -> Shell | None:
        """Replaces a shell with a new one. Returns None if the leadership has ended."""
        if self._shells.get(shell.hosted.index) is not shell:
            return None
        self.on_retired(shell)
        shell.unload()
        try:
            return self._install(shell.hosted)
        except KafkaError:
            # This broker no longer leads the partition: `on_resigned` follows.
            del self._shells[shell.hosted.index]
            return None

    async def _load(self, shell: Shell) -> None:
        """Loads a shard, and retries until that succeeds or the leadership ends.

        A disk that fails to read may work again soon, and damage is repaired. Until then clients
        retry, and no other broker would take over.
        """
        pause_s = _LOAD_AGAIN_S
        while True:
            try:
                await shell.load()
            except (*EXPECTED_ERRORS, ProtocolError) as error:
                _log.error(
                    "cannot load the coordinator of %s, retrying in %g s: %s",
                    shell.partition_name,
                    pause_s,
                    error,
                )
            except Exception:  # noqa: BLE001 - a bug here must not end the broker
                _log.exception(
                    "cannot load the coordinator of %s, retrying in %g s",
                    shell.partition_name,
                    pause_s,
                )
            else:
                return
            await self._env.clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LOAD_AGAIN_MAX_S)
            # With a new shell, because part of the log may already have been replayed.
            again = self._replace(shell)
            if again is None:
                return
            shell = again

    def index_of(self, name: str) -> int:
        """Returns the partition for a group or transactional id. Raises KafkaError while there is
        none."""
        topic = self._cluster.image.topics.get(self.topic)
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return partition_of(name, len(topic.partitions))

    def require(self, name: str) -> Shell:
        """Returns the shell for a name, or raises the error that makes its client retry."""
        return self.require_at(self.index_of(name))

    def require_at(self, index: int) -> Shell:
        shell = self._shells.get(index)
        if shell is None and not self._is_to_lead(index):
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if shell is None or not shell.loaded or shell.is_over:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shell

    def _is_to_lead(self, index: int) -> bool:
        """Whether the metadata names this broker as leader. Its log may still be opening."""
        partition = self._cluster.image.partition(self.topic, index)
        return partition is not None and partition.leader == self._broker_id

    def loaded(self) -> list[Shell]:
        return [shell for shell in self._shells.values() if shell.loaded and not shell.is_over]

    def is_loading(self) -> bool:
        return any(not shell.loaded or shell.is_over for shell in self._shells.values())
