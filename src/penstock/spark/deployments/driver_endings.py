"""Says why a driver has ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.spark.pipelines.driver_control import LEASE_ENDED
from penstock.spark.pipelines.events import ENDED, RunView


def is_end(event: Mapping[str, Any]) -> bool:
    """Whether this is the last event of a driver, and complete."""
    kind = event.get("event")
    return kind == LEASE_ENDED or (kind == "end" and event.get("state") in ENDED)


def error_of(view: RunView, code: int, ended: Mapping[str, Any]) -> str:
    """Returns why a driver has failed; empty if it has not. `code` is its exit code, and `ended`
    its last event, if it has told one. Completes the view of the run."""
    if ended.get("event") == LEASE_ENDED:
        view.apply({"event": "end", "state": "STOPPED"})
        return ""
    if ended:
        failed = [flow for flow in view.flows.values() if flow.error]
        where = f"{failed[0].name}: {failed[0].error}" if failed else ""
        return where or str(ended.get("error") or "") if ended["state"] == "FAILED" else ""
    text = f"the driver was killed by signal {-code}" if code < 0 else f"exit code {code}"
    view.apply({"event": "end", "state": "STOPPED"})
    return f"the driver ended without an error message ({text}): see its log"
