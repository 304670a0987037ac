"""Scenarios: what a seed draws, and that it stays within what Penstock promises."""

from __future__ import annotations

import pytest

from penstock.sim import scenario as scenario_module
from penstock.sim.access_plan import GUEST_TOPIC
from penstock.sim.focus import FOCUSES, focused
from penstock.sim.history import COPIES, TABLE
from penstock.sim.key_service import KEY_FILE, KEY_SERVER
from penstock.sim.scenario import (
    ACCESS,
    CLIENT_FAULTS,
    EDGE_CLIENTS,
    EDGE_FAULTS,
    EPISODES,
    FAULTS,
    KEY_EPISODES,
    KEY_FAULTS,
    PRODUCER_KINDS,
    TRANSACTOR_KINDS,
    WAITING,
    WORKER_FAULTS,
    draw,
    unreplicated,
)


def test_a_seed_always_draws_the_same_scenario() -> None:
    """So a failure can be replayed."""
    assert draw(7) == draw(7)
    assert draw(7) != draw(8)


def test_seeds_cover_all_faults_producers_and_topic_settings() -> None:
    """Every fault, producer and topic setting occurs in a hundred seeds, and so does no fault."""
    scenarios = [draw(seed) for seed in range(100)]
    everything = {*FAULTS, *CLIENT_FAULTS, *EDGE_FAULTS, *KEY_FAULTS, *WORKER_FAULTS} - WAITING
    assert {name for each in scenarios for name in each.faults} == everything
    assert {name for each in scenarios for name in each.producers} == {*PRODUCER_KINDS}
    assert any(not each.faults for each in scenarios)
    assert {each.brokers for each in scenarios} == {3, 4, 5}
    assert {each.divides_all for each in scenarios} == {True, False}
    topics = [topic for each in scenarios for topic in each.topics]
    assert {topic.durability for topic in topics} == {"fsync", "replicated"}
    assert {topic.replication_factor for topic in topics} >= {1, 2, 3}


def test_seeds_cover_transactions() -> None:
    """All transactional clients occur, alone and together; some seeds have none."""
    scenarios = [draw(seed) for seed in range(100)]
    assert {kind for each in scenarios for kind in each.transactors} == {*TRANSACTOR_KINDS}
    assert any(not each.transactors for each in scenarios)
    assert any(each.copiers and each.sinks for each in scenarios)
    assert all(each.committed_readers for each in scenarios if each.transactors)
    assert any(each.deletable and "delete_records" in each.faults for each in scenarios)


def test_seeds_cover_all_episodes_and_unusual_clients() -> None:
    """All episodes and unusual clients occur; those in `WAITING` only on request."""
    scenarios = [draw(seed) for seed in range(100)]
    assert {name for each in scenarios for name in each.episodes} == {*EPISODES} - WAITING
    asked = [draw(seed, also=WAITING) for seed in range(100)]
    assert {name for each in asked for name in each.episodes} == {*EPISODES}
    assert len(EDGE_CLIENTS) == 3
    assert any(each.pipeliners for each in asked)
    assert any(each.malformers for each in asked)
    assert any(each.tables for each in asked)


def test_one_seed_in_five_has_access_control() -> None:
    """The topic of the guest has all records: ordinary clients read it and write to it, and no
    record of it is deleted."""
    scenarios = [draw(seed) for seed in range(200)]
    assert {each.access for each in scenarios} == {"", *ACCESS}
    assert 20 <= sum(bool(each.access) for each in scenarios) <= 60
    for scenario in scenarios:
        has_guest = any(topic.name == GUEST_TOPIC for topic in scenario.all_topics)
        assert has_guest == bool(scenario.access)
        assert (f"{GUEST_TOPIC}-0" in scenario.written) == has_guest
        assert f"{GUEST_TOPIC}-0" not in scenario.deletable
        assert focused(scenario, "access").access


def test_one_seed_in_five_has_encrypted_topics() -> None:
    """With both kinds of key providers, and the faults of key providers only there."""
    scenarios = [draw(seed) for seed in range(200)]
    sealed = [each for each in scenarios if each.encrypted]
    assert 20 <= len(sealed) <= 60
    assert {each.keys for each in sealed} == {KEY_FILE, KEY_SERVER}
    assert {name for each in sealed for name in each.faults} >= {*KEY_FAULTS}
    names = {name for each in sealed for name in each.encrypted}
    assert names >= {"orders", "events", COPIES, TABLE, GUEST_TOPIC}
    for plain in (each for each in scenarios if not each.encrypted):
        assert not plain.keys
        assert not {*KEY_FAULTS} & {*plain.faults}
        assert not {*KEY_EPISODES} & {*plain.episodes}
    assert focused(scenarios[0], "encryption").encrypted
    assert not focused(sealed[0], "power").encrypted


def test_some_seeds_with_access_control_have_delegation_tokens() -> None:
    """Without logins there are none. A focus on them always has logins."""
    scenarios = [draw(seed) for seed in range(200)]
    assert {each.tokens for each in scenarios if each.access} == {True, False}
    assert not any(each.tokens for each in scenarios if not each.access)
    assert all((each := focused(one, "tokens")).tokens and each.access for one in scenarios)


