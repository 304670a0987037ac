"""Tests the requests of the exactly-once sink to the cluster, one by one, with scripted answers."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from penstock.client.model import OpenTransaction
from penstock.spark.once.protocol import (
    Batch,
    CountHomes,
    End,
    FindOpen,
    NotCommitted,
    NoteProgress,
    Plan,
    Progress,
    Question,
    ReadProgress,
    Refused,
    SinkRefused,
    Steps,
    TakeOver,
    begin,
    commit,
    give_up,
    tasks_pattern,
)
from penstock.txns.patterns import IdPattern
from penstock.wire.errors import ErrorCode
from penstock.wire.java import partition_of

T = TypeVar("T")
DRIVER = OpenTransaction("sales#driver", 7, 3)
TASKS = tuple(OpenTransaction(f"sales#{n}~1", 10 + n, 0) for n in range(3))
FENCED = Refused(ErrorCode.PRODUCER_FENCED, "fenced")


def played(steps: Steps[T], *answers: object) -> tuple[list[Question], T]:
    """Returns the requests and the result. A `Refused` among the answers is raised."""
    asked: list[Question] = []
    left = list(answers)
    try:
        question = next(steps)
        while True:
            asked.append(question)
            answer: Any = left.pop(0)
            thrown = isinstance(answer, Refused)
            question = steps.throw(answer) if thrown else steps.send(answer)
    except StopIteration as end:
        assert not left, "not everything was asked"
        return asked, end.value


def plan(progress: Progress | None = None) -> Plan:
    return Plan("sales", DRIVER, progress, 50)


def test_a_batch_begins_with_the_takeover_and_then_reads_progress() -> None:
    """In the opposite order, a commit by the previous driver in between would be missed."""
    asked, found = played(begin("sales"), DRIVER, 50, Progress(4, "q"), ())
    assert asked == [
        TakeOver("sales#driver"),
        CountHomes(),
        ReadProgress("sales"),
        FindOpen("sales"),
    ]
    assert found == Plan("sales", DRIVER, Progress(4, "q"), 50)


@pytest.mark.parametrize("answers", [(), (DRIVER,), (DRIVER, 50)])
def test_every_refusal_at_the_beginning_names_the_sink(answers: tuple[object, ...]) -> None:
    """Such as a right that the user lacks: pickle would report any other error as its own."""
    denied = Refused(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not allowed on this topic")
    with pytest.raises(SinkRefused, match="take over the sink sales: not allowed on this topic"):
        played(begin("sales"), *answers, denied)


def test_open_transactions_are_aborted_at_the_beginning_in_groups() -> None:
    """A hundred of them fit in the coordinator's log. If an abort is refused, the
    transaction timeout ends them."""
    left = tuple(OpenTransaction(f"sales#{n}~0", n, 0) for n in range(230))
    asked, _ = played(begin("sales"), DRIVER, 50, None, left, None, None, FENCED)
    ends = [each for each in asked if isinstance(each, End)]
    assert [len(end.members) for end in ends] == [100, 100, 30]
    assert not any(end.committed for end in ends)
    assert sum((end.members for end in ends), ()) == left


def test_a_commit_stores_the_progress_and_ends_all_transactions_in_one_request() -> None:
    noted = Progress(6, "q")
    asked, is_new = played(commit(plan(Progress(5, "q")), Batch("q", 5), TASKS, "fail"), None, None)
    assert asked == [
        NoteProgress(DRIVER, "sales", noted),
        End((DRIVER, *TASKS), committed=True, sink="sales"),
    ]
    assert is_new


def test_a_batch_that_was_committed_before_is_not_committed_again() -> None:
    asked, is_new = played(commit(plan(Progress(6, "q")), Batch("q", 5), (), "fail"))
    assert (asked, is_new) == ([], False)


@pytest.mark.parametrize("refused_at", [0, 1])
def test_a_refused_commit_fails_the_batch(refused_at: int) -> None:
    """At either request: nothing has been decided."""
    answers = [None] * refused_at
    with pytest.raises(NotCommitted, match="start the query again"):
        played(commit(plan(), Batch("q", 0), TASKS, "fail"), *answers, FENCED)


def test_too_many_tasks_are_reported() -> None:
    too_large = Refused(ErrorCode.MESSAGE_TOO_LARGE, "too large")
    with pytest.raises(NotCommitted, match=r"written by 3 tasks.*coalesce"):
        played(commit(plan(), Batch("q", 0), TASKS, "fail"), None, too_large)


def test_giving_up_aborts_open_transactions_if_the_sink_was_not_taken_over() -> None:
    asked, _ = played(give_up("sales", plan()), DRIVER, TASKS, None)
    assert asked == [
        TakeOver("sales#driver", DRIVER),
        FindOpen("sales"),
        End(TASKS, committed=False),
    ]
    asked, _ = played(give_up("sales", plan()), FENCED)
    assert asked == [TakeOver("sales#driver", DRIVER)]


def test_giving_up_before_any_task_is_done_aborts_open_transactions() -> None:
    asked, _ = played(give_up("sales", None), TASKS, None)
    assert asked == [FindOpen("sales"), End(TASKS, committed=False)]


def test_a_timeout_that_brokers_do_not_allow_is_reported() -> None:
    refused = Refused(ErrorCode.INVALID_TRANSACTION_TIMEOUT, "too long")
    with pytest.raises(SinkRefused, match="transactionTimeout is longer"):
        played(begin("sales"), refused)


@pytest.mark.parametrize(
    ("progress", "number", "is_due"),
    [
        (None, 0, True),
        (Progress(0, "q"), 0, True),
        (Progress(5, "q"), 5, True),
        (Progress(5, "q"), 4, False),
        (Progress(5, "q"), 0, False),
        (Progress(5, ""), 5, True),
    ],
)
def test_the_next_batch_is_due_and_earlier_ones_are_done(
    progress: Progress | None, number: int, is_due: bool
) -> None:
    assert plan(progress).is_due(Batch("q", number), "fail") is is_due


@pytest.mark.parametrize("number", [0, 4, 5, 6])
def test_progress_of_another_query_is_refused(number: int) -> None:
    """With any batch number: its batches are not this query's."""
    with pytest.raises(SinkRefused, match=r"belongs to another query.*group delete sales"):
        plan(Progress(5, "other")).is_due(Batch("q", number), "accept")


