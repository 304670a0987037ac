"""What the members of consumer groups and share groups of a scenario do, and the clients of its
delay topic."""

from __future__ import annotations

from functools import partial

from penstock.sim.actors.client_processes import Plan
from penstock.sim.actors.consumer_member import (
    ENDS_CLASSIC,
    ENDS_NEW,
    RETIRES,
    STAYS,
    run_consumer_member,
)
from penstock.sim.actors.delay_reader import run_delay_reader
from penstock.sim.actors.delay_sender import run_delay_admin, run_delay_sender
from penstock.sim.actors.extra_topics import run_extra_topics
from penstock.sim.actors.letter_reader import run_letter_reader
from penstock.sim.actors.share_member import run_share_member
from penstock.sim.actors.share_worker import run_share_worker
from penstock.sim.scenario import Scenario


def consumer_plans(scenario: Scenario) -> dict[str, Plan]:
    """Returns the members of all consumer groups. Every second member of a group is static."""
    plans: dict[str, Plan] = {}
    for group, members in enumerate(scenario.consumer_groups):
        for number in range(members):
            instance_id = f"instance{number}" if number % 2 else None
            member = partial(run_consumer_member, group=group, instance_id=instance_id)
            plans[f"mc{len(plans)}"] = partial(member, role=_role(scenario, number, members))
    if plans:
        plans["admin-topics"] = run_extra_topics
    return plans


def _role(scenario: Scenario, number: int, members: int) -> str:
    """Returns what becomes of a member in the end. In a group that migrates, the first member is
    the only one of the new protocol then. In half of the seeds it leaves for good."""
    if not scenario.consumer_migration:
        return STAYS
    if number:
        return ENDS_CLASSIC
    return RETIRES if scenario.seed % 4 == 1 and members > 1 else ENDS_NEW


def share_plans(scenario: Scenario) -> dict[str, Plan]:
    """Returns the members of all share groups, and the readers of their dead letters. Every second
    member uses the library's consumer."""
    plans: dict[str, Plan] = {}
    names = () if scenario.shares is None else scenario.shares.names
    sizes = () if scenario.shares is None else scenario.shares.groups
    for group, members in zip(names, sizes, strict=True):
        for number in range(members):
            if number % 2:
                plans[f"mq{len(plans)}"] = partial(run_share_worker, group=group)
            else:
                plans[f"ms{len(plans)}"] = partial(run_share_member, group=group)
    if scenario.shares is not None and scenario.shares.dead_letters:
        plans |= {f"rl-{group}": partial(run_letter_reader, group=group) for group in names}
    return plans


def delay_plans(scenario: Scenario) -> dict[str, Plan]:
    """Returns the clients of the delay topic: senders, a reader of the targets, an operator."""
    plan = scenario.delays
    if plan is None:
        return {}
    plans: dict[str, Plan] = {
        f"delayed{number}": partial(run_delay_sender, number=number)
        for number in range(plan.senders)
    }
    plans["rd"] = run_delay_reader
    if plan.changes:
        plans["admin-delays"] = run_delay_admin
    return plans
