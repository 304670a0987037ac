"""A producer's later batches do not overtake a batch that was refused."""

from __future__ import annotations

from penstock.partition.retry_window import PRODUCERS_MAX, REMEMBERED_MS, RetryWindow


def refused(*sequences: int, now_ms: int = 0) -> RetryWindow:
    made = RetryWindow()
    for sequence in sequences:
        made.note(7, 0, sequence, now_ms)
    return made


def test_later_batches_wait_for_the_lowest_refused_one() -> None:
    """The order of the refusals does not matter. Once the lowest batch is back, nothing is held
    back."""
    held = refused(5, 3, 9)
    assert held.holds_back(7, 0, 5, 1)
    assert held.holds_back(7, 0, 4, 1)
    assert not held.holds_back(7, 0, 3, 1)
    assert not held
    assert not held.holds_back(7, 0, 5, 1)


def test_an_earlier_batch_ends_the_waiting() -> None:
    """The client resumes at an earlier sequence, and it knows better what it has to send."""
    held = refused(5)
    assert not held.holds_back(7, 0, 2, 1)
    assert not held.holds_back(7, 0, 6, 1)


def test_other_producers_and_epochs_do_not_wait() -> None:
    held = refused(5)
    assert not held.holds_back(8, 0, 6, 1)
    assert not held.holds_back(7, 1, 6, 1)
    assert held.holds_back(7, 0, 6, 1)


def test_a_refusal_is_forgotten_after_some_time() -> None:
    """Refusing later batches meanwhile does not extend the time. If the clock is set back, the
    refusal is forgotten too."""
    held = refused(5)
    for now_ms in range(0, REMEMBERED_MS + 1, 1000):
        assert held.holds_back(7, 0, 6, now_ms)
        held.note(7, 0, 6, now_ms)
    assert not held.holds_back(7, 0, 6, REMEMBERED_MS + 1)
    assert not refused(5, now_ms=1000).holds_back(7, 0, 6, 999)


def test_sequences_wrap_around() -> None:
    """0 follows the largest sequence."""
    last = 2**31 - 1
    assert refused(last).holds_back(7, 0, 0, 1)
    assert not refused(0).holds_back(7, 0, last, 1)


def test_the_number_of_remembered_producers_is_limited() -> None:
    """The oldest one is forgotten."""
    held = RetryWindow()
    for producer_id in range(PRODUCERS_MAX + 1):
        held.note(producer_id, 0, 5, 0)
    assert not held.holds_back(0, 0, 6, 1)
    assert held.holds_back(1, 0, 6, 1)
