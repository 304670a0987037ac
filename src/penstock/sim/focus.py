"""Scenarios that concentrate on one part of the product.

An ordinary seed draws from everything, so two events that must come close together for a bug to
show seldom do. A focus keeps the times, sizes and delays that a seed has drawn, and replaces the
clients and the faults with those of one part. One of four ordinary seeds has a focus. A planted bug
is searched for with the focus of its part (`bug_search`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random  # noqa: TID251 - a simulation is where randomness is made
from typing import Final

from penstock.sim.delay_plan import draw_delays
from penstock.sim.history import COPIES, TABLE
from penstock.sim.key_service import KEY_FILE, KEY_SERVER
from penstock.sim.scenario import (
    ACCESS,
    KEY_FAULTS,
    WORKER_FAULTS,
    Scenario,
    TopicPlan,
    with_consumer_groups,
    with_workers,
)
from penstock.sim.share_plan import draw_shares

Focus = Callable[[Scenario], Scenario]
SHARE: Final = 0.25
_NETWORK: Final = ("partition", "isolate", "clog", "reset")
_DEATHS: Final = ("kill", "bounce", "freeze", "stop")


def _topic(scenario: Scenario, durability: str = "") -> TopicPlan:
    """The seed's first topic, with three replicas of which two must be in sync."""
    first = scenario.topics[0]
    return replace(
        first,
        partitions=1,
        replication_factor=3,
        min_insync=2,
        durability=durability or first.durability,
    )


def _plain(scenario: Scenario, durability: str = "") -> Scenario:
    """One topic, a few producers and readers, nothing else."""
    return replace(
        scenario,
        topics=(_topic(scenario, durability),),
        producers=("real_idempotent", "raw_twice", "raw"),
        readers=1,
        members=0,
        transactors=(),
        copiers=0,
        sinks=0,
        committed_readers=0,
        sends_per_s=5.0,
        fault_mean_s=0.7,
        period_s=6.0,
        session_timeout_s=min(scenario.session_timeout_s, 3.0),
        episodes=(),
        pipeliners=0,
        malformers=0,
        tables=0,
        encrypted=(),
        keys="",
        workers=0,
        pipelines=0,
        consumer_groups=(),
        shares=None,
        delays=None,
    )


def replication(scenario: Scenario) -> Scenario:
    """Leaders that change in the middle of writes."""
    faults = (*_DEATHS, *_NETWORK, "cut_at_append", "power_loss", "power_bounce", "power_silence")
    return replace(_plain(scenario), faults=faults)


def power(scenario: Scenario) -> Scenario:
    """All brokers lose power at once, again and again. Everything is synced."""
    faults = ("power_cut", "power_loss", "kill", "stall_disk", "cut_at_append")
    plain = _plain(scenario, "fsync")
    return replace(plain, faults=faults, transactors=("plain",), committed_readers=1, members=1)


def metadata(scenario: Scenario) -> Scenario:
    """Controllers that change, watches that lag, commits whose replies are lost."""
    faults = (
        *("cut_store", "cut_at_commit", "store_replies", "store_compact", "watch_lag"),
        *("slow_store", "store_outage", "freeze", "bounce", "kill", "clog", "power_silence"),
    )
    plain = _plain(scenario)
    # Every other seed has sessions that last longer than a store is unreachable: leaders continue
    # with the metadata that they have.
    session_s = 15.0 if scenario.seed % 2 else plain.session_timeout_s
    return replace(plain, faults=faults, lag_max_ms=500, session_timeout_s=session_s)


def moves(scenario: Scenario) -> Scenario:
    """Partitions that move while brokers fail and restart."""
    faults = ("move", "move", "prefer", "grow", "kill", "bounce", "power_loss", "partition")
    return replace(_plain(scenario), brokers=max(4, scenario.brokers), faults=faults)


def groups(scenario: Scenario) -> Scenario:
    """Groups whose coordinators and members fail and restart."""
    faults = (*_DEATHS, *_NETWORK, "kill_client", "part_client", "cut_at_append")
    return replace(_plain(scenario), faults=faults, members=3, offsets_partitions=1)


