"""The protocol of the exactly-once sink's driver: which requests it makes, in which order. Pure.

Spark processes a micro-batch in three steps: the driver plans it, tasks write it, the driver
commits or aborts it. Spark keeps no object between these steps, and the driver may be replaced in
between. So the state of the sink is stored only in the cluster:

    SINK#driver     the driver's transactional id: its owner owns the sink
    SINK#p~salt     a task's transactional id, p being its partition of the micro-batch
    group SINK      its only offset is the number of batches committed; the offset's metadata is the
                    query's id

`begin` takes over the sink and reads its progress. Tasks get both as a `Plan`, which tells each of
them whether its batch has to be written at all. Tasks leave their transactions open. `commit` adds
the new number to the driver's transaction, and ends that one and all others in one request.
`give_up` aborts whatever is open.

A batch is committed only once: the number was read after the sink was taken over, and the commit
includes the driver's transaction. If another driver committed in between, it must have taken over
the sink, and then this commit is refused as a whole. A batch is committed completely: all decisions
are one write of the coordinator. `docs/SPARK.md` lists the possible crashes and their consequences.

Each of these functions is a generator. It yields a question and is sent the answer, or `Refused` is
thrown into it if the cluster refuses for good. The caller (`asking`) retries what can be retried:
lost answers, moved coordinators, a decision that is being carried out.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from penstock.client.errors import ClientError
from penstock.client.model import OpenTransaction
from penstock.spark.options import MissingProgress
from penstock.txns.colocated_ids import SALT_MARK, id_beside
from penstock.wire.errors import ErrorCode

T = TypeVar("T")
_ABORTED_AT_ONCE_MAX: Final = 100
"""Aborts need not be one write. This many fit into one write, whatever they wrote to."""


class SinkRefused(ClientError):
    """The sink must not continue, because a batch could be lost or written twice."""


class NotCommitted(ClientError):
    """No record of the batch can be read. The query fails, and repeats the batch when restarted."""


class Refused(Exception):
    """The cluster refuses a request for good."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


# -- state -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Progress:
    batches: int
    """Batches below this are committed."""
    query_id: str
    """The query, and so the checkpoint, of these batches; empty if a user set the number."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch, as Spark names it to its tasks."""

    query_id: str
    number: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What the driver found when it took over the sink, for its tasks and its commit."""

    sink: str
    driver: OpenTransaction
    progress: Progress | None
    homes: int
    """The number of partitions of `__transaction_state`, on which the tasks' ids depend."""

    def task_id(self, partition: int) -> str:
        """Returns the transactional id of a task, which is the same for its next attempt."""
        return id_beside(driver_id(self.sink), f"{self.sink}#{partition}", self.homes)

    def is_due(self, batch: Batch, missing: MissingProgress) -> bool:
        """Returns True if the batch is the next one to write, False if it was committed before.
        Raises `SinkRefused` if it is neither."""
        found = self.progress
        if found is not None and found.query_id not in ("", batch.query_id):
            raise SinkRefused(
                f"the sink {self.sink} belongs to another query with {found.batches} committed "
                f"batches (its id is {found.query_id}, this query's id is {batch.query_id}). A "
                "query with a new checkpoint starts at batch 0 again, and its batches would be "
                'skipped as already committed. Choose another name with .option("sink", ...), or, '
                "to start again under this name, delete the group: penstock group delete "
                f"{self.sink}"
            )
        if found is None and (batch.number == 0 or missing == "accept"):
            return True
        if found is None or found.batches < batch.number:
            known = "no batches" if found is None else f"{found.batches} batches"
            raise SinkRefused(
                f"the sink {self.sink} has {known} recorded as committed, but this is batch "
                f"{batch.number}: it is unknown whether the batches before it were written. If the "
                "query wrote them without delivery=exactly_once, or the group's offset was deleted "
                "or has expired, check the topic, and start the query once with "
                '.option("missingProgress", "accept")'
            )
        return found.batches == batch.number


def driver_id(sink: str) -> str:
    return f"{sink}#driver"


def tasks_pattern(sink: str) -> str:
    """Returns a pattern for the transactional ids of the sink's tasks, for ListTransactions."""
    plain = "".join(each if each.isalnum() else f"\\{each}" for each in f"{sink}#")
    return f"{plain}[0-9]+{SALT_MARK}[0-9]+"


