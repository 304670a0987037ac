"""The part of the client's own suite that is also run on other brokers than ours.

Each takes a broker and makes topics and groups of its own; none depends on how soon a change is
seen by all, nor on settings and texts that are only ours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from client.blocking import test_consumer as sync_consumer
from client.blocking import test_producer as sync_producer
from client.consuming import test_consumer as consumer
from client.consuming import test_made_again as made_again
from client.consuming import test_tables as tables
from client.membership import test_member as member
from client.processing import test_live as processing
from client.producing import test_live as producer
from client.test_administration import (
    test_a_groups_offsets_are_moved_and_forgotten as group_offsets,
)
from client.test_administration import test_disks_and_producers_can_be_looked_at as inspection
from client.test_administration import test_offsets_by_time_and_records_deleted as times
from client.test_administration import test_the_cluster_describes_itself as cluster
from client.test_administration import test_what_is_only_validated_is_not_made as validation
from penstock.client.membership.assignors import COOPERATIVE_STICKY, RANGE, ROUNDROBIN, STICKY
from penstock.testing import Broker

Chosen = Callable[[Broker], None]
ranges = tables.TestRanges()

CHOSEN: list[Chosen] = [
    sync_producer.test_a_delivery_has_a_result,
    sync_producer.test_many_threads_send_at_once,
    sync_producer.test_send_nowait_does_not_ask,
    sync_producer.test_tables,
    partial(producer.test_other_acks_work_on_a_real_broker, acks=0),
    partial(producer.test_other_acks_work_on_a_real_broker, acks=1),
    producer.test_a_topic_that_takes_small_batches_only,
    sync_consumer.test_polling_and_iterating,
    sync_consumer.test_commits_follow_the_iteration,
    sync_consumer.test_closing_commits_what_was_handed_out,
    sync_consumer.test_tables_and_ranges,
    consumer.test_a_subscription_without_a_group_reads_everything,
    consumer.test_iteration_hands_out_one_record_after_the_other,
    consumer.test_a_seek_with_a_fetch_in_flight_brings_no_stale_record,
    consumer.test_paused_partitions_rest_and_go_on_where_they_were,
    consumer.test_seeking_by_time_and_asking_for_offsets,
    consumer.test_the_reset_policy_may_be_a_time,
    consumer.test_offsets_are_committed_with_metadata_and_found_again,
    consumer.test_auto_commit_commits_what_was_returned_and_nothing_else,
    consumer.test_a_topic_that_was_deleted_is_not_made_again,
    consumer.test_a_group_shares_partitions_and_tells_its_listeners,
    consumer.test_a_pattern_follows_topics_that_come_later,
    consumer.test_partitions_that_are_added_are_picked_up,
    consumer.test_a_topic_that_does_not_exist_yet_is_waited_for,
    consumer.test_a_topic_name_that_cannot_be_is_an_error,
    consumer.test_headers_keys_and_times_come_along,
    consumer.test_a_seek_does_not_wait_for_the_long_poll_before_it,
    *(
        partial(made_again.test_a_topic_that_is_made_again_is_read_from_its_first_record, way=way)
        for way in made_again.WAYS
    ),
    tables.test_polling_tables_from_several_topics,
    tables.test_tables_and_records_by_turns,
    ranges.test_a_whole_topic,
    ranges.test_bounds_by_offset_and_time,
    ranges.test_a_part_that_is_gone_is_an_error,
    ranges.test_a_part_that_goes_while_it_is_read_is_an_error,
    *(
        partial(member.test_members_come_and_go, assignor=assignor)
        for assignor in (RANGE, ROUNDROBIN, STICKY, COOPERATIVE_STICKY)
    ),
    member.test_who_cooperates_never_stops_reading_what_stays,
    member.test_a_static_member_returns_to_its_place,
    member.test_of_two_with_one_instance_id_the_older_is_fenced,
    member.test_a_member_that_is_not_polled_makes_room,
    member.test_a_refused_group_is_heard_of,
    processing.test_dead_letters_are_the_bytes_that_came,
    processing.test_loops_on_a_real_group,
    validation,
    group_offsets,
    times,
    inspection,
    cluster,
]


def shown(chosen: Any) -> str:
    """The same in every process: two of them must agree on what there is to run."""
    if isinstance(chosen, partial):
        given = (getattr(each, "name", each) for each in chosen.keywords.values())
        return "-".join([shown(chosen.func), *map(str, given)])
    return str(chosen.__name__)
