"""Draws everything that characterizes a seed before its run starts: cluster, clients and faults.

The scenario is printed with the result of the run. Everything is small: segments of a few batches,
short timeouts, few partitions. Each seed has some kinds of faults and not others, because some bugs
show only when other faults do not get in the way. A quarter of the time is quiet, so that the
cluster has a chance to recover.

A scenario does only what the product promises to survive. With `durability=replicated` fewer than
min.insync.replicas brokers may lose power before they have caught up again. There is no unclean
election. With a single replica and `replicated` no broker loses power.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from random import Random  # noqa: TID251 - a simulation is where randomness is made
from typing import Final

from penstock.sim.access_plan import BROKERS_IN_PLAIN_TEXT, BROKERS_LOG_IN, GUEST_TOPIC
from penstock.sim.delay_plan import DelayPlan, draw_delays
from penstock.sim.history import COPIERS, COPIES, READERS, SINK, TABLE
from penstock.sim.key_service import KEY_FILE, KEY_SERVER
from penstock.sim.share_plan import SharePlan

FAULTS: Final[dict[str, float]] = {
    "kill": 3.0,
    "bounce": 2.0,
    "power_loss": 2.0,
    "power_bounce": 1.5,
    "power_silence": 1.5,
    "freeze": 2.0,
    "stop": 1.5,
    "partition": 3.0,
    "isolate": 2.0,
    "one_way": 1.5,
    "clog": 2.0,
    "reset": 2.0,
    "slow_link": 1.0,
    "slow_reader": 0.5,
    "refuse": 0.7,
    "cut_store": 1.5,
    "cut_at_commit": 1.0,
    "store_outage": 0.7,
    "store_replies": 1.5,
    "store_compact": 0.7,
    "watch_lag": 1.0,
    "stall_disk": 1.0,
    "skew": 0.7,
    "disk_errors": 0.7,
    "part_client": 1.0,
    "kill_client": 1.0,
    "grow": 0.3,
    "prefer": 1.0,
    "move": 1.0,
}
"""The relative frequency of each kind of fault, in scenarios that have it."""

CLIENT_FAULTS: Final[dict[str, float]] = {
    "kill_writer": 2.0,
    "freeze_client": 1.5,
    "stall_client": 2.0,
    "scratch": 1.0,
    "delete_records": 1.0,
}
"""Additional faults: mostly to clients that write in transactions, and deletions by operators."""

EDGE_FAULTS: Final[dict[str, float]] = {
    "power_cut": 1.5,
    "cut_at_append": 2.0,
    "alter_topic": 2.0,
    "recreate_topic": 1.0,
    "delete_records": 1.0,
    "slow_store": 1.0,
}
"""Faults at the edges: all brokers lose power at once, a leader is cut off with what it has just
appended, operators change and delete topics under traffic, the disk of the store is slow."""

KEY_FAULTS: Final[dict[str, float]] = {
    "key_outage": 1.5,
    "key_restart": 1.5,
    "slow_keys": 1.0,
    "rotate_key": 1.0,
}
"""Additional faults in seeds with encrypted topics: those of the key provider."""
WORKER_FAULTS: Final[dict[str, float]] = {"move_coordinator": 2.0}
"""Additional faults in seeds with workers that own pipelines, with consumer groups, with share
groups, or with a delay topic."""
KEY_EPISODES: Final = ("dropped_key", "keyless_start")
"""Episodes that only seeds with encrypted topics have."""

EPISODES: Final = (
    *("bit_rot", "empty_disk", "lone_survivor", "double_failover", "unheard_join"),
    *("slow_leases", "full_store", "min_insync", "durability_switch", "missed_deletion"),
    *("queued_deletion", "reborn_restart", "take_back", "full_disk"),
    *("rebuilt_table", "deleted_branch", "replaced_move", "eligible_deletion"),
    *KEY_EPISODES,
)
"""Sequences of faults that need the cluster to themselves. See `episodes`."""
_EPISODES_DRAWN_FIRST: Final = 15

EDGE_CLIENTS: Final = ("pipeliner", "malformer", "table")
"""Clients that pipeline, that send malformed batches, or that write to a compacted topic."""

WAITING: Final[frozenset[str]] = frozenset()
"""Faults that are drawn only on request, because the product does not handle them yet."""

TRANSACTOR_KINDS: Final = ("plain", "plain", "reading", "old")
"""`reading` transactors read committed records while their transactions are open. `old` ones do not
use transaction.version 2."""

ACCESS: Final = (BROKERS_LOG_IN, BROKERS_IN_PLAIN_TEXT)
ACCESS_SHARE: Final = 0.2
"""The share of seeds in which clients log in and need rights, and some rights change."""
TOKEN_SHARE: Final = 0.5
"""The share of these in which a user has delegation tokens, which change."""
QUOTA_SHARE: Final = 0.15
"""The share of seeds in which some clients have quotas, which change."""
WORKER_SHARE: Final = 0.1
"""The share of seeds in which workers own pipelines."""
CONSUMER_SHARE: Final = 0.1
"""The share of seeds with consumer groups of the new protocol."""
ENCRYPTION_SHARE: Final = 0.2
"""The share of seeds in which some topics are encrypted on the brokers' disks."""

