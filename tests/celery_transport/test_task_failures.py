"""Tasks that fail, retry or reject themselves, on Penstock and, side by side, on RabbitMQ.

The same tasks run on both with the same results.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError, MaxRetriesExceededError

from celery_transport.both_brokers import Setup, get
from celery_transport.task_workers import lines, wait_until

pytestmark = pytest.mark.xdist_group("celery")


# -- error callbacks -------------------------------------------------------------------------------


def test_a_failed_task_calls_its_errback(setup: Setup, tmp_path: Path) -> None:
    failed = setup.task("fail", "no milk").apply_async(
        link_error=setup.task("note_failure", str(tmp_path / "errors"))
    )
    with pytest.raises(ValueError, match="no milk"):
        get(failed)
    wait_until(lambda: lines(tmp_path / "errors") == ["no milk"], "the errback was called")


def test_an_errback_may_be_a_task_of_its_own(setup: Setup, tmp_path: Path) -> None:
    """It is immutable, so that it is sent as a message."""
    notes = str(tmp_path / "errors")
    task = setup.task("fail", "no milk").on_error(
        setup.task("note", notes, "called", immutable=True)
    )
    with pytest.raises(ValueError, match="no milk"):
        get(task.apply_async())
    wait_until(lambda: lines(Path(notes)) == ["called"], "the errback was called")


def test_a_chain_ends_with_the_first_failure(setup: Setup, tmp_path: Path) -> None:
    notes, errors = tmp_path / "notes", tmp_path / "errors"
    steps = chain(
        setup.task("answer", "no milk"),
        setup.task("fail"),
        setup.task("note", str(notes), "ran", immutable=True),
    ).on_error(setup.task("note_failure", str(errors)))
    result = steps.apply_async()
    with pytest.raises(ValueError, match="no milk"):
        get(result)
    wait_until(lambda: lines(errors) == ["no milk"], "the errback was called")
    assert [result.parent.state, result.parent.parent.state] == ["FAILURE", "SUCCESS"]
    assert lines(notes) == []


def test_a_group_calls_the_errback_of_each_failed_task(setup: Setup, tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    tasks = group(setup.task("fail", "one"), setup.task("add", 1, 1), setup.task("fail", "two"))
    tasks.link_error(setup.task("note_failure", str(errors)))
    result = tasks.apply_async()
    wait_until(lambda: sorted(lines(errors)) == ["one", "two"], "both errbacks were called")
    assert get(result[1]) == 2


def test_a_chord_fails_with_its_header(setup: Setup, tmp_path: Path) -> None:
    """Its other tasks run, its body does not, and the errback of the body is called."""
    errors, notes = tmp_path / "errors", tmp_path / "notes"
    body = setup.task("note", str(notes), "ran", immutable=True)
    body.on_error(setup.task("note_failure", str(errors)))
    header = [
        setup.task("add", 4, 4),
        setup.task("fail", "no milk"),
        setup.task("note", str(notes), "beside"),
    ]
    result = chord(header)(body)
    with pytest.raises(ChordError, match=r"ValueError\('no milk'\)"):
        get(setup.app.AsyncResult(result.id))
    with pytest.raises(ValueError, match="no milk"):
        get(result)
    wait_until(lambda: lines(errors), "the errback was called")
    assert "no milk" in lines(errors)[0]
    wait_until(lambda: lines(notes) == ["beside"], "the other tasks of the header ran")


def test_a_chord_calls_the_errback_of_its_body(setup: Setup, tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    steps = chord([setup.task("add", 1, 1), setup.task("add", 2, 2)], setup.task("fail"))
    steps.link_error(setup.task("note_failure", str(errors)))
    with pytest.raises(ValueError, match=r"\[2, 4\]"):
        get(steps.apply_async())
    wait_until(lambda: lines(errors) == ["[2, 4]"], "the errback was called")


def test_a_failed_step_before_a_chord_ends_the_chain(setup: Setup, tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    tail = chord(
        [setup.task("add", 1), setup.task("add", 2)],
        setup.task("total").on_error(setup.task("note_failure", str(errors))),
    )
    result = chain(setup.task("fail", "no milk"), tail).apply_async(
        link_error=setup.task("note_failure", str(errors))
    )
    wait_until(lambda: "no milk" in lines(errors), "the errback was called")
    assert not result.successful()


# -- retries ---------------------------------------------------------------------------------------


def test_a_retried_task_counts_its_retries(setup: Setup, tmp_path: Path) -> None:
    assert get(setup.task("third_time", str(tmp_path / "attempts")).apply_async()) == 2
    assert lines(tmp_path / "attempts") == ["attempt 0", "attempt 1", "attempt 2"]


def test_a_retried_task_is_a_step_of_a_chain_and_of_a_chord(setup: Setup, tmp_path: Path) -> None:
    first = setup.task("third_time", str(tmp_path / "first"))
    second = setup.task("third_time", str(tmp_path / "second"), immutable=True)
    steps = chain(first, chord([setup.task("add", 10), second], setup.task("total")))
    assert get(steps.apply_async()) == 14
    assert len(lines(tmp_path / "first")) == len(lines(tmp_path / "second")) == 3


def test_a_task_that_retries_by_itself_waits_longer_each_time(setup: Setup, tmp_path: Path) -> None:
    """Only the shortest waits are known: one second, and then two."""
    assert get(setup.task("back_off", str(tmp_path / "times")).apply_async()) == 2
    first, second, third = map(int, lines(tmp_path / "times"))
    assert second - first >= 1_000
    assert third - second >= 2_000


def test_a_task_that_retries_too_often_fails(setup: Setup, tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match="nobody is there"):
        get(setup.task("give_up", str(tmp_path / "attempts")).apply_async())
    assert lines(tmp_path / "attempts") == ["attempt"] * 2
    with pytest.raises(MaxRetriesExceededError):
        get(setup.task("retry_without_error").apply_async())


# -- growing chords --------------------------------------------------------------------------------


def test_a_chord_cannot_grow_with_this_result_backend(setup: Setup) -> None:
    """`add_to_chord` is a matter of the result backend: in Celery only that of Redis has it."""
    result = chord([setup.task("grow_chord"), setup.task("add", 1, 1)], setup.task("total"))()
    with pytest.raises(NotImplementedError, match="add_to_chord"):
        get(result.parent[0])


# -- tasks that reject or ignore themselves --------------------------------------------------------


def test_a_task_that_ignores_itself_keeps_its_state(setup: Setup) -> None:
    result = setup.task("ignore_itself").apply_async()
    wait_until(lambda: result.state == "SKIPPED", "the task has set its state")
    assert not result.ready()


def test_a_task_that_rejects_itself_comes_again(setup: Setup, tmp_path: Path) -> None:
    assert get(setup.task("reject_once", str(tmp_path / "deliveries")).apply_async()) == "ran"
    assert lines(tmp_path / "deliveries") == ["False", "True"]


def test_a_task_that_is_rejected_for_good_does_not_come_again(setup: Setup, tmp_path: Path) -> None:
    notes = tmp_path / "deliveries"
    result = setup.task("reject_for_good", str(notes)).apply_async()
    wait_until(lambda: lines(notes), "the task was delivered")
    # The worker has two processes: these tasks ran after the rejection.
    tasks = group(setup.task("add", number, number) for number in range(20))
    assert len(get(tasks.apply_async())) == 20
    assert lines(notes) == ["rejected"]
    assert not result.ready()
