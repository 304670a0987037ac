"""Commits the ISR changes that this broker's leaders propose (KIP-497).

Each leader's machine decides what to propose (`partition.leadership.Leadership.propose`), and is
notified of the outcome. The proposals of all partitions are committed together, one commit at a
time. A partition is checked when a follower outside the ISR has caught up (`due`). All partitions
are checked twice in every `replica.lag.time.max.ms`, for followers that lag.

If the outcome is unknown (the store failed in between, or took too long), the machine is notified
of exactly that. It then counts every replica that may be in the ISR, and proposes again. A refusal
is trusted only if no commit was sent before it: when a decision is made twice, the first commit may
have succeeded, or may still succeed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from penstock.broker.control.cluster_view import ClusterView
from penstock.broker.control.controller import ControllerRuntime
from penstock.broker.cooperative_yield import slices_of
from penstock.broker.error_codes import EXPECTED_ERRORS
from penstock.broker.partitions.hosted_partition import HostedPartition
from penstock.broker.partitions.replicas import Replicas
from penstock.metadata.configs import BrokerConfigs
from penstock.metadata.decisions import Decision
from penstock.metadata.image import ClusterImage
from penstock.metadata.isr import IsrAnswer, IsrChange, alter_isrs
from penstock.metadata.preferred import in_portions
from penstock.partition.leadership import RETRY_MS, AlterIsr, Leadership
from penstock.ports import Env
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode, KafkaError

_PATIENCE_S: Final = 30.0
"""How long a commit may take. After that its outcome is unknown."""
_log = logging.getLogger(__name__)


class _Proposed(NamedTuple):
    hosted: HostedPartition
    term: Leadership
    proposal: AlterIsr

    def change(self) -> IsrChange:
        proposal = self.proposal
        return IsrChange(
            self.hosted.topic_id,
            self.hosted.index,
            proposal.isr,
            proposal.leader_epoch,
            proposal.partition_epoch,
        )


class IsrProposals:
    def __init__(
        self,
        env: Env,
        broker_id: int,
        replicas: Replicas,
        controller: ControllerRuntime,
        cluster: ClusterView,
        configs: Callable[[], BrokerConfigs],
    ) -> None:
        self._env = env
        self._broker_id = broker_id
        self._replicas = replicas
        self._controller = controller
        self._cluster = cluster
        self._configs = configs
        self._due: dict[HostedPartition, None] = {}
        self._work = asyncio.Event()

    def due(self, hosted: HostedPartition) -> None:
        """Requests a check of this partition: it may have a change to propose."""
        self._due[hosted] = None
        self._work.set()

    async def run(self) -> None:
        """Commits proposals until cancelled."""
        loop = asyncio.get_running_loop()
        looked_at = loop.time()
        while True:
            every_s = self._configs().int_value("replica.lag.time.max.ms") / 2000
            with suppress(TimeoutError):
                async with asyncio.timeout_at(looked_at + every_s):
                    await self._work.wait()
            self._work.clear()
            due: Iterable[HostedPartition] = self._due
            self._due = {}
            if loop.time() >= looked_at + every_s:
                looked_at = loop.time()
                due = self._replicas
            proposed = await self._proposals(due)
            for portion in _portions(self._cluster.image, proposed):
                await self._propose(portion)

    async def _proposals(self, due: Iterable[HostedPartition]) -> list[_Proposed]:
        """Collects the proposals of these partitions.

        A leadership may end before or while its proposal is sent. The partition then ignores the
        outcome."""
        proposed = []
        slices = slices_of(self._env)
        for hosted in due:
            term = hosted.leadership
            proposal = None if term is None else term.propose(self._replicas.monotonic_ms())
            if term is not None and proposal is not None:
                proposed.append(_Proposed(hosted, term, proposal))
            await slices.give_way()
        return proposed

    async def _propose(self, portion: Sequence[_Proposed]) -> None:
        changes = [each.change() for each in portion]
        sent_before = sent = False

        def make(image: ClusterImage) -> Decision[tuple[IsrAnswer, ...]]:
            nonlocal sent_before, sent
            sent_before = sent
            decision = alter_isrs(
                image,
                self._broker_id,
                self._replicas.broker_epoch,
                changes,
                stopping=image.stopping,
                static=self._controller.static,
            )
            sent = sent or bool(decision.changes)
            return decision

        try:
            async with asyncio.timeout(_PATIENCE_S):
                answers = await self._controller.decide(make)
        except EXPECTED_ERRORS as error:
            _log.warning(
                "could not update the ISRs of %d partitions, retrying: %s", len(portion), error
            )
            code = error.code if isinstance(error, KafkaError) else ErrorCode.REQUEST_TIMED_OUT
            answers = tuple(IsrAnswer(each.topic_id, each.index, code) for each in changes)
            sent_before = sent
        for each, answer in zip(portion, answers, strict=True):
            self._take(each, answer, is_certain=not sent_before)

    def _take(self, made: _Proposed, answer: IsrAnswer, *, is_certain: bool) -> None:
        hosted, term, proposal = made
        now_ms = self._replicas.monotonic_ms()
        if answer.error == ErrorCode.NONE and answer.partition is not None:
            _log.debug(
                "%s-%d: the ISR is %s", hosted.topic, hosted.index, list(answer.partition.isr)
            )
            hosted.on_isr_answer(term, answer.partition, now_ms)
        else:
            code = answer.error if is_certain else ErrorCode.REQUEST_TIMED_OUT
            hosted.on_isr_refused(term, proposal, code, now_ms)
            # An unresolved proposal may hold back the high watermark, and nothing else would
            # trigger the next attempt soon.
            loop = asyncio.get_running_loop()
            loop.call_later(2 * RETRY_MS / 1000, self.due, hosted)


def _portions(image: ClusterImage, proposed: Iterable[_Proposed]) -> Iterable[list[_Proposed]]:
    """Splits the proposals so that each portion fits into one commit."""
    known = {TopicPartition(each.hosted.topic, each.hosted.index): each for each in proposed}
    for portion in in_portions(image, known):
        yield [known[topic_partition] for topic_partition in portion]
