"""Tests a real cluster of three brokers: drained, rebalanced, one broker lost and replaced."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Runner
from cli.test_live import Newcomer, cluster
from penstock.runtime import SystemClock
from penstock.testing.slowness import patient

VALUES = "".join(f"{number}\n" for number in range(500))
PATIENCE_S = 150.0


@pytest.fixture
def newcomer(penstock: Runner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Newcomer:
    return Newcomer(penstock, monkeypatch, tmp_path)


def eventually(look: Callable[[], Any], holds: Callable[[Any], bool]) -> Any:
    clock = SystemClock()
    end = clock.monotonic() + patient(PATIENCE_S)
    while not holds(found := look()):
        assert clock.monotonic() < end, found
    return found


def described(newcomer: Newcomer, holds: Callable[[Any], bool]) -> Any:
    """Polls `cluster describe` until the condition holds, because a broker
    may learn of a change later."""
    return eventually(lambda: newcomer("cluster", "describe", "--json").json, holds)


def replicas(found: Any) -> list[int]:
    return [broker["replicas"] for broker in found["brokers"]]


def has_restarted(newcomer: Newcomer, pid: int) -> None:
    """Waits until three brokers are in sync, and none of them is the killed process."""
    eventually(
        lambda: newcomer("status", "--json").json,
        lambda found: (
            len(found["brokers"]) == 3
            and not found["under_replicated_partitions"]
            and pid not in (pids := [each.get("pid") for each in found["brokers"]])
            and None not in pids
        ),
    )


def test_a_cluster_is_drained_rebalanced_and_repaired(
    tmp_path: Path, newcomer: Newcomer, penstock: Runner
) -> None:
    """Nothing is lost, and `status` gives the right advice at each step."""
    limit = str(round(patient(PATIENCE_S)))
    session = f"session_timeout_s={patient(6):.1f}"
    settings = ("--set", session, "--set", "offsets.topic.num.partitions=2")
    with cluster(tmp_path / "data", "--brokers", "3", *settings) as (bootstrap, _):
        newcomer.at(bootstrap)
        newcomer("topic", "create", "orders", "--partitions", "6", "--replication-factor", "2")
        newcomer.produce("orders", VALUES)

        drained = newcomer("cluster", "drain", "1", "--timeout", limit, "--json").json
        assert drained["done"] == len(drained["moves"]) > 0
        described(newcomer, lambda found: replicas(found) == [6, 0, 6])
        status = eventually(
            lambda: penstock("status", "--json", "--check"), lambda ended: ended.code == 0
        ).json
        assert not any("broker 1 has no replicas" in each for each in status["advice"])

        newcomer("topic", "create", "later", "--partitions", "6", "--replication-factor", "2")
        found = described(newcomer, lambda found: replicas(found) == [12, 0, 12])
        assert [broker["cordoned"] for broker in found["brokers"]] == [False, True, False]
        newcomer("topic", "delete", "later", "--yes")
        described(newcomer, lambda found: replicas(found) == [6, 0, 6])
        newcomer("cluster", "undrain", "1")
        eventually(
            lambda: penstock("status", "--json", "--check"),
            lambda ended: (
                ended.code == 0
                and any("broker 1 has no replicas" in each for each in ended.json["advice"])
            ),
        )

        planned = newcomer("cluster", "rebalance", "--json").json
        done = newcomer("cluster", "rebalance", "--execute", "--timeout", limit, "--json").json
        assert done["moves"] == planned["moves"]
        assert (done["done"], done["copies"]) == (len(planned["moves"]), 4)
        found = described(
            newcomer, lambda found: [broker["leads"] for broker in found["brokers"]] == [2, 2, 2]
        )
        assert replicas(found) == [4, 4, 4]
        assert found["moves_to_balance"] == 0

        lost = next(
            broker
            for broker in newcomer("status", "--json").json["brokers"]
            if not broker["controller"]
        )
        os.kill(lost["pid"], signal.SIGKILL)
        # `up` restarts the broker, which then takes part again without a command.
        has_restarted(newcomer, lost["pid"])
        newcomer("cluster", "elect")
        described(newcomer, lambda found: found["not_led_by_preferred"] == 0)
        read = newcomer("consume", "orders", "--from-beginning", "-n", "500").out.split()
        assert sorted(map(int, read)) == list(range(500))
