"""How long a worker may run its pipelines: the rule of its lease. Pure.

Workers are members of a group. Another worker can get a pipeline only in a generation of the group
without this worker, or after this worker has given the pipeline up (see `claims`). So a worker may
run its pipelines until the coordinator could have formed a generation without it:

- The coordinator removes a member when its session timeout has passed without a request from it.
- It ends a rebalance without the members that have not joined when their rebalance timeout has
  passed. It removes members that have not asked for their assignment after the same time.

A coordinator that was replaced may not know it, and its heartbeats prove nothing. An OffsetCommit
proves more. It is answered when all in-sync replicas have it, so every later coordinator has loaded
the group after the commit was sent, and has started all of its timeouts after that.

A renewal is therefore a commit, and then a heartbeat to the same broker, with the same member id
and generation:

- A commit that was sent at time c and succeeded keeps the session until c + session timeout.
- If the heartbeat is answered with NONE and the member has its assignment, no rebalance was in
  progress at the time of the commit, or the next coordinator does not know of it. So no rebalance
  ends without this member before c + rebalance timeout. During a rebalance commits succeed too,
  but heartbeats are answered with REBALANCE_IN_PROGRESS.

The lease lasts until the earlier of both times. Times are those of sending. Each is shortened by a
margin, because the clocks of two machines do not run equally fast.

The heartbeat must be answered by the broker that has stored the commit. Another one, which was
replaced before the commit, would not know of a rebalance that is in progress.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.client.membership.steps import Identity
from penstock.wire.errors import ErrorCode

NEVER: Final = 0.0
"""The end of a lease that has not begun."""
MARGIN: Final = 0.1
"""By how much the clocks of a worker and a coordinator may differ in speed, as a share."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """One attempt to renew the lease."""

    identity: Identity
    sent_at: float
    """When the commit was sent."""


class Lease:
    """Times are seconds of a clock that goes on while the machine is suspended."""

    def __init__(self, session_s: float, rebalance_s: float, margin: float = MARGIN) -> None:
        if rebalance_s < session_s:
            raise ValueError(
                f"the rebalance timeout of {rebalance_s:g} s is below the session timeout of "
                f"{session_s:g} s: raise it"
            )
        self._session_s = session_s * (1 - margin)
        self._rebalance_s = rebalance_s * (1 - margin)
        self._kept_at: float | None = None
        """When the last commit was sent that succeeded."""
        self._calm_at: float | None = None
        """When the last commit was sent before which no rebalance had begun."""

    @property
    def until(self) -> float:
        """When the lease ends. `NEVER` if it has not begun."""
        if self._kept_at is None or self._calm_at is None:
            return NEVER
        return min(self._kept_at + self._session_s, self._calm_at + self._rebalance_s)

    @property
    def renewed_at(self) -> float | None:
        """When the last renewal that succeeded was sent. None if the lease has not begun."""
        return None if self.until == NEVER else self._kept_at

    def on_commit(self, renewal: Renewal, identity: Identity, code: int) -> bool:
        """Handles the answer to the commit. `identity` is the member's now. Returns whether the
        heartbeat is to be sent."""
        if code != ErrorCode.NONE or renewal.identity != identity:
            return False
        self._kept_at = max(renewal.sent_at, self._kept_at or renewal.sent_at)
        return True

    def on_heartbeat(
        self, renewal: Renewal, identity: Identity, code: int, *, knows_assignment: bool
    ) -> None:
        """Handles the answer to the heartbeat that followed a commit."""
        if code == ErrorCode.NONE and renewal.identity == identity and knows_assignment:
            self._calm_at = max(renewal.sent_at, self._calm_at or renewal.sent_at)

    def end(self) -> None:
        """Ends the lease. The next one begins with a whole renewal."""
        self._kept_at = self._calm_at = None