PRODUCER_KINDS: Final = ("real_idempotent", "real", "real_acks_1", "raw", "raw_acks_1", "raw_twice")
"""`real` producers are the library's. `raw` ones send each batch once. `raw_twice` ones send a
batch again if it was not answered, and sometimes if it was."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    name: str
    partitions: int
    replication_factor: int
    min_insync: int
    durability: str
    segment_bytes: int

    @property
    def partition_names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}-{index}" for index in range(self.partitions))


@dataclass(frozen=True, slots=True)
class Scenario:
    """The configuration of one seed: cluster, topics, clients, faults and delays."""

    seed: int
    brokers: int
    topics: tuple[TopicPlan, ...]
    load_s: float
    mend_s: float
    """How long after the last fault everything must work again."""
    faults: tuple[str, ...]
    fault_mean_s: float
    period_s: float
    session_timeout_s: float
    lag_max_ms: int
    fetch_wait_ms: int
    producers: tuple[str, ...]
    sends_per_s: float
    batch_max: int
    readers: int
    members: int
    offsets_partitions: int
    racks: int
    delay_ms: float
    tail_chance: float
    cut_chance: float
    store_delay_ms: float
    watch_lag_ms: float
    disk_delay_ms: float
    check_every: int
    """How many steps lie between two checks of the invariants. With 1, each check looks only at the
    broker that ran the step, which is cheap."""
    transactors: tuple[str, ...] = ()
    copiers: int = 0
    sinks: int = 0
    committed_readers: int = 0
    txn_partitions: int = 1
    episodes: tuple[str, ...] = ()
    episode_share: float = 0.25
    """The share of periods that are episodes, if the scenario has any."""
    pipeliners: int = 0
    malformers: int = 0
    tables: int = 0
    """The number of compacted topics: 0 or 1."""
    divides_all: bool = False
    """Brokers process every request in the smallest slices, as they do large ones."""
    access: str = ""
    """How brokers connect to each other, if clients log in and need rights: see `ACCESS`."""
    tokens: bool = False
    """In a scenario with access control: a user has delegation tokens, which change."""
    quotas: bool = False
    """Some clients have quotas, which change: see `quota_plan`."""
    encrypted: tuple[str, ...] = ()
    """The topics that are encrypted on the brokers' disks."""
    keys: str = ""
    """What the key provider is like: see `key_service`. Empty if nothing is encrypted."""

    workers: int = 0
    """Workers that own pipelines."""
    pipelines: int = 0
    worker_session_s: float = 3.0
    worker_rebalance_s: float = 3.0
    """The session timeout and the rebalance timeout of the group of workers."""

    consumer_groups: tuple[int, ...] = ()
    """How many members each consumer group of the new protocol has."""
    consumer_session_s: float = 3.0
    consumer_heartbeat_s: float = 0.5
    consumer_assignment_s: float = 0.0
    """The session timeout, the heartbeat interval and the assignment interval of these groups."""
    consumer_migration: bool = False
    """Whether their members change between the classic and the new protocol."""
    shares: SharePlan | None = None
    """The share groups. Only their focus has some."""
    delays: DelayPlan | None = None
    """The delay topic."""

    @property
    def partition_names(self) -> tuple[str, ...]:
        return tuple(
            partition_name for topic in self.all_topics for partition_name in topic.partition_names
        )

    @property
    def all_topics(self) -> tuple[TopicPlan, ...]:
        """The topics, and with access control the one of the guest, whose rights change."""
        if not self.access:
            return self.topics
        return (*self.topics, replace(self.topics[0], name=GUEST_TOPIC, partitions=1))

    @property
    def written(self) -> tuple[str, ...]:
        """The topic partitions that producers write to: all except the target of the copiers."""
        return tuple(
            partition_name
            for topic in self.all_topics
            if topic.name != COPIES
            for partition_name in topic.partition_names
        )

    @property
    def deletable(self) -> tuple[str, ...]:
        """The topic partitions where records may be deleted. What copiers read and sinks
        write stays."""
        first = self.topics[0].partition_names if self.copiers or self.sinks else ()
        return tuple(
            partition_name
            for partition_name in self.written
            if partition_name not in first and not partition_name.startswith(GUEST_TOPIC)
        )

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups that commit offsets."""
        counts = ((READERS, self.members), (COPIERS, self.copiers), (SINK, self.sinks))
        return tuple(group for group, count in counts if count)

    def topic_of(self, partition_name: str) -> TopicPlan:
        name = partition_name.rpartition("-")[0]
        return next(topic for topic in self.all_topics if topic.name == name)

    @property
    def losses_max(self) -> int:
        """How many brokers may be missing data that they had written, at the same time."""
        counts = [
            topic.min_insync - 1
            if topic.replication_factor >= topic.min_insync
            else topic.replication_factor - 1
            for topic in self.topics
            if topic.durability == "replicated"
        ]
        return min(counts, default=self.brokers)

    def __str__(self) -> str:
        return ", ".join(f"{field.name}={getattr(self, field.name)}" for field in fields(self))


def draw(seed: int, *, virtual_s: float = 60.0, also: Collection[str] = ()) -> Scenario:
    """Draws the scenario of a seed. `virtual_s` is how long load and faults last. `also` names
    faults that are drawn although they are in `WAITING`."""
    random = Random(f"scenario {seed}")  # noqa: S311 - always drawn from the seed
    brokers = random.choice((3, 3, 3, 4, 5))
    calm = random.random() < 0.08
    kinds = [name for name in FAULTS if random.random() < 0.5]
    fault_mean_s = random.choice((0.5, 1.0, 2.0, 4.0))
    plain = Scenario(
        seed=seed,
        brokers=brokers,
        topics=_draw_topics(random, brokers),
        load_s=virtual_s,
        mend_s=90.0,
        faults=() if calm else tuple(kinds),
        fault_mean_s=fault_mean_s,
        period_s=random.choice((3.0, 6.0, 12.0)),
        session_timeout_s=random.choice((1.5, 3.0, 6.0, 15.0)),
        lag_max_ms=random.choice((500, 1_500, 4_000)),
        fetch_wait_ms=random.choice((100, 250, 500)),
        producers=tuple(random.choice(PRODUCER_KINDS) for _ in range(random.choice((1, 2, 2, 3)))),
        sends_per_s=random.choice((2.0, 5.0, 10.0)),
        batch_max=random.choice((1, 1, 3, 8)),
        readers=random.choice((0, 1, 1, 2)),
        members=random.choice((0, 0, 1, 2, 3)),
        offsets_partitions=random.choice((1, 1, 2)),
        racks=random.choice((0, 0, 0, 2, 3)),
        delay_ms=random.choice((1.0, 5.0, 20.0)),
        tail_chance=random.choice((0.0, 0.01, 0.05)),
        cut_chance=random.choice((0.0, 0.1, 0.5)),
        store_delay_ms=random.choice((2.0, 10.0, 40.0)),
        watch_lag_ms=random.choice((0.0, 5.0, 100.0)),
        disk_delay_ms=random.choice((1.0, 5.0, 20.0)),
        check_every=1,
    )
    divides_all = Random(f"slices {seed}").random() < 0.2  # noqa: S311 - as above
    access = Random(f"access {seed}")  # noqa: S311 - as above
    drawn = replace(
        _with_edges(_with_transactions(plain), also),
        divides_all=divides_all,
        access=access.choice(ACCESS) if access.random() < ACCESS_SHARE else "",
        tokens=Random(f"tokens {seed}").random() < TOKEN_SHARE,  # noqa: S311 - as above
        quotas=Random(f"quotas {seed}").random() < QUOTA_SHARE,  # noqa: S311 - as above
    )
    drawn = replace(drawn, tokens=drawn.tokens and bool(drawn.access))
    if Random(f"workers {seed}").random() < WORKER_SHARE:  # noqa: S311 - as above
        drawn = with_workers(drawn)
    if Random(f"consumer groups {seed}").random() < CONSUMER_SHARE:  # noqa: S311 - as above
        drawn = with_consumer_groups(drawn)
    return _with_encryption(replace(drawn, delays=draw_delays(seed)))


def with_workers(plain: Scenario) -> Scenario:
    """Adds workers that own pipelines."""
    random = Random(f"pipelines {plain.seed}")  # noqa: S311 - as above
    session_s = random.choice((2.0, 3.0, 6.0))
    return replace(
        plain,
        workers=random.choice((2, 3, 3, 4)),
        pipelines=random.choice((3, 4, 6)),
        worker_session_s=session_s,
        worker_rebalance_s=session_s * random.choice((1.0, 1.0, 2.0, 5.0)),
        faults=(*plain.faults, *WORKER_FAULTS) if plain.faults else (),
    )


def with_consumer_groups(plain: Scenario) -> Scenario:
    """Adds consumer groups of the new protocol."""
    random = Random(f"members {plain.seed}")  # noqa: S311 - as above
    heartbeat_s = random.choice((0.3, 0.6, 1.0))
    more = [name for name in WORKER_FAULTS if name not in plain.faults]
    return replace(
        plain,
        consumer_groups=random.choice(((3,), (4,), (5,), (3, 2), (4, 1))),
        consumer_session_s=random.choice((2.0, 3.0, 6.0)),
        consumer_heartbeat_s=heartbeat_s,
        consumer_assignment_s=random.choice((0.0, 0.0, 1.0, 3.0)),
        faults=(*plain.faults, *more) if plain.faults else (),
    )


_CONSUMERS: Final = "consumers"


def consumer_group_name(number: int) -> str:
    return f"{_CONSUMERS}{number}"


def is_consumer_group(name: str) -> bool:
    """Returns whether the group is one of those of `Scenario.consumer_groups`."""
    return name.startswith(_CONSUMERS)


def _with_encryption(plain: Scenario) -> Scenario:
    """Encrypts some topics in some seeds."""
    random = Random(f"encryption {plain.seed}")  # noqa: S311 - as above
    if random.random() >= ENCRYPTION_SHARE:
        episodes = tuple(name for name in plain.episodes if name not in KEY_EPISODES)
        return replace(plain, episodes=episodes)
    names = [topic.name for topic in plain.all_topics] + ([TABLE] if plain.tables else [])
    chosen = [name for name in names if random.random() < 0.7]
    faults = [name for name in KEY_FAULTS if random.random() < 0.6]
    return replace(
        plain,
        encrypted=tuple(chosen or names[:1]),
        keys=random.choice((KEY_FILE, KEY_SERVER)),
        faults=(*plain.faults, *faults) if plain.faults else (),
    )


def key_of(topic: str) -> str:
    """Returns the name of the topic key of an encrypted topic."""
    return f"key-of-{topic}"


def encryption_of(scenario: Scenario, topic: str) -> dict[str, str]:
    """Returns the setting of a topic. Empty if it is not encrypted."""
    return {"encryption": key_of(topic)} if topic in scenario.encrypted else {}


def _with_transactions(plain: Scenario) -> Scenario:
    """Adds transactions in most seeds, and reduces the number of clients without transactions."""
    # A separate random stream, so that the draws here do not change the rest of a seed.
    random = Random(f"transactions {plain.seed}")  # noqa: S311 - as above
    if random.random() < 0.3:
        return plain
    kinds = [name for name in CLIENT_FAULTS if random.random() < 0.6]
    copiers = random.choice((0, 0, 1, 1, 2))
    first = plain.topics[0]
    copies = replace(first, name=COPIES, segment_bytes=random.choice((300, 5_000)))
    return replace(
        plain,
        topics=(*plain.topics, copies) if copiers else plain.topics,
        faults=(*plain.faults, *kinds) if plain.faults else (),
        producers=plain.producers[: 1 if copiers else 2],
        sends_per_s=min(plain.sends_per_s, 5.0),
        members=min(plain.members, 1),
        readers=min(plain.readers, 1),
        transactors=tuple(
            random.choice(TRANSACTOR_KINDS) for _ in range(random.choice((1, 2, 2, 3)))
        ),
        copiers=copiers,
        sinks=random.choice((0, 0, 1)),
        committed_readers=1,
        txn_partitions=random.choice((1, 1, 2)),
    )


def _with_edges(plain: Scenario, also: Collection[str]) -> Scenario:
    """Adds edge faults and edge clients in two of three seeds."""
    # A separate random stream in a fixed order: switching one fault on changes no other draw.
    random = Random(f"edges {plain.seed}")  # noqa: S311 - as above
    calm = random.random() < 0.33 or not plain.faults
    faults = [name for name in EDGE_FAULTS if random.random() < 0.4]
    episodes = [name for name in EPISODES[:_EPISODES_DRAWN_FIRST] if random.random() < 0.4]
    clients = [name for name in EDGE_CLIENTS if random.random() < 0.3]
    # Drawn last, so that what was drawn for a seed before they existed stays the same.
    episodes += [name for name in EPISODES[_EPISODES_DRAWN_FIRST:] if random.random() < 0.4]
    if calm:
        return plain

    def is_on(name: str) -> bool:
        return name not in WAITING or name in also

    return replace(
        plain,
        faults=tuple(dict.fromkeys((*plain.faults, *filter(is_on, faults)))),
        episodes=tuple(filter(is_on, episodes)),
        pipeliners=int("pipeliner" in clients and is_on("pipeliner")),
        malformers=int("malformer" in clients and is_on("malformer")),
        tables=int("table" in clients and is_on("table")),
    )


def _draw_topics(random: Random, brokers: int) -> tuple[TopicPlan, ...]:
    topics = []
    for name in ("orders", "events")[: random.choice((1, 1, 2))]:
        factor = random.choice((1, 2, 3, 3, 3, 3, 3, min(brokers, 4)))
        least = random.choice({1: (1,), 2: (1, 2), 3: (1, 2, 2, 2, 3)}.get(factor, (2, 3)))
        topics.append(
            TopicPlan(
                name=name,
                partitions=random.choice((1, 1, 2, 3)),
                replication_factor=factor,
                min_insync=least,
                durability=random.choice(("fsync", "fsync", "fsync", "replicated", "replicated")),
                segment_bytes=random.choice((300, 1_000, 5_000, 1 << 20)),
            )
        )
    return tuple(topics)


def unreplicated(scenario: Scenario) -> Scenario:
    """Returns the scenario with one replica of everything, for a cluster that cannot replicate."""
    topics = tuple(replace(topic, replication_factor=1, min_insync=1) for topic in scenario.topics)
    return replace(scenario, topics=topics)
