"""Rare faults and unusual clients: short runs check that each of them occurs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.sim.key_service import KEY_FILE
from penstock.sim.scenario import EPISODES, KEY_EPISODES, Scenario, TopicPlan, draw
from penstock.sim.workload import Verdict, run_scenario

TOPIC = TopicPlan("orders", 1, 3, 2, "fsync", 1_000)


def scenario(seed: int, **more: Any) -> Scenario:
    """Returns a small cluster with only the faults that are asked for."""
    calm: dict[str, Any] = {
        "brokers": 3,
        "topics": (TOPIC,),
        "faults": ("clog",),
        "episodes": (),
        "period_s": 3.0,
        "fault_mean_s": 1.0,
        "session_timeout_s": 3.0,
        "producers": ("real_idempotent",),
        "transactors": (),
        "copiers": 0,
        "sinks": 0,
        "pipeliners": 0,
        "malformers": 0,
        "tables": 0,
    }
    return replace(draw(seed, virtual_s=12.0), **{**calm, **more})


def run(seed: int, **more: Any) -> Verdict:
    verdict = run_scenario(scenario(seed, **more))
    assert not verdict.failed, verdict.failure + verdict.trouble
    return verdict


@pytest.mark.parametrize(
    ("fault", "counter"),
    [
        ("power_cut", "power_cuts_of_all"),
        ("alter_topic", "topics_altered"),
        ("recreate_topic", "topics_reborn"),
        ("delete_records", "records_deleted"),
        ("slow_store", "fault_slow_store"),
    ],
)
def test_a_fault_occurs_and_no_rule_is_broken(fault: str, counter: str) -> None:
    """Power loss of all brokers, altered and recreated topics, deleted records, a slow store."""
    assert run(1, faults=(fault,)).counters[counter] >= 1


@pytest.mark.parametrize("episode", EPISODES)
def test_an_episode_occurs_and_no_rule_is_broken(episode: str) -> None:
    """Among them: a broker returns with an empty disk; two leaders die; leases are renewed on a
    slow store; a topic is deleted and recreated while a broker is down; a leader's disk is full."""
    topic = replace(TOPIC, segment_bytes=1 << 20)
    moves = episode in ("take_back", "replaced_move")
    settings: dict[str, Any] = {"load_s": 20.0, "brokers": 4 if moves else 3}
    if episode == "eligible_deletion":
        settings["load_s"] = 40.0
    if episode == "rebuilt_table":
        settings["tables"] = 1
    if episode == "durability_switch":
        # Bytes that a clogged link delayed arrive after it clears, so a follower would still lag.
        settings["faults"] = ("bounce",)
    if episode in KEY_EPISODES:
        settings |= {"load_s": 40.0, "encrypted": (topic.name,), "keys": KEY_FILE}
    if episode == "unheard_join":
        settings = {"session_timeout_s": 15.0, "lag_max_ms": 500, "load_s": 40.0}
    counter, settings = f"episode_{episode}", settings | {"episodes": (episode,)}
    occurred = (
        run(seed, topics=(topic,), **settings).counters.get(counter, 0) for seed in range(1, 9)
    )
    assert any(occurred), "in none of these seeds"


def test_all_requests_can_be_processed_in_slices() -> None:
    """Large requests are decoded on an executor, and other requests run after every partition."""
    more: dict[str, Any] = {"transactors": ("reading",), "members": 1, "faults": ("kill", "freeze")}
    divided = run(1, divides_all=True, **more)
    assert divided.steps > run(1, **more).steps


def test_with_replicated_durability_not_all_brokers_lose_power_at_once() -> None:
    """`durability=replicated` does not promise to survive a power loss of all brokers."""
    verdict = run(1, faults=("power_cut",), topics=(replace(TOPIC, durability="replicated"),))
    assert "power_cuts_of_all" not in verdict.counters
