"""Simulated members of share groups do what the checks are about."""

from __future__ import annotations

from penstock.sim.actors.group_plans import share_plans
from penstock.sim.focus import focused
from penstock.sim.history import GivenUp
from penstock.sim.scenario import draw
from penstock.sim.workload import run_scenario


def test_members_take_records_settle_them_and_come_back() -> None:
    """All of it happens in a few short seeds, no rule is broken, and a seed that runs again leaves
    the same history."""
    counted: dict[str, int] = {}
    for seed in range(3):
        verdict = run_scenario(focused(draw(seed, virtual_s=25.0), "share_groups"))
        assert not verdict.failed, verdict.failure
        for name, times in verdict.counters.items():
            counted[name] = counted.get(name, 0) + times
        if seed == 0:
            again = run_scenario(focused(draw(seed, virtual_s=25.0), "share_groups"))
            assert again.trace_hash == verdict.trace_hash
            assert [*again.history.lines()] == [*verdict.history.lines()]
    for name in (
        *("share_heartbeats_none", "share_joins", "share_members_left", "share_sessions_ended"),
        *("share_records_delivered", "share_records_forgotten", "share_leases_taken"),
        *("share_acks_accept_none", "share_acks_release_none", "share_acks_reject_none"),
        *("share_acks_renew_none", "share_acks_accept_invalid_record_state"),
        *("share_settled_accept_none", "share_settled_release_none", "share_settled_reject_none"),
        *("share_requests_of_wrong_epochs", "share_heartbeats_of_wrong_epochs"),
        *("share_fetch_not_leader_or_follower", "share_leaders_compared", "asked_move"),
        "share_fetches_to_former_leaders",
    ):
        assert counted.get(name), f"{name} did not happen: {counted}"


def test_records_have_times_and_those_that_are_given_up_become_dead_letters() -> None:
    """All of it happens in two short seeds, and no rule is broken."""
    counted: dict[str, int] = {}
    reasons: dict[str, int] = {}
    for seed in (2, 4):
        scenario = focused(draw(seed, virtual_s=20.0), "share_records")
        assert "skew" in scenario.faults, "the clocks of brokers differ"
        verdict = run_scenario(scenario)
        assert not verdict.failed, verdict.failure
        for name, times in verdict.counters.items():
            counted[name] = counted.get(name, 0) + times
        for entry in verdict.history.entries:
            if isinstance(entry, GivenUp):
                reasons[entry.reason] = reasons.get(entry.reason, 0) + 1
    for name in (
        *("records_due_past", "records_due_near", "records_due_far", "records_with_expiry"),
        "letters_read",
    ):
        assert counted.get(name), f"{name} did not happen: {counted}"
    assert reasons.keys() == {"REJECTED", "DELIVERY_LIMIT", "EXPIRED"}


def test_every_second_member_of_a_share_group_uses_the_librarys_consumer() -> None:
    """Both kinds are in every group. Other focuses have no such members."""
    plans = share_plans(focused(draw(0), "share_groups"))
    assert {name[:2] for name in plans} == {"ms", "mq"}
    plans = share_plans(focused(draw(0), "share_records"))
    assert {name[:2] for name in plans} == {"ms", "mq", "rl"}, "dead letters are read"
    assert not share_plans(focused(draw(0), "consumer_groups"))
