"""The cluster itself: topics, groups, and a broker for the tests."""

from __future__ import annotations

from typing import assert_type

from penstock import Admin, BrokerError, NewTopic, OffsetAndMetadata, TopicPartition, aio
from penstock.testing import Broker, BrokerFailed, Faults


def prepare(bootstrap: str) -> None:
    wanted = [NewTopic("orders", partitions=6), NewTopic("orders.dead", configs={"a": "b"})]
    with Admin(bootstrap, request_timeout_ms=5_000) as admin:
        for name, outcome in admin.create_topics(wanted).items():
            if isinstance(outcome, BrokerError):
                print(name, outcome.code, outcome.retriable)
        assert_type(admin.group_offsets("billing"), dict[TopicPartition, OffsetAndMetadata])


def end_what_hangs(bootstrap: str) -> list[str]:
    with Admin(bootstrap) as admin:
        for hanging in admin.find_hanging_transactions(["orders"]).found:
            admin.abort_transaction(
                assert_type(hanging.topic_partition, TopicPartition),
                producer_id=hanging.producer_id,
                producer_epoch=hanging.producer_epoch,
                coordinator_epoch=hanging.coordinator_epoch,
            )
        return [each.transactional_id for each in admin.list_transactions(states=["Ongoing"])]


async def topics(bootstrap: str) -> list[str]:
    async with aio.Admin(bootstrap) as admin:
        return [topic.name for topic in await admin.list_topics()]


def rehearse() -> None:
    try:
        with Broker() as broker, Faults(broker.bootstrap) as faults:
            faults.fail(api="Produce", error="NOT_LEADER_OR_FOLLOWER", times=2)
            prepare(faults.bootstrap)
    except BrokerFailed as failed:
        print(failed)
