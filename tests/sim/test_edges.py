"""Faults and clients at the edges: short runs that show that each of them happens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.sim.scenario import EPISODES, Scenario, TopicPlan, draw
from penstock.sim.workload import Verdict, run_scenario

TOPIC = TopicPlan("orders", 1, 3, 2, "fsync", 1_000)


def scenario(seed: int, **more: Any) -> Scenario:
    """A small cluster with just the trouble that is asked for."""
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
def test_a_fault_happens_and_nothing_breaks(fault: str, counter: str) -> None:
    """All brokers lose power; topics are changed, made again, cut; the store is slow."""
    assert run(1, faults=(fault,)).counters[counter] >= 1


@pytest.mark.parametrize("episode", EPISODES)
def test_an_episode_happens_and_nothing_breaks(episode: str) -> None:
    """A broker comes back with an empty disk; two leaders die; leases are kept on a slow store; a
    topic is deleted and made again while a broker is away; a leader's disk is full."""
    topic = replace(TOPIC, segment_bytes=1 << 20)
    settings: dict[str, Any] = {"load_s": 20.0, "brokers": 4 if episode == "take_back" else 3}
    if episode == "rebuilt_table":
        settings["tables"] = 1
    if episode == "durability_switch":
        # Bytes that a clog holds up still come late when it is over, and a follower lags.
        settings["faults"] = ("bounce",)
    if episode == "unheard_join":
        settings = {"session_timeout_s": 15.0, "lag_max_ms": 500, "load_s": 40.0}
    verdict = run(1, episodes=(episode,), topics=(topic,), **settings)
    assert verdict.counters[f"episode_{episode}"] >= 1


def test_requests_may_be_worked_off_in_slices() -> None:
    """As large ones are: decoded elsewhere, and with others' turns after every partition."""
    more: dict[str, Any] = {"transactors": ("reading",), "members": 1, "faults": ("kill", "freeze")}
    divided = run(1, divides_all=True, **more)
    assert divided.steps > run(1, **more).steps


def test_with_replicated_durability_not_all_lose_power() -> None:
    """It is more than is promised."""
    verdict = run(1, faults=("power_cut",), topics=(replace(TOPIC, durability="replicated"),))
    assert "power_cuts_of_all" not in verdict.counters
