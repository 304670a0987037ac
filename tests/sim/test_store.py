"""The simulated metadata store under faults; `tests/stores` checks its normal behavior."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from penstock.ports import Compare, Put
from penstock.sim.loop import START_S, SimLoop
from penstock.sim.store import SimStore, StoreConfig, StoreModel
from penstock.stores.errors import OutcomeUnknown, RevisionNotKept, StoreUnreachable

Scenario = Callable[[StoreModel, SimStore], Awaitable[None]]


def run_case(scenario: Scenario, config: StoreConfig = StoreConfig()) -> None:  # noqa: B008 - frozen
    loop = SimLoop(Random(1))
    loop.horizon_s = START_S + 1000
    model = StoreModel(loop, config, Random(2))
    try:

        async def main() -> None:
            await scenario(model, SimStore(model, "node"))

        loop.run(main())
        assert loop.unexpected == []
    finally:
        loop.close()


def test_a_commit_takes_effect_between_its_request_and_its_response() -> None:
    """Other clients may see the change, and make more changes, before the response arrives."""

    async def scenario(model: StoreModel, store: SimStore) -> None:
        committing = asyncio.ensure_future(store.commit((), [Put("/a", b"1")]))
        await asyncio.sleep(0)
        assert model.get("/a") is None
        while model.get("/a") is None:
            assert not committing.done()
            await asyncio.sleep(0.0001)
        assert not committing.done()
        assert (await committing).succeeded

    run_case(scenario)


def test_a_lost_response_leaves_the_outcome_unknown() -> None:
    """The commit took effect, but its caller does not know and must read."""

    async def scenario(model: StoreModel, store: SimStore) -> None:
        with pytest.raises(OutcomeUnknown):
            await store.commit((), [Put("/a", b"1")])
        assert model.get("/a") is not None

    run_case(scenario, StoreConfig(lost_reply_chance=1.0))


def test_a_lost_request_leaves_the_outcome_unknown_too_and_changes_nothing() -> None:
    async def scenario(model: StoreModel, store: SimStore) -> None:
        with pytest.raises(OutcomeUnknown):
            await store.commit((), [Put("/a", b"1")])
        assert model.get("/a") is None

    run_case(scenario, StoreConfig(lost_request_chance=1.0))


def test_reads_are_retried_until_they_are_answered() -> None:
    """Responses are lost, results are not."""

    async def scenario(model: StoreModel, store: SimStore) -> None:
        model.commit((), [Put("/a", b"1")])
        for _ in range(10):
            assert await store.get("/a") == model.get("/a")

    run_case(scenario, StoreConfig(lost_reply_chance=0.3, timeout_s=60.0))


def test_a_node_that_is_cut_off_cannot_reach_the_store() -> None:
    """Its calls fail as unreachable after a timeout, until it heals; other nodes continue."""

    async def scenario(model: StoreModel, store: SimStore) -> None:
        other = SimStore(model, "other")
        model.cut("node", True)
        began = model.loop.now
        with pytest.raises(StoreUnreachable):
            await store.get("/a")
        assert model.loop.now - began == pytest.approx(5.0)
        with pytest.raises(StoreUnreachable):
            await store.commit((), [Put("/a", b"1")])
        assert model.revision == 0
        assert (await other.commit((), [Put("/a", b"2")])).succeeded
        model.heal()
        entry = await store.get("/a")
        assert entry is not None
        assert entry.value == b"2"

    run_case(scenario)


def test_a_lease_expires_while_its_holder_is_cut_off() -> None:
    """Its keys are removed with it."""

    async def scenario(model: StoreModel, store: SimStore) -> None:
        lease = await store.grant_lease(3.0)
        await store.commit((), [Put("/brokers/1", b"", lease)])
        for _ in range(5):
            await asyncio.sleep(2.0)
            assert await store.keep_alive(lease)
        model.cut("node", True)
        await asyncio.sleep(2.9)
        assert model.get("/brokers/1") is not None
        await asyncio.sleep(0.2)
        assert model.get("/brokers/1") is None
        model.cut("node", False)
        assert not await store.keep_alive(lease)

    run_case(scenario)


def test_a_lease_is_late_while_a_renewal_is_not_answered_or_is_overdue() -> None:
    """Such a lease may expire after the fault that lost the answer was healed."""

    async def scenario(model: StoreModel, store: SimStore) -> None:
        lease = await store.grant_lease(3.0)
        unused = await store.grant_lease(3.0)
        await store.commit((), [Put("/brokers/1", b"", lease)])
        assert model.late_leases() == frozenset()
        await asyncio.sleep(1.1)
        assert model.late_leases() == {lease}
        assert await store.keep_alive(lease)
        assert model.late_leases() == frozenset()
        model.cut("node", True)
        renewing = asyncio.ensure_future(store.keep_alive(lease))
        await asyncio.sleep(0.1)
        model.cut("node", False)
        assert model.late_leases() == {lease}
        assert await renewing
        renewed_at = model.loop.now
        assert model.late_leases() == frozenset()
        await asyncio.sleep(3.1)
        assert [(each.lease, each.holder) for each in model.expiries] == [
            (unused, "node"),
            (lease, "node"),
        ]
        assert model.expiries[-1].renewed_at == pytest.approx(renewed_at, abs=0.1)

    run_case(scenario)


def test_no_lease_expires_while_the_whole_store_is_down() -> None:
    """After the outage every lease gets its full time again."""

    async def scenario(model: StoreModel, store: SimStore) -> None:
        lease = await store.grant_lease(3.0)
        await store.commit((), [Put("/a", b"", lease)])
        model.set_outage(True)
        await asyncio.sleep(30)
        model.set_outage(False)
        await asyncio.sleep(2.9)
        assert model.get("/a") is not None
        await asyncio.sleep(0.2)
        assert model.get("/a") is None

    run_case(scenario)


async def _watch(store: SimStore, seen: list[int]) -> None:
    async for events in store.watch("/", 1):
        seen.extend(event.revision for event in events)


def test_a_watch_lags_and_loses_nothing() -> None:
    """Events arrive in order and without gaps, however late, even after the node was cut off."""

    async def scenario(model: StoreModel, store: SimStore) -> None:
        seen: list[int] = []
        watching = asyncio.ensure_future(_watch(store, seen))
        await asyncio.sleep(1)
        model.extra_lag_s = 2.0
        model.commit((), [Put("/a", b"1")])
        await asyncio.sleep(1.9)
        assert seen == []
        await asyncio.sleep(1)
        assert seen == [1]
        model.cut("node", True)
        for _ in range(5):
            model.commit((), [Put("/a", b"2")])
        await asyncio.sleep(10)
        assert seen == [1]
        model.heal()
        await asyncio.sleep(1)
        assert seen == [1, 2, 3, 4, 5, 6]
        watching.cancel()
        await asyncio.wait([watching])

    run_case(scenario)


def test_a_watch_fails_if_its_revision_was_compacted() -> None:
    """It was cut off, and meanwhile the store compacted revisions that it had not seen."""

    async def scenario(model: StoreModel, store: SimStore) -> None:
        seen: list[int] = []
        watching = asyncio.ensure_future(_watch(store, seen))
        await asyncio.sleep(1)
        model.cut("node", True)
        model.commit((), [Put("/a", b"1")])
        model.compact()
        await asyncio.sleep(5)
        assert not watching.done()
        model.cut("node", False)
        with pytest.raises(RevisionNotKept):
            await watching

    run_case(scenario)


def test_listeners_see_changes_immediately() -> None:
    """Listeners see commits and the end of leases at once, however much watches lag."""

    async def scenario(model: StoreModel, store: SimStore) -> None:
        seen: list[tuple[str, bytes | None, int]] = []
        model.listen(lambda events: seen.extend((e.key, e.value, e.revision) for e in events))
        model.extra_lag_s = 100.0
        await store.commit((), [Put("/a", b"1"), Put("/b", b"2", await store.grant_lease(3.0))])
        assert seen == [("/a", b"1", 1), ("/b", b"2", 1)]
        await asyncio.sleep(3)
        assert seen[2:] == [("/b", None, 2)]

    run_case(scenario)


def test_compare_and_set_loses_no_increment() -> None:
    """Even if responses are lost, no increment is applied twice or overwritten."""

    async def scenario(model: StoreModel, store: SimStore) -> None:
        model.config = StoreConfig(lost_reply_chance=0.2, lost_request_chance=0.1, timeout_s=60.0)
        made = 0

        async def increment(name: str) -> None:
            nonlocal made
            mine, me = SimStore(model, name), name.encode() + b"/%d"
            for number in range(10):
                while True:
                    entry = await mine.get("/n")
                    value, at = (entry.value, entry.modify_revision) if entry else (b"0 -", 0)
                    count, who = value.split()
                    if who == me % number:
                        break
                    change = Put("/n", b"%d %s" % (int(count) + 1, me % number))
                    try:
                        if (await mine.commit([Compare("/n", at)], [change])).succeeded:
                            break
                    except OutcomeUnknown:
                        continue
                made += 1

        await increment("a")
        await increment("b")
        entry = model.get("/n")
        assert entry is not None
        assert int(entry.value.split()[0]) == made == 20

    run_case(scenario)
