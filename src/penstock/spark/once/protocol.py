"""What the driver of an exactly-once sink asks for, and in which order. Pure.

Spark runs a micro-batch in three places: the driver plans it, tasks write it, the driver commits
or aborts it. It keeps no object between them, and the driver itself may be another one, so all
there is to know about the last batch is what the cluster has:

    SINK#driver     the driver's transactional id: who has it, has the sink
    SINK#p~salt     a task's transactional id, p being its partition of the micro-batch
    group SINK      its one offset is the number of batches committed, with the query's id beside

`begin` takes the sink over and reads how far it is. Tasks are told that (`Plan`), and by it each
knows whether its batch is to be written at all, and leave their transactions open. `commit` puts
the new number into the driver's transaction and ends that one and all others in one request.
`give_up` aborts whatever is open.

Why a batch is committed once: the number was read after the sink was taken over, and the commit
includes the driver's transaction. Whoever else committed in between must have taken the sink over,
and then this commit is refused as a whole. Why it is committed whole: all decisions are one write
of the coordinator. `docs/SPARK.md` has who may crash when, and what follows.

Each of these is a generator: it yields a question and is sent the answer, or `Refused` is thrown
into it when the cluster will not do it, however often it is asked. What may be asked again (lost
answers, moved coordinators, a decision that is being carried out) whoever runs it asks again.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from penstock.client.errors import ClientError
from penstock.client.model import OpenTransaction
from penstock.spark.options import MissingProgress
from penstock.txns.hashing import SALT_MARK, id_beside
from penstock.wire.errors import ErrorCode

T = TypeVar("T")
_ABORTED_AT_ONCE_MAX: Final = 100
"""Aborts need not be one write; this many fit one whatever they wrote to."""


class SinkRefused(ClientError):
    """The sink must not go on: what it is asked to do could lose or double a batch."""


class NotCommitted(ClientError):
    """Nothing of the batch can be read. The query ends, and does the batch again when started."""


class Refused(Exception):
    """The cluster will not do what it was asked."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


# -- what is known ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Progress:
    batches: int
    """Batches below this are committed."""
    query_id: str
    """Of the checkpoint they were committed for; empty when somebody set the number by hand."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch, as Spark tells its tasks."""

    query_id: str
    number: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a driver has found, for its tasks and its commit to go by."""

    sink: str
    driver: OpenTransaction
    progress: Progress | None
    homes: int
    """Partitions of `__transaction_state`: what the tasks' ids are made for."""

    def task_id(self, partition: int) -> str:
        """The transactional id of a task, found again by its next attempt."""
        return id_beside(driver_id(self.sink), f"{self.sink}#{partition}", self.homes)

    def is_due(self, batch: Batch, missing: MissingProgress) -> bool:
        """Whether the batch is to be written, being the next one; False when it was committed
        before. `SinkRefused` when neither is so."""
        found = self.progress
        if found is not None and found.query_id not in ("", batch.query_id):
            raise SinkRefused(
                f"the sink {self.sink} belongs to another query, which has committed "
                f"{found.batches} batches (id {found.query_id}; this one is {batch.query_id}): if "
                "its checkpoint was deleted, its batches would be counted anew and taken for done. "
                'Choose another name with .option("sink", ...), or, to begin anew with this one, '
                f"delete the group: penstock group delete {self.sink}"
            )
        if found is None and (batch.number == 0 or missing == "accept"):
            return True
        if found is None or found.batches < batch.number:
            known = "no batch" if found is None else f"{found.batches} batches"
            raise SinkRefused(
                f"the sink {self.sink} knows of {known} committed, and this is batch "
                f"{batch.number}: whether the ones before are there cannot be told. If the query "
                "wrote them without delivery=exactly_once, or the group's offset was deleted or "
                "has expired, look what the topic has, and start the query with "
                '.option("missingProgress", "accept") once'
            )
        return found.batches == batch.number


def driver_id(sink: str) -> str:
    return f"{sink}#driver"


