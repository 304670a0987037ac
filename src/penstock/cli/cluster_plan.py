"""Formats a rebalance plan as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from penstock.cli.cluster_state import Found
from penstock.cli.output import count, size_text
from penstock.cli.tables import Column, table
from penstock.metadata.rebalance import Plan, Step

_LISTED_MAX: Final = 20


def _change(before: int, after: int) -> str:
    return f"{before:,}" if before == after else f"{before:,} -> {after:,}"


def plan_text(planned: Plan, found: Found) -> str:
    parts = [_loads_table(planned, found), ""]
    if planned.before.uneven_racks:
        parts.append(
            f"{count(planned.before.uneven_racks, 'partition')} not spread evenly over "
            f"racks, {planned.after.uneven_racks} after the plan"
        )
    if not planned.steps:
        return "\n".join([*parts, "nothing to move: replicas and leaders are in place"])
    parts.append(_steps_table(planned.steps[:_LISTED_MAX]))
    if len(planned.steps) > _LISTED_MAX:
        parts.append(f"and {len(planned.steps) - _LISTED_MAX:,} more: use --json to see them")
    changes = count(len(planned.steps), "partition")
    copies = count(planned.copies, "replica")
    copied = f" ({size_text(planned.copied_bytes)})" if found.sizes else ""
    return "\n".join([*parts, "", f"{changes} to change, {copies} to copy{copied}"])


def _loads_table(planned: Plan, found: Found) -> str:
    columns = (
        Column("broker", right=True),
        Column("rack"),
        Column("replicas", right=True),
        Column("preferred leader", right=True),
        Column("size", right=True),
    )
    rows = []
    for broker, after in planned.after.loads.items():
        before = planned.before.loads[broker]
        sizes = dict.fromkeys(size_text(each.size_bytes) for each in (before, after))
        rows.append(
            (
                broker,
                found.racks.get(broker) if broker in found.racks else "not running",
                _change(before.replicas, after.replicas),
                _change(before.leads, after.leads),
                " -> ".join(sizes) if found.sizes else None,
            )
        )
    return table(columns, rows)


def _steps_table(steps: Sequence[Step]) -> str:
    columns = Column("partition"), Column("from"), Column("to"), Column("to copy", right=True)
    rows = [(f"{step.topic}-{step.index}", step.before, step.after, _size(step)) for step in steps]
    return table(columns, rows)


def _size(step: Step) -> str | None:
    if not step.added:
        return "nothing"
    return None if step.copied_bytes is None else size_text(step.copied_bytes)


def plan_json(planned: Plan) -> dict[str, Any]:
    def loads(which: str) -> dict[str, Any]:
        shape = getattr(planned, which)
        return {
            str(broker): {
                "replicas": load.replicas,
                "preferred_leader": load.leads,
                "size_bytes": load.size_bytes,
            }
            for broker, load in shape.loads.items()
        }

    return {
        "before": {"brokers": loads("before"), "uneven_racks": planned.before.uneven_racks},
        "after": {"brokers": loads("after"), "uneven_racks": planned.after.uneven_racks},
        "moves": [
            {
                "topic": step.topic,
                "partition": step.index,
                "from": list(step.before),
                "to": list(step.after),
                "size_bytes": step.size_bytes,
            }
            for step in planned.steps
        ],
        "copies": planned.copies,
        "copied_bytes": planned.copied_bytes,
    }