def transactions(scenario: Scenario) -> Scenario:
    """Transactions, alone, copied and ended together, with coordinators that fail and restart."""
    faults = (
        *("kill", "bounce", "isolate", "cut_at_append", "kill_writer", "stall_client"),
        *("freeze_client", "clog", "reset", "power_loss"),
    )
    plain = _plain(scenario)
    copies = replace(plain.topics[0], name=COPIES)
    return replace(
        plain,
        topics=(plain.topics[0], copies),
        faults=faults,
        producers=("real_idempotent",),
        transactors=("plain", "plain", "reading", "old"),
        copiers=1,
        sinks=1,
        committed_readers=1,
        txn_partitions=1,
    )


def topics(scenario: Scenario) -> Scenario:
    """Topics that operators change, delete, create again and compact."""
    faults = (
        *("alter_topic", "alter_topic", "recreate_topic", "delete_records", "scratch"),
        *("kill", "bounce", "power_loss", "move"),
    )
    return replace(_plain(scenario), faults=faults, tables=1, episodes=("empty_disk",))


def _episode(name: str) -> Focus:
    def concentrate(scenario: Scenario) -> Scenario:
        return replace(
            _plain(scenario),
            faults=("kill", "clog"),
            fault_mean_s=2.0,
            period_s=3.0,
            episodes=(name,),
            episode_share=0.6,
            members=1,
        )

    return concentrate


def _synced(scenario: Scenario) -> Scenario:
    return replace(
        scenario, topics=tuple(replace(topic, durability="fsync") for topic in scenario.topics)
    )


def _copied_twice(scenario: Scenario) -> Scenario:
    return replace(
        scenario,
        topics=tuple(
            replace(topic, replication_factor=2, min_insync=2, durability="replicated")
            for topic in scenario.topics
        ),
    )


def bit_rot(scenario: Scenario) -> Scenario:
    """Synced batches rot. In a large segment most of them are above the stored recovery point."""
    plain = _episode("bit_rot")(scenario)
    return replace(
        plain, topics=tuple(replace(topic, segment_bytes=1 << 20) for topic in plain.topics)
    )


def pipelining(scenario: Scenario) -> Scenario:
    """Clients that read right after their own writes, on the same connection."""
    return replace(_plain(scenario), faults=("clog", "bounce", "prefer"), pipeliners=2)


def acks_one(scenario: Scenario) -> Scenario:
    """Producers with acks=1, on a partition whose only replica is the leader. It is moved."""
    plain = _plain(scenario, "fsync")
    alone = replace(plain.topics[0], replication_factor=1, min_insync=1)
    producers = ("raw_acks_1", "real_acks_1", "real_idempotent")
    faults = ("bounce", "kill", "power_loss", "stall_disk", "clog", "move")
    return replace(plain, topics=(alone,), producers=producers, faults=faults)


def malformed(scenario: Scenario) -> Scenario:
    """Clients that send batches whose records cannot be decoded."""
    return replace(_plain(scenario), faults=("clog", "bounce", "prefer"), malformers=1)


def access(scenario: Scenario) -> Scenario:
    """Rights that change while brokers fail, and while they do not learn of changes."""
    faults = (
        *(*_DEATHS, *_NETWORK, "cut_store", "cut_store", "watch_lag", "watch_lag"),
        *("store_replies", "store_outage", "slow_store", "part_client", "prefer"),
    )
    return replace(
        _plain(scenario),
        faults=faults,
        producers=("real_idempotent", "raw"),
        access=scenario.access or ACCESS[scenario.seed % len(ACCESS)],
        tokens=False,
    )


def tokens(scenario: Scenario) -> Scenario:
    """Delegation tokens that change while brokers and controllers fail, and do not learn of it."""
    return replace(access(scenario), tokens=True)


def quotas(scenario: Scenario) -> Scenario:
    """Quotas that change while brokers fail. In every other seed clients log in, so that users have
    quotas too."""
    faults = ("kill", "bounce", "stop", "freeze", "clog", "reset", "cut_store", "watch_lag")
    return replace(
        _plain(scenario),
        faults=faults,
        fault_mean_s=4.0,
        producers=("real_idempotent",),
        access=ACCESS[0] if scenario.seed % 2 else "",
        tokens=False,
        quotas=True,
    )


