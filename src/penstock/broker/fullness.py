"""A broker whose disk is full leaves the writing to others.

Appends are refused here until there is room again (`storage.space`), which must not keep clients
from writing where there is room. So every partition that another in-sync replica can lead is led by
another, and this broker leaves the in-sync replicas of what it follows, for it could not take the
next record. It does not fetch either until there is room; then it catches up and comes back. If the
disk is full again within a minute, the next pause is twice as long: a disk at its limit must not
make the broker join and leave the in-sync sets all the time.

Where nobody else is in sync nothing changes: brokers that share one full disk do not pass
partitions around.
"""

from __future__ import annotations

import logging
from typing import Final

from penstock.broker.controller import ControllerRuntime
from penstock.broker.failures import EXPECTED
from penstock.broker.replica_fetcher import ReplicaFetchers
from penstock.broker.replicas import Replicas
from penstock.ports import Env
from penstock.storage.space import SpaceGuard

LOOK_S: Final = 1.0
PAUSE_MAX_S: Final = 30.0
SETTLED_S: Final = 60.0
_log = logging.getLogger(__name__)


class Fullness:
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
        """Watch for a full disk until cancelled."""
        clock = self._env.clock
        while True:
            await clock.sleep(LOOK_S)
            if self._space.lacks_room:
                _log.warning("handing over leadership and leaving ISRs: %s", self._space.explain())
                self._lengthen_pause()
                await self._wait_for_space()
                self._recovered_at = clock.monotonic()
                _log.warning("disk space recovered; resuming replication")
                for hosted in self._replicas:
                    self._fetchers.retry(hosted)

    def _lengthen_pause(self) -> None:
        """A disk that is full again soon after it had room is given more time."""
        is_new = self._env.clock.monotonic() - self._recovered_at > SETTLED_S
        self._pause_s = LOOK_S if is_new else min(2 * self._pause_s, PAUSE_MAX_S)

    async def _wait_for_space(self) -> None:
        clock = self._env.clock
        probe_at = clock.monotonic() + self._pause_s
        while self._space.lacks_room:
            self._fetchers.pause()
            try:
                await self._controller.hand_over()
            except EXPECTED as error:
                _log.warning("leadership could not be handed over: %r", error)
            await clock.sleep(LOOK_S)
            if clock.monotonic() >= probe_at:
                self._space.probe()
                probe_at = clock.monotonic() + self._pause_s
