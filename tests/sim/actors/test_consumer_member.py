"""Simulated members of consumer groups do what the checks are about."""

from __future__ import annotations

from penstock.sim.actors.group_plans import consumer_plans
from penstock.sim.focus import focused
from penstock.sim.scenario import draw
from penstock.sim.workload import run_scenario


def test_members_join_move_partitions_commit_and_come_back() -> None:
    """All of it happens in a few short seeds, and no rule is broken."""
    counted: dict[str, int] = {}
    for seed in range(3):
        verdict = run_scenario(focused(draw(seed, virtual_s=25.0), "consumer_groups"))
        assert not verdict.failed, verdict.failure
        for name, times in verdict.counters.items():
            counted[name] = counted.get(name, 0) + times
    for name in (
        *("heartbeats", "consumer_joins", "partitions_taken", "partitions_given_up"),
        *("consumer_commits_none", "consumer_commits_unknown_member_id", "records_read"),
        *("members_left", "members_left_for_a_while", "members_of_old", "subscriptions_changed"),
        *("extra_topics_created", "extra_topics_enlarged", "extra_topics_deleted"),
        *("heartbeats_unknown_member_id", "coordinators_compared", "asked_move"),
    ):
        assert counted.get(name), f"{name} did not happen: {counted}"


def test_groups_change_their_protocol_and_change_back() -> None:
    """Members of both protocols are in one group meanwhile, and no rule is broken."""
    counted: dict[str, int] = {}
    for seed in (3, 5):
        verdict = run_scenario(focused(draw(seed, virtual_s=25.0), "consumer_groups"))
        assert not verdict.failed, verdict.failure
        for name, times in verdict.counters.items():
            counted[name] = counted.get(name, 0) + times
    for name in (
        *("members_that_changed_protocol", "classic_joins", "classic_joins_of_new_group"),
        *("classic_rebalance_in_progress", "groups_upgraded", "groups_downgraded"),
        "members_that_retired",
    ):
        assert counted.get(name), f"{name} did not happen: {counted}"


def test_every_second_member_of_a_group_is_static() -> None:
    """A group without members of both kinds would leave out half of the protocol."""
    plans = consumer_plans(focused(draw(0), "consumer_groups"))
    assert any(name.startswith("mc") for name in plans)
    assert "admin-topics" in plans
    assert not consumer_plans(focused(draw(0), "power"))
