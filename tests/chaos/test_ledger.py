"""The ledger reports every kind of damage, so an empty verdict means a sound cluster."""

from __future__ import annotations

import pytest

from .ledger import NUMBERS_PER_PRODUCER, Ledger

ONE, TWO = NUMBERS_PER_PRODUCER, 2 * NUMBERS_PER_PRODUCER


def ledger(*numbers: int) -> Ledger:
    """Returns a ledger in which these were acknowledged in partition 0, in order from offset 0."""
    made = Ledger(2, ("audit",))
    for offset, number in enumerate(numbers):
        made.on_acknowledged(number, 0, offset, 0.0)
    return made


def read(made: Ledger, *found: tuple[int, int]) -> Ledger:
    for offset, number in found:
        made.on_read("audit", 0, offset, number)
    return made


def test_records_at_their_offsets_cause_no_complaint() -> None:
    """Two producers may alternate."""
    made = read(ledger(ONE, TWO, ONE + 1), (0, ONE), (1, TWO), (2, ONE + 1))
    assert made.verdict().is_sound


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        ([(0, ONE), (2, ONE + 2)], "lost"),
        ([(0, ONE), (1, ONE + 1), (2, ONE + 2), (3, ONE + 2)], "duplicated"),
        ([(0, ONE + 1), (1, ONE), (2, ONE + 2)], "reordered"),
        ([(0, ONE), (1, ONE + 1), (3, ONE + 2)], "misplaced"),
        ([(0, ONE), (1, ONE + 1), (2, ONE + 2), (2, ONE + 3)], "changed"),
    ],
)
def test_every_kind_of_damage_is_reported(found: list[tuple[int, int]], kind: str) -> None:
    """Each is counted under its own name."""
    verdict = read(ledger(ONE, ONE + 1, ONE + 2), *found).verdict()
    assert getattr(verdict, kind) == 1
    assert any(kind in complaint for complaint in verdict.complaints)


def test_a_record_that_a_group_did_not_get_is_reported() -> None:
    """It is in the log and was delivered to one group, but not to the other."""
    made = Ledger(1, ("audit", "group"))
    made.on_acknowledged(ONE, 0, 0, 0.0)
    made.on_read("audit", 0, 0, ONE)
    verdict = made.verdict()
    assert (verdict.lost, verdict.unread) == (0, 1)
    assert made.first_unread("group") == {0: 0}


def test_a_failed_send_is_reported() -> None:
    """A record that the client gave up counts as a failure of the cluster."""
    made = ledger()
    made.on_failed(ONE, "timed out")
    assert not made.verdict().is_sound