def pipelines(scenario: Scenario) -> Scenario:
    """Workers that own pipelines, in a group whose coordinator fails, moves, or is replaced without
    learning of it."""
    faults = (
        *(*_DEATHS, *_NETWORK, "kill_client", "freeze_client", "freeze_client", "stall_client"),
        *("stall_client", "part_client", "cut_store", "cut_store", "watch_lag", "slow_link"),
    )
    plain = replace(
        _plain(scenario),
        faults=faults,
        fault_mean_s=1.0,
        producers=("real_idempotent",),
        readers=0,
        offsets_partitions=1,
        session_timeout_s=scenario.session_timeout_s,
        access="",
        tokens=False,
        quotas=False,
    )
    return with_workers(plain)


def consumer_groups(scenario: Scenario) -> Scenario:
    """Consumer groups of the new protocol, whose coordinators and members fail, move, freeze and
    come back, while topics are created, grow and are deleted. In every second seed their members
    change between the classic and the new protocol."""
    faults = (
        *(*_DEATHS, *_NETWORK, "kill_client", "kill_client", "freeze_client", "freeze_client"),
        *("stall_client", "part_client", "cut_at_append", "power_loss", "power_cut"),
        *("cut_store", "watch_lag", "store_replies", "prefer"),
    )
    plain = _plain(scenario)
    topic = replace(plain.topics[0], name="orders", partitions=3, segment_bytes=5_000)
    plain = replace(
        plain,
        topics=(topic, replace(topic, name="events", partitions=2)),
        faults=faults,
        fault_mean_s=1.0,
        producers=("real_idempotent",),
        readers=0,
        offsets_partitions=1 + scenario.seed % 2,
        access="",
        tokens=False,
        quotas=False,
    )
    return replace(with_consumer_groups(plain), consumer_migration=bool(scenario.seed % 2))


def share_groups(scenario: Scenario, *, has_all: bool = False) -> Scenario:
    """Share groups, whose members, leaders and share coordinators fail, move, freeze and come
    back. In half of the seeds records have due times and expiry times, and in half of the seeds
    those that are given up become dead letters."""
    shares = draw_shares(scenario.seed, has_all=has_all)
    faults = (
        *(*_DEATHS, *_NETWORK, "kill_client", "kill_client", "freeze_client", "stall_client"),
        *("part_client", "cut_at_append", "power_loss", "power_cut", "stall_disk", "disk_errors"),
        *("cut_store", "watch_lag", "store_replies", "prefer", "move", *WORKER_FAULTS),
        *(("skew", "skew", "skew") if shares.timed else ()),
    )
    plain = _plain(scenario)
    topic = replace(plain.topics[0], name="orders", partitions=2, segment_bytes=5_000)
    return replace(
        plain,
        topics=(topic, replace(topic, name="events", partitions=1)),
        faults=faults,
        fault_mean_s=1.0,
        producers=("real_idempotent",),
        readers=0,
        offsets_partitions=1,
        access="",
        tokens=False,
        quotas=False,
        shares=shares,
    )


def share_records(scenario: Scenario) -> Scenario:
    """Share groups, always with timed records and dead letters."""
    return share_groups(scenario, has_all=True)


def delay_topics(scenario: Scenario) -> Scenario:
    """A delay topic, whose leaders, targets and share coordinators fail, move, freeze and come
    back, while an operator changes the target."""
    faults = (
        *(*_DEATHS, *_NETWORK, "cut_at_append", "power_loss", "power_cut", "stall_disk"),
        *("disk_errors", "cut_store", "watch_lag", "store_replies", "prefer", "move"),
        *(("skew",) if scenario.seed % 2 else ()),
        *WORKER_FAULTS,
    )
    return replace(
        _plain(scenario),
        faults=faults,
        fault_mean_s=1.0,
        producers=(),
        readers=0,
        access="",
        tokens=False,
        quotas=False,
        delays=draw_delays(scenario.seed, is_certain=True),
    )


