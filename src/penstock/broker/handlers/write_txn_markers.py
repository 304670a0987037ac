"""WriteTxnMarkers, versions 1 and 2: writes the markers that end transactions.

Coordinators send it to partition leaders; so do operators' tools to abort a hanging transaction. It
is answered when every marker is committed. Version 2 contains the transaction.version of the
transaction: under 2, a marker must have a newer epoch than the transaction it ends.
"""

from __future__ import annotations

import asyncio

from penstock.broker.context import RequestContext
from penstock.broker.cooperative_yield import Slices, Steps, at_once, in_slices
from penstock.security.acls import AclOperation
from penstock.topic_partition import TopicPartition
from penstock.txns.effects import Marker
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse


class _Writing:
    """The markers of one request, until the last of them is committed or refused."""

    def __init__(self) -> None:
        self.response = WriteTxnMarkersResponse()
        self._future: asyncio.Future[WriteTxnMarkersResponse] | None = None
        self._left = 0

    def write(
        self, request: WriteTxnMarkersRequest, context: RequestContext
    ) -> Steps[WriteTxnMarkersResponse | asyncio.Future[WriteTxnMarkersResponse]]:
        """Writes all markers. Returns the response, or a future of it until they are committed."""
        for marker in request.markers:
            yield from self._write(marker, context)
        if not self._left:
            return self.response
        self._future = asyncio.get_running_loop().create_future()
        return self._future

    def _write(self, asked: WriteTxnMarkersRequest.Marker, context: RequestContext) -> Steps[None]:
        marker = Marker(
            asked.producer_id,
            asked.producer_epoch,
            asked.transaction_result,
            asked.coordinator_epoch,
            asked.transaction_version,
        )
        answers = WriteTxnMarkersResponse.Marker(asked.producer_id)
        self.response.markers.append(answers)
        for topic in asked.topics:
            answered = WriteTxnMarkersResponse.Topic(topic.name)
            answers.topics.append(answered)
            for index in topic.partition_indexes:
                answer = WriteTxnMarkersResponse.Partition(index)
                answered.partitions.append(answer)
                self._left += 1
                where = TopicPartition(topic.name, index)
                context.services.marker_writer.write(marker, where, _Teller(self, answer))
                yield

    def one_less(self) -> None:
        self._left -= 1
        if not self._left and self._future is not None and not self._future.done():
            self._future.set_result(self.response)


class _Teller:
    __slots__ = ("_answer", "_writing")

    def __init__(self, writing: _Writing, answer: WriteTxnMarkersResponse.Partition) -> None:
        self._writing = writing
        self._answer = answer

    def __call__(self, code: ErrorCode) -> None:
        self._answer.error_code = code
        self._writing.one_less()


def handle(
    request: WriteTxnMarkersRequest, context: RequestContext
) -> WriteTxnMarkersResponse | asyncio.Future[WriteTxnMarkersResponse]:
    if not context.may_cluster(AclOperation.ALTER, audited=False):
        context.require_cluster(AclOperation.CLUSTER_ACTION)
    count = sum(len(topic.partition_indexes) for each in request.markers for topic in each.topics)
    steps = _Writing().write(request, context)
    if count <= context.slicing.elements:
        return at_once(steps)
    context.is_large = True
    return context.spawn(_in_slices(steps, context.slices()))


async def _in_slices(
    steps: Steps[WriteTxnMarkersResponse | asyncio.Future[WriteTxnMarkersResponse]], slices: Slices
) -> WriteTxnMarkersResponse:
    written = await in_slices(steps, slices)
    return await written if isinstance(written, asyncio.Future) else written


def refuse(
    request: WriteTxnMarkersRequest, version: int, code: ErrorCode
) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        [
            WriteTxnMarkersResponse.Marker(
                marker.producer_id,
                [
                    WriteTxnMarkersResponse.Topic(
                        topic.name,
                        [
                            WriteTxnMarkersResponse.Partition(index, code)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )
