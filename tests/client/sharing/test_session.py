"""Tests of the client's side of a share session."""

from __future__ import annotations

from penstock.client.sharing.membership import SharePart
from penstock.client.sharing.session import ShareSession

A, B, C = (SharePart(bytes(16), number) for number in range(3))


def test_fetches_and_acknowledgements_count_one_epoch() -> None:
    session = ShareSession()
    assert session.fetch([A]).epoch == 0
    assert session.acknowledge() == 1
    assert session.fetch([A]).epoch == 2
    session.epoch = (1 << 31) - 1
    assert session.acknowledge() == (1 << 31) - 1
    assert session.epoch == 1


def test_a_fetch_says_only_what_has_changed() -> None:
    session = ShareSession()
    assert session.fetch([B, A]).added == [A, B]
    said = session.fetch([A, C])
    assert (said.added, said.forgotten) == ([C], [B])
    said = session.fetch([A, C])
    assert (said.added, said.forgotten) == ([], [])


def test_a_lost_session_begins_again_with_all_partitions() -> None:
    session = ShareSession()
    session.fetch([A, B])
    session.lost()
    assert not session.is_open
    said = session.fetch([A])
    assert (said.epoch, said.added, said.forgotten) == (0, [A], [])
