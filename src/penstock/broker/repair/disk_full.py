"""Hands over leadership and leaves ISRs while the broker's disk is full.

A broker without disk space refuses appends (`storage.space`). Clients should still be able to write
to brokers that have space. So the broker hands over every partition that another in-sync replica
can lead, and leaves the ISRs of the partitions that it follows, because it could not store the next
record. It also stops fetching. When there is space again, it fetches, catches up and joins the
ISRs. If the disk is full again within a minute, the next pause is twice as long: a disk at its
limit must not make the broker join and leave ISRs all the time.

A partition without another in-sync replica stays as it is. So brokers that share one full disk do
not pass partitions around.
"""

from __future__ import annotations

import logging
from typing import Final

from penstock.broker.control.controller import ControllerRuntime
from penstock.broker.error_codes import EXPECTED_ERRORS
from penstock.broker.partitions.replicas import Replicas
from penstock.broker.replication.replica_fetcher import ReplicaFetchers
from penstock.ports import Env
from penstock.storage.space import SpaceGuard

LOOK_S: Final = 1.0
PAUSE_MAX_S: Final = 30.0
SETTLED_S: Final = 60.0
_log = logging.getLogger(__name__)


class DiskFullGuard:
    def __init__(
        self,
        env: Env,
        replicas: Replicas,
        controller: ControllerRuntime,
        fetchers: ReplicaFetchers,
        space: SpaceGuard,
    ) -> None:
        self._env = env
        self._replicas = replicas
        self._controller = controller
        self._fetchers = fetchers
        self._space = space
        self._pause_s = 0.0
        self._recovered_at = -SETTLED_S

    async def run(self) -> None:
        """Watches for a full disk until cancelled."""
        clock, seen = self._env.clock, 0
        while True:
            await clock.sleep(LOOK_S)
            if self._space.lacks_room:
                _log.warning("handing over leadership and leaving ISRs: %s", self._space.explain())
                self._lengthen_pause()
                await self._wait_for_space()
                self._recovered_at = clock.monotonic()
                _log.warning("disk space recovered; resuming replication")
            elif self._space.shortages == seen:
                continue
            # Also after a shortage that was over before this look: followers that could not fetch
            # in the meantime wait for this.
            seen = self._space.shortages
            for hosted in self._replicas:
                self._fetchers.retry(hosted)

    def _lengthen_pause(self) -> None:
        """Doubles the pause if the disk is full again soon after it recovered."""
        is_new = self._env.clock.monotonic() - self._recovered_at > SETTLED_S
        self._pause_s = LOOK_S if is_new else min(2 * self._pause_s, PAUSE_MAX_S)

    async def _wait_for_space(self) -> None:
        clock = self._env.clock
        probe_at = clock.monotonic() + self._pause_s
        while self._space.lacks_room:
            self._fetchers.pause()
            try:
                await self._controller.hand_over()
            except EXPECTED_ERRORS as error:
                _log.warning("could not hand over leadership, retrying: %r", error)
            await clock.sleep(LOOK_S)
            if clock.monotonic() >= probe_at:
                self._space.probe()
                probe_at = clock.monotonic() + self._pause_s
