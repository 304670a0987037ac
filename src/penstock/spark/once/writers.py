"""The writers of the exactly-once sink: the driver's writer becomes a task's writer when pickled.

Spark creates a writer on the driver for every micro-batch and pickles it for the tasks. Then it
creates another one, in another process, to commit or abort with what the tasks returned. A writer
is not told which of the two it is for. But only the writer for the tasks is pickled, so the batch
begins when a writer is pickled: the driver takes over the sink and passes the plan to its tasks.

The tasks' messages carry what the commit on the driver needs: the plan, the query's id and the
batch number, which Spark tells only to tasks.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.client.errors import ClientError, OptionError
from penstock.client.model import OpenTransaction
from penstock.spark.clients import open_producer
from penstock.spark.once.asking import run
from penstock.spark.once.protocol import Batch, Plan, SinkRefused, begin, commit, give_up
from penstock.spark.options import SinkOptions
from penstock.spark.telling import told_plainly
from penstock.spark.writers import Written, check_sink, send_rows

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass
class WrittenOnce(Written):
    """What one task wrote, and the transaction that it left open. The transaction is None if the
    task had no rows, or the batch was committed before."""

    plan: Plan | None = None
    batch: Batch | None = None
    transaction: OpenTransaction | None = None


class PlanFailed(pickle.PicklingError, ClientError):
    """An error of the sink that is raised while its writer is pickled. It is a `PicklingError`,
    because pickle would report any other error as an object that cannot be pickled."""


class OnceWriter(DataSourceStreamArrowWriter):
    """The writer on the driver."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        check_sink(options, schema, overwrite=overwrite)
        if not options.sink:
            raise OptionError(
                "delivery=exactly_once needs a name that stays the same and that no other query "
                "uses, because the cluster counts the query's batches under it: set "
                '.queryName(...) or .option("sink", ...)'
            )
        self._options = options
        self._plan: Plan | None = None

    def __reduce__(self) -> tuple[type[TaskWriter], tuple[SinkOptions, Plan]]:
        if self._plan is None:  # Spark pickles it twice for one batch.
            with told_plainly():
                try:
                    self._plan = run(self._options, begin(self._options.sink))
                except ClientError as error:
                    raise PlanFailed(str(error)) from None
        return TaskWriter, (self._options, self._plan)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        raise SinkRefused("tasks must write with the TaskWriter that this writer is pickled to")

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 -- Spark's
    ) -> None:
        with told_plainly():
            told = [message for message in messages if isinstance(message, WrittenOnce)]
            plan, batch = _agreed(told, len(messages), batchId)
            members = [each.transaction for each in told if each.transaction is not None]
            run(self._options, commit(plan, batch, members, self._options.missing_progress))

    def abort(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 -- Spark's
    ) -> None:
        plans = (message.plan for message in messages if isinstance(message, WrittenOnce))
        with told_plainly():
            run(self._options, give_up(self._options.sink, next(plans, None)))


class TaskWriter(DataSourceStreamArrowWriter):
    """The writer in a task."""

    def __init__(self, options: SinkOptions, plan: Plan) -> None:
        self._options = options
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenOnce:
        with told_plainly():
            return self.write_as(*_whereabouts(), iterator)

    def write_as(self, batch: Batch, partition: int, rows: Iterator[pa.RecordBatch]) -> WrittenOnce:
        is_due = self._plan.is_due(batch, self._options.missing_progress)
        written = WrittenOnce(plan=self._plan, batch=batch)
        rows = (each for each in rows if each.num_rows)
        first = next(rows, None)
        if first is None:
            return written
        if not is_due:
            for _ in rows:  # Spark expects that all rows are consumed.
                pass
            return written
        transactional_id = self._plan.task_id(partition)
        with open_producer(self._options, transactional_id) as producer:
            with producer.transaction() as transaction:
                sent = send_rows(self._options, chain((first,), rows), producer)
                written.transaction = transaction.hand_over()
            written.records, written.ranges = sent.records, sent.ranges
            return written


def _whereabouts() -> tuple[Batch, int]:
    """Returns the batch and the partition of the running task, as Spark passes them."""
    context: Any = TaskContext.get()
    query_id = context and context.getLocalProperty(_QUERY_ID)
    number = context and context.getLocalProperty(_BATCH_ID)
    if not query_id or not number:
        raise SinkRefused(
            "this Spark does not pass the query's id and the batch's number to its tasks, which "
            "delivery=exactly_once needs: use Spark 4.3 or newer, in micro-batches"
        )
    return Batch(query_id, int(number)), context.partitionId()


def _agreed(told: Sequence[WrittenOnce], tasks: int, number: int) -> tuple[Plan, Batch]:
    """Returns the plan and batch of all tasks. Raises `SinkRefused` if they are not the same."""
    found = {(each.plan, each.batch) for each in told}
    if len(told) == tasks and len(found) == 1:
        ((plan, batch),) = found
        if plan is not None and batch is not None and batch.number == number:
            return plan, batch
    raise SinkRefused(
        f"the tasks of batch {number} reported inconsistent results, so nothing was committed: "
        "start the query again"
    )
