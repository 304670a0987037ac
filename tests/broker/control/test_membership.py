"""How a broker keeps its lease: when it renews it, and what the session settings do."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from penstock.broker.broker import Broker
from penstock.broker.config import BrokerConfig, ConfigError
from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.control.commits import Commits
from penstock.broker.control.membership import Endpoint, Membership, Proof
from penstock.sim.clock import SimClock
from penstock.sim.disk.disk import SimDisk
from penstock.sim.loop import START_S, SimLoop
from penstock.sim.random_streams import SimRandom
from penstock.sim.store import SimStore, StoreConfig, StoreModel
from penstock.stores.errors import StoreFull

SESSION_S = 4.5


class Member:
    """One broker's membership, with a simulated store and virtual time."""

    def __init__(self, model: StoreModel, env: Any) -> None:
        self.model = model
        self.cluster = ClusterView(env.store)
        self.commits = Commits(env.store, self.cluster)
        self.membership = Membership(env, self.cluster, self.commits, 0, SESSION_S, 2.0)
        self.lost = 0

    async def run(self, for_s: float) -> None:
        async def start_over() -> None:
            self.lost += 1
            await self.membership.register(Endpoint("host", 9092, None), Proof(-1, 0, 0))

        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self.cluster.follow())]
            await self.membership.register(Endpoint("host", 9092, None), Proof(-1, 0, 0))
            running.append(tasks.create_task(self.membership.keep(start_over)))
            await self.on_registered()
            await asyncio.sleep(for_s)
            for task in running:
                task.cancel()

    async def on_registered(self) -> None:
        """Replaced by the test."""


def run_case(for_s: float, on_registered: Any) -> Member:
    loop = SimLoop(Random(1))
    loop.horizon_s = START_S + 1000
    model = StoreModel(loop, StoreConfig(), Random(2))
    made: list[Member] = []

    async def main() -> None:
        class Env:
            store = SimStore(model, "node")
            clock = SimClock(loop)
            random = SimRandom(Random(3))

        member = Member(model, Env())
        made.append(member)

        async def act() -> None:
            on_registered(member)

        member.on_registered = act  # type: ignore[method-assign]
        await member.run(for_s)

    try:
        loop.run(main())
        assert loop.unexpected == []
    finally:
        loop.close()
    return made[0]


def test_a_slow_store_does_not_make_the_lease_expire() -> None:
    """A renewal takes most of a session. The interval counts from when the last renewal was sent,
    so the next one is sent at once and arrives in time.
    """

    def slow_down(member: Member) -> None:
        member.model.config = replace(
            member.model.config,
            delay_min_s=0.4 * SESSION_S,
            delay_mean_s=0.0,
            attempt_timeout_s=10.0,
            timeout_s=20.0,
        )

    member = run_case(100.0, slow_down)
    assert member.lost == 0
    assert member.membership.is_registered


def test_renewals_are_retried_while_the_store_is_full() -> None:
    refusals: list[int] = []

    def fill(member: Member) -> None:
        store: Any = member.membership._env.store
        keep_alive = store.keep_alive

        async def refuse(lease: int, carry_s: float = 0.0) -> bool:
            if len(refusals) < 2:
                refusals.append(lease)
                raise StoreFull("no space left: free some")
            alive: bool = await keep_alive(lease, carry_s)
            return alive

        store.keep_alive = refuse

    member = run_case(20.0, fill)
    assert len(refusals) == 2
    assert not member.membership.may_be_over
    assert member.membership.is_registered


def test_without_a_confirmed_renewal_the_lease_may_be_over() -> None:
    """The broker counts from when it sent the last renewal that was confirmed."""
    member = run_case(SESSION_S + 6.0, lambda member: member.model.cut("node", True))
    assert member.membership.may_be_over


@pytest.mark.parametrize(
    ("settings", "expected_s"),
    [
        ({}, 9.0),
        ({"kafka": (("broker.session.timeout.ms", "20000"),)}, 20.0),
        ({"session_timeout_s": 3.0}, 3.0),
        ({"session_timeout_s": 3.0, "kafka": (("broker.session.timeout.ms", "20000"),)}, 3.0),
    ],
)
def test_session_timeout_s_overrides_broker_session_timeout_ms(
    settings: dict[str, Any], expected_s: float
) -> None:
    """Tools see the effective value under Kafka's name."""

    class Env:
        disk = SimDisk(Random(1), Random(2))
        store = None
        network = None
        clock = SimClock(SimLoop(Random(1)))
        boot_id = staticmethod(lambda: "")
        executor = None
        keys = None
        random = SimRandom(Random(3))

    broker = Broker(Env(), BrokerConfig(**settings))  # type: ignore[arg-type]
    assert broker.membership._session_timeout_s == expected_s
    assert broker.configs().int_value("broker.session.timeout.ms") == expected_s * 1000


def test_a_negative_session_timeout_is_refused() -> None:
    with pytest.raises(ConfigError, match="session_timeout_s"):
        BrokerConfig(session_timeout_s=-1.0)
