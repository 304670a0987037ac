"""`penstock up --brokers 3`: any one broker may be killed, and clients continue by themselves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from compat.cluster import PENSTOCK, SETTINGS, Cluster
from penstock.testing.slowness import patient
from stores.etcd_server import EtcdCluster
from stores.zk_server import ZooKeeperEnsemble

from .broker_processes import ETCD_OPTIONS, wait_for
from .workload import TOPIC, Workload, create_topic

PATIENCE_S = 150


@pytest.fixture(params=["sqlite", "etcd", "zk"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        settings = {**SETTINGS, "offsets.topic.num.partitions": "3"}
        if request.param == "etcd":
            if shutil.which("etcd") is None:
                pytest.skip("etcd is not installed: `make tools` as root installs it")
            etcd = EtcdCluster(1, ETCD_OPTIONS)
            stack.callback(etcd.close)
            etcd.start()
            settings["store"] = str(etcd.address("/up"))
        if request.param == "zk":
            ensemble = ZooKeeperEnsemble(1)
            stack.callback(ensemble.close)
            ensemble.start()
            settings["store"] = str(ensemble.address("/up"))
        made = Cluster(tmp_path / "data", 3, settings)
        stack.callback(made.kill)
        made.start()
        yield made


def brokers(cluster: Cluster) -> list[dict[str, Any]]:
    """Returns what the command says of the brokers; nothing if it fails, as it may while another
    controller takes over."""
    result = subprocess.run(
        [PENSTOCK, "status", "--json", "--bootstrap", cluster.bootstrap],
        capture_output=True,
        text=True,
        check=False,
        timeout=patient(PATIENCE_S),
    )
    if result.returncode:
        return []
    found: list[dict[str, Any]] = json.loads(result.stdout)["brokers"]
    return found


def kill_and_wait(cluster: Cluster, workload: Workload, controller: bool) -> int:
    """Kills the controller or another broker, and waits until it was restarted. Returns its id."""
    victims: list[dict[str, Any]] = []

    def is_known() -> bool:
        found = brokers(cluster)
        victims[:] = [each for each in found if each["controller"] is controller]
        return bool(victims) and any(each["controller"] for each in found)

    wait_for("the status of the cluster", is_known, PATIENCE_S, 0.3)
    victim = victims[0]
    os.kill(victim["pid"], signal.SIGKILL)
    workload.wait_for_progress(PATIENCE_S, more=60)
    workload.wait_for_readers(PATIENCE_S)

    def is_back() -> bool:
        return any(
            each["id"] == victim["id"] and each["pid"] not in (None, victim["pid"])
            for each in brokers(cluster)
        )

    wait_for("the supervisor starts it again", is_back, PATIENCE_S, 0.3)
    return int(victim["id"])


def test_any_one_broker_may_be_killed(cluster: Cluster) -> None:
    """First the controller, then another broker: producers and groups of confluent-kafka and of our
    client continue, and no acknowledged record is lost, duplicated or out of order."""
    create_topic(cluster.bootstrap, TOPIC)
    workload = Workload(cluster.bootstrap, per_second=150)
    workload.start()
    try:
        workload.wait_for_progress(PATIENCE_S)
        for controller in (True, False):
            kill_and_wait(cluster, workload, controller)
        workload.stop_senders()
        workload.wait_for_readers(PATIENCE_S)
    finally:
        workload.stop()
    verdict = workload.ledger.verdict()
    assert verdict.is_sound, (verdict, cluster.output())
    assert workload.ledger.sent == len(workload.ledger.acknowledged) > 300
