"""Checks the complete history of a run, and returns every violation of a rule.

Rules E1 to E5, E8, E13 and I8 are in `logs`, E6 and E7 in `reads`, E12 in
`groups`, E9 to E11 and the parts of E4, E5 and E13 about transactions in
`transactions`, E15 to E19 in `edge_cases`, E20 and E21 in `access`, E22 to E24 in
`quotas`, E28 to E30 in `pipelines`, E31 to E33 in `tokens`, E36 and E37 in `shares`, E44 and E45 in
`letters`, E46 to E48 in `delays`. This module has E14: once all faults are over, everything works
again in time, and every topic partition can be read from its start to its end, also with
`read_committed`.

Outside of transactions E4 is about records that were refused, and E5 about records that were
never sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.sim.checkers.access import check_access
from penstock.sim.checkers.delays import check_delays
from penstock.sim.checkers.edge_cases import check_edges
from penstock.sim.checkers.groups import check_groups
from penstock.sim.checkers.letters import check_letters
from penstock.sim.checkers.logs import Violation, build_logs, check_logs
from penstock.sim.checkers.pipelines import check_pipelines
from penstock.sim.checkers.quotas import check_quotas
from penstock.sim.checkers.reads import check_reads
from penstock.sim.checkers.shares import check_shares
from penstock.sim.checkers.tokens import check_tokens
from penstock.sim.checkers.transactions import check_txns, find_fates
from penstock.sim.history import OK, Drain, Entry, History, Probe


def check_history(history: History, partition_names: Iterable[str]) -> list[Violation]:
    """Returns all violations. `partition_names` are those that must be drained in the end."""
    entries = history.entries
    logs = build_logs(entries)
    fates = find_fates(entries, logs)
    return [
        *check_logs(logs.values()),
        *check_reads(entries, logs),
        *check_txns(entries, logs, fates),
        *check_groups(entries),
        *check_edges(entries, logs),
        *check_access(entries, logs),
        *check_quotas(entries),
        *check_pipelines(entries),
        *check_tokens(entries),
        *check_shares(entries),
        *check_letters(entries),
        *check_delays(entries),
        *_check_liveness(entries, partition_names),
    ]


def _check_liveness(
    entries: Iterable[Entry], partition_names: Iterable[str]
) -> Iterator[Violation]:
    drained: dict[str, Drain] = {}
    for entry in entries:
        if isinstance(entry, Drain):
            # Each isolation level has a drain; one that failed takes precedence.
            if (known := drained.get(entry.partition_name)) is None or known.status == OK:
                drained[entry.partition_name] = entry
        elif isinstance(entry, Probe) and entry.status != OK:
            seconds = (entry.ended_ms - entry.begun_ms) / 1000
            text = f"{entry.what} did not work within {seconds:.0f} s: {entry.error}"
            yield Violation("E14", entry.process, text)
    for partition_name in partition_names:
        drain = drained.get(partition_name)
        if drain is None:
            yield Violation("E14", partition_name, "no client drained it")
        elif drain.status != OK:
            yield Violation("E14", partition_name, f"it could not be drained: {drain.error}")
