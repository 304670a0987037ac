"""An outlet holds a bounded number of events, and tells how many are missing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.broker.audit.outlet import QUEUE_MAX, Outlet
from penstock.runtime import SystemClock
from penstock.security.audit import Action, AuditEvent, Origin, Outcome, topic_change

ORIGIN = Origin("alice", "192.0.2.7", "CLIENTS")


def event(number: int) -> AuditEvent:
    name = f"t{number}"
    return topic_change(ORIGIN, 0, Action.TOPIC_CREATE, name, Outcome.ALLOWED, "1 partitions")


class Sink:
    def __init__(self) -> None:
        self.events: list[AuditEvent] = []
        self.is_broken = False

    async def write(self, events: Sequence[AuditEvent]) -> None:
        await asyncio.sleep(0)
        if self.is_broken:
            raise OSError("no space left")
        self.events += events


def test_events_stay_in_order_and_wait_while_the_outlet_fails() -> None:
    async def run() -> None:
        sink = Sink()
        outlet = Outlet("the log", sink.write, SystemClock())
        sink.is_broken = True
        outlet.put(event(0))
        assert not await outlet.drain()
        outlet.put(event(1))
        sink.is_broken = False
        assert await outlet.drain()
        assert sink.events == [event(0), event(1)]
        assert outlet.dropped == outlet.waiting == 0

    asyncio.run(run())


def test_what_does_not_fit_is_counted_and_told_as_an_event() -> None:
    async def run() -> None:
        sink = Sink()
        outlet = Outlet("the log", sink.write, SystemClock())
        for number in range(QUEUE_MAX + 3):
            outlet.put(event(number))
        assert (outlet.waiting, outlet.dropped) == (QUEUE_MAX, 3)
        await outlet.drain()
        assert sink.events[:QUEUE_MAX] == [event(number) for number in range(QUEUE_MAX)]
        (told,) = sink.events[QUEUE_MAX:]
        assert (told.action, told.outcome) == (Action.EVENTS_DROPPED, Outcome.FAILED)
        assert told.detail is not None and told.detail.startswith("3 events are missing in the log")
        await outlet.drain()
        assert len(sink.events) == QUEUE_MAX + 1

    asyncio.run(run())


def test_two_drains_at_once_write_each_event_once() -> None:
    async def run() -> None:
        sink = Sink()
        outlet = Outlet("the log", sink.write, SystemClock())
        for number in range(600):
            outlet.put(event(number))
        await asyncio.gather(outlet.drain(), outlet.drain())
        assert sink.events == [event(number) for number in range(600)]

    asyncio.run(run())
