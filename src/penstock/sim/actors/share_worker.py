"""A member of a share group that uses the library's share consumer, as queues do.

It takes records one by one and accepts, releases or rejects each after a while. Some it forgets. In
half of the processes the consumer extends locks by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from penstock.client.errors import ClientError
from penstock.client.sharing.acknowledgements import AckType
from penstock.client.sharing.leases import Lease
from penstock.client.sharing.share_consumer import ShareConsumer
from penstock.sim.actors.sends import with_cluster
from penstock.sim.actors.shared_state import REQUEST_TIMEOUT_MS, Actor
from penstock.sim.history import FAIL, OK, Entry, Poll, ShareExchange, ShareRange

_DECISIONS: Final = (AckType.ACCEPT, AckType.RELEASE, AckType.REJECT, None)
_WEIGHTS: Final = (60, 20, 8, 12)
_DELAYS: Final = (0.0, 0.0, 0.2, 0.5, 1.2)


@dataclass(frozen=True, slots=True)
class _Options:
    """The options of the share consumer."""

    prefetch: int
    acquire_mode: int
    lock_extend: bool
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 1 << 20
    fetch_max_wait_ms: int = 400
    check_crcs: bool = True
    request_timeout_ms: int = REQUEST_TIMEOUT_MS
    queued_bytes_max: int = 1 << 20
    lock_extend_max_ms: int = 10_000
    metadata_max_age_ms: int = 10_000


async def run_share_worker(actor: Actor, *, group: str) -> None:
    """Takes part in a group until the end of the run."""
    board = actor.shared.shares
    cluster = await with_cluster(actor)
    if cluster is None:
        return
    worker = _Worker(actor, group)
    actor.shared.under_way[actor.name] = worker.on_killed
    try:
        while not board.done.is_set():
            topics = [topic.name for topic in actor.shared.scenario.topics]
            consumer = ShareConsumer(cluster, group, topics, worker.options)
            board.members[actor.name] = group, consumer.membership.member_id
            consumer.start()
            try:
                await worker.work(consumer)
            finally:
                await consumer.close()
            worker.check_answered()
    finally:
        worker.on_killed()
        cluster.close()


class _Worker:
    def __init__(self, actor: Actor, group: str) -> None:
        self._actor = actor
        self._shared = actor.shared
        self._group = group
        plan = actor.shared.scenario.shares
        assert plan is not None
        self._lock_s = plan.lock_s
        self._unanswered = 0
        """Acknowledgements whose outcome the consumer has not reported."""
        self._pending: list[tuple[float, Lease, AckType]] = []
        draws = actor.draws
        self.options = _Options(
            draws.choice((1, 4, 16)), draws.choice((0, 1)), draws.random() < 0.5
        )

    def on_killed(self) -> list[Entry]:
        self._shared.shares.members.pop(self._actor.name, None)
        return []

    async def work(self, consumer: ShareConsumer) -> None:
        """Works until the end of the run, or until it leaves."""
        board, draws = self._shared.shares, self._actor.draws
        self._pending.clear()
        while not board.done.is_set():
            try:
                lease = await consumer.take(0.05 + 0.2 * draws.random())
            except ClientError as error:
                assert board.judge is not None
                board.judge.fail("E41", f"the consumer of {self._actor.name} ended: {error!r}")
                return
            if lease is not None:
                self._take(consumer, lease)
            self._settle_due(consumer)
            if draws.random() < 0.003 and not self._shared.over.is_set():
                self._shared.count("share_workers_left")
                return

    def check_answered(self) -> None:
        """Fails if a caller would still wait for the outcome of an acknowledgement."""
        if self._unanswered:
            judge = self._shared.shares.judge
            assert judge is not None
            text = f"{self._unanswered} acknowledgements of {self._actor.name} have no outcome"
            judge.fail("E41", f"{text}, and its consumer is closed")

    def _take(self, consumer: ShareConsumer, lease: Lease) -> None:
        shared, draws = self._shared, self._actor.draws
        name, offset = str(lease.topic_partition), lease.offset
        found: ShareRange = (name, offset, offset, lease.found.deliveries)
        exchange = self._note(consumer, lease, self._begun_ms(lease), OK, delivered=found)
        value = bytes(lease.found.row[3] or b"").decode()
        shared.history.add(
            Poll(
                process=self._actor.name,
                status=OK,
                begun_ms=exchange.begun_ms,
                ended_ms=exchange.ended_ms,
                reads={name: ((offset, value),)},
                moved=(name,),
            )
        )
        assert shared.shares.judge is not None
        shared.shares.judge.on_delivered(exchange, found, None)
        shared.count("share_leases_taken")
        kind: AckType | None = AckType.ACCEPT
        delay_s = 0.0
        if not shared.over.is_set():
            kind = draws.choices(_DECISIONS, _WEIGHTS)[0]
            delay_s = self._lock_s * draws.choice(_DELAYS)
        if kind is not None:
            self._pending.append((shared.now_s() + delay_s, lease, kind))

    def _begun_ms(self, lease: Lease) -> float:
        """Returns when the fetch was sent that brought the lease, or a time before that."""
        # A lock is counted from when the fetch was sent, or its last renewal.
        sent_at = lease.locked_until - self._lock_s
        if sent_at > lease.acquired_at:
            options = self.options
            longest_ms = options.fetch_max_wait_ms + options.request_timeout_ms
            sent_at = lease.acquired_at - longest_ms / 1000
        ago_s = self._actor.env.clock.monotonic() - sent_at
        return round(self._shared.now_ms() - ago_s * 1000, 3)

    def _settle_due(self, consumer: ShareConsumer) -> None:
        now_s = self._shared.now_s()
        waiting: list[tuple[float, Lease, AckType]] = []
        for due_s, lease, kind in self._pending:
            if due_s > now_s and not self._shared.over.is_set():
                waiting.append((due_s, lease, kind))
            elif lease.is_open:
                name, offset = str(lease.topic_partition), lease.offset
                sent = (name, offset, offset, int(kind), "")
                self._shared.shares.note_sent(self._group, sent)
                begun_ms = self._shared.now_ms()
                settled: Callable[[ClientError | None], None] = partial(
                    self._on_settled, consumer, lease, kind, begun_ms
                )
                self._unanswered += 1
                consumer.settle(lease, kind, settled)
        self._pending = waiting

    def _on_settled(
        self,
        consumer: ShareConsumer,
        lease: Lease,
        kind: AckType,
        begun_ms: float,
        error: ClientError | None,
    ) -> None:
        self._unanswered -= 1
        code = "NONE" if error is None else type(error).__name__
        self._shared.count(f"share_settled_{kind.name.lower()}_{code.lower()}")
        status = OK if error is None else FAIL
        exchange = self._note(consumer, lease, begun_ms, status, kind=kind)
        if error is None:
            assert self._shared.shares.judge is not None
            judge = self._shared.shares.judge
            judge.on_acknowledged(exchange, exchange.acks[0], lease.found.deliveries)

    def _note(
        self,
        consumer: ShareConsumer,
        lease: Lease,
        begun_ms: float,
        status: str,
        *,
        delivered: ShareRange | None = None,
        kind: AckType | None = None,
    ) -> ShareExchange:
        name, offset = str(lease.topic_partition), lease.offset
        code = "NONE" if status == OK else ""
        exchange = ShareExchange(
            process=self._actor.name,
            status=status,
            begun_ms=begun_ms,
            ended_ms=self._shared.now_ms(),
            group=self._group,
            member_id=consumer.membership.member_id,
            broker=lease.broker_id,
            lock_ms=self._lock_s * 1000,
            delivered=() if delivered is None else (delivered,),
            acks=() if kind is None else ((name, offset, offset, int(kind), code),),
        )
        self._shared.history.add(exchange)
        return exchange