@pytest.mark.parametrize("focus", sorted(FOCUSES))
def test_no_scenario_has_tokens_without_access_control(focus: str) -> None:
    """Without logins no broker creates a token, and the check of tokens would always fail."""
    scenarios = [focused(draw(seed), focus) for seed in range(200)]
    assert not [each.seed for each in scenarios if each.tokens and not each.access]


def test_some_seeds_have_quotas() -> None:
    """With and without access control. The focus always has them."""
    scenarios = [draw(seed) for seed in range(200)]
    assert 15 <= sum(each.quotas for each in scenarios) <= 50
    assert {bool(each.access) for each in scenarios if each.quotas} == {True, False}
    focuses = [focused(each, "quotas") for each in scenarios]
    assert all(each.quotas for each in focuses)
    assert {bool(each.access) for each in focuses} == {True, False}


def test_one_seed_in_ten_has_workers_that_own_pipelines() -> None:
    """Only these have the faults of workers. The focus always has workers."""
    scenarios = [draw(seed) for seed in range(300)]
    working = [each for each in scenarios if each.workers]
    assert 15 <= len(working) <= 50
    assert {each.workers for each in working} == {2, 3, 4}
    assert all(3 <= each.pipelines <= 6 for each in working)
    assert all(each.worker_rebalance_s >= each.worker_session_s for each in working)
    plain = [each for each in scenarios if not each.workers and not each.consumer_groups]
    assert not {*WORKER_FAULTS} & {name for each in plain for name in each.faults}
    assert all(focused(each, "pipelines").workers for each in scenarios[:20])
    assert not focused(working[0], "power").workers


def test_one_seed_in_ten_has_consumer_groups() -> None:
    """Only these have the faults of coordinators. The focus always has such groups, and topics
    with several partitions."""
    scenarios = [draw(seed) for seed in range(300)]
    grouped = [each for each in scenarios if each.consumer_groups]
    assert 15 <= len(grouped) <= 50
    assert {len(each.consumer_groups) for each in grouped} == {1, 2}
    assert all(each.consumer_heartbeat_s < each.consumer_session_s for each in grouped)
    for scenario in scenarios[:20]:
        focus = focused(scenario, "consumer_groups")
        assert focus.consumer_groups
        assert [topic.partitions for topic in focus.topics] == [3, 2]
        assert "move_coordinator" in focus.faults
    assert not focused(grouped[0], "power").consumer_groups


def test_only_their_focus_has_share_groups() -> None:
    """Their locks end during a run, and every seed has the faults of coordinators."""
    scenarios = [draw(seed) for seed in range(100)]
    assert not any(each.shares for each in scenarios)
    for scenario in scenarios[:30]:
        focus = focused(scenario, "share_groups")
        assert focus.shares is not None
        assert all(size >= 2 for size in focus.shares.groups)
        assert focus.shares.heartbeat_s < focus.shares.session_s
        assert focus.shares.lock_s < focus.load_s / 10
        assert "move_coordinator" in focus.faults
        assert focused(focus, "power").shares is None


def test_switching_on_an_episode_changes_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the run is the same."""
    monkeypatch.setattr(scenario_module, "WAITING", frozenset({"bit_rot"}))
    for seed in range(50):
        plain = draw(seed)
        more = draw(seed, also={"bit_rot"})
        left = tuple(name for name in more.episodes if name != "bit_rot")
        assert left == plain.episodes
        assert more.faults == plain.faults
        assert more.pipeliners == plain.pipeliners


def test_topics_that_are_compared_completely_are_not_modified() -> None:
    """Only copiers write copies, and no records are deleted that copiers read or sinks write."""
    for seed in range(200):
        scenario = draw(seed)
        assert not any(partition_name.startswith(COPIES) for partition_name in scenario.written)
        assert {*scenario.deletable} <= {*scenario.written}
        if scenario.copiers or scenario.sinks:
            assert not {*scenario.deletable} & {*scenario.topics[0].partition_names}
        if scenario.copiers:
            assert scenario.topics[-1].partitions == scenario.topics[0].partitions


def test_topics_fit_the_cluster() -> None:
    """Its replicas do not exceed the brokers, and min.insync.replicas not its replicas."""
    for seed in range(200):
        scenario = draw(seed)
        for topic in scenario.topics:
            assert topic.min_insync <= topic.replication_factor <= scenario.brokers


def test_power_losses_are_limited_by_the_topic_with_the_weakest_durability() -> None:
    """With `durability=replicated`, fewer than min.insync.replicas brokers may lose data."""
    for seed in range(200):
        scenario = draw(seed)
        least = [t.min_insync for t in scenario.topics if t.durability == "replicated"]
        assert scenario.losses_max == (min(least) - 1 if least else scenario.brokers)


def test_a_scenario_prints_its_whole_configuration() -> None:
    """The report of a failing seed contains its whole configuration."""
    text = str(draw(3))
    for name in ("brokers=", "faults=", "durability=", "session_timeout_s=", "producers="):
        assert name in text


def test_unreplicated_changes_only_the_replication_factor() -> None:
    """Only the replication factor of the topics differs."""
    topics = unreplicated(draw(3)).topics
    assert {topic.replication_factor for topic in topics} == {1}
    assert [topic.name for topic in topics] == [topic.name for topic in draw(3).topics]
