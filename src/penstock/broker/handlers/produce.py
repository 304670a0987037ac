"""Produce, versions 3 to 12: append one batch to each of some partitions.

acks=0 gets no answer at all, and a closed connection when a batch is refused. acks=1 gets one when
the batch is in the leader's file; where the leader is the only in-sync replica, when consumers can
see it, which with `durability=fsync` is after the leader's flush. acks=-1 gets one when the batch
is committed: on every in-sync replica, by the topic's durability.

A batch seen before (an idempotent producer's retry) is answered with the offset of its first copy.
The internal topics take batches of the cluster's own tools only, as Kafka's do: anybody else's
would be read as the state of groups.

A batch for a partition that is about to be led here waits for that (`led_soon`).

The first batch of a transaction on a partition waits until the transaction's coordinator has said
that the partition is in it (`txn_verification`); with version 12 it joins it by that, which belongs
to transaction.version 2.

A batch that takes long to check is checked on a thread (`large_batches`), and a request of many
batches is worked off in slices. The connection's next request begins when this one is answered, so
the order of appends is kept.

zstd is taken from version 7 on. Version 8 added an error message, and names the records that are
to blame for a refusal (KIP-467). From version 10 on a client that
came to the wrong broker is told the leader. TRANSACTION_ABORTABLE is known from version 11 on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from penstock.broker.context import RequestContext
from penstock.broker.failures import EXPECTED, code_of
from penstock.broker.hosted import HostedPartition, Written
from penstock.broker.purgatory import CommitWait, GradualCommitWait
from penstock.broker.services import Services
from penstock.broker.txn_appends import NotVerified
from penstock.broker.txn_verification import Asker, Word
from penstock.broker.watch.turns import turns_of
from penstock.metadata.model import INTERNAL_TOPICS
from penstock.partition.producers import Verification
from penstock.partition.record_validation import LargeBatch, RecordsRefused, Validated
from penstock.txns.effects import TopicPartition
from penstock.wire.errors import ErrorCode, KafkaError, ProtocolError
from penstock.wire.messages import ProduceRequest, ProduceResponse

_ALL = -1
_ABORTABLE_SINCE: Final = 11
_ADDS_SINCE: Final = 12
_ZSTD_SINCE: Final = 7
_NO_WORD: Final = frozenset(
    (
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)
"""What keeps a coordinator from giving its word: the batch was not taken and may be sent again."""
_TOOLS = "__admin_client"
"""The client id that Kafka's tools write to internal topics under."""


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
        producing.append(batch)
    if producing.is_unfinished:
        return producing.later()
    if request.acks == 0:
        _close_if_refused(producing.response)
        return None
    context.is_appended = True
    return producing.committed()


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
    """One request, from its batches to its answer."""

    __slots__ = (
        "_answer",
        "_commits",
        "_context",
        "_left",
        "_now_ms",
        "_request",
        "_unverified",
        "_waiting",
        "_waits",
        "response",
    )

    def __init__(self, request: ProduceRequest, context: RequestContext) -> None:
        self._request = request
        self._context = context
        self._now_ms = context.services.now_ms()
        self._waits: list[tuple[HostedPartition, int]] = []
        self._waiting: list[ProduceResponse.Partition] = []
        self.response = ProduceResponse()
        self._unverified: list[tuple[_Batch, NotVerified]] = []
        self._answer: asyncio.Future[ProduceResponse | None] | None = None
        self._commits: GradualCommitWait[ProduceResponse] | None = None
        self._left = 0
        """How many batches wait: for the coordinator's word, or for their partition to be led."""

    def batches(self) -> Iterator[_Batch]:
        for topic in self._request.topic_data:
            answers = ProduceResponse.Topic(name=topic.name)
            self.response.responses.append(answers)
            for partition in topic.partition_data:
                answer = ProduceResponse.Partition(index=partition.index)
                answers.partition_responses.append(answer)
                yield _Batch(topic.name, partition, answer)

    async def in_slices(self) -> ProduceResponse | None:
        """Append what takes long in total, and let other requests have their turn in between.

        Each batch is checked and appended in one turn, as if it had come in a request of its own.
        The connection's next request begins when this one is answered, so a producer's batches
        stay in order; those of others may come in between, as they may between two requests."""
        services, count = self._context.services, 0
        turns = turns_of(services.env)
        self._register_gradually()
        for count, batch in enumerate(self.batches(), 1):  # noqa: B007 - counts
            self._now_ms = services.now_ms()
            self.append(batch)
            await turns.give()
        self._context.is_large = count > self._context.slicing.elements
        if self.is_unfinished:
            return await self.later()
        if self._request.acks == 0:
            _close_if_refused(self.response)
            return None
        committed = self.committed()
        return await committed if isinstance(committed, asyncio.Future) else committed

    @property
    def is_unfinished(self) -> bool:
        return bool(self._left or self._unverified)

    def append(
        self,
        batch: _Batch,
        verification: Verification | None = None,
        *,
        may_wait: bool = True,
    ) -> None:
        context, acks, answer = self._context, self._request.acks, batch.answer
        replicas = context.services.replicas
        try:
            if batch.topic in INTERNAL_TOPICS and context.client_id != _TOOLS:
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
            found = replicas.get(batch.topic, answer.index)
            hosted = found or replicas.require(batch.topic, answer.index)
            if acks == _ALL:
                hosted.require_insync()
            written = hosted.append(
                _writable(batch.asked.records),
                self._now_ms,
                zstd_allowed=context.version >= _ZSTD_SINCE,
                verification=verification,
                validated=batch.validated,
            )
        except NotVerified as error:
            self._put_off(batch, error)
        except LargeBatch:
            self._validate_later(batch, hosted)
        except EXPECTED as error:
            if not may_wait or not self._comes_early(batch, error, verification):
                self._fail(batch, error)
        else:
            _fill(answer, hosted, written)
            end_offset = written.end_offset
            if (
                hosted.high_watermark < end_offset
                if acks == _ALL
                else acks and hosted.waits_for_own_disk(end_offset)
            ):
                self._waiting.append(answer)
                if self._commits is None:
                    self._waits.append((hosted, end_offset))
                else:
                    self._commits.add(hosted, end_offset)

    def _validate_later(self, batch: _Batch, hosted: HostedPartition) -> None:
        """Check the batch on a thread, then go on with it."""
        records = _writable(batch.asked.records)
        if records is None:
            return
        self._left += 1
        services = self._context.services
        work = hosted.validation(
            records, self._now_ms, zstd_allowed=self._context.version >= _ZSTD_SINCE
        )
        validation = services.large_batches.run(work, self._request.timeout_ms / 1000)
        validation.add_done_callback(partial(self._on_validated, batch))

    def _on_validated(self, batch: _Batch, validation: asyncio.Future[Validated]) -> None:
        if validation.cancelled():
            return  # The broker stops.
        error = validation.exception()
        if error is None:
            self.append(batch._replace(validated=validation.result()))
            self._verify()
        elif isinstance(error, Exception):
            self._fail(batch, error)
        self._one_less()

    def _fail(self, batch: _Batch, error: Exception) -> None:
        _fill_error(batch.answer, error)
        self._context.services.figures.produce.on_refused(error)
        if code_of(error).retriable:
            replicas = self._context.services.replicas
            replicas.note_refused(
                batch.topic, batch.answer.index, batch.asked.records, self._now_ms
            )
        if self._context.version >= 10:
            _tell_leader(batch.answer, self._context.services, batch.topic)

    def _comes_early(
        self, batch: _Batch, error: Exception, verification: Verification | None
    ) -> bool:
        """Whether the partition is about to be led here: then the batch goes on when it is."""

        def go_on() -> None:
            self.append(batch, verification, may_wait=False)
            self._verify()
            self._one_less()

        if self._request.acks == 0 or code_of(error) != ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return False
        led_soon = self._context.services.led_soon
        is_early = led_soon.put_off(batch.topic, batch.answer.index, go_on)
        self._left += is_early
        return is_early

    def _put_off(self, batch: _Batch, error: NotVerified) -> None:
        if not self._request.transactional_id:
            self._fail(batch, KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
        elif self._request.acks == 0:
            self._fail(batch, error)  # There is nobody to tell what the coordinator will say.
        else:
            self._unverified.append((batch, error))

    def later(self) -> asyncio.Future[ProduceResponse | None]:
        """The answer, when no batch waits any more and what must be committed is."""
        if self._commits is None:
            self._register_gradually()
        self._answer = asyncio.get_running_loop().create_future()
        self._verify()
        return self._answer

    def _verify(self) -> None:
        """Ask the coordinator about what would begin a transaction, and append what it is for.

        Each batch goes on by itself: the next of its producer, in another request, may wait for
        the same word, and must come after it.
        """
        unverified, self._unverified = self._unverified, []
        self._left += len(unverified)
        adds = self._context.version >= _ADDS_SINCE
        askers: dict[Asker, list[tuple[_Batch, NotVerified]]] = {}
        for batch, error in unverified:
            asker = Asker(
                self._request.transactional_id or "",
                error.producer_id,
                error.producer_epoch,
                adds,
            )
            askers.setdefault(asker, []).append((batch, error))
        for asker, batches in askers.items():
            places = [
                (TopicPartition(batch.topic, batch.answer.index), error.begin)
                for batch, error in batches
            ]
            words = self._context.services.verification.ask(asker, places)
            for (batch, _), word in zip(batches, words, strict=True):
                # Also where it is there at once: one that came before may still be on its way.
                word.add_done_callback(partial(self._on_word, batch))

    def _on_word(self, batch: _Batch, said: asyncio.Future[Word]) -> None:
        word, version = said.result(), self._context.version
        if word.code == ErrorCode.NONE:
            self.append(batch, Verification(word.guard, version >= _ADDS_SINCE))
        else:
            self._fail(batch, _no_word(word.code, version))
        self._one_less()

    def _one_less(self) -> None:
        self._left -= 1
        if self._left or self._answer is None or self._answer.done():
            return
        if self._request.acks == 0:
            _close_later_if_refused(self._answer, self.response)
            return
        committed = self.committed()
        if isinstance(committed, asyncio.Future):
            committed.add_done_callback(partial(_pass_on, self._answer))
        else:
            self._answer.set_result(committed)

    def _register_gradually(self) -> None:
        """Not all batches are appended in this turn of the loop: those that are, wait already."""
        request = self._request
        self._commits = GradualCommitWait(
            max(0, request.timeout_ms) / 1000, self._finish, own_disk=request.acks != _ALL
        )
        for hosted, end_offset in self._waits:
            self._commits.add(hosted, end_offset)
        self._waits.clear()

    def committed(self) -> ProduceResponse | asyncio.Future[ProduceResponse]:
        """The answer, when what must be committed is."""
        if self._commits is not None:
            self._commits.close()
            return self._commits.future
        if not self._waits:
            return self.response
        request = self._request
        timeout_s = max(0, request.timeout_ms) / 1000
        own_disk = request.acks != _ALL
        return CommitWait(self._waits, timeout_s, self._finish, own_disk=own_disk).future

    def _finish(self, outcomes: Sequence[ErrorCode | None]) -> ProduceResponse:
        for answer, code in zip(self._waiting, outcomes, strict=True):
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


def _no_word(code: ErrorCode, version: int) -> KafkaError:
    """What a producer is told whose partition is not known to be in its transaction."""
    if code in _NO_WORD and (code != ErrorCode.CONCURRENT_TRANSACTIONS or version < _ADDS_SINCE):
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"the transaction cannot be verified at the moment ({code.name}): try again",
        )
    if code == ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE:
        return KafkaError(ErrorCode.INVALID_TXN_STATE)
    return KafkaError(code)


def _close_if_refused(response: ProduceResponse) -> None:
    """Without answers, a closed connection is how a client learns to look for the leader again."""
    for topic in response.responses:
        for answer in topic.partition_responses:
            if answer.error_code:
                raise ProtocolError(
                    f"acks=0 and the batch for {topic.name}-{answer.index} was refused: "
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


def _writable(records: bytes | bytearray | memoryview | None) -> memoryview | None:
    """Frames come in writable memory, so that offsets can be stamped where the batch lies."""
    if records is None:
        return None
    view = memoryview(records)
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
    """Every partition gets the code."""
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
