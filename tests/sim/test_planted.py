"""Planted bugs: they are planted, they are taken out again, and some seed shows each."""

from __future__ import annotations

import pytest

from penstock.partition.replication import Leadership
from penstock.sim.planted import BUGS, describe, planted
from penstock.sim.planted_txns import TRANSACTION_BUGS


def test_a_bug_is_gone_after_its_block() -> None:
    """The product is as it was, for whoever runs next."""
    sound = Leadership.__dict__["_settle"]
    with planted("watermark-over-committed-isr"):
        assert Leadership.__dict__["_settle"] is not sound
    assert Leadership.__dict__["_settle"] is sound


@pytest.mark.parametrize("name", BUGS)
def test_every_bug_can_be_planted(name: str) -> None:
    """What it patches is still there to be patched, and it says what is wrong with it."""
    with planted(name):
        pass
    assert describe()[name]


def test_there_are_enough_of_them() -> None:
    """At least fifteen of replication and groups, at least ten of transactions."""
    assert len(TRANSACTION_BUGS) >= 10
    assert len(BUGS) - len(TRANSACTION_BUGS) >= 15
