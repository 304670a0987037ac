"""Searches for planted bugs: with which focus, and within how many seeds each must be found.

    penstock sim --bug all                       every bug, by its own focus and number of seeds
    penstock sim --bug no-divergence-check --seeds 0..200

A bug that is not found within its number of seeds is a gap in the workload, the faults or the
checks. Some bugs show in ordinary seeds, others need the focus of their part.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from penstock.sim.bugs.access import ACCESS_BUGS
from penstock.sim.bugs.consumer_groups import CONSUMER_BUGS
from penstock.sim.bugs.delay_topics import DELAY_BUGS
from penstock.sim.bugs.encryption import ENCRYPTION_BUGS
from penstock.sim.bugs.pipelines import PIPELINE_BUGS
from penstock.sim.bugs.quotas import QUOTA_BUGS
from penstock.sim.bugs.replication import BUGS
from penstock.sim.bugs.share_groups import SHARE_BUGS
from penstock.sim.bugs.share_records import SHARE_RECORD_BUGS
from penstock.sim.bugs.tokens import TOKEN_BUGS
from penstock.sim.bugs.transactions import TRANSACTION_BUGS
from penstock.sim.seeds import Report, Task, progress_bar, run_task, run_tasks

SEEDS_MAX: Final = 40


@dataclass(frozen=True, slots=True)
class Hunt:
    focus: str = ""
    seeds_max: int = SEEDS_MAX
    virtual_s: float = 60.0


_FOCUSED: Final[dict[str, tuple[str, ...]]] = {
    "malformed": ("records-not-checked",),
    "full_disk": ("full-leader-goes-on",),
    "full_store": ("full-store-ends-the-broker",),
    "unheard_join": ("unknown-outcome-forgotten",),
    "transactions": (*TRANSACTION_BUGS,),
    "access": (*ACCESS_BUGS,),
    "tokens": (*TOKEN_BUGS,),
    "quotas": (*QUOTA_BUGS,),
    "pipelines": (*PIPELINE_BUGS,),
    "consumer_groups": (*CONSUMER_BUGS,),
    "share_groups": (*SHARE_BUGS,),
    "share_records": (*SHARE_RECORD_BUGS,),
    "delay_topics": (*DELAY_BUGS,),
    "encryption": (*ENCRYPTION_BUGS,),
    "dropped_key": ("dropped-key-still-used",),
    "keyless_start": ("missing-key-revokes-the-proof",),
    "metadata": (
        "no-partition-epoch-check",
        "watch-gap-ignored",
        "leads-on-after-a-restart",
        "isr-shrinks-unasked",
        "watermark-over-committed-isr",
        "stale-controller-write-accepted",
    ),
    "replication": (
        "serves-before-its-epoch-is-durable",
        "eligible-leaders-ignored",
        "joins-below-high-watermark",
        "latest-offset-at-once",
        "truncate-to-high-watermark",
        "restarts-taken-for-lossless",
        "no-broker-epoch-check",
    ),
    "double_failover": (
        "one-round-truncation",
        "no-divergence-check",
    ),
    "moves": ("move-completes-early",),
    "groups": (
        "offsets-not-replayed",
        "stale-generation-commits",
    ),
    "power": ("flushes-skip-the-fsync",),
    "empty_disk": ("empty-disk-trusted",),
    "bit_rot": ("rot-taken-for-a-torn-tail",),
    "lone_survivor": ("high-watermark-forgotten",),
    "slow_leases": ("lease-renewed-late",),
    "topics": ("deleted-records-come-back",),
    "rebuilt_table": ("gaps-refused-without-compaction",),
    "min_insync": ("min-isr-change-ignored",),
    "durability_switch": ("unsynced-members-trusted-after-a-switch",),
    "missed_deletion": ("deleted-topic-comes-back",),
    "queued_deletion": ("zombie-topic-hosted",),
    "reborn_restart": ("offsets-of-another-log-believed",),
    "take_back": ("fetches-of-a-dropped-replica-counted",),
    "eligible_deletion": ("deletion-answered-without-eligible-leaders",),
    "replaced_move": ("added-replica-dropped-with-the-last-copy",),
    "deleted_branch": (
        "epoch-of-deleted-records-forgotten",
        "watermark-rises-before-the-restart",
    ),
    "acks_one": (
        "acks-one-answered-before-the-flush",
        "acks-one-answered-while-another-joins",
    ),
    "pipelining": ("reads-overtake-writes",),
}
"""By focus: the bugs that need it. All others are searched for in ordinary seeds."""

HUNTS: Final[dict[str, Hunt]] = {
    name: Hunt(focus) for focus, names in _FOCUSED.items() for name in names
}

SMOKE: Final[dict[str, tuple[str, ...]]] = {
    "transactions-not-verified": ("I9",),
    "unstable-offsets-served": ("E18",),
    "flushes-skip-the-fsync": ("I2", "I3", "I12"),
    "empty-disk-trusted": ("I2", "I3"),
    "rot-taken-for-a-torn-tail": ("I2", "I3", "I12"),
    "full-leader-goes-on": ("E14",),
    "lease-renewed-late": ("E14",),
    "full-store-ends-the-broker": ("Unexpected",),
    "min-isr-change-ignored": ("E14",),
    "deleted-topic-comes-back": ("I1", "I2", "I3"),
    "deleted-records-come-back": ("E17",),
    "offsets-of-another-log-believed": ("I4",),
    "fetches-of-a-dropped-replica-counted": ("I2", "I3"),
    "acks-one-answered-before-the-flush": ("E19",),
    "reads-overtake-writes": ("E15",),
    "records-not-checked": ("E16",),
    "one-round-truncation": ("E14",),
    "acls-read-only-at-the-start": ("E20",),
    "fast-path-keeps-its-rights": ("E20",),
    "fetch-session-keeps-its-rights": ("E20",),
    "deleted-password-accepted": ("E21",),
    "removed-token-remembered": ("E31",),
    "throttled-without-a-mute": ("E22", "E24"),
    "removed-quota-stays": ("E23",),
    "throttled-produce-appended-again": ("E2",),
    "index-in-plain-text": ("E25",),
    "partition-assigned-while-another-has-it": ("I15",),
    "revocation-taken-for-granted": ("I16",),
    "commit-of-a-fenced-member-accepted": ("I17",),
    "heartbeat-answered-before-its-records-are-committed": ("E34",),
    "unknown-group-ends-its-members": ("E35",),
    "upgrade-forgets-what-members-read": ("I16",),
    "upgrade-leaves-the-classic-group-in-the-log": ("I23",),
    "acknowledgement-answered-before-it-is-stored": ("E39",),
    "locked-record-delivered-to-another-member": ("E37",),
    "start-offset-passes-an-acquired-record": ("I20", "I22", "E39"),
    "share-session-epoch-not-checked": ("E40",),
    "initialized-partitions-forgotten-by-a-new-coordinator": ("I19",),
    "due-times-rounded-to-seconds": ("E42",),
    "record-given-up-without-a-letter": ("I25",),
    "letter-names-the-first-offset-of-its-round": ("I24",),
    "plan-sent-under-new-numbers-by-a-new-leader": ("E46",),
    "records-copied-two-seconds-early": ("E47",),
    "lease-renewed-during-rebalances": ("E28", "E30"),
    "driver-without-a-watchdog": ("E28", "E29"),
}
"""Bugs that one or two seeds find, and the rules that they break. Every run of the tests searches
for these."""
SMOKE_VIRTUAL_S: Final = 25.0


def tasks_for(name: str, chosen: argparse.Namespace) -> list[Task]:
    hunt = HUNTS.get(name, Hunt())
    seeds = range(hunt.seeds_max) if chosen.seeds is None else chosen.seeds
    focus, virtual_s = chosen.focus or hunt.focus, min(chosen.virtual_s, hunt.virtual_s)
    return [Task(seed, virtual_s, bug=name, focus=focus, also=chosen.also) for seed in seeds]


def hunt_one(name: str, chosen: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Finds the first seed that fails with the bug and passes without it."""
    tasks = {task.seed: task for task in tasks_for(name, chosen)}
    first: Report | None = None
    tried = 0
    with progress_bar(console, chosen) as progress:
        bar = progress.add_task(name, total=len(tasks))
        for report in run_tasks([*tasks.values()], chosen.jobs, progress, bar):
            tried += 1
            if report.failure and not _fails_anyway(tasks[report.seed]):
                first = report
                break
    focus = next(iter(tasks.values())).focus
    return {
        "seed": None if first is None else first.seed,
        "tried": tried,
        "limit": len(tasks),
        "focus": focus,
        "failure": None if first is None else first.failure,
    }


