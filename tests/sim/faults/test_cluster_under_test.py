"""What episodes require of brokers does not include what earlier faults have caused."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.sim.faults.cluster_under_test import ClusterUnderTest, Lives
from penstock.sim.faults.topic_changes import ALTER
from penstock.sim.faults.topic_episodes import TopicEpisodes
from penstock.sim.history import OK, History
from penstock.sim.store import Expiry

BEGUN = 1050.0
LEASE, NEXT_LEASE = 7, 9


def cluster(**more: Any) -> ClusterUnderTest:
    """Returns a cluster with broker 0, which had broker epoch 4 when the episode began."""
    found: Any = object.__new__(ClusterUnderTest)
    found.world = SimpleNamespace(
        brokers=[SimpleNamespace(id=0, name="broker-0")],
        store=SimpleNamespace(expiries=more.get("expiries", [])),
    )
    epoch = more.get("epoch", 4)
    found.image = SimpleNamespace(
        brokers={0: SimpleNamespace(broker_id=0, broker_epoch=epoch)},
        topics=more.get("topics", {}),
    )
    found.operator = SimpleNamespace(name="operator")
    found.shared = SimpleNamespace(
        history=History(),
        now_ms=lambda: 60_000.0,
        settings=more.get("settings", {}),
        scenario=SimpleNamespace(
            session_timeout_s=1.5,
            topic_of=lambda _: SimpleNamespace(name="orders", durability="fsync", min_insync=2),
        ),
    )
    return cast(ClusterUnderTest, found)


@pytest.mark.parametrize(
    ("late", "expiries", "is_blamed"),
    [
        ({LEASE}, [Expiry(LEASE, "broker-0", BEGUN - 1)], False),
        (set(), [Expiry(LEASE, "broker-0", BEGUN - 1)], True),
        ({LEASE}, [Expiry(LEASE, "broker-0", BEGUN + 1)], True),
        (
            {LEASE},
            [Expiry(LEASE, "broker-0", BEGUN - 1), Expiry(NEXT_LEASE, "broker-0", BEGUN + 1)],
            True,
        ),
        ({LEASE}, [], True),
    ],
    ids=[
        "late when the episode began",
        "not late when it began",
        "renewed since it began",
        "lost again after it was granted anew",
        "registered again without losing a lease",
    ],
)
def test_a_lease_that_an_earlier_fault_has_cost_is_not_counted(
    late: set[int], expiries: list[Expiry], is_blamed: bool
) -> None:
    played = cluster(expiries=expiries, epoch=5)
    before = Lives({0: 4}, frozenset(late), BEGUN, 55_000.0)
    played.expect_lives("keeping leases", before)
    (probe,) = played.shared.history.entries
    assert probe.error == ("brokers [0] lost their lease" if is_blamed else "")
    assert (probe.status == OK) is not is_blamed
    assert probe.begun_ms == 55_000.0


def test_a_broker_that_keeps_its_registration_is_not_blamed() -> None:
    """A lease of an earlier process of the broker may expire at any time."""
    played = cluster(expiries=[Expiry(LEASE, "broker-0", BEGUN - 1)])
    played.expect_lives("keeping leases", Lives({0: 4}, frozenset(), BEGUN, 55_000.0))
    (probe,) = played.shared.history.entries
    assert probe.status == OK


@pytest.mark.parametrize("is_excused", [False, True])
def test_a_demand_that_is_not_met_counts_unless_it_is_excused(is_excused: bool) -> None:
    played: Any = cluster()

    async def spawn(work: Any) -> None:
        work.close()
        raise TimeoutError

    async def work() -> None: ...

    played.spawn = spawn
    asyncio.run(played.demand("reading", work, is_excused=lambda: is_excused))
    assert len(played.shared.history.entries) == (0 if is_excused else 1)


@pytest.mark.parametrize(
    ("applied", "requested", "needed"), [("3", 2, 3), ("1", 2, 2), ("2", 1, 2)]
)
def test_a_full_disk_must_be_tolerated_only_with_enough_replicas_for_either_setting(
    applied: str, requested: int, needed: int
) -> None:
    """A request to alter a topic may have failed, or may not have arrived yet."""
    topic = SimpleNamespace(configs={"min.insync.replicas": applied})
    played = cluster(topics={"orders": topic}, settings={"orders": ("fsync", requested)})
    assert played.min_insync("orders-0") == needed


def test_min_insync_begins_when_no_other_request_can_alter_a_topic() -> None:
    waited: list[bool] = []

    async def wait(holds: Any, limit_s: float) -> bool:
        waited.append(holds())
        shared.requests.remove(ALTER)
        waited.append(holds())
        return True

    shared = SimpleNamespace(
        requests=["scratch", ALTER], scenario=SimpleNamespace(partition_names=[])
    )
    played: Any = SimpleNamespace(shared=shared, draws=None, actions=None, wait=wait)
    assert not asyncio.run(TopicEpisodes(played)._min_insync())
    assert waited == [False, True]
