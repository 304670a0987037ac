"""What the actors of a workload share: where the cluster is, what to send where, the history.

Actors are clients: each runs in a process of its own, which a fault may part from the brokers. All
of them write to one history, by one clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random  # noqa: TID251 - a simulation is where randomness is made
from typing import Any, Final

from penstock.client.cluster import ClusterConfig
from penstock.client.connection import ConnectionConfig
from penstock.client.environment import ClientEnv
from penstock.client.model import TopicPartition
from penstock.client.option_values import bootstrap as parse_bootstrap
from penstock.sim.history import Entry, History
from penstock.sim.scenario import Scenario

REQUEST_TIMEOUT_MS: Final = 3_000
CLIENT_KEYWORDS: Final[dict[str, Any]] = {
    "request_timeout_ms": REQUEST_TIMEOUT_MS,
    "retry_backoff_ms": 100,
    "retry_backoff_max_ms": 1_000,
    "metadata_max_age_ms": 10_000,
    "socket_connection_setup_timeout_ms": 1_500,
}


def place_of(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def parse_place(place: str) -> TopicPartition:
    topic, _, index = place.rpartition("-")
    return TopicPartition(topic, int(index))


@dataclass(slots=True)
class Stage:
    scenario: Scenario
    bootstrap: list[str]
    history: History
    now_s: Callable[[], float]
    over: asyncio.Event
    """Set when the load is to end."""
    generations: dict[str, int] = field(default_factory=dict)
    """By group: the newest that anybody was told."""
    counters: dict[str, int] = field(default_factory=dict)
    under_way: dict[str, Callable[[], Sequence[Entry]]] = field(default_factory=dict)
    """By process: what it has begun and not ended, should it be killed meanwhile."""
    fences: dict[int, int] = field(default_factory=dict)
    """By producer id: the newest epoch that a producer was given when it began. Nothing of an
    older one may be written from then on."""
    losses_max: int = 1 << 30
    """How many brokers may lose what they have not synced, by what operators have changed."""
    settings: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By topic: the durability and min.insync.replicas that an operator asked for last."""
    synced_end: Callable[[str], int] = lambda place: 0
    """By place: up to where its records are on some disk, or were."""
    table: dict[str, int] = field(default_factory=dict)
    """By key of the compacted topic: the newest value that was acknowledged."""
    reborn: dict[str, None] = field(default_factory=dict)
    """Topics that an operator deletes and makes again at the moment."""
    scratch: list[str] = field(default_factory=list)
    """Topics that come and go: some of what is sent in transactions goes there."""

    def on_killed(self, process: str) -> None:
        """What a process had under way may have taken effect, and nobody will say."""
        unfinished = self.under_way.pop(process, None)
        if unfinished is not None:
            for entry in unfinished():
                self.history.add(entry)

    def fence(self, producer_id: int, epoch: int) -> None:
        self.fences[producer_id] = max(epoch, self.fences.get(producer_id, -1))

    def is_alone(self, place: str) -> bool:
        """Whether its leader is always its only replica, and syncs before it answers acks=1."""
        topic = self.scenario.topic_of(place)
        return (
            topic.replication_factor == 1
            and topic.durability == "fsync"
            and topic.name not in self.settings
        )

    def now_ms(self) -> float:
        return round(self.now_s() * 1000, 3)

    def count(self, name: str, times: int = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + times

    def cluster_config(self) -> ClusterConfig:
        """For actors that speak to brokers without the library's clients."""
        return ClusterConfig(
            bootstrap=parse_bootstrap("bootstrap", self.bootstrap),
            connection=ConnectionConfig(
                connect_timeout_s=1.5, request_timeout_s=REQUEST_TIMEOUT_MS / 1000
            ),
            deadline_s=10.0,
        )

    async def rest(self, seconds: float) -> None:
        """Wait, but not for longer than the load goes on."""
        try:
            async with asyncio.timeout(seconds):
                await self.over.wait()
        except TimeoutError:
            pass


@dataclass(slots=True)
class Actor:
    """One client of a stage."""

    stage: Stage
    env: ClientEnv
    name: str
    draws: Random
    sent: int = 0
    begun: int = 0
    """Transactions."""

    def next_value(self) -> tuple[int, str]:
        self.sent += 1
        return self.sent, f"{self.name}.{self.sent}"

    def pause_s(self) -> float:
        """Until the next thing to do: as likely soon as late, as arrivals are."""
        return min(self.draws.expovariate(self.stage.scenario.sends_per_s), 5.0)