def _fails_anyway(task: Task) -> bool:
    """Returns whether the seed fails without the bug as well. Then it proves nothing about
    the bug."""
    sound = Task(task.seed, task.virtual_s, focus=task.focus, also=task.also)
    return bool(run_task(sound).failure)


def run_bugs(chosen: argparse.Namespace, console: Console) -> int:
    """Finds the first seed that shows each bug. Returns 1 if any bug was not found."""
    names = list(BUGS) if chosen.bug == "all" else [chosen.bug]
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        found[name] = hunt_one(name, chosen, console)
        if not chosen.json:
            seed, failure = found[name]["seed"], found[name]["failure"]
            told = "NOT FOUND" if seed is None else f"seed {seed}: {failure}"
            tried = f"{name} after {found[name]['tried']}"
            console.print(f"{tried}: {told}", markup=False, highlight=False, soft_wrap=True)
    hidden = [name for name, result in found.items() if result["seed"] is None]
    if chosen.json:
        sys.stdout.write(json.dumps({"bugs": found, "hidden": hidden}) + "\n")
        return 1 if hidden else 0
    if len(found) > 1:
        console.print(_table(found))
    console.print(f"{len(found) - len(hidden)} of {len(found)} planted bugs were found")
    return 1 if hidden else 0


def _table(found: dict[str, dict[str, Any]]) -> Table:
    table = Table("planted bug", "focus", "found by seed", "seeds tried", "of at most")
    for name, result in found.items():
        seed = "NOT FOUND" if result["seed"] is None else str(result["seed"])
        table.add_row(
            name, result["focus"] or "any", seed, str(result["tried"]), str(result["limit"])
        )
    return table
