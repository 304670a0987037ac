"""A broker with encrypted topics: keys from a provider, and what happens when one is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from broker.harness import BrokerHarness, open_harness
from penstock.broker.partitions import topic_keys
from penstock.sim.crash.sealed_logs import SimKeys
from penstock.storage.data_keys import KeyDropped, KeyUnavailable
from penstock.testing.slowness import patient
from penstock.wire.messages import FetchRequest, FetchResponse

SECRET = b"a secret value"


class Keys(SimKeys):
    """A provider whose keys can be dropped, and come back."""

    dropped = False

    def _check(self, key_name: str) -> None:
        if self.dropped:
            raise KeyDropped(f"the key {key_name!r} was dropped")
        if key_name != "orders-key":
            raise KeyDropped(f"there is no key {key_name!r}")
        super()._check(key_name)


class SlowKeys(Keys):
    is_slow = True


def run(
    directory: Path,
    keys: Keys | None,
    scenario: Callable[[BrokerHarness], Awaitable[None]],
) -> None:
    async def run_case() -> None:
        async with asyncio.timeout(patient(100)), open_harness(directory, keys=keys) as harness:
            await scenario(harness)

    asyncio.run(run_case())


def stored(harness: BrokerHarness, topic: str) -> bytes:
    return b"".join(
        data for path, data in harness.disks[0].files().items() if f"/{topic}-0/" in path
    )


async def fetched(harness: BrokerHarness, topic: str) -> FetchResponse.Partition:
    asked = FetchRequest.Partition(0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        topics=[FetchRequest.Topic(topic, partitions=[asked])],
    )
    answer = await harness.ask(request, 11, FetchResponse)
    return answer.responses[0].partitions[0]


@pytest.mark.parametrize("keys", [Keys, SlowKeys])
def test_an_encrypted_topic_is_written_and_read(keys: type[Keys], tmp_path: Path) -> None:
    """Also with a provider that the event loop must not wait for. A plain topic stays plain."""

    async def scenario(harness: BrokerHarness) -> None:
        await harness.create("orders", configs={"encryption": "orders-key"})
        await harness.create("plain")
        for topic in ("orders", "plain"):
            await harness.produce(topic, [SECRET] * 3)
            got = await fetched(harness, topic)
            assert got.error_code == 0
            assert isinstance(got.records, memoryview)
            assert bytes(got.records).count(SECRET) == 3
        assert SECRET not in stored(harness, "orders")
        assert SECRET in stored(harness, "plain")

    run(tmp_path, keys(), scenario)


@pytest.mark.parametrize("provider", [True, False])
def test_a_topic_without_its_key_is_offline_and_others_go_on(
    provider: bool, tmp_path: Path
) -> None:
    """The reason names the key, and what to do if there is no provider at all."""

    async def scenario(harness: BrokerHarness) -> None:
        await harness.create("orders", configs={"encryption": "absent-key"})
        await harness.create("plain")
        await harness.produce("plain", [b"x"])
        offline = harness.broker.replicas.offline
        await harness.until(lambda: ("orders", 0) in harness.broker.replicas.offline)
        offline = harness.broker.replicas.offline
        assert set(offline) == {("orders", 0)}
        reason = offline["orders", 0]  # type: ignore[index]
        assert "absent-key" in reason
        assert provider or "encryption.key.provider" in reason

    run(tmp_path, Keys() if provider else None, scenario)


def test_a_dropped_key_takes_its_topics_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records are not served from memory, other topics go on, and the reason is clear."""
    monkeypatch.setattr(topic_keys, "CHECK_S", 0.0)
    monkeypatch.setattr(topic_keys, "RETRY_S", 0.001)
    keys = Keys()

    async def scenario(harness: BrokerHarness) -> None:
        await harness.create("orders", configs={"encryption": "orders-key"})
        await harness.create("plain")
        await harness.produce("orders", [SECRET])
        await harness.until_synced("orders", 1)
        keys.dropped = True
        await harness.until(lambda: ("orders", 0) in harness.broker.replicas.offline)
        assert harness.hosted("orders").leadership is None, "it could still commit records"
        assert "was dropped" in harness.broker.replicas.offline["orders", 0]  # type: ignore[index]
        assert (await fetched(harness, "orders")).error_code != 0
        await harness.produce("plain", [b"x"])

    run(tmp_path, keys, scenario)


def test_an_unavailable_provider_does_not_stop_open_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_keys, "CHECK_S", 0.0)
    monkeypatch.setattr(topic_keys, "RETRY_S", 0.001)
    keys = SlowKeys()

    async def scenario(harness: BrokerHarness) -> None:
        await harness.create("orders", configs={"encryption": "orders-key"})
        await harness.produce("orders", [SECRET])
        keys.is_down = True
        for _ in range(20):
            await harness.produce("orders", [SECRET])
            harness.hosted("orders").log.roll(0)
        got = await fetched(harness, "orders")
        assert isinstance(got.records, memoryview)
        assert bytes(got.records).count(SECRET) >= 1
        assert not harness.broker.replicas.offline

    run(tmp_path, keys, scenario)
    with pytest.raises(KeyUnavailable):
        keys.wrap("orders-key", bytes(32))
