"""Planted bugs: each can be planted and removed again, and some seed finds it."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.partition.leadership import Leadership
from penstock.sim.bug_search import HUNTS
from penstock.sim.bugs.access import ACCESS_BUGS
from penstock.sim.bugs.consumer_groups import CONSUMER_BUGS
from penstock.sim.bugs.edge_cases import EDGE_BUGS
from penstock.sim.bugs.encryption import ENCRYPTION_BUGS
from penstock.sim.bugs.pipelines import PIPELINE_BUGS
from penstock.sim.bugs.planting import patch
from penstock.sim.bugs.quotas import QUOTA_BUGS
from penstock.sim.bugs.replication import BUGS, describe, planted
from penstock.sim.bugs.share_groups import SHARE_BUGS
from penstock.sim.bugs.share_records import SHARE_RECORD_BUGS
from penstock.sim.bugs.transactions import TRANSACTION_BUGS
from penstock.sim.scenario import EPISODES

ROOT = Path(__file__).resolve().parents[3]


def test_a_bug_is_gone_after_its_block() -> None:
    """Otherwise the bug would affect the tests that run next."""
    sound = Leadership.__dict__["_recompute_maximal_set"]
    with planted("watermark-over-committed-isr"):
        assert Leadership.__dict__["_recompute_maximal_set"] is not sound
    assert Leadership.__dict__["_recompute_maximal_set"] is sound


@pytest.mark.parametrize("name", BUGS)
def test_every_bug_can_be_planted(name: str) -> None:
    """The code that it patches still exists, and the bug has a description."""
    with planted(name):
        pass
    assert describe()[name]


def test_a_bug_with_a_wrong_signature_is_not_planted() -> None:
    """Its own TypeError would fail the run at once, and prove nothing."""

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
            with pytest.raises(TypeError, match="the patch of work takes"):
                patch(patches, Product, "work", wrong)
        patch(patches, Product, "work", fitting)


def test_the_table_of_faults_matches_the_hunts_and_names_every_episode() -> None:
    """docs/ARCHITECTURE.md says which planted bug each fault finds, and the focus of that bug."""
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


def test_there_are_enough_planted_bugs() -> None:
    """At least fifteen for replication and groups, ten for transactions, six for rare faults, six
    for access control, four for quotas, four for encryption, four for pipelines, six for
    consumer groups, eight for share groups, five for timed records and dead letters."""
    assert len(TRANSACTION_BUGS) >= 10
    assert len(EDGE_BUGS) >= 6
    assert len(ACCESS_BUGS) >= 6
    assert len(QUOTA_BUGS) >= 4
    assert len(ENCRYPTION_BUGS) >= 4
    assert len(PIPELINE_BUGS) >= 4
    assert len(CONSUMER_BUGS) >= 6
    assert len(SHARE_BUGS) >= 8
    assert len(SHARE_RECORD_BUGS) >= 5
    parts = (
        *(TRANSACTION_BUGS, EDGE_BUGS, ACCESS_BUGS, QUOTA_BUGS, ENCRYPTION_BUGS),
        *(PIPELINE_BUGS, CONSUMER_BUGS, SHARE_BUGS, SHARE_RECORD_BUGS),
    )
    assert len(BUGS) - sum(map(len, parts)) >= 15
