"""Loads the share partitions that may have dead letters to write, and no member.

The former leader may have left letters that were decided and not written. A share partition is
loaded by the first share fetch of its group, and then writes them. If no member comes, they would
wait. So a new leader looks at the groups that have a dead-letter topic, and loads those that are
not done with the partition. What has nothing to write, and no member, leaves memory at once.

The same applies to a share partition that its leader has dropped, because the outcome of a write is
unknown. It is looked up after a short pause.

A few lookups run at a time. If the share coordinator cannot be reached, as after the failure of the
same broker, they are repeated with a growing pause, as long as this broker leads the partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from itertools import chain, islice
from typing import Any, Final

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.error_codes import EXPECTED_ERRORS
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.partitions.replicas import Replicas
from penstock.broker.shares.led_partition import LedPartition
from penstock.broker.shares.share_leader import ShareLeader
from penstock.metadata.dead_letter_configs import DEAD_LETTER_TOPIC
from penstock.metadata.model import INTERNAL_TOPICS
from penstock.ports import Env
from penstock.shares.state_port import SharePartitionId

AT_ONCE: Final = 32
PAUSE_MIN_S: Final = 0.2
PAUSE_MAX_S: Final = 5.0


class LetterRecovery:
    """See the module's docstring."""

    def __init__(
        self,
        env: Env,
        cluster: ClusterView,
        replicas: Replicas,
        shares: ShareLeader,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._clock = env.clock
        self._cluster = cluster
        self._shares = shares
        self._spawn = spawn
        self._pending: dict[HostedPartition, None] = {}
        """Partitions that this broker has begun to lead."""
        self._later: dict[tuple[HostedPartition, str], None] = {}
        """Groups of partitions that are looked up after a pause."""
        self._is_running = False
        replicas.role_changes.on_leading(self._on_leading)
        shares.on_letters_dropped(self._on_dropped)

    def _on_leading(self, hosted: HostedPartition) -> None:
        if hosted.topic in INTERNAL_TOPICS or not self._cluster.image.group_configs:
            return
        self._pending[hosted] = None
        self._begin()

    def _on_dropped(self, hosted: HostedPartition, group_id: str) -> None:
        self._later[hosted, group_id] = None
        self._begin()

    def _begin(self) -> None:
        if not self._is_running:
            self._is_running = True
            self._spawn(self._run())

    async def _run(self) -> None:
        pause_s = PAUSE_MIN_S
        try:
            while self._pending or self._later:
                if not self._pending:
                    await self._clock.sleep(pause_s)
                    pause_s = min(2 * pause_s, PAUSE_MAX_S)
                pairs = self._pairs()
                while chunk := [*islice(pairs, AT_ONCE)]:
                    done = await asyncio.gather(*(self._recover(*each) for each in chunk))
                    for pair, is_done in zip(chunk, done, strict=True):
                        if not is_done:
                            self._later[pair] = None
        finally:
            self._is_running = False

    def _pairs(self) -> Iterator[tuple[HostedPartition, str]]:
        """Takes everything. Yields new partitions with each group that has a dead-letter topic."""
        pending, self._pending = self._pending, {}
        later, self._later = self._later, {}
        configs = self._cluster.image.group_configs
        groups = [name for name, values in configs.items() if values.get(DEAD_LETTER_TOPIC)]
        return chain(later, ((hosted, group_id) for hosted in pending for group_id in groups))

    async def _recover(self, hosted: HostedPartition, group_id: str) -> bool:
        """Returns whether this is done, or not needed. Otherwise it must be tried again."""
        term, state = hosted.leadership, self._shares.state
        if term is None:
            return True
        if state is None:
            return False
        where = SharePartitionId(group_id, hosted.topic_id, hosted.index)
        try:
            summary = await state.summary(where)
            if hosted.leadership is not term:
                return True
            # If the start offset is not decided yet, nothing was delivered, and only a member may
            # decide it. Letters that are not written hold the start offset, except those of
            # promoted records.
            if summary is None or summary.start_offset < 0:
                return True
            if summary.start_offset >= hosted.log.end_offset and not summary.promoted:
                return True
            led = self._shares.lead(hosted)
        except EXPECTED_ERRORS:
            return False
        if group_id in led.groups:
            return True
        load = _Load(group_id)
        led.use(group_id)
        led.wait(group_id, load)
        return await load.ended


class _Load:
    """Waits for the end of a load, as a share fetch does."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self.ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def attempt(self, woken: LedPartition) -> None:
        woken.end_wait(self._group_id, self)
        if not self.ended.done():
            self.ended.set_result(woken.is_closed or woken.load_error(self._group_id) is None)
