"""A broker whose disk is full leaves the writing to others.

Appends are refused here until there is room again (`storage.space`), which must not keep clients
from writing where there is room. So every partition that another in-sync replica can lead is led by
another, and this broker leaves the in-sync replicas of what it follows, for it could not take the
next record. It does not fetch either until there is room; then it catches up and comes back.

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

    async def run(self) -> None:
        """Look for want of space until cancelled."""
        while True:
            await self._env.clock.sleep(LOOK_S)
            if self._space.refusing:
                _log.warning("others are to lead: %s", self._space.explain())
                await self._wait_for_space()
                _log.warning("there is space again: what others lead is followed")
                for hosted in self._replicas:
                    self._fetchers.retry(hosted)

    async def _wait_for_space(self) -> None:
        while self._space.refusing:
            try:
                await self._controller.hand_over()
            except EXPECTED as error:
                _log.warning("others could not be made to lead: %r", error)
            await self._env.clock.sleep(LOOK_S)
            self._space.check()
