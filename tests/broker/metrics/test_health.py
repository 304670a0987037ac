"""Readiness checks: what each one reports, and that a check that hangs does not delay the
report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from errno import EIO
from typing import Any

import pytest

from broker.followers import create_on
from broker.harness import BrokerHarness, with_harness, with_harness_of
from penstock.broker.broker import Broker
from penstock.broker.metrics import health as health_module
from penstock.broker.metrics.health import PROBE_NAME, Health, Probe
from penstock.ports import Env
from penstock.stores.errors import StoreUnreachable
from penstock.testing.slowness import patient

alone = with_harness_of(brokers=2, kafka={"replica.lag.time.max.ms": str(round(patient(3_000)))})


def health_of(broker: Broker, env: Env | None = None) -> Health:
    held = Health(env or broker._env, broker._config, broker, asyncio.Event())
    held.is_serving = True
    return held


async def wrong(held: Health) -> dict[str, tuple[str, str]]:
    """Returns the failed checks with their description and advice."""
    ready, report = await held.report()
    failed = {each["check"]: (each["what"], each["advice"]) for each in report["checks"]}
    for each in report["checks"]:
        assert each["what"]
        if each["ok"]:
            assert not failed.pop(each["check"])[1]
    assert ready == report["ready"] == (not failed)
    assert all(advice for _, advice in failed.values())
    return failed


class StoreLike:
    """A store that has only `get`, as given by the test."""

    full: str | None = None

    def __init__(self, get: Callable[[str], Awaitable[Any]]) -> None:
        self.get = get


def env_with(harness: BrokerHarness, get: Callable[[str], Awaitable[Any]]) -> Env:
    return replace(harness.broker._env, store=StoreLike(get))  # type: ignore[arg-type]


@with_harness
async def test_a_healthy_broker_is_ready(harness: BrokerHarness) -> None:
    """The check writes to its disk to find out."""
    await harness.create("orders")
    assert await wrong(health_of(harness.broker)) == {}
    assert f"/broker-0/{PROBE_NAME}" in harness.disks[0].files()


@with_harness
async def test_a_starting_or_stopping_broker_is_not_ready(harness: BrokerHarness) -> None:
    """This is not a reason to restart it."""
    held = health_of(harness.broker)
    held.is_serving = False
    assert "is starting" in (await wrong(held))["serving"][0]
    held.is_serving = True
    held._stop.set()
    assert "is stopping" in (await wrong(held))["serving"][0]


@with_harness
async def test_a_disk_that_fails_writes_is_reported(harness: BrokerHarness) -> None:
    """When the disk works again, the next check sees it."""
    harness.disks[0].fail_next("fsync", EIO, path_contains=PROBE_NAME)
    held = health_of(harness.broker)
    what, advice = (await wrong(held))["disk"]
    assert "cannot write to " in what and "/broker-0/logs: " in what
    assert "repair the disk" in advice
    held._disk._asked_at -= health_module.FRESH_S
    assert await wrong(held) == {}


@with_harness
async def test_a_full_disk_is_reported(harness: BrokerHarness) -> None:
    """Even while the small file of the check can still be written."""
    space = harness.broker._directory.space
    space._reserve = 1 << 62
    space.check()
    what, advice = (await wrong(health_of(harness.broker)))["disk"]
    assert "kept in reserve" in what
    assert "retention" in advice


@with_harness
async def test_a_failed_log_is_reported_with_its_name_and_the_reason(
    harness: BrokerHarness,
) -> None:
    await harness.create("orders")
    harness.hosted("orders").log.fail("fsync failed: input/output error")
    what, _ = (await wrong(health_of(harness.broker)))["logs"]
    assert "1 log failed, for example orders-0: fsync failed" in what


@with_harness
async def test_an_unreachable_store_is_reported(harness: BrokerHarness) -> None:
    """A broker that is no longer registered in the store is reported too."""

    async def fail(key: str) -> None:
        raise StoreUnreachable("no member of etcd answers")

    what, advice = (await wrong(health_of(harness.broker, env_with(harness, fail))))["store"]
    assert "no member of etcd answers" in what
    assert "majority" in advice
    harness.broker.membership.incarnation_id = b"of another life"
    what, _ = (await wrong(health_of(harness.broker)))["store"]
    assert "not registered" in what


@alone
async def test_replicas_that_are_not_in_sync_are_reported(harness: BrokerHarness) -> None:
    """Broker 1 reaches no other broker here, and drops out of the ISR."""
    await create_on(harness, 0, 1)
    assert await wrong(health_of(harness.brokers[1])) == {}
    await harness.until(
        lambda: (
            (found := harness.brokers[1].cluster.image.partition("orders", 0)) is not None
            and found.isr == (0,)
        )
    )
    what, advice = (await wrong(health_of(harness.brokers[1])))["fetchers"]
    assert what == "1 replica not in sync: orders-0"
    assert "caught up" in advice
    assert await wrong(health_of(harness.brokers[0])) == {}


@with_harness
async def test_a_hanging_check_does_not_delay_the_report(harness: BrokerHarness) -> None:
    """It is not started again before it has finished. After that it may succeed."""
    asked = 0
    answer = asyncio.Event()

    async def hang(key: str) -> None:
        nonlocal asked
        asked += 1
        await answer.wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(health_module, "PATIENCE_S", patient(0.3))
        held = health_of(harness.broker, env_with(harness, hang))
        for _ in range(3):
            assert "no answer for" in (await wrong(held))["store"][0]
        assert asked == 1
    answer.set()
    await asyncio.sleep(0)
    assert await wrong(held) == {}
    await held.close()


def test_closing_a_hanging_probe_ends_it() -> None:
    async def run_case() -> None:
        ended = asyncio.Event()

        async def hang() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        class Now:
            def monotonic(self) -> float:
                return 10.0

        class Doors:
            clock = Now()

        probe = Probe(Doors(), hang)  # type: ignore[arg-type]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(health_module, "PATIENCE_S", 0.01)
            assert await probe.failure() is not None
        await probe.close()
        assert ended.is_set()

    asyncio.run(run_case())


@with_harness
async def test_a_full_store_is_reported(harness: BrokerHarness) -> None:
    """Reads still work, so only the last failed write shows it."""

    async def get(_key: str) -> None:
        return None

    env = env_with(harness, get)
    env.store.full = "no space left"  # type: ignore[misc]
    assert "no space left" in (await wrong(health_of(harness.broker, env)))["store"][0]


@with_harness
async def test_a_failing_duty_of_the_controller_is_reported(harness: BrokerHarness) -> None:
    harness.broker.controller.failing = "request is too large"
    assert "request is too large" in (await wrong(health_of(harness.broker)))["controller"][0]
