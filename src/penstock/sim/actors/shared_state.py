"""What the clients of a workload share: the cluster's address, the scenario, the history.

Actors are clients. Each runs in its own process, which a fault may cut off from the brokers. All of
them write to one history, with one clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random  # noqa: TID251 - a simulation is where randomness is made
from typing import Any, Final

from penstock.client.cluster import Cluster, ClusterConfig
from penstock.client.connection import ConnectionConfig
from penstock.client.environment import ClientEnv
from penstock.client.option_values import bootstrap as parse_bootstrap
from penstock.client.security_settings import SecuritySettings
from penstock.sim.access_plan import APP, TENANT, login_keywords, login_of
from penstock.sim.actors.consumer_board import ConsumerBoard
from penstock.sim.actors.pipeline_board import PipelineBoard
from penstock.sim.actors.share_board import ShareBoard
from penstock.sim.history import Entry, History
from penstock.sim.quota_plan import NO_STATE, QuotaState
from penstock.sim.scenario import Scenario

REQUEST_TIMEOUT_MS: Final = 3_000
CLIENT_KEYWORDS: Final[dict[str, Any]] = {
    "request_timeout_ms": REQUEST_TIMEOUT_MS,
    "retry_backoff_ms": 100,
    "retry_backoff_max_ms": 1_000,
    "metadata_max_age_ms": 10_000,
    "socket_connection_setup_timeout_ms": 1_500,
}


@dataclass(slots=True)
class SharedState:
    """The state that all clients of one run share."""

    scenario: Scenario
    bootstrap: list[str]
    history: History
    now_s: Callable[[], float]
    over: asyncio.Event
    """Set when the load must end."""
    generations: dict[str, int] = field(default_factory=dict)
    """By group: the newest generation that any member received."""
    counters: dict[str, int] = field(default_factory=dict)
    under_way: dict[str, Callable[[], Sequence[Entry]]] = field(default_factory=dict)
    """By process: returns the operations that it has begun and not ended, in case it is killed."""
    fences: dict[int, int] = field(default_factory=dict)
    """By producer id: the newest epoch that a producer received when it began. From then on no
    batch of an older epoch may be written."""
    losses_max: int = 1 << 30
    """How many brokers may lose unsynced data, as far as operators' changes limit it."""
    settings: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By topic: the durability and min.insync.replicas that an operator requested last."""
    synced_end: Callable[[str], int] = lambda partition_name: 0
    """Returns up to which offset a topic partition has been synced on any disk."""
    is_known: Callable[[str], bool] = lambda topic: True
    """Returns whether every broker that runs knows which topic has this name now."""
    quota_state: Callable[[int, str, str], QuotaState] = lambda broker, client_id, key: NO_STATE
    """Returns what the metadata of a broker says about a quota of a tenant."""
    removal_ms: Callable[[str], float | None] = lambda member_id: None
    """Returns when the group of workers will remove a member. None if it has no coordinator."""
    wall_range: Callable[[int | None, float, float], tuple[int, int]] = lambda *_: (0, 0)
    """Takes a broker, or None for all, and a period in virtual milliseconds. Returns the lowest and
    the highest time that the clock has shown meanwhile."""
    tokens: dict[str, bytes] = field(default_factory=dict)
    """By id of a delegation token: its HMAC. All tokens whose creation was acknowledged."""
    ended_tokens: dict[str, None] = field(default_factory=dict)
    """Those whose end or removal was acknowledged."""
    lasting_token: str = ""
    """A token that stays as it was created."""
    table: dict[str, int] = field(default_factory=dict)
    """By key of the compacted topic: the newest value that was acknowledged."""
    requests: list[str] = field(default_factory=list)
    """What an operator has asked for with an admin client, and what is not done yet."""
    reborn: dict[str, None] = field(default_factory=dict)
    """Topics that an operator is deleting and creating again at the moment."""
    revoked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced by another, when the revocation of a right was acknowledged."""
    scratch: list[str] = field(default_factory=list)
    """Topics that are created and deleted during the run. Some transactions write to them."""
    _pipelines: PipelineBoard | None = None
    _consumers: ConsumerBoard | None = None
    shares: ShareBoard = field(default_factory=ShareBoard)
    """The members of share groups, and what they have sent."""

    @property
    def pipelines(self) -> PipelineBoard:
        """The deployed pipelines and their drivers."""
        if self._pipelines is None:
            names = (f"pipeline{number}" for number in range(self.scenario.pipelines))
            self._pipelines = PipelineBoard(self.now_s, frozenset(names))
        return self._pipelines

    @property
    def consumers(self) -> ConsumerBoard:
        """The members of consumer groups, and what they read."""
        if self._consumers is None:
            self._consumers = ConsumerBoard(self.now_ms)
        return self._consumers

    def on_killed(self, process: str) -> None:
        """Adds the unfinished operations of a killed process to the history. They may have
        taken effect."""
        unfinished = self.under_way.pop(process, None)
        if unfinished is not None:
            for entry in unfinished():
                self.history.add(entry)

    def fence(self, producer_id: int, epoch: int) -> None:
        self.fences[producer_id] = max(epoch, self.fences.get(producer_id, -1))

    def is_alone(self, partition_name: str) -> bool:
        """Returns whether the leader is always the only replica, and syncs before it
        answers acks=1."""
        topic = self.scenario.topic_of(partition_name)
        return (
            topic.replication_factor == 1
            and topic.durability == "fsync"
            and topic.name not in self.settings
        )

    def now_ms(self) -> float:
        return round(self.now_s() * 1000, 3)

    def count(self, name: str, times: int = 1) -> None:
        self.counters[name] = self.counters.get(name, 0) + times

    def cluster_config(self, user: str, request_timeout_ms: int) -> ClusterConfig:
        """Returns the configuration for actors that talk to brokers without the
        library's clients."""
        login = login_of(user) if self.scenario.access else None
        return ClusterConfig(
            bootstrap=parse_bootstrap("bootstrap", self.bootstrap),
            connection=ConnectionConfig(
                connect_timeout_s=1.5,
                request_timeout_s=request_timeout_ms / 1000,
                security=SecuritySettings(login=login),
            ),
            deadline_s=10.0,
        )

    @property
    def tenant_user(self) -> str | None:
        """The user of the clients with quotas. None if it is the user of all others too."""
        return TENANT if self.scenario.access else None

    def on_revoked(self) -> None:
        self.revoked.set()
        self.revoked = asyncio.Event()

    async def rest_until_revoked(self, seconds: float) -> None:
        """Waits, but not after a right was revoked: the next moment is where to look for bugs."""
        try:
            async with asyncio.timeout(seconds):
                await self.revoked.wait()
        except TimeoutError:
            pass

    async def rest(self, seconds: float) -> None:
        """Waits, but not longer than the load lasts."""
        try:
            async with asyncio.timeout(seconds):
                await self.over.wait()
        except TimeoutError:
            pass


@dataclass(slots=True)
class Actor:
    """One client of a run."""

    shared: SharedState
    env: ClientEnv
    name: str
    draws: Random
    sent: int = 0
    begun: int = 0
    """The number of transactions begun."""
    user: str = APP
    """As whom it logs in, in scenarios with access control."""

    @property
    def keywords(self) -> dict[str, Any]:
        """The options of the library's clients."""
        if not self.shared.scenario.access:
            return CLIENT_KEYWORDS
        return CLIENT_KEYWORDS | login_keywords(self.user)

    def cluster(self, request_timeout_ms: int = REQUEST_TIMEOUT_MS) -> Cluster:
        """Returns a cluster for actors that talk to brokers without the library's clients."""
        env, config = self.env, self.shared.cluster_config(self.user, request_timeout_ms)
        return Cluster(config, env.network, env.clock, env.random, env.executor)

    def next_value(self) -> tuple[int, str]:
        self.sent += 1
        return self.sent, f"{self.name}.{self.sent}"

    def pause_s(self) -> float:
        """Returns the time until the next action, exponentially distributed."""
        return min(self.draws.expovariate(self.shared.scenario.sends_per_s), 5.0)
