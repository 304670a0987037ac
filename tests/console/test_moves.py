"""Tests reassignments by the console, with a model of a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cli.cluster_model import ClusterModel
from client.fake_broker import FakeBroker
from console.running import Browserless, eventually, running_console
from penstock.client.admin import moves as replica_moves
from penstock.wire.errors import ErrorCode

Seen = list[tuple[dict[int, dict[str, str]], dict[str, str]]]


@pytest.fixture
def cluster() -> Iterator[tuple[FakeBroker, ClusterModel]]:
    """Four brokers; brokers 0 and 1 have all replicas."""
    with FakeBroker() as fake:
        model = ClusterModel(fake, brokers=4)
        model.topic_partition("orders", *([0, 1] for _ in range(4)))
        yield fake, model


def test_a_throttle_is_set_only_while_replicas_are_copied(
    cluster: tuple[FakeBroker, ClusterModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is set before the first move and removed after the last."""
    fake, model = cluster
    seen: Seen = []
    alter = model._alter

    def spying(topic_partition: tuple[str, int], target: list[int] | None) -> ErrorCode:
        settings = {broker: dict(values) for broker, values in model.broker_settings.items()}
        seen.append((settings, dict(model.topics["orders"].configs)))
        return alter(topic_partition, target)

    monkeypatch.setattr(model, "_alter", spying)
    with running_console(fake.address) as url:
        visitor = Browserless(url)
        visitor.log_in()
        begun = visitor.post("/api/change/rebalance", {"drain": [], "throttle": 5000})
        assert begun.status == 200, begun.body
        eventually(lambda: seen and is_lifted(visitor, model))
        wrong = visitor.post("/api/change/rebalance", {"drain": [], "throttle": -1})
        assert wrong.status == 400
    settings, configs = seen[0]
    assert settings[3][replica_moves.RATE] == "5000"
    assert configs[replica_moves.REPLICAS]
    assert {each for held in model.replicas().values() for each in held} == {0, 1, 2, 3}


def is_lifted(visitor: Browserless, model: ClusterModel) -> bool:
    assert visitor.get("/api/topics").status == 200  # gives the other processes time
    values = [*model.broker_settings.values(), *(each.configs for each in model.topics.values())]
    return bool(model.changed.elections) and not any(values)
