"""Brokers notice when they have different secret keys for delegation tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from broker.replication.test_replication import QUICK
from broker.three_brokers import ThreeBrokers, three_brokers
from penstock.broker.config import ConfigError
from penstock.security.delegation_tokens import TokenKeys
from penstock.testing.slowness import patient

NAME = "delegation.token.secret.key"
KEY, OTHER_KEY = "the secret key of all brokers", "a key that only one broker has"


async def refused(cluster: ThreeBrokers, broker_id: int, key: str) -> str:
    """Starts a broker with a secret key. Returns the error with which it ends."""
    with pytest.raises(ConfigError) as caught:
        await cluster.start(broker_id, {NAME: key})
    await cluster.nodes[broker_id]._tidy()
    return str(caught.value)


async def other_key_is_refused(cluster: ThreeBrokers) -> None:
    await cluster.nodes[1].stop()
    error = await refused(cluster, 1, OTHER_KEY)
    assert "not the one that brokers 0, 2 use" in error
    assert "stop all brokers" in error
    assert KEY not in error
    assert OTHER_KEY not in error
    await cluster.start(1)
    check = cluster.broker(1).cluster.image.tokens.secret_check
    assert check is not None
    assert TokenKeys(KEY).fits(check)


async def key_is_changed_while_all_are_down(cluster: ThreeBrokers) -> None:
    for node in cluster.nodes:
        await node.stop()
    for broker_id in (2, 0):
        await cluster.start(broker_id, {NAME: OTHER_KEY})
    assert "brokers 0, 2" in await refused(cluster, 1, KEY)
    await cluster.start(1, {NAME: OTHER_KEY})


async def key_is_missing(cluster: ThreeBrokers) -> None:
    await cluster.nodes[1].stop()
    await cluster.start(1, {NAME: ""})
    assert cluster.broker(1).tokens.logins is None


def play(directory: Path, scenario: Callable[[ThreeBrokers], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        settings = {**QUICK, NAME: KEY}
        async with asyncio.timeout(patient(120)), three_brokers(directory, settings) as cluster:
            await scenario(cluster)

    asyncio.run(run())


def test_a_broker_with_another_secret_key_does_not_start(tmp_path: Path) -> None:
    """The error names the other brokers and says what to do, without any key. With their key it
    starts."""
    play(tmp_path, other_key_is_refused)


def test_the_key_can_be_changed_while_no_broker_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first broker that starts decides, and warns that all tokens are void. The others need the
    same key."""
    play(tmp_path, key_is_changed_while_all_are_down)
    told = [record.message for record in caplog.records if "no longer accepted" in record.message]
    assert len(told) == 1


def test_a_broker_without_a_key_warns_that_it_accepts_no_tokens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    play(tmp_path, key_is_missing)
    assert "is not set on this broker, but it is on others" in caplog.text
