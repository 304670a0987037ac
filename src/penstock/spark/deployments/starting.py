"""Which pipelines need the processors, so that work that can wait does wait. Pure.

A pipeline that starts stands still, and needs the processors. So a worker begins nothing that can
wait, such as a driver in reserve or an archive of classes, while a pipeline starts: its own or that
of another worker, which may be on the same machine.

A start is not over when Spark is ready: the definitions are loaded and planned, the first batch
loads most of Spark's classes, and Python processes start. It is over when the first round has
ended, or each of its streams has committed a batch. A script without records commits none, and a
first round may read for hours, so a start also ends after a time.

The rounds of a schedule are short, and someone waits for their end. So such work does not begin
during a round either, nor shortly before one. It would never begin if a round followed another, so
its patience has an end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.spark.deployments.model import Status

START_MAX_MS: Final = 60_000
"""How long after Spark is ready a pipeline counts as starting at most."""
ROUND_MAX_MS: Final = 60_000
"""A round that takes longer does not need the processors for itself."""
SOON_MS: Final = 5_000
PATIENCE_MS: Final = 600_000
BURST_MS: Final = 120_000
"""For so long may work begin after its patience has ended."""
_BEFORE_READY: Final = frozenset({"PREPARING", "STARTING"})
_FLOW_ENDED: Final = frozenset({"COMPLETED", "FAILED", "SKIPPED", "EXCLUDED", "STOPPED"})


def is_starting(status: Status, now_ms: int) -> bool:
    """Whether a pipeline is about to run, as its status says."""
    if status.state in _BEFORE_READY:
        return True
    is_new = 0 <= now_ms - status.since_ms < START_MAX_MS
    return status.state == "RUNNING" and is_new and not has_results(status.run)


def is_in_round(status: Status, now_ms: int) -> bool:
    """Whether a round of a schedule runs, or begins soon."""
    if not status.due_ms:
        return False
    if status.state == "RUNNING":
        return 0 <= now_ms - status.since_ms < ROUND_MAX_MS
    return status.state == "WAITING FOR ITS TIME" and abs(status.due_ms - now_ms) < SOON_MS


class Patience:
    """Decides when work that can wait begins: when nobody needs the processors, or after it has
    waited for long enough."""

    def __init__(self) -> None:
        self._waits_since_ms: int | None = None

    def may_begin(self, *, is_quiet: bool, now_ms: int) -> bool:
        """Call it whenever work could begin."""
        if is_quiet:
            self._waits_since_ms = None
            return True
        if self._waits_since_ms is None:
            self._waits_since_ms = now_ms
        waited_ms = now_ms - self._waits_since_ms
        if waited_ms >= PATIENCE_MS + BURST_MS:
            self._waits_since_ms = now_ms
            return False
        return waited_ms >= PATIENCE_MS


def has_results(run: Mapping[str, Any]) -> bool:
    """Whether the first round of a run has ended, or all of its streams have committed a batch.

    Args:
        run: the view of the run, `RunView.as_dict`.
    """
    if run.get("state") == "WAITING" or (run.get("round") or 0) > 1:
        return True
    flows = run.get("flows") or ()
    return bool(flows) and all(
        flow.get("batch") is not None or flow.get("status") in _FLOW_ENDED for flow in flows
    )
