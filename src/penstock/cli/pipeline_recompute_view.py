"""Shows how far a recompute of a deployed pipeline is."""

from __future__ import annotations

from typing import Any

from penstock.cli.output import count, printable
from penstock.cli.output import time_text as at


def recompute_lines(found: dict[str, Any]) -> list[str]:
    """Returns the lines of `penstock pipeline status`."""
    lines = []
    recompute, kept = found["recompute"], found["kept"]
    if recompute is not None:
        tables = printable(", ".join(recompute["tables"]))
        lines.append(
            f"recompute of {tables} with version {recompute['version']} since "
            f"{at(recompute['began_ms'])}: {printable(str(recompute['stage']))}, "
            f"{str(recompute['state']).lower()}"
        )
        lines += _lag_lines(recompute)
        if recompute.get("error"):
            lines.append(f"the recompute failed: {printable(str(recompute['error']))}")
        if recompute["caught_up"] and recompute["swap"] == "manual" and not recompute["swap_asked"]:
            lines.append(
                f"to put the new tables in use: penstock pipeline swap {printable(found['name'])}"
            )
    if kept is not None:
        lines.append(
            f"the tables before the swap are kept until {at(kept['until_ms'])}; to return to them: "
            f"penstock pipeline swap {printable(found['name'])} --back"
        )
    return lines


def _lag_lines(recompute: dict[str, Any]) -> list[str]:
    lag, served = recompute.get("lag"), recompute.get("served_lag")
    if not isinstance(lag, int):
        return []
    text = f"new tables: {count(lag, 'record')} behind their topics"
    if isinstance(served, int):
        text += f"; served tables: {served:,}"
    return [text]
