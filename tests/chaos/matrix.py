"""Every fault of the chaos matrix, again and again, on a cluster of real processes under load.

A pass over a store is a new cluster of three brokers that goes through {clean stop, clean bounces,
kill, bounces by kill} x {leader, follower, controller}. After each fault all replicas must be in
sync and every reader must have everything. Passes continue, alternating between the stores, until
the requested number of kills is reached. The other faults run once for each store: freezes, a store
that does not answer, a rolling restart, network cuts, a full disk, a broker that joins and one that
leaves, and reassignments while brokers die.

At the end no acknowledged record may be lost, duplicated or reordered, and the logs of all replicas
must be the same bytes. The last line is a summary in JSON.

Run: `PYTHONPATH=tests python -m chaos.matrix --kills 200`
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from . import cluster_growth, network, reassignments, small_disk
from .broker_processes import NotInTime
from .ledger import Verdict
from .loaded_cluster import (
    FREEZE_S,
    ROLES,
    Fault,
    LoadedCluster,
    Tally,
    clean_bounce,
    clean_stop,
    close_loaded,
    freeze,
    hard_bounce,
    hard_stop,
    rolling_restart,
    store_outage,
    with_loaded,
)

STORES = ("sqlite", "etcd", "zk")
HARD_BOUNCES, CLEAN_BOUNCES = 5, 2
MOVE_ROUNDS = 6
BRIEF_FREEZE_S = 2.0
COMPLAINTS_MAX = 20
GAP_HARD_MAX_S, GAP_CLEAN_MAX_S = 13.0, 1.0
COUNTED = ("lost", "duplicated", "reordered", "misplaced", "changed", "unread", "failed")


@dataclass
class Summary:
    """The results of all passes together."""

    wanted_kills: int
    sent: int = 0
    acknowledged: int = 0
    hung_clients: int = 0
    tally: Tally = field(default_factory=Tally)
    wrong: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    growth: dict[str, dict[str, float]] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    """Name of a fault -> how often it was done."""
    began_s: float = field(default_factory=time.monotonic)

    def judge(self, verdict: Verdict, where: str) -> None:
        for kind in COUNTED:
            self.wrong[kind] += getattr(verdict, kind)
        self.complaints += [f"{where}: {text}" for text in verdict.complaints]

    def as_json(self) -> dict[str, Any]:
        return {
            "kills": self.tally.kills,
            "clean_stops": self.tally.clean_stops,
            "freezes": self.tally.freezes,
            "sent": self.sent,
            "acknowledged": self.acknowledged,
            "hung_clients_replaced": self.hung_clients,
            **{kind: self.wrong[kind] for kind in COUNTED},
            "write_gap_hard_s": _spread(self.tally.hard_gaps_s),
            "write_gap_clean_s": _spread(self.tally.clean_gaps_s),
            "targets": {"hard_p99_s": GAP_HARD_MAX_S, "clean_p99_s": GAP_CLEAN_MAX_S},
            "growth": self.growth,
            "faults": dict(self.done),
            "seconds": round(time.monotonic() - self.began_s, 1),
            "complaints": self.complaints,
        }


def _spread(gaps_s: Sequence[float]) -> dict[str, float]:
    ordered = sorted(gaps_s) or [0.0]
    return {
        "count": len(gaps_s),
        "p50": round(ordered[len(ordered) // 2], 3),
        "p99": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 3),
        "max": round(ordered[-1], 3),
    }


def cells(chance: random.Random) -> list[tuple[str, Fault]]:
    """Returns the matrix of one pass, shuffled."""
    made: list[tuple[str, Fault]] = []
    for role in ROLES:
        made += [
            (f"clean stop of the {role}", partial(clean_stop, role=role)),
            (f"clean bounces of the {role}", partial(clean_bounce, role=role, times=CLEAN_BOUNCES)),
            (f"kill of the {role}", partial(hard_stop, role=role)),
            (f"bounces by kill of the {role}", partial(hard_bounce, role=role, times=HARD_BOUNCES)),
        ]
    chance.shuffle(made)
    return made


def rarer(chance: random.Random) -> list[tuple[str, Fault]]:
    """Returns the additional faults of one pass over each store."""
    made: list[tuple[str, Fault]] = [
        (f"freeze of the {role} beyond its session", partial(freeze, role=role)) for role in ROLES
    ]
    made += [
        ("brief freeze of the leader", partial(freeze, role="leader", seconds=BRIEF_FREEZE_S)),
        ("store away for a moment", partial(store_outage, seconds=BRIEF_FREEZE_S)),
        ("store away beyond all sessions", partial(store_outage, seconds=FREEZE_S)),
        ("rolling restart", rolling_restart),
    ]
    chance.shuffle(made)
    return made


class Run:
    def __init__(self, directory: Path, kills: int, seed: int, say: Callable[[str], None]) -> None:
        self.directory = directory
        self.seed = seed
        self.say = say
        self.summary = Summary(kills)
        self._passes = 0

    @property
    def _kills_left(self) -> int:
        return self.summary.wanted_kills - self.summary.tally.kills

    @property
    def goes_on(self) -> bool:
        """Whether kills are left, and there are not too many complaints to continue."""
        return self._kills_left > 0 and len(self.summary.complaints) < COMPLAINTS_MAX

    def over_cells(self, store: str, faults: Sequence[tuple[str, Fault]]) -> None:
        """Runs these faults on one cluster, as long as kills are left."""
        self._passes += 1
        where = f"pass {self._passes} ({store})"
        with with_loaded(self.directory / f"pass-{self._passes}", store) as loaded:
            try:
                for name, fault in faults:
                    if "kill" in name and self._kills_left <= loaded.tally.kills:
                        continue
                    self._do(loaded, f"{where}: {name}", fault)
                    self.summary.done[name] += 1
            except AssertionError as error:
                self._failed(f"{where}: {name}: {error}")
            verdict = close_loaded(loaded)
            self.summary.judge(verdict, where)
            self.say(f"{where} ended: {'; '.join(verdict.complaints) or 'well'}")
            self.summary.sent += loaded.workload.ledger.sent
            self.summary.acknowledged += len(loaded.workload.ledger.acknowledged)
            self.summary.hung_clients += loaded.workload.ledger.hung_clients
            self.summary.tally += loaded.tally

    def _do(self, loaded: LoadedCluster, name: str, fault: Fault) -> None:
        hard, clean = len(loaded.tally.hard_gaps_s), len(loaded.tally.clean_gaps_s)
        fault(loaded)
        loaded.settle()
        gaps = [*loaded.tally.hard_gaps_s[hard:], *loaded.tally.clean_gaps_s[clean:]]
        kills = self.summary.tally.kills + loaded.tally.kills
        shown = ", ".join(f"{gap:.2f}" for gap in gaps) or "none"
        self.say(f"[{kills}/{self.summary.wanted_kills} kills] {name}; write gaps: {shown}")

    def once(self, name: str, work: Callable[[], list[str]]) -> None:
        complaints = self.summary.complaints
        known = len(complaints)
        try:
            complaints += [f"{name}: {text}" for text in work()]
        except (AssertionError, NotInTime) as error:
            complaints.append(f"{name}: {error}")
        self.summary.done[name] += 1
        # Some checks add their complaints to the summary themselves and return none.
        self.say("; ".join(complaints[known:]) or f"{name}: well")

    def on_small_disk(self, store: str) -> list[str]:
        verdict = small_disk.run(self.directory / f"space-{store}", store)
        self.summary.judge(verdict, f"full disk ({store})")
        return []

    def moving(self, store: str) -> list[str]:
        directory = self.directory / f"moves-{store}"
        verdict = reassignments.run(directory, store, MOVE_ROUNDS, self.seed, self.say)
        self.summary.judge(verdict, f"moves under kills ({store})")
        return []

    def growing(self, store: str) -> list[str]:
        grown = cluster_growth.run(self.directory / f"growth-{store}", store)
        self.summary.judge(grown.verdict, f"growth ({store})")
        self.summary.growth[store] = {
            key: round(value, 3) for key, value in asdict(grown).items() if key != "verdict"
        }
        return []

    def others(self, store: str) -> None:
        """Runs the faults that need a special cluster."""
        self.once(f"a broker joins, one leaves ({store})", partial(self.growing, store))
        self.once(f"moves under kills ({store})", partial(self.moving, store))
        if reason := small_disk.why_not():
            self.say(f"left out: full disk: {reason}")
        else:
            self.once(f"full disk ({store})", partial(self.on_small_disk, store))
        if reason := network.why_not():
            self.say(f"left out: cut wires: {reason}")
        else:
            apart = partial(network.run_apart, "chaos.network", "--store", store)
            self.once(f"cut wires ({store})", apart)

    def _failed(self, text: str) -> None:
        self.summary.complaints.append(text)
        self.say(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, help="how many kill -9 in all")
    parser.add_argument("--seed", type=int, default=1, help="for the order of the faults")
    parser.add_argument("--store", choices=STORES, action="append", help="only this one")
    parser.add_argument("--only-matrix", action="store_true", help="leave the rarer faults out")
    options = parser.parse_args()
    stores = options.store or STORES
    chance = random.Random(options.seed)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="penstock-chaos-") as directory:
        run = Run(Path(directory), options.kills, options.seed, say)
        try:
            if not options.only_matrix:
                for store in stores:
                    run.over_cells(store, rarer(chance))
                    run.others(store)
            for store in cycle(stores):
                if not run.goes_on:
                    break
                run.over_cells(store, cells(chance))
        except KeyboardInterrupt:
            run.summary.complaints.append("interrupted: this is not the whole run")
    summary = run.summary.as_json()
    print(json.dumps(summary))
    return 1 if summary["complaints"] else 0


if __name__ == "__main__":
    sys.exit(main())
