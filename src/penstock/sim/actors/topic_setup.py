"""Prepares a cluster for its clients: topics, rights, and the settings of share groups."""

from __future__ import annotations

from penstock.aio import Admin
from penstock.client.errors import ClientError
from penstock.metadata.dead_letter_configs import DEAD_LETTER_ENABLE
from penstock.sim.access_plan import ADMIN, prepare_access
from penstock.sim.actors.compacted_table import CONFIGS as TABLE_CONFIGS
from penstock.sim.actors.share_member import prepare_share_groups
from penstock.sim.actors.shared_state import Actor, SharedState
from penstock.sim.delay_plan import DELAY_TARGETS, DELAY_TOPIC, topic_settings
from penstock.sim.history import TABLE
from penstock.sim.scenario import Scenario, encryption_of
from penstock.sim.share_plan import letter_topic
from penstock.sim.world import World


def _is_configured(world: World, group: str) -> bool:
    """Returns whether every broker that runs knows the configs of the group."""
    images = (node.broker.cluster.image for node in world.brokers if node.broker is not None)
    return all(group in image.group_configs for image in images)


async def create_topics(world: World, shared: SharedState) -> None:
    node = world.client("setup")
    setup = Actor(shared, node.env, "setup", world.draws("setup"), user=ADMIN)
    shares = shared.scenario.shares
    while True:
        try:
            async with Admin(shared.bootstrap, env=node.env, **setup.keywords) as admin:
                if shared.scenario.access:
                    scenario = shared.scenario
                    await prepare_access(
                        admin, has_tenants=scenario.quotas, has_tokens=scenario.tokens
                    )
                for plan in shared.scenario.all_topics:
                    await admin.create_topic(
                        plan.name,
                        plan.partitions,
                        plan.replication_factor,
                        {
                            "min.insync.replicas": str(plan.min_insync),
                            "durability": plan.durability,
                            "segment.bytes": str(plan.segment_bytes),
                            **encryption_of(shared.scenario, plan.name),
                            **({} if shares is None else shares.topic_settings()),
                        },
                    )
                for group in shares.names if shares is not None and shares.dead_letters else ():
                    await _create_letter_topic(shared.scenario, admin, group)
                await _create_delay_topics(shared.scenario, admin)
                if shared.scenario.tables:
                    replicas = min(3, shared.scenario.brokers)
                    configs = TABLE_CONFIGS | encryption_of(shared.scenario, TABLE)
                    await admin.create_topic(TABLE, 1, replicas, configs)
        except ClientError:
            if world.now > 60:
                raise
            await world.sleep(0.5)
        else:
            break
    await prepare_share_groups(setup)
    names = () if shares is None else shares.names
    await world.until(
        lambda: all(_is_configured(world, name) for name in names),
        timeout_s=60.0,
        poll_s=0.1,
        what="all brokers know the settings of the share groups",
    )


async def _create_letter_topic(scenario: Scenario, admin: Admin, group: str) -> None:
    """Creates the topic for the dead letters of a share group, like the topics that it reads."""
    plan = scenario.topics[0]
    configs = {
        "min.insync.replicas": str(plan.min_insync),
        "durability": plan.durability,
        "segment.bytes": str(plan.segment_bytes),
        DEAD_LETTER_ENABLE: "true",
    }
    await admin.create_topic(letter_topic(group), 1, plan.replication_factor, configs)


async def _create_delay_topics(scenario: Scenario, admin: Admin) -> None:
    """Creates the delay topic, after its targets."""
    plan = scenario.delays
    if plan is None:
        return
    replicas = min(3, scenario.brokers)
    for target in DELAY_TARGETS:
        await admin.create_topic(target, plan.target_partitions, replicas, topic_settings())
    settings = topic_settings(DELAY_TARGETS[0])
    await admin.create_topic(DELAY_TOPIC, plan.partitions, replicas, settings)
