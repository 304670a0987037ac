"""All metrics: name, kind, labels and help text.

This table is the only list of metrics. The scrape is built from it, and the documentation, alerting
rules and dashboards can be checked against it. Names follow Prometheus' conventions: base units,
and `_total` for counters. Every label has a bounded number of values: APIs, error codes and states
are enumerations, followers are brokers, and topics and groups are limited (`top_topics.py`,
`group_lag.py`).
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    name: str
    kind: Kind
    labels: tuple[str, ...]
    about: str


def _counter(name: str, about: str, *labels: str) -> Metric:
    return Metric(name, Kind.COUNTER, labels, about)


def _gauge(name: str, about: str, *labels: str) -> Metric:
    return Metric(name, Kind.GAUGE, labels, about)


def _histogram(name: str, about: str, *labels: str) -> Metric:
    return Metric(name, Kind.HISTOGRAM, labels, about)


OTHER: Final = "(other)"
"""The label for all topics and groups that have no series of their own. No real topic or group has
this name."""

METRICS: Final = (
    _gauge(
        "penstock_build_info",
        "Always 1; the labels name the program.",
        "version",
        "python",
        "compiled",
    ),
    _gauge(
        "penstock_broker_info",
        "Always 1; the labels name the broker.",
        "broker_id",
        "cluster_id",
        "rack",
    ),
    # Topics
    _counter("penstock_topic_received_bytes_total", "Bytes written here as leader.", "topic"),
    _counter("penstock_topic_received_records_total", "Records written here as leader.", "topic"),
    _counter("penstock_topic_sent_bytes_total", "Bytes sent to consumers.", "topic"),
    _counter("penstock_topic_replicated_bytes_total", "Bytes sent to followers.", "topic"),
    _gauge("penstock_log_size_bytes", "Size of the logs on this broker.", "topic"),
    _gauge("penstock_partitions", "Partitions on this broker, by its role in them.", "role"),
    # Requests
    _histogram(
        "penstock_request_duration_seconds",
        "Time from when the broker started to process a request until its response was ready. "
        "Includes waiting: a fetch waits for data, acks=all for the replicas.",
        "api",
    ),
    _counter("penstock_request_errors_total", "Requests refused as a whole.", "api", "error"),
    _counter(
        "penstock_produce_malformed_batches_total",
        "Batches refused because their records cannot be decoded.",
    ),
    _counter(
        "penstock_produce_oversized_batches_total",
        "Batches refused because they decompress to more than 64 times max.message.bytes.",
    ),
    _counter(
        "penstock_large_batches_total", "Batches that were decompressed or checked on threads."
    ),
    _gauge(
        "penstock_large_batches_waiting",
        "Batches that wait to be decompressed or checked on a thread.",
    ),
    _gauge("penstock_request_bytes_in_flight", "Request bytes held until they are answered."),
    _gauge(
        "penstock_request_bytes_in_flight_limit", "Above this, the broker pauses reading requests."
    ),
    _gauge(
        "penstock_response_bytes_held",
        "Response bytes in memory that their clients have not received yet.",
    ),
    _gauge(
        "penstock_response_bytes_held_limit",
        "Above this, the connections that have received nothing for the longest time are closed.",
    ),
    _gauge("penstock_connections", "Connections open now."),
    _counter("penstock_connections_opened_total", "Connections that were accepted."),
    _counter(
        "penstock_connections_closed_total",
        "Connections closed by the broker: refused because of a limit, slow or idle, dropped "
        "because memory for responses was short, displaced by a connection of another broker "
        "because max.connections was reached, or failed because the bytes were not the Kafka "
        "protocol.",
        "reason",
    ),
    _gauge(
        "penstock_tls_handshakes_open",
        "TLS handshakes that are under way (pending), and accepted connections that wait for "
        "theirs to begin (waiting).",
        "listener",
        "state",
    ),
    _counter(
        "penstock_tls_handshakes_total",
        "TLS handshakes that ended: completed, failed, timed out, ended because others waited "
        "(evicted), or refused because too many waited.",
        "listener",
        "result",
    ),
    _counter(
        "penstock_tls_connections_broken_total",
        "Connections closed because of an error of TLS after the handshake: a damaged record, or "
        "too many records without data, such as key updates.",
        "listener",
    ),
    _gauge(
        "penstock_fair_sharing_active",
        "1 while the event loop is overloaded and divided between users, otherwise 0.",
    ),
    _gauge(
        "penstock_fair_sharing_waiting_connections",
        "Connections that are not read now so that other users get their share.",
    ),
    _counter(
        "penstock_fair_sharing_waits_total",
        "How often a connection had to wait so that other users get their share.",
    ),
    _gauge("penstock_muted_connections", "Connections that are muted because of a quota now."),
    _counter(
        "penstock_throttled_total",
        "Requests and connections that were throttled because of a quota.",
        "quota",
    ),
    _counter(
        "penstock_throttle_seconds_total",
        "The sum of all throttle times because of a quota.",
        "quota",
    ),
    _counter(
        "penstock_accept_delays_total",
        "How often a listener stopped accepting connections because of "
        "max.connection.creation.rate.",
        "listener",
    ),
    _counter(
        "penstock_accept_delay_seconds_total",
        "For how long in total a listener accepted no connections because of "
        "max.connection.creation.rate.",
        "listener",
    ),
    _gauge("penstock_delegation_tokens", "Delegation tokens of the cluster."),
    _gauge(
        "penstock_delegation_tokens_limit",
        "How many delegation tokens the cluster can have.",
    ),
    _gauge("penstock_quota_entities", "Users, client ids and addresses that have a quota."),
    _gauge("penstock_quota_meters", "How many clients and addresses are measured separately."),
    _counter(
        "penstock_quota_shared_meters_total",
        "How often a client or address was assigned to a meter that it shares with others, because "
        "there are too many.",
    ),
    _counter("penstock_network_received_bytes_total", "Bytes read from connections."),
    _counter("penstock_network_sent_bytes_total", "Bytes written to connections."),
    # Storage
    _histogram("penstock_flush_duration_seconds", "How long flushes (fsync) of a log took."),
    _gauge("penstock_disk_free_bytes", "Free space where the logs are."),
    _gauge("penstock_disk_total_bytes", "Size of the file system where the logs are."),
    _gauge("penstock_disk_reserve_bytes", "Appends are refused when less than this is free."),
    _gauge("penstock_disk_full", "1 while appends are refused because the disk is full."),
    _gauge(
        "penstock_offline_logs", "Logs on this broker that failed and are neither read nor written."
    ),
    _gauge("penstock_damaged_logs", "Logs on this broker with a quarantined range."),
    _gauge("penstock_open_log_files", "Log files held open."),
    _counter("penstock_cleaner_runs_total", "Completed compactions of a log."),
    _counter("penstock_cleaner_read_bytes_total", "Bytes that compaction has read."),
    _counter("penstock_cleaner_reclaimed_bytes_total", "Bytes that compaction has freed."),
    _counter("penstock_cleaner_seconds_total", "Time spent compacting."),
    _counter("penstock_retention_deleted_segments_total", "Segments deleted by retention."),
    _counter(
        "penstock_maintenance_failures_total", "Failed retention and compaction runs of a log."
    ),
    _gauge(
        "penstock_maintenance_paused_logs",
        "Logs whose retention or compaction is paused after a failure.",
    ),
    _gauge(
        "penstock_cleaner_undecodable_batches",
        "Batches that cannot be decoded and that compaction keeps as they are.",
    ),
    # Replication
    _counter("penstock_isr_shrinks_total", "Partitions led here that lost an in-sync replica."),
    _counter(
        "penstock_isr_expansions_total", "Partitions led here that gained an in-sync replica."
    ),
    _counter("penstock_leader_changes_total", "Leaderships that began on this broker."),
    _gauge(
        "penstock_under_replicated_partitions",
        "Partitions led here that have a replica not in sync.",
    ),
    _gauge(
        "penstock_under_min_isr_partitions",
        "Partitions led here that are below min.insync.replicas.",
    ),
    _gauge("penstock_offline_partitions", "Partitions of the whole cluster that have no leader."),
    _gauge("penstock_out_of_sync_replicas", "Replicas on this broker that are not in sync."),
    _gauge(
        "penstock_replication_lag_records",
        "How far a follower is behind, in the partition led here where it is furthest behind.",
        "follower",
    ),
    # Control
    _gauge("penstock_controller", "1 on the broker that is the controller."),
    _counter("penstock_controller_changes_total", "Changes of the controller seen here."),
    _gauge("penstock_cluster_brokers", "Brokers registered in the cluster."),
    _gauge("penstock_cluster_topics", "Topics of the cluster."),
    _gauge("penstock_cluster_partitions", "Partitions of the cluster."),
    _gauge("penstock_lease_age_seconds", "Time since the store last renewed this broker's lease."),
    _gauge(
        "penstock_metadata_store_full",
        "1 while the metadata store refuses writes because it is full.",
    ),
    # Groups
    _gauge(
        "penstock_group_lag_records",
        "Records between a group's committed offsets and the log ends, summed over a topic's "
        "partitions.",
        "group",
        "topic",
    ),
    _gauge(
        "penstock_group_partition_lag_records_max",
        "Records between a group's committed offset and the log end, in the topic's partition that "
        "is furthest behind.",
        "group",
        "topic",
    ),
    _gauge("penstock_groups", "Groups coordinated here.", "state"),
    _gauge("penstock_group_members", "Members of groups coordinated here."),
    _counter("penstock_group_rebalances_total", "Rebalances completed here."),
    _gauge(
        "penstock_consumer_groups",
        "Consumer groups of the new protocol coordinated here. penstock_groups counts them too.",
        "state",
    ),
    _gauge(
        "penstock_consumer_group_members",
        "Members of these groups, by the protocol that they speak: consumer or classic.",
        "protocol",
    ),
    _counter(
        "penstock_consumer_group_rebalances_total",
        "Assignments computed for these groups. penstock_group_rebalances_total counts them too.",
    ),
    _counter(
        "penstock_group_conversions_total",
        "Groups with members that changed from the classic to the new protocol (upgrade) or back "
        "(downgrade).",
        "direction",
    ),
    _counter(
        "penstock_consumer_group_regexes_outgrown_total",
        "Times that a regular expression of a consumer group took too long to match, or "
        "matched too many topics. Its members keep the topics of the last time. If it is new, they "
        "are refused.",
    ),
    # Share groups
    _gauge(
        "penstock_share_group_backlog_records",
        "Records of partitions led here that a share group with a session here has not finished.",
        "group",
    ),
    _gauge(
        "penstock_share_group_in_flight_records",
        "Records that members of a share group have acquired from partitions led here.",
        "group",
    ),
    _gauge(
        "penstock_share_group_dead_letters_waiting",
        "Records of a share group in partitions led here whose dead letters are not written yet.",
        "group",
    ),
    _gauge(
        "penstock_share_group_oldest_record_age_seconds",
        "Age of the oldest record that a share group has not finished, in partitions led here.",
        "group",
    ),
    _gauge(
        "penstock_share_group_delayed_records",
        "Records in the windows of a share group that are not due yet, or wait for their back-off.",
        "group",
    ),
    _gauge(
        "penstock_share_group_full_windows",
        "Windows of a share group that are full of records that are not due yet: later records of "
        "their partitions are not delivered.",
        "group",
    ),
    _gauge(
        "penstock_share_group_scheduled_records",
        "Records with far due times that a share group has yet to receive, in partitions led here.",
        "group",
    ),
    _gauge(
        "penstock_share_schedule_entries",
        "Records in the indexes of far due times on this broker. Each takes 16 bytes on disk.",
    ),
    _counter(
        "penstock_share_promoted_records_total",
        "Records with far due times that became due, counted for each share group.",
    ),
    _counter(
        "penstock_share_schedule_failures_total",
        "Attempts to read or write an index of far due times that failed. They are repeated, and "
        "the records are delayed.",
    ),
    _gauge("penstock_share_sessions", "Share sessions on this broker."),
    _counter(
        "penstock_share_sessions_refused_total",
        "Share sessions refused because of group.share.max.share.sessions.",
    ),
    _gauge("penstock_share_fetches_waiting", "Share fetches that wait for records."),
    _counter(
        "penstock_share_delivered_records_total",
        "Deliveries of records to members of share groups.",
    ),
    _counter(
        "penstock_share_redelivered_records_total",
        "Deliveries to members of share groups that were not the first of their record.",
    ),
    _counter(
        "penstock_share_acknowledgements_failed_total",
        "Requests of members to acknowledge records of a partition that failed.",
    ),
    _counter(
        "penstock_share_scanned_records_total",
        "Records that were read for their due times, or to find duplicates.",
    ),
    _counter(
        "penstock_share_scans_failed_total",
        "Reads of records for their due times, or to find duplicates, that failed.",
    ),
    _counter(
        "penstock_share_dedup_ids_forgotten_total",
        "Ids that were forgotten within penstock.dedup.window.ms because there were too many: "
        "their duplicates are delivered.",
    ),
    _counter(
        "penstock_share_state_failures_total",
        "Calls of the share coordinator that failed.",
        "operation",
    ),
    _counter("penstock_share_dead_letters_total", "Dead letters of share groups written."),
    _counter(
        "penstock_share_dead_letters_without_copy_total",
        "Dead letters of share groups without the record, because the copy was too large.",
    ),
    _counter(
        "penstock_share_dead_letters_missing_total",
        "Records that were gone from the log before their dead letter was written.",
    ),
    _counter(
        "penstock_share_dead_letter_failures_total",
        "Attempts to write dead letters of share groups that failed and are repeated.",
    ),
    _counter(
        "penstock_queue_refused_batches_total",
        "Batches of producers refused because of penstock.queue.length.max.",
    ),
    _counter(
        "penstock_queue_dropped_records_total",
        "Records that share groups gave up because of penstock.queue.length.max.",
    ),
    _gauge(
        "penstock_delay_scheduled_records",
        "Records of a delay topic that are not copied yet, in partitions led here.",
        "topic",
    ),
    _gauge(
        "penstock_delay_overdue_seconds",
        "How long the next record of a delay topic has been due without being copied, or how long "
        "copying has failed, in the partition led here that is furthest behind.",
        "topic",
    ),
    _counter(
        "penstock_delay_copied_records_total",
        "Records of delay topics copied to their targets.",
    ),
    _counter(
        "penstock_delay_missing_records_total",
        "Records of delay topics that were gone from the log before they were copied.",
    ),
    _counter(
        "penstock_delay_failures_total",
        "Attempts to copy records of delay topics that failed and are repeated.",
    ),
    _counter(
        "penstock_delay_scanned_records_total",
        "Records of delay topics that were read for their due times, some more than once.",
    ),
    _gauge("penstock_share_groups", "Share groups coordinated here.", "state"),
    _gauge("penstock_share_group_members", "Members of share groups coordinated here."),
    # Transactions
    _gauge("penstock_transactions", "Transactional ids coordinated here.", "state"),
    _gauge("penstock_open_transactions", "Transactions open on partitions led here."),
    _gauge(
        "penstock_oldest_open_transaction_age_seconds",
        "Longest time since the last write of a producer that has an open transaction.",
    ),
    _gauge(
        "penstock_hanging_transactions",
        "Transactions open on partitions led here for longer than any transaction may last: no "
        "coordinator will end them, and readers of committed data wait.",
    ),
    # Share groups
    _gauge(
        "penstock_share_states",
        "Share partitions whose state is coordinated here.",
    ),
    _counter(
        "penstock_share_state_changes_total",
        "Changes of share partitions' states that were stored here.",
    ),
    _counter(
        "penstock_share_state_batches_total",
        "Appends of the share coordinators here: one has the changes of a turn.",
    ),
    _counter(
        "penstock_share_state_snapshots_total",
        "Snapshots that the share coordinators here stored so that their log can be trimmed.",
    ),
    _counter(
        "penstock_share_state_refused_total",
        "Requests for the state of a share partition that the coordinators here refused, or "
        "could not store.",
        "error",
    ),
    _counter(
        "penstock_share_state_unknown_writes_total",
        "Writes of this broker to a share coordinator whose outcome is unknown: the leader "
        "reads the state again.",
    ),
    # Audit
    _counter("penstock_audit_events_total", "Audit events, those that were combined included."),
    _counter(
        "penstock_audit_dropped_events_total",
        "Audit events that are missing in the audit log or in __audit, because they could not be "
        "written in time.",
    ),
    _gauge("penstock_audit_waiting_events", "Audit events that are not written yet."),
    # The process
    _histogram("penstock_event_loop_delay_seconds", "How late the event loop runs its timers."),
    _gauge("penstock_scrape_duration_seconds", "How long the previous scrape took."),
    _counter(
        "penstock_metrics_refused_requests_total",
        "Requests to the metrics endpoint without the right token, and connections above its "
        "limit.",
    ),
)

BY_NAME: Final = {metric.name: metric for metric in METRICS}
