"""Produce, versions 3 to 12: appends one batch to each of the given partitions.

With acks=0 there is no answer; if a batch is refused, the connection is closed. With acks=1 the
answer is sent when the batch is written to the leader's log. If the leader may be the only in-sync
replica and the topic has `durability=fsync`, it is sent after the leader's flush. With acks=-1 the
answer is sent when the batch is committed: every in-sync replica has it, as the topic's durability
demands.

A duplicate (an idempotent producer's retry) is answered with the offset of its first copy. The
internal topics accept batches from the cluster's own tools only, as in Kafka: a batch from any
other client would be read as the state of groups.

A batch for a partition with a pending leadership here waits until it begins (`pending_leadership`).

The first batch of a transaction on a partition waits until the transaction's coordinator has
confirmed that the partition is in the transaction (`coordinators.verification`). With version 12
this also adds the partition to it, which is part of transaction.version 2.

A batch that takes long to check is checked on a thread (`large_batches`), and a request with many
batches is processed in slices. In all these cases the connection's next request begins when this
one is answered, so the order of appends is kept.

zstd is accepted from version 7 on. Version 8 added an error message, and names the records that
caused a refusal (KIP-467). From version 10 on, the answer to a client that reached the wrong broker
names the leader. TRANSACTION_ABORTABLE is used from version 11 on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from penstock.broker.context import RequestContext, Services
from penstock.broker.cooperative_yield import slices_of
from penstock.broker.coordinators.verification import VerificationKey, VerificationResult
from penstock.broker.error_codes import EXPECTED_ERRORS, code_of
from penstock.broker.handlers.internal_writes import require_internal_writer, writes_as_broker
from penstock.broker.partitions.hosted_partition import HostedPartition, NotVerified, Written
from penstock.broker.partitions.parked_requests import CommitWait, GradualCommitWait
from penstock.broker.partitions.produce_fast_path import has_transactional
from penstock.metadata.model import INTERNAL_TOPICS
from penstock.partition.guards import Verification
from penstock.partition.record_validation import LargeBatch, RecordsRefused, Validated
from penstock.security.acls import AclOperation
from penstock.topic_partition import TopicPartition
from penstock.wire.errors import ErrorCode, KafkaError, ProtocolError
from penstock.wire.messages import ProduceRequest, ProduceResponse

_ALL = -1
_ABORTABLE_SINCE: Final = 11
_ADDS_SINCE: Final = 12
_ZSTD_SINCE: Final = 7
_UNVERIFIED_FOR_NOW: Final = frozenset(
    (
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)
"""The coordinator could not verify the transaction; the batch may be sent again."""


def handle(
    request: ProduceRequest, context: RequestContext
) -> (
    ProduceResponse
    | asyncio.Future[ProduceResponse]
    | asyncio.Future[ProduceResponse | None]
    | None
):
    if request.acks not in (-1, 0, 1):
        return refuse(request, context.version, ErrorCode.INVALID_REQUIRED_ACKS)
    producing = _Producing(request, context)
    if context.is_large or _has_many(request.topic_data, context.slicing.elements):
        context.is_large = True
        return context.spawn(producing.in_slices())
    for batch in producing.batches():
        producing.append(batch, refusal=context.refusal)
    if producing.is_unfinished:
        return producing.later()
    if request.acks == 0:
        _close_if_refused(producing.response)
        return None
    context.is_appended = True
    return producing.response_or_future()


def _has_many(topics: Sequence[ProduceRequest.Topic], elements: int) -> bool:
    if len(topics) == 1:
        return len(topics[0].partition_data) > elements
    return sum([len(topic.partition_data) for topic in topics]) > elements


class _Batch(NamedTuple):
    topic: str
    asked: ProduceRequest.Partition
    answer: ProduceResponse.Partition
    validated: Validated | None = None


class _Producing:
    """Processes one request, from its batches to its answer."""

    __slots__ = (
        "_context",
        "_gradual_wait",
        "_is_transactional",
        "_later_answer",
        "_now_ms",
        "_request",
        "_unappended",
        "_uncommitted",
        "_uncommitted_answers",
        "_unverified",
        "response",
    )

    def __init__(self, request: ProduceRequest, context: RequestContext) -> None:
        self._request = request
        self._context = context
        self._now_ms = context.services.wall_ms()
        self._uncommitted: list[tuple[HostedPartition, int]] = []
        """The ends of appended batches that the answer waits for."""
        self._uncommitted_answers: list[ProduceResponse.Partition] = []
        """The answers for these batches, in the same order."""
        self._gradual_wait: GradualCommitWait[ProduceResponse] | None = None
        """Waits for the batches in place of `_uncommitted`, if some are appended later."""
        self.response = ProduceResponse()
        self._is_transactional = context.has_authorizer and has_transactional(request)
        self._unverified: list[tuple[_Batch, NotVerified]] = []
        self._later_answer: asyncio.Future[ProduceResponse | None] | None = None
        self._unappended = 0
        """How many batches wait: for verification, validation or a pending leadership."""

    def batches(self) -> Iterator[_Batch]:
        for topic in self._request.topic_data:
            answers = ProduceResponse.Topic(name=topic.name)
            self.response.responses.append(answers)
            for partition in topic.partition_data:
                answer = ProduceResponse.Partition(index=partition.index)
                answers.partition_responses.append(answer)
                yield _Batch(topic.name, partition, answer)

    async def in_slices(self) -> ProduceResponse | None:
        """Appends the batches of a large request, and lets other requests run in between.

        Each batch is checked and appended in one step, as if it had come in its own request. The
        connection's next request begins when this one is answered, so a producer's batches stay in
        order. Batches of other producers may come in between, as they may between two requests.
        """
        services, count = self._context.services, 0
        slices = slices_of(services.env)
        self._register_gradually()
        for count, batch in enumerate(self.batches(), 1):  # noqa: B007 - counts
            self._now_ms = services.wall_ms()
            self.append(batch)
            await slices.give_way()
        self._context.is_large = count > self._context.slicing.elements
        if self.is_unfinished:
            return await self.later()
        if self._request.acks == 0:
            _close_if_refused(self.response)
            return None
        committed = self.response_or_future()
        return await committed if isinstance(committed, asyncio.Future) else committed

    @property
    def is_unfinished(self) -> bool:
        return bool(self._unappended or self._unverified)

    def append(
        self,
        batch: _Batch,
        verification: Verification | None = None,
        *,
        may_wait: bool = True,
        refusal: Exception | None = None,
    ) -> None:
        """Appends a batch and fills in its answer, or registers the batch to be appended later.

        With `refusal` the fast path has just got this error for the batch, so it is not tried
        again now. It may still be appended later."""
        context, acks, answer = self._context, self._request.acks, batch.answer
        replicas = context.services.replicas
        try:
            if context.has_authorizer and not writes_as_broker(context, batch.topic):
                self._require_rights(batch)
            if batch.topic in INTERNAL_TOPICS:
                require_internal_writer(context, batch.topic)
            found = replicas.get(batch.topic, answer.index)
            hosted = found or replicas.require(batch.topic, answer.index)
            if refusal is not None:
                raise refusal
            written = hosted.append(
                _writable(batch.asked.records),
                self._now_ms,
                acks_all=acks == _ALL,
                zstd_allowed=context.version >= _ZSTD_SINCE,
                verification=verification,
                validated=batch.validated,
            )
        except NotVerified as error:
            self._keep_for_verification(batch, error)
        except LargeBatch:
            self._validate_later(batch, hosted)
        except EXPECTED_ERRORS as error:
            if not may_wait or not self._wait_for_leadership(batch, error, verification):
                self._fail(batch, error)
        else:
            _fill(answer, hosted, written)
            end_offset = written.end_offset
            if (
                hosted.high_watermark < end_offset
                if acks == _ALL
                else acks and hosted.machine.waits_for_own_flush(end_offset)
            ):
                self._uncommitted_answers.append(answer)
                if self._gradual_wait is None:
                    self._uncommitted.append((hosted, end_offset))
                else:
                    self._gradual_wait.add(hosted, end_offset)

    def _require_rights(self, batch: _Batch) -> None:
        """Raises an error if the client may not write the batch.

        It is checked whenever a batch is to be appended, also after it has waited.
        """
        request, context = self._request, self._context
        if self._is_transactional:
            if request.transactional_id is None:
                raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            context.require_transactional_id(AclOperation.WRITE, request.transactional_id)
        context.require_topic(AclOperation.WRITE, batch.topic)

    def _validate_later(self, batch: _Batch, hosted: HostedPartition) -> None:
        """Validates the batch on a thread, then appends it."""
        self._unappended += 1
        services = self._context.services
        work = hosted.validation(
            _writable(batch.asked.records),
            self._now_ms,
            zstd_allowed=self._context.version >= _ZSTD_SINCE,
        )
        validation = services.large_batches.run(work, self._request.timeout_ms / 1000)
        validation.add_done_callback(partial(self._on_validated, batch))

    def _on_validated(self, batch: _Batch, validation: asyncio.Future[Validated]) -> None:
        if validation.cancelled():
            return  # The broker is stopping.
        error = validation.exception()
        if error is None:
            self.append(batch._replace(validated=validation.result()))
            self._verify()
        elif isinstance(error, Exception):
            self._fail(batch, error)
        self._end_one()

    def _fail(self, batch: _Batch, error: Exception) -> None:
        """Fills in the error, and opens the producer's retry window if the error is retriable."""
        _fill_error(batch.answer, error)
        self._context.services.counters.produce.on_refused(error)
        if code_of(error).retriable:
            replicas = self._context.services.replicas
            replicas.note_refused(
                batch.topic, batch.answer.index, batch.asked.records, self._now_ms
            )
        if self._context.version >= 10:
            _tell_leader(batch.answer, self._context.services, batch.topic)

    def _wait_for_leadership(
        self, batch: _Batch, error: Exception, verification: Verification | None
    ) -> bool:
        """Returns whether the batch waits for a pending leadership, and is appended when
        it begins."""

        def go_on() -> None:
            self.append(batch, verification, may_wait=False)
            self._verify()
            self._end_one()

        if self._request.acks == 0 or code_of(error) != ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return False
        pending_leadership = self._context.services.pending_leadership
        is_early = pending_leadership.put_off(batch.topic, batch.answer.index, go_on)
        self._unappended += is_early
        return is_early

    def _keep_for_verification(self, batch: _Batch, error: NotVerified) -> None:
        """Keeps the batch for verification with the transaction's coordinator."""
        if not self._request.transactional_id:
            self._fail(batch, KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
        elif self._request.acks == 0:
            self._fail(batch, error)  # With acks=0 the coordinator's result could not be reported.
        else:
            self._unverified.append((batch, error))

    def later(self) -> asyncio.Future[ProduceResponse | None]:
        """Returns a future for the answer, once no batch waits and the batches are committed."""
        if self._gradual_wait is None:
            self._register_gradually()
        self._later_answer = asyncio.get_running_loop().create_future()
        self._verify()
        return self._later_answer

    def _verify(self) -> None:
        """Verifies batches that would begin a transaction, and appends those that pass.

        Each batch continues on its own: the producer's next batch, sent over another connection,
        may wait for the same verification, and must be appended after it.
        """
        unverified, self._unverified = self._unverified, []
        self._unappended += len(unverified)
        adds = self._context.version >= _ADDS_SINCE
        waiting: dict[VerificationKey, list[tuple[_Batch, NotVerified]]] = {}
        for batch, error in unverified:
            key = VerificationKey(
                self._request.transactional_id or "",
                error.producer_id,
                error.producer_epoch,
                adds,
            )
            waiting.setdefault(key, []).append((batch, error))
        for key, batches in waiting.items():
            topic_partitions = [
                (TopicPartition(batch.topic, batch.answer.index), error.begin)
                for batch, error in batches
            ]
            results = self._context.services.verification.ask(key, topic_partitions)
            for (batch, _), result in zip(batches, results, strict=True):
                # Use a callback even if the result is there already: an earlier batch's may still
                # be on its way.
                result.add_done_callback(partial(self._on_verified, batch))

    def _on_verified(self, batch: _Batch, said: asyncio.Future[VerificationResult]) -> None:
        result, version = said.result(), self._context.version
        if result.code == ErrorCode.NONE:
            self.append(batch, Verification(result.guard, version >= _ADDS_SINCE))
        else:
            self._fail(batch, _not_verified(result.code, version))
        self._end_one()

    def _end_one(self) -> None:
        self._unappended -= 1
        if self._unappended or self._later_answer is None or self._later_answer.done():
            return
        if self._request.acks == 0:
            _close_later_if_refused(self._later_answer, self.response)
            return
        committed = self.response_or_future()
        if isinstance(committed, asyncio.Future):
            committed.add_done_callback(partial(_pass_on, self._later_answer))
        else:
            self._later_answer.set_result(committed)

    def _register_gradually(self) -> None:
        """Lets the batches appended so far wait for their commit; later ones are added one
        by one."""
        request = self._request
        self._gradual_wait = GradualCommitWait(
            max(0, request.timeout_ms) / 1000, self._finish, own_disk=request.acks != _ALL
        )
        for hosted, end_offset in self._uncommitted:
            self._gradual_wait.add(hosted, end_offset)
        self._uncommitted.clear()

    def response_or_future(self) -> ProduceResponse | asyncio.Future[ProduceResponse]:
        """Returns the answer, or a future for it if batches are not committed yet."""
        if self._gradual_wait is not None:
            self._gradual_wait.close()
            return self._gradual_wait.future
        if not self._uncommitted:
            return self.response
        request = self._request
        timeout_s = max(0, request.timeout_ms) / 1000
        own_disk = request.acks != _ALL
        return CommitWait(self._uncommitted, timeout_s, self._finish, own_disk=own_disk).future

    def _finish(self, outcomes: Sequence[ErrorCode | None]) -> ProduceResponse:
        for answer, code in zip(self._uncommitted_answers, outcomes, strict=True):
            if code is not None:
                answer.error_code = code
                answer.base_offset = -1
                answer.error_message = code.message
        return self.response


def _pass_on(
    answer: asyncio.Future[ProduceResponse | None], committed: asyncio.Future[ProduceResponse]
) -> None:
    if not answer.done():
        answer.set_result(committed.result())


def _not_verified(code: ErrorCode, version: int) -> KafkaError:
    """Returns the error for a batch whose transaction could not be verified."""
    if code in _UNVERIFIED_FOR_NOW and (
        code != ErrorCode.CONCURRENT_TRANSACTIONS or version < _ADDS_SINCE
    ):
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"the transaction cannot be verified at the moment ({code.name}): try again",
        )
    if code == ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE:
        return KafkaError(ErrorCode.INVALID_TXN_STATE)
    return KafkaError(code)


