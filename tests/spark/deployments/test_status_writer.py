"""Tests that no status is lost: what is written again, and what must be written first."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from penstock.client.errors import ConnectionLost, RecordTooLarge
from penstock.runtime import SystemClock
from penstock.spark.deployments.catalog import Catalog
from penstock.spark.deployments.catalog_errors import AccessRefused
from penstock.spark.deployments.model import Event, Status
from penstock.spark.deployments.status_writer import StatusWriter

STATUS = Status("views", "RUNNING", 1, 1, storage_id="here")
LOST = ConnectionLost("the connection was lost")


class Written:
    """A catalog that raises what it is told to."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.statuses: list[Status] = []
        self.events: list[Event] = []

    async def report(self, status: Status) -> None:
        self._raise()
        self.statuses.append(status)

    async def record(self, event: Event) -> None:
        self._raise()
        self.events.append(event)

    def _raise(self) -> None:
        if self.errors:
            raise self.errors.pop(0)


class Clock(SystemClock):
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


class World:
    def __init__(self) -> None:
        self.catalog = Written()
        self.may_write = True
        self.writer = StatusWriter(
            "views", cast(Catalog, self.catalog), Clock(), lambda: self.may_write, lambda told: told
        )


def test_a_status_stays_marked_until_it_is_written() -> None:
    async def main() -> None:
        world = World()
        world.writer.mark_dirty()
        world.catalog.errors = [LOST, AccessRefused("no"), asyncio.CancelledError()]
        await world.writer.progress(STATUS)
        await world.writer.progress(STATUS)
        with pytest.raises(asyncio.CancelledError):
            await world.writer.progress(STATUS)
        assert world.catalog.statuses == []
        await world.writer.progress(STATUS)
        await world.writer.progress(STATUS)
        assert world.catalog.statuses == [STATUS]

    asyncio.run(main())


def test_a_report_is_tried_again_and_a_record_too() -> None:
    async def main() -> None:
        world = World()
        world.catalog.errors = [LOST, LOST]
        await world.writer.report(STATUS)
        world.catalog.errors = [LOST, LOST]
        event = Event("views", 1, "started")
        await world.writer.record(event)
        assert world.catalog.statuses == [STATUS] and world.catalog.events == [event]

    asyncio.run(main())


def test_a_report_that_is_refused_is_written_later() -> None:
    """Unless the next owner must know what it says: then nothing may begin before."""

    async def main() -> None:
        world = World()
        refusal = RecordTooLarge("too large")
        world.catalog.errors = [refusal]
        with pytest.raises(RecordTooLarge):
            await world.writer.report(STATUS)
        await world.writer.progress(STATUS)
        assert world.catalog.statuses == [STATUS]
        failed = replace(STATUS, failures=1)
        world.catalog.errors = [refusal]
        await world.writer.report(failed)
        await world.writer.progress(failed)
        assert world.catalog.statuses == [STATUS, failed]
        world.catalog.errors = [refusal]
        with pytest.raises(RecordTooLarge):
            await world.writer.report(replace(failed, reset_revision=2))

    asyncio.run(main())


def test_what_the_cluster_knows_already_need_not_be_written_first() -> None:
    async def main() -> None:
        world = World()
        world.writer.resume(STATUS)
        world.catalog.errors = [AccessRefused("no")]
        await world.writer.report(replace(STATUS, state="STARTING"))

    asyncio.run(main())


def test_the_last_status_is_written_before_another_worker_may_have_the_pipeline() -> None:
    async def main() -> None:
        world = World()
        await world.writer.report(STATUS)
        await world.writer.finish()
        assert len(world.catalog.statuses) == 1
        world.writer.mark_dirty()
        await world.writer.finish()
        assert len(world.catalog.statuses) == 2
        world.writer.mark_dirty()
        world.may_write = False
        await world.writer.finish()
        assert len(world.catalog.statuses) == 2

    asyncio.run(main())


def test_a_worker_that_may_not_write_any_more_gives_up() -> None:
    async def main() -> None:
        world = World()
        world.may_write = False
        errors: list[Any] = [LOST]
        world.catalog.errors = errors
        await world.writer.report(STATUS)
        assert world.catalog.statuses == []

    asyncio.run(main())