@pytest.mark.parametrize("progress", [None, Progress(3, "q")])
def test_a_gap_in_the_progress_is_refused(progress: Progress | None) -> None:
    """It is unknown whether the batches in between were written."""
    with pytest.raises(SinkRefused, match="missingProgress"):
        plan(progress).is_due(Batch("q", 4), "fail")


def test_missing_progress_may_be_accepted_but_not_a_gap() -> None:
    """A query that wrote at least once before can continue with exactly-once delivery."""
    assert plan(None).is_due(Batch("q", 4), "accept")
    with pytest.raises(SinkRefused, match="3 batches"):
        plan(Progress(3, "q")).is_due(Batch("q", 4), "accept")


def test_task_ids_are_stable_and_share_the_drivers_coordinator() -> None:
    ids = {plan().task_id(number) for number in range(200)}
    assert len(ids) == 200
    homes = {partition_of(each, 50) for each in (*ids, "sales#driver")}
    assert len(homes) == 1
    assert plan().task_id(7) == plan().task_id(7)


@pytest.mark.parametrize("sink", ["sales", "daily sales (v1.2)", "a|b", "Größe", "x[0-9]+"])
def test_the_pattern_finds_only_the_tasks_of_one_sink(sink: str) -> None:
    pattern = IdPattern(tasks_pattern(sink))
    own = Plan(sink, DRIVER, None, 50)
    assert all(pattern.matches(own.task_id(number)) for number in (0, 9, 123))
    others = (
        f"{sink}#driver",
        f"{sink}2#0~1",
        f"my {sink}#0~1",
        f"{sink}#0",
        f"{sink}#0~1x",
        "x#1~2",
    )
    assert not any(pattern.matches(other) for other in others)