# -- questions -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TakeOver:
    """-> OpenTransaction. With `current`, refused if another producer has taken it over since."""

    transactional_id: str
    current: OpenTransaction | None = None


@dataclass(frozen=True, slots=True)
class CountHomes:
    """-> int: the number of partitions of `__transaction_state`."""


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """-> Progress | None. Waits until no open transaction can change it."""

    sink: str


@dataclass(frozen=True, slots=True)
class NoteProgress:
    """-> None. The progress is part of the transaction from now on."""

    transaction: OpenTransaction
    sink: str
    progress: Progress


@dataclass(frozen=True, slots=True)
class FindOpen:
    """-> tuple[OpenTransaction, ...]: the open transactions of the sink's tasks."""

    sink: str


@dataclass(frozen=True, slots=True)
class End:
    """-> None. Commits all members or none, or aborts those that are open."""

    members: tuple[OpenTransaction, ...]
    committed: bool
    sink: str | None = None
    """With a commit: the sink whose progress one of the members must have written."""


Question = TakeOver | CountHomes | ReadProgress | NoteProgress | FindOpen | End
Steps = Generator[Question, Any, T]


# -- steps -----------------------------------------------------------------------------------------


def begin(sink: str) -> Steps[Plan]:
    """Takes over the sink and reads its progress, before the tasks of a micro-batch run."""
    try:
        driver: OpenTransaction = yield TakeOver(driver_id(sink))
        homes: int = yield CountHomes()
        progress: Progress | None = yield ReadProgress(sink)
    except Refused as refused:
        raise _why_not_begun(sink, refused) from refused
    yield from _abort_open(sink)
    return Plan(sink, driver, progress, homes)


def commit(
    plan: Plan, batch: Batch, members: Sequence[OpenTransaction], missing: MissingProgress
) -> Steps[bool]:
    """Commits a batch whose tasks are all done. Returns False if it was committed before."""
    if not plan.is_due(batch, missing):
        return False
    noted = Progress(batch.number + 1, batch.query_id)
    try:
        yield NoteProgress(plan.driver, plan.sink, noted)
        yield End((plan.driver, *members), committed=True, sink=plan.sink)
    except Refused as refused:
        raise _why_not_committed(plan, batch, len(members), refused) from refused
    return True


def give_up(sink: str, plan: Plan | None) -> Steps[None]:
    """Aborts a batch that failed, in a task or in its commit.

    Without a plan (no task has finished) it is unknown whether this driver still owns the sink.
    Open transactions are aborted anyway: if they belong to another driver, that driver's batch is
    refused and repeated."""
    if plan is not None:
        try:
            yield TakeOver(plan.driver.transactional_id, plan.driver)
        except Refused:
            return  # Another driver has the sink, and aborts what is open.
    yield from _abort_open(sink)


def _abort_open(sink: str) -> Steps[None]:
    """Aborts transactions that earlier attempts left open. Otherwise they would block readers until
    their timeout, if no task of this attempt takes over their ids."""
    try:
        left: tuple[OpenTransaction, ...] = yield FindOpen(sink)
        for first in range(0, len(left), _ABORTED_AT_ONCE_MAX):
            yield End(left[first : first + _ABORTED_AT_ONCE_MAX], committed=False)
    except Refused:
        return  # The timeout ends them.


def _why_not_begun(sink: str, refused: Refused) -> SinkRefused:
    if refused.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
        return SinkRefused(
            "transactionTimeout is longer than the brokers allow: lower it, or raise "
            "transaction.max.timeout.ms on the brokers"
        )
    return SinkRefused(f"this query cannot take over the sink {sink}: {refused}")


def _why_not_committed(plan: Plan, batch: Batch, tasks: int, refused: Refused) -> NotCommitted:
    if refused.code is ErrorCode.MESSAGE_TOO_LARGE:
        return NotCommitted(
            f"batch {batch.number} of the sink {plan.sink} was written by {tasks} tasks, too many "
            "to be committed in one write of the cluster: use fewer with .coalesce(n), or raise "
            "max.message.bytes of __transaction_state"
        )
    return NotCommitted(
        f"batch {batch.number} of the sink {plan.sink} was not committed: {refused}. Another "
        "driver or another attempt of a task has taken over, or the batch took longer than "
        "transactionTimeout; start the query again"
    )
