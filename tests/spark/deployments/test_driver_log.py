"""Tests the log of drivers: what is refused, what is cancelled, and what is too much."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.runtime import Threads
from penstock.spark.deployments import driver_log
from penstock.spark.deployments.catalog_errors import AccessRefused
from penstock.spark.deployments.driver_log import FILE_NAME, DriverLog
from penstock.testing.slowness import patient

WAIT_S = 60.0


class Cluster:
    """Takes lines when it may."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.may_send = asyncio.Event()
        self.asked = asyncio.Event()
        self.error: Exception | None = None

    async def send(self, version: int, lines: Sequence[str]) -> None:
        self.asked.set()
        await self.may_send.wait()
        if self.error is not None:
            raise self.error
        self.lines += lines


def test_a_flush_that_is_cancelled_loses_no_line(tmp_path: Path) -> None:
    """As at the end of a worker, or when the brokers are slow."""

    async def main() -> None:
        cluster = Cluster()
        log = DriverLog(str(tmp_path), Threads(1), cluster.send)
        log.add(1, ["first"])
        flushing = asyncio.create_task(log.flush())
        await cluster.asked.wait()
        flushing.cancel()
        await asyncio.gather(flushing, return_exceptions=True)
        log.add(1, ["second"])
        cluster.may_send.set()
        await log.close(patient(WAIT_S))
        assert cluster.lines == ["first", "second"]
        assert (tmp_path / FILE_NAME).read_text() == "first\nsecond\n"

    asyncio.run(main())


def test_a_refusal_is_logged_with_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        cluster = Cluster()
        cluster.may_send.set()
        cluster.error = AccessRefused("it needs Write on the topic; see penstock acl add")
        log = DriverLog(str(tmp_path), Threads(1), cluster.send, "views")
        for line in ("first", "second"):
            log.add(1, [line])
            await log.flush()
        text = (tmp_path / FILE_NAME).read_text()
        assert "first" in text and "second" in text and "not sent to the cluster" in text

    asyncio.run(main())
    (told,) = [each.getMessage() for each in caplog.records]
    assert "the log of views" in told and "penstock acl add" in told


def test_a_full_disk_does_not_keep_lines_from_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def main() -> None:
        cluster = Cluster()
        cluster.may_send.set()
        log = DriverLog(str(tmp_path / "file"), Threads(1), cluster.send)
        log.add(1, ["first"])
        await log.flush()
        assert cluster.lines == ["first"]

    asyncio.run(main())


def test_the_end_does_not_wait_for_ever(tmp_path: Path) -> None:
    async def main() -> None:
        log = DriverLog(str(tmp_path), Threads(1), Cluster().send)
        log.add(1, ["first"])
        await log.close(0.05)
        assert (tmp_path / FILE_NAME).read_text() == "first\n"

    asyncio.run(main())


def test_long_lines_are_counted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_log, "CHARACTERS_MAX", 100)

    async def main() -> None:
        cluster = Cluster()
        cluster.may_send.set()
        log = DriverLog(str(tmp_path), Threads(1), cluster.send)
        log.add(1, ["x" * 60, "y" * 60, "z" * 30])
        await log.flush()
        assert cluster.lines == ["x" * 60, "z" * 30, "(1 more lines were left out)"]
        log.add(1, ["y" * 60])
        await log.flush()
        assert cluster.lines[-1] == "y" * 60

    asyncio.run(main())
