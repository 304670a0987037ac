"""What a large request has changed is recorded in slices, and also if the broker stops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker.audit.changes import EVENTS_MAX, change_events, changes_of
from penstock.broker.cooperative_yield import Slices
from penstock.broker.handlers.audited_requests import handle_audited
from penstock.security.audit import AuditEvent, Origin
from penstock.wire.errors import ErrorCode
from penstock.wire.messages import DeleteTopicsRequest, DeleteTopicsResponse

COUNT = 20
ORIGIN = Origin("ann", "192.0.2.7", "client", "DeleteTopics 1")
REQUEST = DeleteTopicsRequest()


def response(count: int, code: ErrorCode = ErrorCode.NONE) -> DeleteTopicsResponse:
    topics = [DeleteTopicsResponse.Topic(f"t{index}", error_code=code) for index in range(count)]
    return DeleteTopicsResponse(responses=topics)


class Audited:
    """One request that is answered when `answer` is, and what was recorded."""

    def __init__(self) -> None:
        self.events: list[AuditEvent] = []
        self.answer: asyncio.Future[DeleteTopicsResponse] = asyncio.Future()
        audit = SimpleNamespace(is_enabled=True, record=self.events.append, now_ms=lambda: 0)
        context: Any = SimpleNamespace(
            services=SimpleNamespace(audit=audit),
            version=6,
            is_large=True,
            origin=lambda: ORIGIN,
            slices=lambda: Slices(lambda: 0.0, slice_s=0.0),
            spawn=asyncio.ensure_future,
        )
        self.task: asyncio.Task[DeleteTopicsResponse] = handle_audited(
            lambda request, context: self.answer, lambda *_: response(COUNT), REQUEST, context
        )

    async def until_recorded(self, count: int) -> None:
        while len(self.events) < count:  # noqa: ASYNC110 - `run` limits it
            await asyncio.sleep(0)

    async def cancel(self) -> None:
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task


def run(work: Callable[[Audited], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await work(Audited())

    asyncio.run(main())


def test_events_are_recorded_in_slices() -> None:
    async def work(audited: Audited) -> None:
        audited.answer.set_result(response(COUNT))
        await audited.until_recorded(1)
        assert len(audited.events) < COUNT
        assert (await audited.task).responses
        assert [each.resource for each in audited.events] == [
            f"topic:t{index}" for index in range(COUNT)
        ]

    run(work)


def test_a_broker_that_stops_records_the_rest_at_once() -> None:
    """The changes are made."""

    async def work(audited: Audited) -> None:
        audited.answer.set_result(response(COUNT))
        await audited.until_recorded(1)
        await audited.cancel()
        assert len(audited.events) == COUNT

    run(work)


def test_a_broker_that_stops_records_what_was_just_answered() -> None:
    """The answer is there, but the request has not seen it."""

    async def work(audited: Audited) -> None:
        await asyncio.sleep(0)
        audited.answer.set_result(response(COUNT))
        await audited.cancel()
        assert len(audited.events) == COUNT

    run(work)


def test_a_broker_that_stops_records_nothing_for_an_unfinished_request() -> None:
    async def work(audited: Audited) -> None:
        await asyncio.sleep(0)
        await audited.cancel()
        assert audited.events == []

    run(work)


def test_a_failure_is_recorded_though_the_broker_stops() -> None:
    async def work(audited: Audited) -> None:
        audited.answer.set_exception(RuntimeError("no store"))
        await audited.until_recorded(1)
        await audited.cancel()
        assert len(audited.events) == COUNT

    run(work)


@pytest.mark.parametrize(
    ("code", "events"),
    [(ErrorCode.NONE, EVENTS_MAX + 1), (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0)],
)
def test_a_slice_may_end_after_each_change(code: ErrorCode, events: int) -> None:
    """After those that are only counted, and after those that were refused, too."""
    count = EVENTS_MAX + 500
    changes = changes_of(REQUEST, response(count, code))
    steps = list(change_events(ORIGIN, 0, changes))
    assert len(steps) >= count
    assert len([each for each in steps if each is not None]) == events
