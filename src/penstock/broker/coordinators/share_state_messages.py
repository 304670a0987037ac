"""Requests of the share coordinator as messages, and its answers.

The kinds are numbered: 0 read, 1 write, 2 replace, 3 initialize, 4 delete, 5 summarize. The fields
`leader_epoch` and `read_offset` of an initialization or a deletion have the order of the call: the
epoch of the group coordinator, and the number of its call.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.peers.link import code_from
from penstock.shares.formats import letters_of, schedule_fields, schedule_of, spans_of
from penstock.shares.image import Delta, ShareImage
from penstock.shares.state_port import CallOrder, SharePartitionId, StateSummary
from penstock.shares.state_requests import (
    Delete,
    Initialize,
    Read,
    Replace,
    StateAnswer,
    StateRequest,
    Summarize,
    Write,
)
from penstock.wire.errors import ProtocolError
from penstock.wire.messages import ShareStateRequest, ShareStateResponse

_READ: Final = 0
_WRITE: Final = 1
_REPLACE: Final = 2
_INITIALIZE: Final = 3
_DELETE: Final = 4
_SUMMARIZE: Final = 5
_Operation = ShareStateRequest.Operation


def operation_of(request: StateRequest) -> ShareStateRequest.Operation:
    where = request.share_partition
    if isinstance(request, Read):
        return _Operation(_READ, *where, leader_epoch=request.leader_epoch)
    if isinstance(request, Write | Replace):
        is_write = isinstance(request, Write)
        state = request.delta if isinstance(request, Write) else request.image
        return _Operation(
            _WRITE if is_write else _REPLACE,
            *where,
            request.leader_epoch,
            request.read_offset,
            _request_state(state),
        )
    if isinstance(request, Initialize):
        begun = ShareImage.starting_at(request.start_offset, request.state_epoch)
        return _Operation(_INITIALIZE, *where, *request.order, _request_state(begun))
    if isinstance(request, Delete):
        return _Operation(_DELETE, *where, *request.order)
    return _Operation(_SUMMARIZE, *where)


def request_of(operation: ShareStateRequest.Operation) -> StateRequest:
    """Raises `ProtocolError` if the kind is unknown or the state is missing or damaged."""
    where = SharePartitionId(operation.group_id, operation.topic_id, operation.partition)
    kind, state = operation.kind, operation.state
    if kind == _READ:
        return Read(where, operation.leader_epoch)
    if kind == _DELETE:
        return Delete(where, CallOrder(operation.leader_epoch, operation.read_offset))
    if kind == _SUMMARIZE:
        return Summarize(where)
    if kind not in (_WRITE, _REPLACE, _INITIALIZE) or state is None:
        raise ProtocolError(f"ShareState: kind {kind} is unknown, or has no state")
    if kind == _INITIALIZE:
        order = CallOrder(operation.leader_epoch, operation.read_offset)
        return Initialize(where, state.state_epoch, state.start_offset, order)
    fields = (state.state_epoch, state.start_offset, state.end_offset, state.end_leader_epoch)
    spans = spans_of(where.group_id, state.spans)
    promoted = spans_of(where.group_id, state.promoted)
    leader = (operation.leader_epoch, operation.read_offset)
    letters, schedule = letters_of(state), schedule_of(state)
    attachment = bytes(state.attachment)
    if kind == _WRITE:
        delta = Delta(*fields, tuple(spans), letters, tuple(promoted), schedule, attachment)
        return Write(where, *leader, delta)
    image = ShareImage(*fields, spans, letters, promoted, schedule, attachment)
    return Replace(where, *leader, image)


def result_of(answer: StateAnswer) -> ShareStateResponse.Result:
    image, summary = answer.image, answer.summary
    state = None
    if image is not None:
        state = ShareStateResponse.State(
            image.state_epoch,
            image.start_offset,
            image.end_offset,
            image.end_leader_epoch,
            [ShareStateResponse.Span(*map(int, span)) for span in image.spans],
            *image.letters,
            [ShareStateResponse.Span(*map(int, span)) for span in image.promoted],
            *schedule_fields(image.schedule),
            image.attachment,
        )
    told = None if summary is None else ShareStateResponse.Summary(*summary)
    return ShareStateResponse.Result(answer.code, answer.read_offset, state, told)


def answer_of(request: StateRequest, result: ShareStateResponse.Result) -> StateAnswer:
    """Raises `ProtocolError` if a state is damaged."""
    state, told = result.state, result.summary
    image = summary = None
    if state is not None:
        image = ShareImage(
            state.state_epoch,
            state.start_offset,
            state.end_offset,
            state.end_leader_epoch,
            spans_of(request.share_partition.group_id, state.spans),
            letters_of(state),
            spans_of(request.share_partition.group_id, state.promoted),
            schedule_of(state),
            bytes(state.attachment),
        )
    if told is not None:
        summary = StateSummary(
            told.state_epoch, told.leader_epoch, told.start_offset, told.done, told.promoted
        )
    return StateAnswer(code_from(result.error_code), image, result.read_offset, summary)


def _request_state(state: Delta | ShareImage) -> ShareStateRequest.State:
    return ShareStateRequest.State(
        state.state_epoch,
        state.start_offset,
        state.end_offset,
        state.end_leader_epoch,
        [ShareStateRequest.Span(*map(int, span)) for span in state.spans],
        *state.letters,
        [ShareStateRequest.Span(*map(int, span)) for span in state.promoted],
        *schedule_fields(state.schedule),
        state.attachment,
    )
