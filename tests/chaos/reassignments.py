"""Reassignments under load while brokers are killed or stopped.

Four brokers, three replicas. Every round moves all partitions to other brokers with `penstock
cluster reassign --move`, kills or stops a broker while replicas are being copied, and waits until
the moves are done. A partition that changes its leader, its replicas and its epoch at once must
neither lose a record nor store one twice.

Run: `PYTHONPATH=tests python -m chaos.reassignments --rounds 6 --store sqlite`
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from compat.cluster import PENSTOCK

from .broker_processes import BrokerProcesses, pause, wait_for
from .ledger import Verdict
from .loaded_cluster import PROGRESS_S, SYNC_S, LoadedCluster, close_loaded, open_loaded
from .workload import TOPIC

BROKERS, PARTITIONS = 4, 6
COMMAND_S = 180.0


class Mover:
    def __init__(self, loaded: LoadedCluster, chance: random.Random) -> None:
        self.loaded = loaded
        self.chance = chance

    def round(self) -> str:
        """Runs one round. Returns a description of it."""
        fleet = self.loaded.fleet
        goals = {p: self.chance.sample(range(BROKERS), 3) for p in range(PARTITIONS)}
        moves = [f"{TOPIC}-{p}={','.join(map(str, goal))}" for p, goal in goals.items()]
        arguments = [word for move in moves for word in ("--move", move)]
        bootstrap = ["--bootstrap", fleet.bootstrap, "--timeout", str(COMMAND_S)]
        command = [PENSTOCK, "cluster", "reassign", *arguments, *bootstrap]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as moving:
            pause(self.chance.uniform(0.3, 2.0))
            struck = self._strike()
            said, _ = moving.communicate(timeout=COMMAND_S)
        self._wait_until_moved(goals, said)
        return f"{struck}, replicas to {list(goals.values())}"

    def _strike(self) -> str:
        loaded, node = self.loaded, self.loaded.fleet.nodes[self.chance.randrange(BROKERS)]
        match self.chance.choice(("kill", "kill", "stop", "nothing")):
            case "kill":
                node.kill()
                loaded.tally.kills += 1
                pause(self.chance.choice((0.0, 0.0, 8.0)))
                loaded.fleet.restart(node.broker_id)
                return f"kill of {node.broker_id}"
            case "stop":
                node.stop()
                loaded.tally.clean_stops += 1
                loaded.fleet.restart(node.broker_id)
                return f"stop of {node.broker_id}"
        return "nobody struck"

    def _wait_until_moved(self, goals: dict[int, list[int]], said: str) -> None:
        """Waits until the moves are done. The command may fail, because brokers are killed."""
        found: dict[int, list[int]] = {}

        def is_settled() -> bool:
            partitions = self.loaded.fleet.partitions(TOPIC)
            found.update({index: p.replica_nodes for index, p in partitions.items()})
            return all(
                len(p.replica_nodes) == len(p.isr_nodes) == 3 and p.leader_id >= 0
                for p in partitions.values()
            )

        wait_for("moves are done", is_settled, SYNC_S)
        missed = {index: found[index] for index, goal in goals.items() if found[index] != goal}
        assert not missed or "penstock" in said, f"replicas are {missed}, not {goals}: {said}"


def run(directory: Path, store: str, rounds: int, seed: int, say: Callable[[str], None]) -> Verdict:
    fleet = BrokerProcesses(directory, BROKERS, store)
    loaded = None
    chance = random.Random(seed)
    try:
        loaded = open_loaded(fleet, partitions=PARTITIONS, per_second=240)
        mover = Mover(loaded, chance)
        for number in range(rounds):
            say(f"moves, round {number + 1} ({store}): {mover.round()}")
            loaded.progress(PROGRESS_S)
            loaded.workload.wait_for_readers(SYNC_S)
        return close_loaded(loaded)
    finally:
        if loaded is not None:
            loaded.workload.stop()
        fleet.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", choices=("sqlite", "etcd", "zk"), default="sqlite")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-moves-") as directory:
        verdict = run(
            Path(directory),
            options.store,
            options.rounds,
            options.seed,
            lambda text: print(text, file=sys.stderr, flush=True),
        )
    print(json.dumps(vars(verdict)))
    return 0 if verdict.is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
