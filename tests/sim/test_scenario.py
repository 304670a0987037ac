"""Scenarios: what a seed draws, and that it stays within what is promised."""

from __future__ import annotations

import pytest

from penstock.sim import scenario as scenario_module
from penstock.sim.history import COPIES
from penstock.sim.scenario import (
    CLIENT_FAULTS,
    EDGE_CLIENTS,
    EDGE_FAULTS,
    EPISODES,
    FAULTS,
    PRODUCER_KINDS,
    TRANSACTOR_KINDS,
    WAITING,
    draw,
    unreplicated,
)


def test_a_seed_always_draws_the_same() -> None:
    """So that a failure can be looked at again."""
    assert draw(7) == draw(7)
    assert draw(7) != draw(8)


def test_seeds_cover_what_there_is() -> None:
    """All kinds of faults, producers and topics come up among a hundred seeds, and so does calm."""
    scenarios = [draw(seed) for seed in range(100)]
    everything = {*FAULTS, *CLIENT_FAULTS, *EDGE_FAULTS} - WAITING
    assert {name for each in scenarios for name in each.faults} == everything
    assert {name for each in scenarios for name in each.producers} == {*PRODUCER_KINDS}
    assert any(not each.faults for each in scenarios)
    assert {each.brokers for each in scenarios} == {3, 4, 5}
    assert {each.divides_all for each in scenarios} == {True, False}
    topics = [topic for each in scenarios for topic in each.topics]
    assert {topic.durability for topic in topics} == {"fsync", "replicated"}
    assert {topic.replication_factor for topic in topics} >= {1, 2, 3}


def test_seeds_cover_transactions() -> None:
    """All kinds of transactional clients come up, alone and beside each other; so does none."""
    scenarios = [draw(seed) for seed in range(100)]
    assert {kind for each in scenarios for kind in each.transactors} == {*TRANSACTOR_KINDS}
    assert any(not each.transactors for each in scenarios)
    assert any(each.copiers and each.sinks for each in scenarios)
    assert all(each.committed_readers for each in scenarios if each.transactors)
    assert any(each.deletable and "delete_records" in each.faults for each in scenarios)


def test_seeds_cover_the_edges() -> None:
    """All episodes and clients at the edges come up, those that wait only on request."""
    scenarios = [draw(seed) for seed in range(100)]
    assert {name for each in scenarios for name in each.episodes} == {*EPISODES} - WAITING
    asked = [draw(seed, also=WAITING) for seed in range(100)]
    assert {name for each in asked for name in each.episodes} == {*EPISODES}
    assert len(EDGE_CLIENTS) == 3
    assert any(each.pipeliners for each in asked)
    assert any(each.malformers for each in asked)
    assert any(each.tables for each in asked)


def test_switching_something_on_changes_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed is the same run but for that."""
    monkeypatch.setattr(scenario_module, "WAITING", frozenset({"bit_rot"}))
    for seed in range(50):
        plain = draw(seed)
        more = draw(seed, also={"bit_rot"})
        left = tuple(name for name in more.episodes if name != "bit_rot")
        assert left == plain.episodes
        assert more.faults == plain.faults
        assert more.pipeliners == plain.pipeliners


def test_what_must_be_compared_whole_is_left_alone() -> None:
    """Only copiers write copies; nothing is deleted that copiers read or sinks write."""
    for seed in range(200):
        scenario = draw(seed)
        assert not any(place.startswith(COPIES) for place in scenario.written)
        assert {*scenario.deletable} <= {*scenario.written}
        if scenario.copiers or scenario.sinks:
            assert not {*scenario.deletable} & {*scenario.topics[0].places}
        if scenario.copiers:
            assert scenario.topics[-1].partitions == scenario.topics[0].partitions


def test_topics_fit_the_cluster() -> None:
    """No topic asks for more replicas than brokers, or for more in sync than replicas."""
    for seed in range(200):
        scenario = draw(seed)
        for topic in scenario.topics:
            assert topic.min_insync <= topic.replication_factor <= scenario.brokers


def test_power_losses_are_bound_by_the_weakest_promise() -> None:
    """With replicated durability fewer than min.insync.replicas may lose what they wrote."""
    for seed in range(200):
        scenario = draw(seed)
        least = [t.min_insync for t in scenario.topics if t.durability == "replicated"]
        assert scenario.losses_max == (min(least) - 1 if least else scenario.brokers)


def test_a_scenario_prints_all_it_has() -> None:
    """The whole configuration of a failing seed is in its report."""
    text = str(draw(3))
    for name in ("brokers=", "faults=", "durability=", "session_timeout_s=", "producers="):
        assert name in text


def test_without_replication_nothing_else_changes() -> None:
    """Only the topics differ."""
    topics = unreplicated(draw(3)).topics
    assert {topic.replication_factor for topic in topics} == {1}
    assert [topic.name for topic in topics] == [topic.name for topic in draw(3).topics]
