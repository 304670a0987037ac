"""Tests stopping a run: the current round ends first, unless the stop is requested twice.

Signals are real, Spark is not: it would take a minute to reach the middle of a round.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.pipelines import driver
from penstock.spark.pipelines.query_watch import STOPPING_SOON, Watch
from penstock.testing.slowness import patient

WAIT_S = 50.0


class Round:
    """Replaces the pipeline: each round runs the given work, and counts whether it ended."""

    def __init__(self, work: Callable[[int], None]) -> None:
        self.work = work
        self.begun = self.ended = 0

    def run(self, **_: object) -> None:
        self.begun += 1
        self.work(self.begun)
        self.ended += 1


class NoSpark:
    classic = None

    def __init__(self, *_: object) -> None:
        self.closed = False

    def send_modules(self, root: Path) -> None:
        pass

    def streaming_queries(self) -> list[Any]:
        return []

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def stop() -> Iterator[driver.Stop]:
    before = {number: signal.getsignal(number) for number in (driver.SOON, signal.SIGTERM)}
    made = driver.Stop()
    made.listen()
    yield made
    for number, handler in before.items():
        signal.signal(number, handler)


class Told(io.StringIO):
    """Collects events, and can wait for the announcement of a stop."""

    def __init__(self) -> None:
        super().__init__()
        self.news = threading.Event()

    def write(self, text: str) -> int:
        if STOPPING_SOON in text:
            self.news.set()
        return super().write(text)

    def kinds(self) -> list[str]:
        events = [json.loads(line) for line in self.getvalue().splitlines()]
        return [event.get("text", event["event"]) for event in events]


def run(
    work: Callable[[int], None],
    stop: driver.Stop,
    told: Told,
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    *,
    continuous: bool = True,
) -> tuple[Round, Callable[[], str]]:
    pipeline, spark = Round(work), NoSpark()
    monkeypatch.setattr(driver, "Spark", lambda *_: spark)
    monkeypatch.setattr(driver, "Pipeline", lambda *_: pipeline)
    spec = folder / "spark-pipeline.yml"
    spec.write_text("name: x\nstorage: here\nlibraries: []\n")
    given = argparse.Namespace(
        spec=str(spec),
        settings="{}",
        master="local",
        continuous=continuous,
        interval_s=0.0,
        dry=False,
        full_refresh=False,
    )

    def ran() -> str:
        try:
            return driver.run(given, driver.Events(told), stop)
        finally:
            assert spark.closed

    return pipeline, ran


@pytest.mark.parametrize(("continuous", "state"), [(True, "STOPPED"), (False, "COMPLETED")])
def test_the_round_ends_before_the_run_does(
    stop: driver.Stop,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    continuous: bool,
    state: str,
) -> None:
    """The stop request is reported at once, and no further round begins."""
    told = Told()

    def work(number: int) -> None:
        if number == (2 if continuous else 1):
            os.kill(os.getpid(), driver.SOON)
            assert told.news.wait(patient(WAIT_S))

    pipeline, ran = run(work, stop, told, monkeypatch, tmp_path, continuous=continuous)
    assert ran() == state
    assert pipeline.begun == pipeline.ended == (2 if continuous else 1)
    assert told.kinds()[-2:] == [STOPPING_SOON, "stopping"]


def test_a_second_stop_request_does_not_wait_for_the_round(
    stop: driver.Stop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def work(number: int) -> None:
        os.kill(os.getpid(), driver.SOON)
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(patient(WAIT_S))

    pipeline, ran = run(work, stop, Told(), monkeypatch, tmp_path)
    with pytest.raises(driver.Stopped):
        ran()
    assert (pipeline.begun, pipeline.ended) == (1, 0)


def test_a_stop_between_rounds_ends_the_run_at_once(
    stop: driver.Stop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pipeline, ran = run(lambda _: None, stop, Told(), monkeypatch, tmp_path)
    monkeypatch.setattr(Watch, "end_round", lambda _: os.kill(os.getpid(), driver.SOON))
    with pytest.raises(driver.Stopped):
        ran()
    assert pipeline.ended == 1
