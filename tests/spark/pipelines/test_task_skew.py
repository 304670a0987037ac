"""Tests the skew of Spark's tasks, with the durations that real Spark has."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.spark.pipelines.task_skew import BATCH_MS_LEAST, TaskSkew, ratio

LONG_S = 1.0


@pytest.mark.parametrize(
    ("median", "longest", "expected"),
    [(500.0, 500.0, 1.0), (200.0, 1_000.0, 5.0), (0.0, 700.0, 700.0), (10.0, 499.0, 1.0)],
)
def test_the_longest_task_to_the_median_one(median: float, longest: float, expected: float) -> None:
    """Short tasks keep nobody waiting. The value of an earlier batch does not stay."""
    assert ratio(median, longest) == expected


class Jvm:
    """Stands for all objects of Spark's JVM. One batch has one job, with a stage of five tasks."""

    def __init__(self) -> None:
        self.calls = 0
        self._jsc = self._sc = self._gateway = self.jvm = self
        self.double = float
        self.java = self.util = self.Arrays = self
        self.jobs = Jobs()
        self.tasks = 5

    def __getattr__(self, name: str) -> Any:
        if name in ("sc", "statusStore", "statusTracker", "job", "taskSummary", "get"):
            self.calls += 1
            return lambda *_: self
        answers: dict[str, Any] = {
            "getJobIdsForGroup": self.jobs,
            "toString": "[2, 4]",
            "lastStageAttempt": self,
            "stageIds": Items(9),
            "numCompleteTasks": self.tasks,
            "attemptId": 0,
            "isEmpty": False,
            "duration": Items(100.0, 700.0),
            "new_array": [0, 0],
        }
        return lambda *_: answers[name]

    def description(self) -> Any:
        return Described()


class Jobs:
    """A Java array: each element would be a call."""

    def __iter__(self) -> Any:
        raise AssertionError("an element was asked for")

    __getitem__ = __len__ = __iter__


class Described:
    def isEmpty(self) -> bool:  # noqa: N802 (Spark's name)
        return False

    def get(self) -> str:
        return "views<br/>id = 1<br/>runId = run<br/>batch = 3"


class Items:
    def __init__(self, *found: Any) -> None:
        self._left = [*found]

    def iterator(self) -> Items:
        return self

    def hasNext(self) -> bool:  # noqa: N802 (Scala's name)
        return bool(self._left)

    def next(self) -> Any:
        return self._left.pop(0)


def test_only_long_batches_ask_the_jvm() -> None:
    jvm = Jvm()
    assert TaskSkew(jvm).of("run", 3, BATCH_MS_LEAST - 1) is None
    assert jvm.calls == 0
    assert TaskSkew(jvm).of("run", 3, BATCH_MS_LEAST) == 7.0
    assert TaskSkew(jvm).of("run", 2, BATCH_MS_LEAST) is None, "the job of another batch"
    assert TaskSkew(None).of("run", 3, BATCH_MS_LEAST) is None, "Spark is a server elsewhere"


def test_a_batch_of_single_tasks_is_even() -> None:
    jvm = Jvm()
    jvm.tasks = 1
    assert TaskSkew(jvm).of("run", 3, BATCH_MS_LEAST) == 1.0


def test_a_jvm_that_does_not_answer_is_no_error() -> None:
    assert TaskSkew(object()).of("run", 3, BATCH_MS_LEAST) is None


def test_spark_knows_the_tasks_of_a_batch(spark: SparkSession) -> None:
    """Also without its web UI. One of five tasks waits, so it is the longest one."""
    context = spark.sparkContext

    def wait(number: int, rows: Iterable[int]) -> Iterable[int]:
        if number == 4:
            threading.Event().wait(LONG_S)
        return rows

    context.setJobGroup("skew-run", "views<br/>id = 1<br/>runId = skew-run<br/>batch = 3")
    try:
        assert context.parallelize(range(5), 5).mapPartitionsWithIndex(wait).count() == 5
    finally:
        context._jsc.clearJobGroup()
    # Spark notes the end of a task after the job has ended.
    context._jsc.sc().listenerBus().waitUntilEmpty()
    found = TaskSkew(spark).of("skew-run", 3, BATCH_MS_LEAST)
    assert found is not None and found >= 1.0
    assert TaskSkew(spark).of("skew-run", 4, BATCH_MS_LEAST) is None
