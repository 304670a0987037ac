"""Tests which worker owns which pipeline, on a real broker, with owners that run nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from client.open_clusters import cluster_of
from penstock.runtime import boot_time
from penstock.spark.deployments.lease import NEVER
from penstock.spark.deployments.ownership import Ownership, OwnershipOptions
from penstock.testing import Broker, Faults
from penstock.testing.slowness import patient
from penstock.topic_partition import TopicPartition


def session_ms() -> int:
    """Long enough for a busy machine, and short for tests that wait for its end."""
    return int(min(25_000, patient(8_000)))


class Desk:
    """What all workers of a test share: the deployments, and who runs which."""

    def __init__(self, *names: str) -> None:
        self.existing = frozenset(names)
        self.starting: frozenset[str] = frozenset()
        self.runs: dict[str, str] = {}
        self.notes: list[tuple[str, str, str]] = []

    def note(self, worker: str, what: str, name: str) -> None:
        self.notes.append((worker, what, name))

    def whats(self, worker: str, name: str) -> list[str]:
        return [what for who, what, about in self.notes if (who, about) == (worker, name)]


class Worker:
    """An owner. A pipeline that it takes runs from then on."""

    def __init__(self, desk: Desk, name: str) -> None:
        self.desk = desk
        self.name = name
        self.eligible: frozenset[str] | None = None
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.until = NEVER

    def take(self, name: str) -> None:
        assert name not in self.desk.runs, f"{self.desk.runs[name]} still runs {name}"
        self.desk.runs[name] = self.name
        self.desk.note(self.name, "take", name)

    async def give_up(self, name: str) -> None:
        self.desk.note(self.name, "give_up", name)
        await self.may_end.wait()
        if self.desk.runs.get(name) == self.name:
            del self.desk.runs[name]
        self.desk.note(self.name, "ended", name)

    def lose(self, name: str) -> None:
        assert self.desk.runs.pop(name) == self.name
        self.desk.note(self.name, "lose", name)
        self.may_end.set()

    def renew(self, until: float) -> None:
        assert until > self.until
        self.until = until

    @property
    def pipelines(self) -> frozenset[str]:
        return frozenset(name for name, owner in self.desk.runs.items() if owner == self.name)


class Place:
    """A worker with its ownership, as a task."""

    def __init__(self, worker: Worker, ownership: Ownership) -> None:
        self.worker = worker
        self.ownership = ownership
        self.task = asyncio.ensure_future(ownership.run())

    async def leave(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


@asynccontextmanager
async def place(
    bootstrap: str, group: str, topic: str, desk: Desk, name: str
) -> AsyncIterator[Place]:
    worker = Worker(desk, name)
    options = OwnershipOptions(
        session_timeout_ms=session_ms(),
        heartbeat_interval_ms=100,
        rebalance_timeout_ms=5 * session_ms(),
        group_id=group,
        commit_to=TopicPartition(topic, 0),
    )
    async with cluster_of(bootstrap) as cluster:
        ownership = Ownership(
            cluster,
            options,
            eligible=lambda: desk.existing if worker.eligible is None else worker.eligible,
            existing=lambda: desk.existing,
            settled=lambda: desk.existing - desk.starting,
            owner=worker,
        )
        made = Place(worker, ownership)
        try:
            yield made
        finally:
            worker.may_end.set()
            await made.leave()


async def until(condition: Callable[[], bool], *places: Place) -> None:
    async with asyncio.timeout(patient(90.0)):
        while not condition():
            for each in places:
                if each.task.done():
                    each.task.result()
            await asyncio.sleep(0.02)


def run_case(case: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(case())


def test_workers_share_the_pipelines_and_have_leases(penstock_broker: Broker) -> None:
    topic, group = penstock_broker.new_topic(), penstock_broker.new_name("workers")
    desk = Desk("a", "b", "c", "d")

    async def case() -> None:
        async with place(penstock_broker.bootstrap, group, topic, desk, "one") as one:
            await until(lambda: one.worker.pipelines == desk.existing, one)
            await until(lambda: one.ownership.lease_until > boot_time(), one)
            assert one.worker.until == one.ownership.lease_until
            async with place(penstock_broker.bootstrap, group, topic, desk, "two") as two:
                await until(
                    lambda: len(one.worker.pipelines) == len(two.worker.pipelines) == 2, one, two
                )
            # It has given up its own and left, so the other need not wait for its session to end.
            await until(lambda: one.worker.pipelines == desk.existing, one)
            assert "lose" not in {what for _, what, _ in desk.notes}

    run_case(case)


def test_pipelines_move_to_a_new_worker_only_when_they_have_settled(
    penstock_broker: Broker,
) -> None:
    topic, group = penstock_broker.new_topic(), penstock_broker.new_name("workers")
    desk = Desk("a", "b", "c", "d")
    desk.starting = desk.existing

    async def case() -> None:
        async with place(penstock_broker.bootstrap, group, topic, desk, "one") as one:
            await until(lambda: one.worker.pipelines == desk.existing, one)
            async with place(penstock_broker.bootstrap, group, topic, desk, "two") as two:
                await until(lambda: two.ownership.lease_until > boot_time(), one, two)
                assert one.worker.pipelines == desk.existing
                desk.starting = frozenset()

                def balanced() -> bool:
                    one.ownership.balance()
                    two.ownership.balance()
                    return len(one.worker.pipelines) == len(two.worker.pipelines) == 2

                await until(balanced, one, two)

    run_case(case)


def test_a_pipeline_waits_until_its_last_owner_has_ended_it(penstock_broker: Broker) -> None:
    """The lease goes on while a worker stops a pipeline, and others keep theirs."""
    topic, group = penstock_broker.new_topic(), penstock_broker.new_name("workers")
    desk = Desk("a", "b")

    async def case() -> None:
        async with place(penstock_broker.bootstrap, group, topic, desk, "one") as one:
            await until(lambda: one.worker.pipelines == desk.existing, one)
            await until(lambda: one.ownership.lease_until > boot_time(), one)
            one.worker.may_end.clear()
            async with place(penstock_broker.bootstrap, group, topic, desk, "two") as two:
                await until(lambda: any(what == "give_up" for _, what, _ in desk.notes), one, two)
                before = one.ownership.lease_until
                await until(lambda: one.ownership.lease_until > before + 2, one, two)
                assert two.worker.pipelines == frozenset()
                one.worker.may_end.set()
                await until(lambda: len(two.worker.pipelines) == 1, one, two)

    run_case(case)


def test_deployments_come_and_go(penstock_broker: Broker) -> None:
    topic, group = penstock_broker.new_topic(), penstock_broker.new_name("workers")
    desk = Desk("a")

    async def case() -> None:
        async with place(penstock_broker.bootstrap, group, topic, desk, "one") as one:
            await until(lambda: one.worker.pipelines == {"a"}, one)
            desk.existing = frozenset(("a", "b"))
            one.ownership.refresh()
            await until(lambda: one.worker.pipelines == {"a", "b"}, one)
            desk.existing = frozenset(("b",))
            one.ownership.refresh()
            await until(lambda: one.worker.pipelines == {"b"}, one)
            assert desk.whats("one", "a") == ["take", "give_up", "ended"]
            assert desk.whats("one", "b") == ["take"]
            one.worker.eligible = frozenset()
            one.ownership.refresh()
            await until(lambda: not one.worker.pipelines, one)
            assert one.ownership.owned == frozenset()

    run_case(case)


def test_a_worker_that_is_cut_off_kills_its_pipelines_and_joins_again(
    penstock_broker: Broker,
) -> None:
    topic, group = penstock_broker.new_topic(), penstock_broker.new_name("workers")
    desk = Desk("a", "b")

    async def case() -> None:
        with Faults(penstock_broker.bootstrap) as faults:
            async with place(faults.bootstrap, group, topic, desk, "one") as one:
                await until(lambda: one.worker.pipelines == desk.existing, one)
                await until(lambda: one.ownership.lease_until > boot_time(), one)
                faults.refuse_connections()
                faults.drop_connections()
                await until(lambda: not one.worker.pipelines, one)
                assert boot_time() >= one.worker.until
                assert desk.whats("one", "a")[:2] == ["take", "lose"]
                faults.accept_connections()
                await until(lambda: one.worker.pipelines == desk.existing, one)
                await until(lambda: one.ownership.lease_until > boot_time(), one)

    run_case(case)


def test_commits_that_fail_do_not_renew_the_lease(penstock_broker: Broker) -> None:
    """Heartbeats alone prove nothing: a coordinator that was replaced answers them too."""
    topic, group = penstock_broker.new_topic(), penstock_broker.new_name("workers")
    desk = Desk("a")

    async def case() -> None:
        with Faults(penstock_broker.bootstrap) as faults:
            async with place(faults.bootstrap, group, topic, desk, "one") as one:
                await until(lambda: one.worker.pipelines == desk.existing, one)
                await until(lambda: one.ownership.lease_until > boot_time(), one)
                faults.fail("OffsetCommit", "NOT_COORDINATOR", times=None)
                await until(lambda: "lose" in desk.whats("one", "a"), one)
                faults.clear()
                await until(lambda: one.worker.pipelines == desk.existing, one)

    run_case(case)


def test_a_lease_that_is_refused_for_good_is_logged_once(
    penstock_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker takes its pipelines, but gets no lease to run them."""
    group, desk = penstock_broker.new_name("workers"), Desk("a")

    async def case() -> None:
        topic = penstock_broker.new_name("missing")
        with Faults(penstock_broker.bootstrap) as faults:
            async with place(faults.bootstrap, group, topic, desk, "one") as one:
                await until(lambda: faults.count("OffsetCommit") > 5, one)
                assert one.ownership.lease_until == NEVER

    run_case(case)
    told = [each.getMessage() for each in caplog.records if "refuses to renew" in each.getMessage()]
    assert len(told) == 1
    assert "UNKNOWN_TOPIC_OR_PARTITION" in told[0]


def test_a_worker_that_the_group_does_not_know_any_more_begins_again(
    penstock_broker: Broker,
) -> None:
    topic, group = penstock_broker.new_topic(), penstock_broker.new_name("workers")
    desk = Desk("a")

    async def case() -> None:
        with Faults(penstock_broker.bootstrap) as faults:
            async with place(faults.bootstrap, group, topic, desk, "one") as one:
                await until(lambda: one.ownership.lease_until > boot_time(), one)
                await until(lambda: one.worker.pipelines == desk.existing, one)
                faults.fail("Heartbeat", "UNKNOWN_MEMBER_ID")
                faults.fail("Heartbeat", "UNKNOWN_MEMBER_ID")
                await until(lambda: "lose" in desk.whats("one", "a"), one)
                await until(lambda: one.worker.pipelines == desk.existing, one)
                first, *rest = desk.whats("one", "a")
                # The second answer may come to a heartbeat before or after it has joined again.
                assert [first, *rest[:4]] == ["take", "lose", "give_up", "ended", "take"]
                assert rest == rest[:4] * (len(rest) // 4)

    run_case(case)
