"""The part of the client's test suite that also runs on brokers other than ours.

Each test takes a broker and creates its own topics and groups. None depends on how soon all brokers
see a change, nor on settings and messages that only our broker has.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from client import test_consumer as consumer
from client import test_consumer_commits as commits
from client.admin.test_admin import test_a_groups_offsets_are_changed_and_deleted as group_offsets
from client.admin.test_admin import test_disks_and_producers_are_described as inspection
from client.admin.test_admin import test_offsets_by_time_and_deleted_records as times
from client.admin.test_admin import test_the_cluster_is_described as cluster
from client.admin.test_admin import test_validate_only_creates_nothing as validation
from client.blocking import test_consumer as sync_consumer
from client.blocking import test_producer as sync_producer
from client.consuming import test_recreated_topics as made_again
from client.consuming import test_tables as tables
from client.membership import test_member as member
from client.processing import test_live as processing
from client.producing import test_live as producer
from penstock.client.membership.assignors import COOPERATIVE_STICKY, RANGE, ROUNDROBIN, STICKY
from penstock.testing import Broker

Chosen = Callable[[Broker], None]
ranges = tables.TestRanges()

CHOSEN: list[Chosen] = [
    sync_producer.test_a_delivery_resolves_when_the_record_is_acknowledged,
    sync_producer.test_many_threads_send_concurrently,
    sync_producer.test_send_nowait_does_not_fetch_metadata,
    sync_producer.test_sending_an_arrow_table,
    partial(producer.test_other_acks_work_on_a_real_broker, acks=0),
    partial(producer.test_other_acks_work_on_a_real_broker, acks=1),
    producer.test_batches_are_split_for_a_topic_with_a_small_limit,
    sync_consumer.test_polling_and_iterating_share_one_position,
    sync_consumer.test_commit_during_iteration_commits_the_records_handed_out,
    sync_consumer.test_closing_commits_what_was_handed_out,
    sync_consumer.test_arrow_tables_by_polling_and_by_range,
    consumer.test_a_subscription_without_a_group_reads_everything,
    consumer.test_iteration_returns_one_record_at_a_time,
    consumer.test_no_stale_record_is_returned_after_a_seek_during_a_fetch,
    consumer.test_a_paused_partition_resumes_where_it_stopped,
    consumer.test_seeking_by_time_and_looking_up_offsets,
    consumer.test_the_reset_policy_may_be_a_timestamp,
    commits.test_offsets_are_committed_with_metadata_and_read_back,
    commits.test_auto_commit_commits_what_was_returned_and_nothing_else,
    commits.test_a_deleted_topic_is_not_created_again,
    consumer.test_a_group_shares_partitions_and_calls_its_listeners,
    consumer.test_a_pattern_subscription_finds_topics_created_later,
    consumer.test_added_partitions_are_found,
    consumer.test_the_consumer_waits_for_a_topic_that_does_not_exist_yet,
    consumer.test_an_invalid_topic_name_is_an_error,
    consumer.test_headers_keys_and_timestamps_are_returned,
    consumer.test_a_seek_does_not_wait_for_the_running_long_poll,
    *(
        partial(made_again.test_a_recreated_topic_is_read_from_its_first_record, way=way)
        for way in made_again.WAYS
    ),
    tables.test_polling_tables_from_several_topics,
    tables.test_alternating_between_tables_and_records,
    ranges.test_reading_a_whole_topic,
    ranges.test_bounds_by_offset_and_by_time,
    ranges.test_a_range_with_deleted_records_is_an_error,
    ranges.test_records_deleted_while_a_range_is_read_are_an_error,
    *(
        partial(member.test_members_join_and_leave, assignor=assignor)
        for assignor in (RANGE, ROUNDROBIN, STICKY, COOPERATIVE_STICKY)
    ),
    member.test_a_cooperative_member_never_stops_reading_partitions_that_stay,
    member.test_a_static_member_gets_its_partitions_back,
    member.test_the_older_of_two_members_with_one_instance_id_is_fenced,
    member.test_a_member_that_is_not_polled_is_replaced,
    member.test_a_refused_join_is_raised_by_poll,
    processing.test_dead_letters_hold_the_original_bytes,
    processing.test_delivery_loops_continue_where_the_last_one_stopped,
    validation,
    group_offsets,
    times,
    inspection,
    cluster,
]


def shown(chosen: Any) -> str:
    """Returns a name that is the same in every process: test workers must agree on the test ids."""
    if isinstance(chosen, partial):
        given = (getattr(each, "name", each) for each in chosen.keywords.values())
        return "-".join([shown(chosen.func), *map(str, given)])
    return str(chosen.__name__)
