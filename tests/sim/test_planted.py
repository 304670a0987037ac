"""Planted bugs: they are planted, they are taken out again, and some seed shows each."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.partition.replication import Leadership
from penstock.sim.hunting import HUNTS
from penstock.sim.planted import BUGS, describe, planted
from penstock.sim.planted_edges import EDGE_BUGS
from penstock.sim.planted_txns import TRANSACTION_BUGS
from penstock.sim.planting import patch
from penstock.sim.scenario import EPISODES

ROOT = Path(__file__).resolve().parents[2]


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


def test_a_bug_that_cannot_be_called_is_not_planted() -> None:
    """It would be found at once, by its own failure."""

    class Product:
        def work(self, much: int, *, fast: bool) -> None:
            pass

    def without_fast(self: Product, much: int) -> None:
        pass

    def without_much(self: Product, *, fast: bool) -> None:
        pass

    def fitting(self: Product, *given: Any, **named: Any) -> None:
        pass

    with ExitStack() as patches:
        for wrong in (without_fast, without_much):
            with pytest.raises(TypeError, match="what is planted for work takes"):
                patch(patches, Product, "work", wrong)
        patch(patches, Product, "work", fitting)


def test_the_table_of_faults_names_bugs_and_every_episode() -> None:
    """docs/ARCHITECTURE.md says which planted bug each fault finds, with the focus of that bug."""
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = [
        row
        for row in re.findall(r"^\|(.*)\|$", text.partition("## The simulator")[2], re.MULTILINE)
        if "`" in row and "make crash" not in row
    ]
    named: dict[str, str] = {}
    for row in rows:
        fault, bug, *_ = row.split(" | ")
        named[bug.strip(" `")] = fault.rpartition("(`")[2].removesuffix("`)").strip()
    assert named == {name: HUNTS[name].focus for name in named}
    assert {*EPISODES} <= {*named.values()}


def test_there_are_enough_of_them() -> None:
    """At least fifteen of replication and groups, ten of transactions, six of the edges."""
    assert len(TRANSACTION_BUGS) >= 10
    assert len(EDGE_BUGS) >= 6
    assert len(BUGS) - len(TRANSACTION_BUGS) - len(EDGE_BUGS) >= 15
