"""A cluster changes its size under load, with the commands that an administrator uses.

A fourth broker joins and `penstock cluster rebalance` gives it its share of replicas. Then one of
the first three is drained, stopped and forgotten. No record may be lost, and the time from
`produce` to the acknowledgement may not grow much meanwhile.
"""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compat.cluster import PENSTOCK

from .broker_processes import BrokerProcesses, pause
from .ledger import Verdict
from .loaded_cluster import SYNC_S, LoadedCluster, close_loaded, open_loaded
from .workload import TOPIC

PARTITIONS = 8
CALM_S = 8.0
COMMAND_S = 180.0
NEWCOMER, LEAVER = 3, 0


@dataclass
class Grown:
    verdict: Verdict
    p99_calm_s: float
    p99_joining_s: float
    p99_draining_s: float
    newcomer_replicas: int
    newcomer_leads: int


def command(fleet: BrokerProcesses, *arguments: str) -> dict[str, Any]:
    bootstrap = ",".join(node.address for node in fleet.nodes.values() if node.answers)
    result = subprocess.run(
        [PENSTOCK, *arguments, "--json", "--bootstrap", bootstrap],
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_S,
    )
    said = f"penstock {' '.join(arguments)} ended with {result.returncode}: {result.stderr}"
    assert result.returncode == 0, said
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def join(loaded: LoadedCluster) -> tuple[int, int]:
    """Adds a broker and rebalances. Returns how many replicas it has and how many it leads."""
    fleet = loaded.fleet
    fleet.add(NEWCOMER)
    fleet.restart(NEWCOMER)
    command(fleet, "cluster", "rebalance", "--execute")
    fleet.wait_in_sync(TOPIC, SYNC_S)
    partitions = fleet.partitions(TOPIC).values()
    held = Counter(broker for p in partitions for broker in p.replica_nodes)
    led = Counter(p.leader_id for p in partitions)
    assert set(held.values()) <= {PARTITIONS * 3 // 4, -(-PARTITIONS * 3 // 4)}, held
    return held[NEWCOMER], led[NEWCOMER]


def leave(loaded: LoadedCluster) -> None:
    """Drains, stops and forgets one of the first brokers."""
    fleet = loaded.fleet
    command(fleet, "cluster", "drain", str(LEAVER))
    fleet.wait_in_sync(TOPIC, SYNC_S)
    assert all(LEAVER not in p.replica_nodes for p in fleet.partitions(TOPIC).values())
    fleet.nodes[LEAVER].stop()
    command(fleet, "cluster", "forget", str(LEAVER))


def run(directory: Path, store: str, per_second: int = 200) -> Grown:
    fleet = BrokerProcesses(directory, 3, store)
    loaded = None
    try:
        loaded = open_loaded(fleet, partitions=PARTITIONS, per_second=per_second)
        ledger = loaded.workload.ledger
        pause(2.0)
        ledger.mark()
        pause(CALM_S)
        calm_s = ledger.latency_s(0.99)
        ledger.mark()
        replicas, leads = join(loaded)
        joining_s = ledger.latency_s(0.99)
        ledger.mark()
        leave(loaded)
        draining_s = ledger.latency_s(0.99)
        loaded.progress()
        verdict = close_loaded(loaded)
        return Grown(verdict, calm_s, joining_s, draining_s, replicas, leads)
    finally:
        if loaded is not None:
            loaded.workload.stop()
        fleet.close()
