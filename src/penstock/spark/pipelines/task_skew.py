"""How unevenly the work of a batch is spread over the tasks of Spark's stages.

A stage ends with its longest task. The skew of the topics' partitions (`skew`) is one reason for a
long task. A key that many rows share is another one: after a shuffle, all of them are in one task.
Spark's progress reports have nothing about tasks, but Spark keeps the durations of tasks in the
JVM, also without its web UI. Asking for them takes some calls to the JVM, so only batches that took
long enough to matter are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from penstock.spark.pipelines.jvm import items

BATCH_MS_LEAST: Final = 1_000
"""In a shorter batch, no task is worth a look."""
TASK_MS_LEAST: Final = 500.0
"""The longest task of a stage must take this long: below that, durations differ by chance."""
TASKS_MAX: Final = 10_000
"""Spark reads all tasks of a stage to find the median."""
_JOBS_MAX: Final = 10
_STAGES_MAX: Final = 20
_NUMBER: Final = re.compile(r"\d+")
_BATCH: Final = re.compile(r"batch = (\d+)")


def ratio(median_ms: float, longest_ms: float) -> float:
    """Returns the duration of the longest task of a stage, divided by the median one. 1.0 if the
    longest one is short: no task keeps the others waiting."""
    if longest_ms < TASK_MS_LEAST:
        return 1.0
    return round(longest_ms / max(median_ms, 1.0), 1)


class TaskSkew:
    """Asks the Spark of this process's JVM."""

    def __init__(self, classic: Any) -> None:
        """`classic`: the session; None if Spark is a server elsewhere."""
        self._classic = classic

    def of(self, run: str, batch: int, duration_ms: int) -> float | None:
        """Returns the skew of the most uneven stage of a batch; None if it is not known.

        Args:
            run: the run id of the query. Spark has its jobs under this name.
            batch: the number of the batch.
            duration_ms: how long the batch took.
        """
        if self._classic is None or duration_ms < BATCH_MS_LEAST:
            return None
        # Spark may have dropped a job that is old, or may be shutting down.
        with suppress(Exception):
            return self._most_uneven(run, batch)
        return None

    def _most_uneven(self, run: str, batch: int) -> float | None:
        spark = self._classic._jsc.sc()
        store = spark.statusStore()
        # As one text: each element of a Java array would be a call, and Spark keeps 1,000 jobs.
        arrays = self._classic._sc._gateway.jvm.java.util.Arrays
        text = str(arrays.toString(spark.statusTracker().getJobIdsForGroup(run)))
        jobs = sorted(map(int, _NUMBER.findall(text)))[-_JOBS_MAX:]
        stages = {stage for job in jobs for stage in _stages(store.job(job), batch)}
        found = [self._stage(store, stage) for stage in sorted(stages)[-_STAGES_MAX:]]
        return max((each for each in found if each is not None), default=None)

    def _stage(self, store: Any, stage: int) -> float | None:
        attempt = store.lastStageAttempt(stage)
        tasks = int(attempt.numCompleteTasks())
        if tasks == 1:
            return 1.0
        if not 2 <= tasks <= TASKS_MAX:
            return None
        gateway = self._classic._sc._gateway
        quantiles = gateway.new_array(gateway.jvm.double, 2)
        quantiles[0], quantiles[1] = 0.5, 1.0
        summary = store.taskSummary(stage, attempt.attemptId(), quantiles)
        if summary.isEmpty():
            return None
        median, longest = (float(each) for each in items(summary.get().duration(), 2))
        return ratio(median, longest)


def _stages(job: Any, batch: int) -> Iterator[int]:
    """Yields the stages of a job if it belongs to the batch, as its description says."""
    described = job.description()
    found = None if described.isEmpty() else _BATCH.search(str(described.get()))
    if found is not None and int(found[1]) == batch:
        yield from (int(each) for each in items(job.stageIds(), _STAGES_MAX))