def tasks_pattern(sink: str) -> str:
    """The transactional ids of the sink's tasks, in the notation of ListTransactions."""
    plain = "".join(each if each.isalnum() else f"\\{each}" for each in f"{sink}#")
    return f"{plain}[0-9]+{SALT_MARK}[0-9]+"


# -- what is asked ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TakeOver:
    """-> OpenTransaction. With `current`, refused if somebody else has taken it over since."""

    transactional_id: str
    current: OpenTransaction | None = None


@dataclass(frozen=True, slots=True)
class CountHomes:
    """-> int: the partitions of `__transaction_state`."""


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """-> Progress | None, when nothing is about to change it."""

    sink: str


@dataclass(frozen=True, slots=True)
class NoteProgress:
    """-> None: part of the transaction from now on."""

    transaction: OpenTransaction
    sink: str
    progress: Progress


@dataclass(frozen=True, slots=True)
class FindOpen:
    """-> tuple[OpenTransaction, ...]: of the sink's tasks."""

    sink: str


@dataclass(frozen=True, slots=True)
class End:
    """-> None: decided for all of them, or aborted where open."""

    members: tuple[OpenTransaction, ...]
    committed: bool
    sink: str | None = None
    """With a commit: whose progress one of them must have noted."""


Question = TakeOver | CountHomes | ReadProgress | NoteProgress | FindOpen | End
Steps = Generator[Question, Any, T]


# -- what is done ----------------------------------------------------------------------------------


def begin(sink: str) -> Steps[Plan]:
    """Before the tasks of a micro-batch run."""
    try:
        driver: OpenTransaction = yield TakeOver(driver_id(sink))
    except Refused as refused:
        raise _why_not_begun(sink, refused) from refused
    homes: int = yield CountHomes()
    progress: Progress | None = yield ReadProgress(sink)
    yield from _abort_open(sink)
    return Plan(sink, driver, progress, homes)


def commit(
    plan: Plan, batch: Batch, members: Sequence[OpenTransaction], missing: MissingProgress
) -> Steps[bool]:
    """All tasks are done. Whether the batch was committed by this; else it was before."""
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
    """The batch failed, in a task or in its commit. Without a plan (no task has finished) it is
    not known whether the sink is still this driver's; what is open is aborted all the same: should
    it be another driver's, that one's batch is refused and done again."""
    if plan is not None:
        try:
            yield TakeOver(plan.driver.transactional_id, plan.driver)
        except Refused:
            return  # Another driver has the sink, and sees to what is open.
    yield from _abort_open(sink)


def _abort_open(sink: str) -> Steps[None]:
    """What earlier attempts left open would hold readers back until its timeout, should no task of
    this attempt take it over."""
    try:
        left: tuple[OpenTransaction, ...] = yield FindOpen(sink)
        for first in range(0, len(left), _ABORTED_AT_ONCE_MAX):
            yield End(left[first : first + _ABORTED_AT_ONCE_MAX], committed=False)
    except Refused:
        return  # Its timeout ends it.


def _why_not_begun(sink: str, refused: Refused) -> SinkRefused:
    if refused.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
        return SinkRefused(
            "transactionTimeout is above what the brokers allow: have less, or raise "
            "transaction.max.timeout.ms there"
        )
    return SinkRefused(f"the sink {sink} cannot be taken over: {refused}")


def _why_not_committed(plan: Plan, batch: Batch, tasks: int, refused: Refused) -> NotCommitted:
    if refused.code is ErrorCode.MESSAGE_TOO_LARGE:
        return NotCommitted(
            f"batch {batch.number} of the sink {plan.sink} was written by {tasks} tasks, too many "
            "to be committed in one write of the cluster: have fewer with .coalesce(n), or raise "
            "max.message.bytes of __transaction_state"
        )
    return NotCommitted(
        f"batch {batch.number} of the sink {plan.sink} was not committed: {refused}. Another "
        "driver or another attempt of a task has taken over, or the batch took longer than "
        "transactionTimeout; start the query again"
    )
