"""The simulated key provider: away, slow, rotated and dropped."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from penstock.sim.key_service import KEY_FILE, KEY_SERVER, KeyService
from penstock.sim.world import World, run_world
from penstock.sim.world_config import WorldConfig
from penstock.storage.data_keys import KeyDropped, KeyUnavailable

DATA_KEY = bytes(32)


def test_a_data_key_can_be_unwrapped_after_a_rotation() -> None:
    """New data keys are wrapped with the new version."""
    service = KeyService(KEY_FILE)
    port = service.port("broker-0")
    token = port.wrap("key", DATA_KEY)
    service.rotate("key")
    assert port.unwrap("key", token) == DATA_KEY
    assert port.wrap("key", DATA_KEY) != token


def test_a_broker_that_is_cut_off_gets_no_key() -> None:
    service = KeyService(KEY_FILE)
    token = service.port("broker-0").wrap("key", DATA_KEY)
    service.away["broker-0"] = None
    with pytest.raises(KeyUnavailable, match="away") as caught:
        service.port("broker-0").unwrap("key", token)
    assert not isinstance(caught.value, KeyDropped)
    assert service.port("broker-1").unwrap("key", token) == DATA_KEY


def test_a_dropped_key_can_come_back() -> None:
    service = KeyService(KEY_FILE)
    port = service.port("broker-0")
    token = port.wrap("key", DATA_KEY)
    service.dropped["key"] = None
    with pytest.raises(KeyDropped):
        port.unwrap("key", token)
    del service.dropped["key"]
    assert port.unwrap("key", token) == DATA_KEY


def test_work_that_waits_for_the_provider_takes_longer_and_sees_no_event_loop() -> None:
    """As on a thread: a slow provider may be called there, and not on the event loop."""

    async def scenario(world: World) -> float:
        assert world.keys is not None
        world.keys.delay_s = 5.0
        node = world.brokers[0]
        node.start()
        port, executor = node._keys, node._executor
        assert port is not None
        assert executor is not None
        begun = world.now

        def wrap() -> None:
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            port.wrap("key", DATA_KEY)

        await executor.run(wrap)
        took_s = world.now - begun
        await executor.run(partial(len, b""))
        assert world.now - begun - took_s < 5.0
        node.kill()
        return took_s

    outcome = run_world(1, scenario, WorldConfig(brokers=1, keys=KEY_SERVER))
    assert outcome.error is None, outcome.error
    assert outcome.value is not None
    assert outcome.value >= 5.0