def encryption(scenario: Scenario) -> Scenario:
    """An encrypted topic and a plain one, with power losses and a key provider that fails."""
    faults = (
        *("kill", "bounce", "stop", "power_loss", "power_bounce", "power_cut", "move"),
        *KEY_FAULTS,
    )
    plain = _plain(scenario)
    other = replace(plain.topics[0], name="events")
    return replace(
        plain,
        topics=(replace(plain.topics[0], name="orders"), other),
        faults=faults,
        fault_mean_s=1.5,
        producers=("real_idempotent", "raw"),
        transactors=("plain",),
        committed_readers=1,
        tables=1,
        access="",
        tokens=False,
        quotas=False,
        episodes=("bit_rot", "dropped_key"),
        encrypted=("orders", TABLE),
        keys=KEY_SERVER if scenario.seed % 2 else KEY_FILE,
    )


FOCUSES: Final[dict[str, Focus]] = {
    "replication": replication,
    "power": power,
    "metadata": metadata,
    "moves": moves,
    "groups": groups,
    "transactions": transactions,
    "topics": topics,
    "pipelining": pipelining,
    "malformed": malformed,
    "acks_one": acks_one,
    "access": access,
    "tokens": tokens,
    "quotas": quotas,
    "encryption": encryption,
    "pipelines": pipelines,
    "consumer_groups": consumer_groups,
    "share_groups": share_groups,
    "share_records": share_records,
    "delay_topics": delay_topics,
    "bit_rot": bit_rot,
    "empty_disk": _episode("empty_disk"),
    "lone_survivor": _episode("lone_survivor"),
    "double_failover": _episode("double_failover"),
    "unheard_join": lambda scenario: replace(
        _episode("unheard_join")(scenario), session_timeout_s=15.0, lag_max_ms=500
    ),
    "slow_leases": _episode("slow_leases"),
    "full_store": _episode("full_store"),
    "full_disk": _episode("full_disk"),
    "rebuilt_table": lambda scenario: replace(_episode("rebuilt_table")(scenario), tables=1),
    "min_insync": lambda scenario: _synced(_episode("min_insync")(scenario)),
    "durability_switch": _episode("durability_switch"),
    "missed_deletion": lambda scenario: replace(_episode("missed_deletion")(scenario), brokers=3),
    "queued_deletion": lambda scenario: replace(_episode("queued_deletion")(scenario), brokers=3),
    "reborn_restart": lambda scenario: replace(_episode("reborn_restart")(scenario), brokers=3),
    "take_back": lambda scenario: replace(_episode("take_back")(scenario), brokers=4),
    "replaced_move": lambda scenario: replace(
        _copied_twice(_episode("replaced_move")(scenario)), brokers=4
    ),
    "dropped_key": lambda scenario: replace(
        encryption(scenario), faults=("kill", "clog"), episodes=("dropped_key",), episode_share=0.6
    ),
    "keyless_start": lambda scenario: replace(
        encryption(scenario),
        topics=tuple(replace(each, segment_bytes=1 << 20) for each in encryption(scenario).topics),
        faults=("kill", "clog"),
        episodes=("keyless_start",),
        episode_share=0.6,
    ),
    "eligible_deletion": lambda scenario: replace(
        _synced(_episode("eligible_deletion")(scenario)), brokers=3
    ),
    "deleted_branch": lambda scenario: replace(_episode("deleted_branch")(scenario), brokers=3),
}
ORDINARY: Final = (
    *("replication", "power", "metadata", "moves", "groups", "transactions", "topics"),
)
"""The focuses that ordinary seeds may have. The others are parts of ordinary seeds anyway."""


def drawn_focus(seed: int) -> str:
    """Returns the focus of an ordinary seed. Mostly none."""
    random = Random(f"focus {seed}")  # noqa: S311 - always drawn from the seed
    return random.choice(ORDINARY) if random.random() < SHARE else ""


def focused(scenario: Scenario, name: str) -> Scenario:
    return FOCUSES[name](scenario) if name else scenario
