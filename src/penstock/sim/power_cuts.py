"""Cuts the power of all brokers of a cluster at once, many times: the driver of `--power-cuts`.

All topics have `durability=fsync`, so nothing that was acknowledged may be lost. Seeds run one
after the other until there were as many power cuts as requested. The report says how many records
were acknowledged.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from typing import Any

from rich.console import Console

from penstock.sim.seeds import Task, replay_command, run_task

COUNTER = "power_cuts_of_all"


def run_power_cuts(chosen: argparse.Namespace, console: Console) -> int:
    first = 0 if chosen.seeds is None else chosen.seeds.start
    cuts = acknowledged = transactions = tried = 0
    failures: list[dict[str, Any]] = []
    for seed in itertools.count(first):
        if cuts >= chosen.power_cuts or len(failures) >= chosen.failures_max:
            break
        task = Task(seed, chosen.virtual_s, focus="power")
        report = run_task(task)
        tried += 1
        cuts += report.counters.get(COUNTER, 0)
        acknowledged += report.counters.get("sends_ok", 0)
        transactions += report.counters.get("txns_ok", 0)
        if report.failure:
            failures.append(
                {"seed": seed, "failure": report.failure, "replay": replay_command(task)}
            )
        if not chosen.json:
            told = f"seed {seed}: {cuts} power cuts of all brokers so far"
            console.print(f"{told}; {report.failure or 'nothing is lost'}", highlight=False)
    if chosen.json:
        found = {
            "power_cuts": cuts,
            "seeds": tried,
            "acknowledged": acknowledged,
            "transactions": transactions,
            "failures": failures,
        }
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        console.print(
            f"{cuts} power cuts of all brokers in {tried} seeds, {acknowledged:,} records and "
            f"{transactions:,} transactions acknowledged: {len(failures)} seeds failed"
        )
    return 1 if failures else 0
