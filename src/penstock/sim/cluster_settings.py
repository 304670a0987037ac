"""The configuration of the simulated world for a scenario: brokers, network, store and disks."""

from __future__ import annotations

from dataclasses import replace

from penstock.broker.config import BrokerConfig
from penstock.ports import DIVIDE_ALL, Slicing
from penstock.sim.access_plan import broker_settings
from penstock.sim.executor import DiskSpeed
from penstock.sim.network.link import NetworkConfig
from penstock.sim.scenario import Scenario
from penstock.sim.store import StoreConfig
from penstock.sim.world_config import WorldConfig


def world_config(scenario: Scenario, *, keep_trace: bool = False) -> WorldConfig:
    """Returns the configuration of the simulated world for a scenario."""
    defaults = WorldConfig()
    return replace(
        defaults,
        brokers=scenario.brokers,
        racks=scenario.racks,
        broker=_broker_config(defaults.broker, scenario),
        kafka=_kafka_settings(scenario),
        network=replace(
            NetworkConfig(),
            delay_mean_s=scenario.delay_ms / 1000,
            tail_chance=scenario.tail_chance,
            cut_chance=scenario.cut_chance,
        ),
        store=replace(
            StoreConfig(),
            delay_mean_s=scenario.store_delay_ms / 1000,
            watch_lag_s=scenario.watch_lag_ms / 1000,
        ),
        keys=scenario.keys,
        disk=replace(DiskSpeed(), delay_mean_s=scenario.disk_delay_ms / 1000),
        slicing=DIVIDE_ALL if scenario.divides_all else Slicing(),
        keep_trace=keep_trace,
    )


def _broker_config(base: BrokerConfig, scenario: Scenario) -> BrokerConfig:
    return replace(base, session_timeout_s=scenario.session_timeout_s)


def _kafka_settings(scenario: Scenario) -> tuple[tuple[str, str], ...]:
    return (
        ("replica.lag.time.max.ms", str(scenario.lag_max_ms)),
        ("replica.fetch.wait.max.ms", str(scenario.fetch_wait_ms)),
        ("replica.fetch.backoff.ms", "200"),
        ("offsets.topic.num.partitions", str(scenario.offsets_partitions)),
        ("offsets.topic.replication.factor", str(min(3, scenario.brokers))),
        ("offsets.commit.timeout.ms", "2000"),
        ("transaction.state.log.num.partitions", str(scenario.txn_partitions)),
        ("transaction.state.log.replication.factor", str(min(3, scenario.brokers))),
        ("audit.topic.replication.factor", str(min(3, scenario.brokers))),
        ("group.initial.rebalance.delay.ms", "100"),
        ("group.min.session.timeout.ms", "1000"),
        ("auto.create.topics.enable", "false"),
        ("log.cleaner.backoff.ms", "2000"),
        *_consumer_settings(scenario),
        *(scenario.delays.broker_settings(scenario.brokers) if scenario.delays else ()),
        *(scenario.shares.broker_settings(scenario.brokers) if scenario.shares else ()),
        *broker_settings(scenario.access, tokens=scenario.tokens),
    )


def _consumer_settings(scenario: Scenario) -> tuple[tuple[str, str], ...]:
    if not scenario.consumer_groups:
        return ()
    return (
        ("group.consumer.min.session.timeout.ms", "1000"),
        ("group.consumer.min.heartbeat.interval.ms", "100"),
        ("group.consumer.session.timeout.ms", str(int(scenario.consumer_session_s * 1000))),
        ("group.consumer.heartbeat.interval.ms", str(int(scenario.consumer_heartbeat_s * 1000))),
        ("group.consumer.assignment.interval.ms", str(int(scenario.consumer_assignment_s * 1000))),
    )
