"""A topic copied in transactions is copied exactly once while brokers and copiers are bounced."""

from __future__ import annotations

from pathlib import Path

import pytest

from .transactions import WAYS, Cell, Load, Play, cells
from .transactions_copiers import CLIENTS
from .transactions_ledger import Sight, judge

SMOKE = Load(
    messages=5_000,
    size=100,
    pause_ms=100,
    away_one_in=10**9,
    portions=5,
    spares_coordinator=True,
)


@pytest.mark.timeout(240)
def test_a_copy_in_transactions_is_exact(tmp_path: Path) -> None:
    """Brokers and copiers are killed and stopped in turn. Every read_committed reader gets each
    number once and in order, and no transaction is left open."""
    outcome = Play(tmp_path, Cell("confluent", "both"), SMOKE, seed=1).run()
    assert outcome.complaints == []
    assert sum(outcome.struck.values()) >= 4
    assert {what.split()[1] for what in outcome.struck} == {"brokers", "copiers"}


def test_the_matrix_covers_every_client_way_and_store() -> None:
    """Every client runs with every way, and with both stores."""
    made = cells(CLIENTS, list(WAYS), ("sqlite", "etcd"))
    assert {(cell.client, cell.way) for cell in made} == {(c, w) for c in CLIENTS for w in WAYS}
    assert {(cell.client, cell.store) for cell in made} == {
        (client, store) for client in CLIENTS for store in ("sqlite", "etcd")
    }
    assert len(made) == len(CLIENTS) * len(WAYS)


def test_an_exact_copy_causes_no_complaint() -> None:
    """Gaps between offsets are markers and aborted records, and are allowed."""
    sights: list[Sight] = [[(0, 0), (2, 2), (7, 4)], [(1, 1)]]
    found = judge([[0, 2, 4], [1]], {"one": sights, "two": sights})
    assert (found.complaints, found.counts) == ([], {})


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        ([(0, 0), (7, 4)], "lost"),
        ([(0, 0), (2, 2), (4, 2), (7, 4)], "duplicated"),
        ([(0, 0), (2, 2), (4, 3), (7, 4)], "strange"),
        ([(0, 2), (2, 0), (7, 4)], "reordered"),
        ([(0, 0), (0, 2), (7, 4)], "other"),
    ],
)
def test_every_kind_of_damage_is_reported(seen: Sight, kind: str) -> None:
    """Each is counted under its own name, and under no other."""
    found = judge([[0, 2, 4]], {"one": [seen]})
    assert found.counts == {kind: 1}
    assert kind in found.complaints[0]


def test_readers_that_saw_different_offsets_are_reported() -> None:
    """Each copy is exact, but they have different offsets."""
    readers: dict[str, list[Sight]] = {"one": [[(0, 0), (1, 2)]], "two": [[(0, 0), (2, 2)]]}
    found = judge([[0, 2]], readers)
    assert found.counts == {"other": 2}
