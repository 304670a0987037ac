"""Sends the protocol's questions to the cluster.

A question is retried, at the broker that is responsible by then, until there is a final answer or
the client's `default.api.timeout.ms` is over. After the timeout the query fails, and its next start
finds out whether the batch was committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, Final, TypeVar

from penstock.client import multi_commit
from penstock.client.cluster import Cluster
from penstock.client.environment import default_environment
from penstock.client.errors import ApiNotServed, BrokerError, ConnectFailed
from penstock.client.model import OffsetAndMetadata
from penstock.client.options import AdminOptions
from penstock.spark.client_options import admin_keywords
from penstock.spark.clients import no_broker
from penstock.spark.once.protocol import (
    CountHomes,
    End,
    FindOpen,
    NoteProgress,
    Progress,
    Question,
    ReadProgress,
    Refused,
    SinkRefused,
    Steps,
    TakeOver,
    driver_id,
    tasks_pattern,
)
from penstock.spark.options import SinkOptions
from penstock.topic_partition import TopicPartition

T = TypeVar("T")
PROGRESS: Final = TopicPartition(multi_commit.OFFSETS_TOPIC, 0)
"""The partition of the group's offset: it must exist, and users cannot delete this topic."""


def run(options: SinkOptions, steps: Steps[T]) -> T:
    """Runs the steps to their end. The calling thread must not have a running event loop."""
    return asyncio.run(_run(options, steps))


async def _run(options: SinkOptions, steps: Steps[T]) -> T:
    env = default_environment()
    parsed = AdminOptions.parse(options.bootstrap_servers, admin_keywords(options))
    cluster = Cluster(parsed.cluster_config(), env.network, env.clock, env.random)
    try:
        await cluster.__aenter__()
    except ConnectFailed as error:
        raise no_broker(options, error) from None
    try:
        return await drive(Asking(cluster, options.transaction_timeout_ms), steps)
    except ApiNotServed as error:
        raise SinkRefused(
            "delivery=exactly_once needs a Penstock cluster: each task is a producer, and other "
            "Kafka clusters cannot commit the transactions of several producers as one (they lack "
            f"the request EndTransactions). Use delivery=at_least_once here. ({error})"
        ) from None
    finally:
        cluster.close()
        await cluster.closed()


async def drive(asking: Asking, steps: Generator[Question, Any, T]) -> T:
    try:
        question = next(steps)
        while True:
            try:
                answer = await asking.ask(question)
            except Refused as refused:
                question = steps.throw(refused)
            else:
                question = steps.send(answer)
    except StopIteration as end:
        # The type of `StopIteration.value` is not known to the type checker.
        return end.value  # type: ignore[no-any-return]


class Asking:
    def __init__(self, cluster: Cluster, timeout_ms: int) -> None:
        self._cluster = cluster
        self._timeout_ms = timeout_ms

    async def ask(self, question: Question) -> object:
        try:
            return await self._answer(question)
        except BrokerError as error:
            raise Refused(error.code, str(error)) from error

    async def _answer(self, question: Question) -> object:
        cluster = self._cluster
        match question:
            case TakeOver(transactional_id, current):
                return await multi_commit.take_over(
                    cluster, transactional_id, timeout_ms=self._timeout_ms, current=current
                )
            case CountHomes():
                return await multi_commit.partition_count(cluster, multi_commit.TRANSACTIONS_TOPIC)
            case ReadProgress(sink):
                found = await multi_commit.stable_offset(cluster, sink, PROGRESS)
                return None if found is None else Progress(found.offset, found.metadata)
            case NoteProgress(transaction, sink, progress):
                position = OffsetAndMetadata(progress.batches, progress.query_id)
                await multi_commit.note_offset(cluster, transaction, sink, PROGRESS, position)
            case FindOpen(sink):
                return await multi_commit.open_transactions(
                    cluster, driver_id(sink), tasks_pattern(sink)
                )
            case End(members, committed, sink):
                await multi_commit.end_together(cluster, members, committed=committed, group=sink)
        return None
