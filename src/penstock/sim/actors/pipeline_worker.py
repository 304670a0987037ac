"""A worker that owns pipelines. Its drivers are on the `PipelineBoard`, and survive it.

The clock of its machine is up to 8 % faster or slower than that of the brokers. It learns late of
new and deleted deployments. Stopping a driver takes up to some seconds, perhaps longer than the
lease lasts.
"""

from __future__ import annotations

import asyncio
from typing import Final
from zlib import crc32

from penstock.client.errors import ClientError
from penstock.sim.actors.pipeline_board import Driver, PipelineBoard
from penstock.sim.actors.shared_state import Actor
from penstock.sim.history import OK, LeaseRenewal
from penstock.spark.deployments.ownership import Ownership, OwnershipOptions
from penstock.topic_partition import TopicPartition

_DRIFT: Final = 0.08
_KILL_S: Final = 0.05
"""How long a process may go on after it was killed."""


async def run_pipeline_worker(actor: Actor) -> None:
    """Takes part in the group of workers until the end of the run."""
    board, scenario = actor.shared.pipelines, actor.shared.scenario
    cluster = actor.cluster(int(scenario.worker_session_s * 1000))
    while True:
        try:
            await cluster.__aenter__()
            break
        except ClientError:
            await asyncio.sleep(0.5)
    options = OwnershipOptions(
        session_timeout_ms=int(scenario.worker_session_s * 1000),
        heartbeat_interval_ms=int(scenario.worker_session_s * 150),
        rebalance_timeout_ms=int(scenario.worker_rebalance_s * 1000),
        stop_timeout_s=6.0,
        commit_to=TopicPartition(scenario.topics[0].name, 0),
    )
    worker = _Worker(actor, board)
    ownership = worker.ownership = Ownership(
        cluster,
        options,
        eligible=lambda: worker.view - worker.refused,
        existing=lambda: worker.view,
        settled=lambda: frozenset(name for name in worker.view if crc32(name.encode()) % 4),
        owner=worker,
        boot_time=worker.boot_s,
    )
    task = asyncio.ensure_future(ownership.run())
    while not board.done.is_set() and not task.done():
        await asyncio.wait([task], timeout=0.2 + 2 * actor.draws.random())
        worker.look_around()
        ownership.refresh()
    task.cancel()
    await asyncio.wait([task])
    cluster.close()
    if not task.cancelled():
        task.result()


class _Worker:
    def __init__(self, actor: Actor, board: PipelineBoard) -> None:
        self._actor = actor
        self._board = board
        self._draws = actor.draws
        self._speed = 1 + _DRIFT * (2 * actor.draws.random() - 1)
        self._drivers: dict[str, Driver | None] = {}
        self._killed: set[str] = set()
        self.ownership: Ownership | None = None
        self.view = board.existing
        self.refused: frozenset[str] = frozenset()
        """The deployments that it cannot run at the moment."""

    def boot_s(self) -> float:
        return 1000 + self._board.now_s() * self._speed

    def _virtual_s(self, boot_s: float) -> float:
        return (boot_s - 1000) / self._speed

    def look_around(self) -> None:
        """Learns which deployments there are. Sometimes it changes them, or what it can run."""
        board, draws, over = self._board, self._draws, self._actor.shared.over.is_set()
        chance = draws.random()
        names = [f"pipeline{number}" for number in range(self._actor.shared.scenario.pipelines)]
        if over:
            self.refused = frozenset()
        elif chance < 0.05:
            self.refused = frozenset(draws.sample(names, 1))
        elif chance < 0.1:
            self.refused = frozenset()
        elif chance < 0.13:
            board.existing = board.existing ^ {draws.choice(names)}
        self.view = board.existing

    # -- the owner ------------------------------------------------------------------------------

    def take(self, name: str) -> None:
        self._actor.shared.count("pipelines_taken")
        self._killed.discard(name)
        self._drivers[name] = None
        assert self.ownership is not None
        self._tell_drivers(self.ownership.lease_until)

    def renew(self, until: float) -> None:
        self._actor.shared.count("leases_renewed")
        self._note_lease(self._virtual_s(until) * 1000)
        self._tell_drivers(until)

    def _note_lease(self, lease_ms: float) -> None:
        assert self.ownership is not None
        shared = self._actor.shared
        now_ms, removal_ms = shared.now_ms(), shared.removal_ms(self.ownership.member_id)
        if removal_ms is not None and lease_ms > now_ms:
            shared.history.add(
                LeaseRenewal(
                    process=self._actor.name,
                    status=OK,
                    begun_ms=now_ms,
                    ended_ms=now_ms,
                    lease_ms=lease_ms,
                    removal_ms=removal_ms,
                )
            )

    def _tell_drivers(self, until: float) -> None:
        for name, driver in list(self._drivers.items()):
            if name in self._killed:
                continue
            if driver is None:
                if until > self.boot_s():
                    self._drivers[name] = self._board.start(
                        name, self._actor.name, self._virtual_s(until)
                    )
            else:
                driver.deadline_s = self._virtual_s(until)

    def lose(self, name: str) -> None:
        self._actor.shared.count("pipelines_lost")
        self._killed.add(name)
        driver = self._drivers[name]
        if driver is not None:
            driver.stop(self._board.now_s() + _KILL_S * self._draws.random())

    async def give_up(self, name: str) -> None:
        self._actor.shared.count("pipelines_given_up")
        driver = self._drivers[name]
        if driver is not None:
            ends_s = self._board.now_s() + self._draws.choice((0.0, 0.5, 3.0, 10.0))
            # `lose` may end it earlier.
            while self._board.now_s() < min(driver.ends_s, ends_s):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            driver.stop(self._board.now_s())
        del self._drivers[name]
        self._killed.discard(name)
