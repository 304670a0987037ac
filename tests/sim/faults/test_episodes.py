"""Episodes decide what they may do to a broker at the moment when they do it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.sim.faults.episodes import Episodes


class Broker:
    """A broker of the cluster: in sync in one partition, together with broker 1."""

    def __init__(self) -> None:
        self.id, self.name = 0, "broker-0"
        self.process: object | None = object()
        self.starts = 0
        self.wipes = 0
        self.disk = SimpleNamespace(wipe=self._wipe)

    def _wipe(self) -> None:
        assert self.process is None, "a disk must not be replaced under a running broker"
        self.wipes += 1

    def kill(self, name: str) -> None:
        self.process = None

    def start(self, node: object) -> None:
        self.starts += 1
        self.process = object()


def episodes(broker: Broker, isr: tuple[int, ...], *, is_started_meanwhile: bool) -> Episodes:
    async def rest(seconds: float) -> None:
        if is_started_meanwhile:
            broker.process = object()

    partition = SimpleNamespace(isr=isr, eligible_leaders=(), replicas=(0, 1))
    cluster: Any = SimpleNamespace(
        draws=None,
        world=None,
        shared=SimpleNamespace(rest=rest),
        image=SimpleNamespace(topics={"orders": SimpleNamespace(partitions=[partition])}),
        actions=SimpleNamespace(
            faults=SimpleNamespace(kill=broker.kill), start=broker.start, tell=lambda *_: None
        ),
        invariants=SimpleNamespace(on_wiped=lambda _: None),
        pause_s=lambda: 1.0,
    )
    return Episodes(cluster)


@pytest.mark.parametrize(
    ("isr", "is_started_meanwhile", "loses"),
    [((0, 1), False, True), ((0,), False, False), ((0, 1), True, False)],
    ids=["another replica is in sync", "the last in-sync replica", "started by an earlier fault"],
)
def test_a_broker_gets_an_empty_disk_only_if_the_disk_may_be_lost_and_is_not_in_use(
    isr: tuple[int, ...], is_started_meanwhile: bool, loses: bool
) -> None:
    broker = Broker()
    played = episodes(broker, isr, is_started_meanwhile=is_started_meanwhile)
    lost: Any = asyncio.run(played._lose_disk(broker))  # type: ignore[arg-type]
    assert (lost, broker.wipes, broker.starts) == (loses, int(loses), 1)
