"""Renders the gathered metrics in Prometheus' text format.

Each metric family is built and rendered separately, so that other tasks can run in between. The
largest family has one sample per topic that has its own series (`top_topics.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from typing import NamedTuple

from prometheus_client.core import Metric
from prometheus_client.process_collector import ProcessCollector

from penstock.broker.audit.trail import AuditTrail
from penstock.broker.broker import Broker
from penstock.broker.context import Services
from penstock.broker.counters import BrokerCounters, Histogram
from penstock.broker.delay.topic_figures import delayed_topics
from penstock.broker.metrics import exposition
from penstock.broker.metrics.exposition import CONTENT_TYPE, Sample, render
from penstock.broker.metrics.gather import CoordinatorTotals, Gathered
from penstock.broker.metrics.names import BY_NAME, OTHER
from penstock.broker.metrics.top_topics import TopTopics
from penstock.groups.consumer.group import ConsumerState
from penstock.groups.group import State as GroupState
from penstock.groups.share.group import ShareGroupState
from penstock.records.kernels import COMPILED
from penstock.security.delegation_tokens import TOKENS_MAX
from penstock.txns.transaction import State as TransactionState
from penstock.wire.api import ApiKey

__all__ = ["CONTENT_TYPE", "Scraping", "families", "render"]

_GROUP_STATES = tuple(
    dict.fromkeys(state.value for states in (GroupState, ConsumerState) for state in states)
)


def family(name: str, samples: Iterable[Sample]) -> Metric:
    """Returns a counter or gauge family from `names.py`, with its samples."""
    return exposition.family(BY_NAME[name], samples)


def histogram(name: str, samples: Iterable[tuple[tuple[str, ...], Histogram]]) -> Metric:
    return exposition.histogram(BY_NAME[name], samples)


class Scraping(NamedTuple):
    """What the metrics endpoint reports about itself."""

    previous_s: float
    refused: int


def families(
    broker: Broker,
    services: Services,
    gathered: Gathered,
    top_topics: TopTopics,
    scraping: Scraping,
) -> Iterator[Metric]:
    """Yields all families, one at a time."""
    counters = broker.counters
    yield from _about(services)
    yield from _topics(top_topics)
    yield from _requests(broker, counters)
    yield from _produce(services, counters)
    yield from _storage(services, counters, gathered)
    yield from _replication(broker, services, gathered)
    yield from _groups(gathered.coordinators)
    yield from _shares(services, gathered)
    yield from _delays(services)
    yield from _transactions(gathered)
    yield from _share_states(gathered.coordinators)
    yield from _audit(broker.audit)
    yield histogram("penstock_event_loop_delay_seconds", [((), counters.loop_delays)])
    yield _single("penstock_scrape_duration_seconds", scraping.previous_s)
    yield _single("penstock_metrics_refused_requests_total", scraping.refused)
    # Not registered, because tests may run several brokers in one process.
    yield from ProcessCollector(registry=None).collect()


@cache
def _version() -> str:
    return metadata.version("penstock")


def _single(name: str, value: float) -> Metric:
    return family(name, [((), value)])


def _about(services: Services) -> Iterator[Metric]:
    python = ".".join(map(str, sys.version_info[:3]))
    compiled = "yes" if COMPILED else "no"
    yield family("penstock_build_info", [((_version(), python, compiled), 1)])
    config = services.config
    cluster_id = services.image.cluster_id or ""
    yield family("penstock_broker_info", [((str(config.broker_id), cluster_id, config.rack), 1)])


def _topics(top_topics: TopTopics) -> Iterator[Metric]:
    rows = [*top_topics.rows.items(), (OTHER, top_topics.other)]

    def of(name: str, field: str) -> Metric:
        return family(name, [((topic,), getattr(row, field)) for topic, row in rows])

    yield of("penstock_topic_received_bytes_total", "received_bytes")
    yield of("penstock_topic_received_records_total", "received_records")
    yield of("penstock_topic_sent_bytes_total", "sent_bytes")
    yield of("penstock_topic_replicated_bytes_total", "replicated_bytes")
    yield of("penstock_log_size_bytes", "size_bytes")


def _requests(broker: Broker, counters: BrokerCounters) -> Iterator[Metric]:
    requests, server = counters.requests, broker.server
    requests.settle()
    yield histogram(
        "penstock_request_duration_seconds",
        [((ApiKey(api).api_name,), held) for api, held in sorted(requests.by_api.items())],
    )
    yield family(
        "penstock_request_errors_total",
        [
            ((ApiKey(api).api_name, code.name), count)
            for (api, code), count in sorted(requests.errors.items())
        ],
    )
    connections = server.counters
    evicted, displaced = connections.connections_evicted, connections.connections_displaced
    budgets = server.budget, server.large_requests
    yield _single("penstock_request_bytes_in_flight", sum(each.used for each in budgets))
    yield _single("penstock_request_bytes_in_flight_limit", sum(each.bytes_max for each in budgets))
    yield _single("penstock_response_bytes_held", server.responses.used)
    yield _single("penstock_response_bytes_held_limit", server.responses.bytes_max)
    yield _single("penstock_connections", connections.connections)
    yield _single("penstock_connections_opened_total", connections.connections_accepted)
    yield family(
        "penstock_connections_closed_total",
        [
            (("refused",), connections.connections_rejected),
            (("slow",), connections.connections_dropped - evicted - displaced),
            (("memory",), evicted),
            (("displaced",), displaced),
            (("failed",), connections.connections_failed),
        ],
    )
    yield from _handshakes(broker)
    turns = server.turns
    yield _single("penstock_fair_sharing_active", int(turns.is_active))
    yield _single("penstock_fair_sharing_waiting_connections", turns.waiting)
    yield _single("penstock_fair_sharing_waits_total", turns.waits)
    yield from _access(broker)
    yield _single("penstock_network_received_bytes_total", connections.bytes_in)
    yield _single("penstock_network_sent_bytes_total", connections.bytes_out)


def _handshakes(broker: Broker) -> Iterator[Metric]:
    certificates = broker.listeners.certificates
    counters = {} if certificates is None else certificates.handshakes

    def of(name: str, fields: Iterable[str]) -> Metric:
        return family(
            name,
            [
                ((listener, field), getattr(each, field))
                for listener, each in counters.items()
                for field in fields
            ],
        )

    yield of("penstock_tls_handshakes_open", ("pending", "waiting"))
    results = ("completed", "failed", "timed_out", "evicted", "refused")
    yield of("penstock_tls_handshakes_total", results)
    broken = [((listener,), each.broken) for listener, each in counters.items()]
    yield family("penstock_tls_connections_broken_total", broken)


def _access(broker: Broker) -> Iterator[Metric]:
    """Clients choose their client ids, so users and client ids are no labels."""
    quotas, meters = broker.quotas, broker.quotas.current
    throttled = quotas.throttled.items()
    yield _single("penstock_muted_connections", broker.server.counters.connections_muted)
    yield family("penstock_throttled_total", [((key,), each.count) for key, each in throttled])
    yield family(
        "penstock_throttle_seconds_total", [((key,), each.ms / 1000) for key, each in throttled]
    )
    delays = broker.listeners.accept_rates.delays.items()
    yield family("penstock_accept_delays_total", [((name,), each.count) for name, each in delays])
    yield family(
        "penstock_accept_delay_seconds_total",
        [((name,), each.ms / 1000) for name, each in delays],
    )
    yield _single("penstock_delegation_tokens", len(broker.cluster.image.tokens.by_id))
    yield _single("penstock_delegation_tokens_limit", TOKENS_MAX)
    yield _single("penstock_quota_entities", len(broker.cluster.image.quotas.entities))
    yield _single("penstock_quota_meters", 0 if meters is None else len(meters))
    yield _single("penstock_quota_shared_meters_total", quotas.shared_meters)


def _produce(services: Services, counters: BrokerCounters) -> Iterator[Metric]:
    produce, large = counters.produce, services.large_batches
    yield _single("penstock_produce_malformed_batches_total", produce.malformed)
    yield _single("penstock_produce_oversized_batches_total", produce.oversized)
    yield _single("penstock_large_batches_total", large.opened)
    yield _single("penstock_large_batches_waiting", large.waiting)


def _storage(services: Services, counters: BrokerCounters, gathered: Gathered) -> Iterator[Metric]:
    directory, cleaner = services.directory, counters.cleaner
    yield histogram("penstock_flush_duration_seconds", [((), counters.flushes)])
    yield _single("penstock_disk_free_bytes", directory.disk.free_bytes(directory.root))
    yield _single("penstock_disk_total_bytes", directory.disk.total_bytes(directory.root))
    yield _single("penstock_disk_reserve_bytes", services.config.disk_reserve_bytes)
    yield _single("penstock_disk_full", directory.space.lacks_room)
    yield _single("penstock_offline_logs", gathered.partitions.offline)
    yield _single("penstock_damaged_logs", gathered.partitions.damaged)
    yield _single("penstock_open_log_files", directory.open_files)
    yield _single("penstock_cleaner_runs_total", cleaner.runs)
    yield _single("penstock_cleaner_read_bytes_total", cleaner.bytes_read)
    yield _single("penstock_cleaner_reclaimed_bytes_total", cleaner.bytes_reclaimed)
    yield _single("penstock_cleaner_seconds_total", cleaner.seconds)
    yield _single("penstock_retention_deleted_segments_total", cleaner.segments_deleted)
    yield _single("penstock_maintenance_failures_total", cleaner.failures)
    yield _single("penstock_maintenance_paused_logs", cleaner.paused_logs)
    yield _single("penstock_cleaner_undecodable_batches", cleaner.undecodable_batches)


def _replication(broker: Broker, services: Services, gathered: Gathered) -> Iterator[Metric]:
    counters, here, cluster = broker.counters, gathered.partitions, gathered.cluster
    yield family(
        "penstock_partitions",
        [(("leader",), here.leads), (("follower",), here.follows), (("none",), here.rests)],
    )
    yield _single("penstock_isr_shrinks_total", counters.isr_shrinks)
    yield _single("penstock_isr_expansions_total", counters.isr_expansions)
    yield _single("penstock_leader_changes_total", counters.leader_changes)
    yield _single("penstock_under_replicated_partitions", here.under_replicated)
    yield _single("penstock_under_min_isr_partitions", here.under_min_isr)
    yield _single("penstock_offline_partitions", cluster.offline)
    yield _single("penstock_out_of_sync_replicas", here.out_of_sync)
    yield family(
        "penstock_replication_lag_records",
        [((str(follower),), behind) for follower, behind in sorted(here.lags.items())],
    )
    yield _single("penstock_controller", services.controller.term is not None)
    yield _single("penstock_controller_changes_total", counters.controller_changes)
    yield _single("penstock_cluster_brokers", len(services.image.brokers))
    yield _single("penstock_cluster_topics", cluster.topics)
    yield _single("penstock_cluster_partitions", cluster.partitions)
    yield _single("penstock_lease_age_seconds", _lease_age_s(broker, counters))
    yield _single("penstock_metadata_store_full", services.env.store.full is not None)


def _lease_age_s(broker: Broker, counters: BrokerCounters) -> float:
    return max(0.0, counters.now() - broker.membership.renewed_at)


def _groups(totals: CoordinatorTotals) -> Iterator[Metric]:
    lags = sorted(totals.lags.items())
    yield family("penstock_group_lag_records", [(pair, lag.records) for pair, lag in lags])
    yield family(
        "penstock_group_partition_lag_records_max", [(pair, lag.worst) for pair, lag in lags]
    )
    yield family("penstock_groups", [((state,), totals.groups[state]) for state in _GROUP_STATES])
    yield _single("penstock_group_members", totals.members)
    yield _single("penstock_group_rebalances_total", totals.counted.rebalances)
    yield from _consumer_groups(totals)
    states = [state.value for state in ShareGroupState]
    yield family("penstock_share_groups", [((each,), totals.share_groups[each]) for each in states])
    yield _single("penstock_share_group_members", totals.share_members)


def _consumer_groups(totals: CoordinatorTotals) -> Iterator[Metric]:
    counted = totals.counted
    yield family(
        "penstock_consumer_groups",
        [((state.value,), totals.consumer_groups[state.value]) for state in ConsumerState],
    )
    yield family(
        "penstock_consumer_group_members",
        [((each,), totals.consumer_members[each]) for each in ("classic", "consumer")],
    )
    yield _single("penstock_consumer_group_rebalances_total", counted.consumer_rebalances)
    yield family(
        "penstock_group_conversions_total",
        [(("upgrade",), counted.upgrades), (("downgrade",), counted.downgrades)],
    )
    yield _single("penstock_consumer_group_regexes_outgrown_total", counted.regexes_outgrown)


def _shares(services: Services, gathered: Gathered) -> Iterator[Metric]:
    groups, now_ms = gathered.shares, services.wall_ms()
    yield family(
        "penstock_share_group_backlog_records",
        [((each.group_id,), each.backlog) for each in groups],
    )
    yield family(
        "penstock_share_group_in_flight_records",
        [((each.group_id,), each.in_flight) for each in groups],
    )
    yield family(
        "penstock_share_group_dead_letters_waiting",
        [((each.group_id,), each.letters) for each in groups],
    )
    yield family(
        "penstock_share_group_oldest_record_age_seconds",
        [
            ((each.group_id,), max(0, now_ms - each.oldest_ms) / 1000)
            for each in groups
            if each.oldest_ms >= 0
        ],
    )
    yield family(
        "penstock_share_group_delayed_records",
        [((each.group_id,), each.delayed) for each in groups],
    )
    yield family(
        "penstock_share_group_full_windows",
        [((each.group_id,), each.full_windows) for each in groups],
    )
    yield family(
        "penstock_share_group_scheduled_records",
        [((each.group_id,), each.scheduled) for each in groups],
    )
    shares, counters = services.shares, services.shares.counters
    yield _single("penstock_share_sessions", len(shares.sessions))
    yield _single("penstock_share_sessions_refused_total", shares.sessions.refused)
    yield _single("penstock_share_fetches_waiting", shares.parked)
    yield _single("penstock_share_delivered_records_total", counters.delivered)
    yield _single("penstock_share_redelivered_records_total", counters.redelivered)
    yield _single("penstock_share_acknowledgements_failed_total", counters.acknowledgements_failed)
    yield _single("penstock_share_schedule_entries", sum(led.schedules.entries for led in shares))
    yield _single("penstock_share_promoted_records_total", shares.far.promoted)
    yield _single("penstock_share_schedule_failures_total", shares.far.failed)
    yield _single("penstock_share_scanned_records_total", shares.scans.scanned)
    yield _single("penstock_share_scans_failed_total", shares.scans.failed)
    yield _single("penstock_share_dedup_ids_forgotten_total", shares.scans.ids_forgotten)
    yield family(
        "penstock_share_state_failures_total",
        [(("load",), counters.loads_failed), (("write",), counters.writes_failed)],
    )
    letters = counters.letters
    yield _single("penstock_share_dead_letters_total", letters.written)
    yield _single("penstock_share_dead_letters_without_copy_total", letters.without_copy)
    yield _single("penstock_share_dead_letters_missing_total", letters.missing)
    yield _single("penstock_share_dead_letter_failures_total", letters.failures)
    yield _single("penstock_queue_refused_batches_total", counters.lengths.refused)
    yield _single("penstock_queue_dropped_records_total", counters.lengths.dropped)


def _delays(services: Services) -> Iterator[Metric]:
    topics = delayed_topics(services.delays)
    yield family(
        "penstock_delay_scheduled_records", [((each.topic,), each.scheduled) for each in topics]
    )
    yield family(
        "penstock_delay_overdue_seconds", [((each.topic,), each.overdue_s) for each in topics]
    )
    counters = services.delays.counters
    yield _single("penstock_delay_copied_records_total", counters.copied)
    yield _single("penstock_delay_missing_records_total", counters.missing)
    yield _single("penstock_delay_failures_total", counters.failures)
    yield _single("penstock_delay_scanned_records_total", counters.scanned)


def _audit(audit: AuditTrail) -> Iterator[Metric]:
    yield _single("penstock_audit_events_total", audit.recorded)
    dropped = sum(outlet.dropped for outlet in audit.outlets)
    yield _single("penstock_audit_dropped_events_total", dropped)
    waiting = sum(outlet.waiting for outlet in audit.outlets)
    yield _single("penstock_audit_waiting_events", waiting)


def _share_states(totals: CoordinatorTotals) -> Iterator[Metric]:
    counters = totals.share_counters
    yield _single("penstock_share_states", totals.share_states)
    yield _single("penstock_share_state_changes_total", counters.changes)
    yield _single("penstock_share_state_batches_total", counters.batches)
    yield _single("penstock_share_state_snapshots_total", counters.snapshots)
    refused = [((code.name,), count) for code, count in sorted(counters.refused.items())]
    yield family("penstock_share_state_refused_total", refused)
    yield _single("penstock_share_state_unknown_writes_total", totals.unknown_share_writes)


def _transactions(gathered: Gathered) -> Iterator[Metric]:
    states, here = gathered.coordinators.transactions, gathered.partitions
    yield family(
        "penstock_transactions", [((state.title,), states[state]) for state in TransactionState]
    )
    yield _single("penstock_open_transactions", here.open_transactions)
    yield _single("penstock_oldest_open_transaction_age_seconds", here.oldest_transaction_ms / 1000)
    yield _single("penstock_hanging_transactions", here.hanging_transactions)