def _close_if_refused(response: ProduceResponse) -> None:
    """Raises an error that closes the connection if a batch was refused.

    With acks=0 there are no answers: only a closed connection makes the client look up the leader.
    """
    for topic in response.responses:
        for answer in topic.partition_responses:
            if answer.error_code:
                raise ProtocolError(
                    f"the batch for {topic.name}-{answer.index} was refused, with acks=0: "
                    f"{answer.error_message}"
                )


def _close_later_if_refused(
    answer: asyncio.Future[ProduceResponse | None], response: ProduceResponse
) -> None:
    try:
        _close_if_refused(response)
    except ProtocolError as error:
        answer.set_exception(error)
    else:
        answer.set_result(None)


def _writable(records: bytes | bytearray | memoryview | None) -> memoryview:
    """Returns the records in writable memory, so that offsets can be stamped in place.

    Frames come in writable memory; only read-only records are copied. Without records, it is empty.
    """
    view = memoryview(records or b"")
    return memoryview(bytearray(view)) if view.readonly else view


def _fill(answer: ProduceResponse.Partition, hosted: HostedPartition, written: Written) -> None:
    answer.base_offset = written.base_offset
    answer.log_append_time_ms = written.append_time_ms
    answer.log_start_offset = hosted.log.log_start_offset


def _fill_error(answer: ProduceResponse.Partition, error: Exception) -> None:
    answer.error_code = code_of(error)
    answer.base_offset = -1
    answer.error_message = str(error)
    if isinstance(error, RecordsRefused):
        answer.record_errors = [
            ProduceResponse.RecordError(bad.number, bad.message) for bad in error.errors
        ]


def _tell_leader(answer: ProduceResponse.Partition, services: Services, topic: str) -> None:
    if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
        partition = services.image.partition(topic, answer.index)
        if partition is not None and partition.leader >= 0:
            answer.current_leader = ProduceResponse.Leader(partition.leader, partition.leader_epoch)


def refuse(request: ProduceRequest, version: int, code: ErrorCode) -> ProduceResponse:
    """Answers every partition with the code."""
    return ProduceResponse(
        responses=[
            ProduceResponse.Topic(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    ProduceResponse.Partition(
                        index=partition.index, error_code=code, base_offset=-1
                    )
                    for partition in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )
