"""A sink like Spark's: each batch is several transactions that are ended together.

The members write with their own transactional ids, which are all on one partition of
`__transaction_state`. The first of them also commits the number of the batch as an offset of the
sink's group. Then one request commits or aborts all of them. A sink that starts, perhaps after
another was killed, takes over all ids and continues after the batch that its group has committed.

Sometimes the sink asks for the stable offsets of its group before the transactions end. If they are
committed afterwards, they were open at that time, so the request must have been refused.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.client.cluster import Cluster
from penstock.client.errors import ClientError, check
from penstock.metadata.model import OFFSETS_TOPIC
from penstock.sim.actors.sends import Answered, batch_of, produce, with_cluster
from penstock.sim.actors.shared_state import Actor
from penstock.sim.actors.transaction_work import Work
from penstock.sim.history import ACKS_ALL, FAIL, OK, SINK, SINK_IDS, SINK_MEMBERS, Stable
from penstock.topic_partition import TopicPartition
from penstock.txns.colocated_ids import id_beside
from penstock.wire.java import partition_of
from penstock.wire.messages import (
    EndTransactionsRequest,
    EndTransactionsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

_ANCHOR: Final = f"{SINK_IDS}driver"
_TIMEOUT_MS: Final = 8_000
_ASK_SHARE: Final = 0.3


class _Member(NamedTuple):
    name: str
    producer_id: int
    epoch: int


async def run_sink(actor: Actor) -> None:
    """Writes batches until the load is over. After any error it starts again."""
    shared = actor.shared
    cluster = await with_cluster(actor)
    if cluster is None:
        return
    sink = _Sink(actor, cluster)
    try:
        while not shared.over.is_set():
            try:
                await sink.begin()
                while not shared.over.is_set():
                    await shared.rest(3 * actor.pause_s())
                    await sink.write_batch()
            except (ClientError, Answered):
                await shared.rest(actor.draws.random())
    finally:
        cluster.close()


class _Sink:
    def __init__(self, actor: Actor, cluster: Cluster) -> None:
        self._actor = actor
        self._cluster = cluster
        count = actor.shared.scenario.txn_partitions
        self._names = [
            _ANCHOR,
            *(
                id_beside(_ANCHOR, f"{SINK_IDS}{number}", count)
                for number in range(SINK_MEMBERS - 1)
            ),
        ]
        self._members: list[_Member] = []
        self._done = 0
        self._topic_partition = TopicPartition.parse(
            actor.shared.scenario.topics[0].partition_names[0]
        )

    async def begin(self) -> None:
        self._members = [await self._init(name) for name in self._names]
        self._done = await self._committed()
        self._actor.shared.count("sinks_begun")

    async def _init(self, name: str) -> _Member:
        request = InitProducerIdRequest(name, _TIMEOUT_MS)

        async def attempt(fresh: bool) -> _Member:
            connection = await self._cluster.transaction_coordinator(name, fresh=fresh)
            answer = await connection.call(request, InitProducerIdResponse)
            check(answer.error_code)
            return _Member(name, answer.producer_id, answer.producer_epoch)

        member = await self._cluster.retry("InitProducerId", attempt)
        self._actor.shared.fence(member.producer_id, member.epoch)
        return member

    async def _committed(self, *, once: bool = False) -> int:
        """Returns the last batch that the group has committed, once nothing is pending. With `once`
        it raises an error if something is pending."""
        topic = OffsetFetchRequest.GroupTopic(
            self._topic_partition.topic, partition_indexes=[self._topic_partition.partition]
        )
        group = OffsetFetchRequest.Group(SINK, topics=[topic])
        request = OffsetFetchRequest(groups=[group], require_stable=True)

        async def attempt(fresh: bool) -> int:
            connection = await self._cluster.coordinator(SINK, fresh=fresh)
            answer = await connection.call(request, OffsetFetchResponse)
            found = answer.groups[0]
            check(found.error_code)
            part = found.topics[0].partitions[0]
            check(part.error_code)
            return max(0, part.committed_offset)

        return await (attempt(False) if once else self._cluster.retry("OffsetFetch", attempt))

    async def _ask_while_open(self) -> Stable | None:
        """Asks for the stable offsets once. None if the request was refused, as it should be."""
        begun_ms = self._actor.shared.now_ms()
        self._actor.shared.count("stable_offsets_asked")
        try:
            offset = await self._committed(once=True)
        except ClientError:
            return None
        return Stable(
            process=self._actor.name,
            status=OK,
            begun_ms=begun_ms,
            ended_ms=self._actor.shared.now_ms(),
            group=SINK,
            offset=offset,
        )

    async def write_batch(self) -> None:
        actor, draws = self._actor, self._actor.draws
        number = self._done + 1
        commits = draws.random() < 0.8
        driver, *tasks = self._members
        work = Work(actor, _ANCHOR, number)
        try:
            for member in tasks:
                await self._write(work, member)
            await self._commit_offset(driver, number)
            answered = await self._ask_while_open() if draws.random() < _ASK_SHARE else None
            if commits:
                work.asks_for_commit()
            await self._end(commits)
        except (ClientError, Answered) as error:
            work.end_in_doubt(str(error))
            raise
        work.end(OK if commits else FAIL, "" if commits else "the abort was intended")
        actor.shared.count("sink_batches", int(commits))
        if commits:
            self._done = number
            if answered is not None:
                actor.shared.history.add(answered)

    async def _write(self, work: Work, member: _Member) -> None:
        actor = self._actor
        partition_names = actor.shared.scenario.topics[0].partition_names
        note = work.note(actor.draws.choice(partition_names))
        batch = batch_of(
            actor,
            [note.value],
            producer_id=member.producer_id,
            producer_epoch=member.epoch,
            base_sequence=0,
            transactional=True,
        )
        offset = await produce(
            self._cluster,
            note.partition_name,
            batch,
            ACKS_ALL,
            lambda: None,
            transactional_id=member.name,
        )
        note.add(OK, offset)

    async def _commit_offset(self, driver: _Member, number: int) -> None:
        partition = TxnOffsetCommitRequest.Partition(
            self._topic_partition.partition, number, -1, ""
        )
        request = TxnOffsetCommitRequest(
            driver.name,
            SINK,
            driver.producer_id,
            driver.epoch,
            topics=[TxnOffsetCommitRequest.Topic(self._topic_partition.topic, [partition])],
        )

        async def attempt(fresh: bool) -> None:
            connection = await self._cluster.coordinator(SINK, fresh=fresh)
            answer = await connection.call(request, TxnOffsetCommitResponse)
            check(answer.topics[0].partitions[0].error_code)

        await self._cluster.retry("TxnOffsetCommit", attempt)

    async def _end(self, commits: bool) -> None:
        """Ends all transactions. Retries until there is a reply, as the sink does."""
        offsets = self._offsets_partition()
        request = EndTransactionsRequest(
            committed=commits,
            offsets_topic=offsets.topic if commits else None,
            offsets_partition=offsets.partition if commits else -1,
            members=[EndTransactionsRequest.Member(*member) for member in self._members],
        )

        async def attempt(fresh: bool) -> list[_Member]:
            connection = await self._cluster.transaction_coordinator(_ANCHOR, fresh=fresh)
            answer = await connection.call(request, EndTransactionsResponse)
            check(answer.error_code)
            return [
                _Member(each.transactional_id, each.producer_id, each.producer_epoch)
                for each in answer.members
            ]

        self._members = await self._cluster.retry("EndTransactions", attempt)

    def _offsets_partition(self) -> TopicPartition:
        count = self._actor.shared.scenario.offsets_partitions
        return TopicPartition(OFFSETS_TOPIC, partition_of(SINK, count))
