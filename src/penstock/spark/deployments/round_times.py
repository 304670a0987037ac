"""Keeps when the next round of a pipeline is due. Pure."""

from __future__ import annotations

from penstock.spark.deployments import schedule as times
from penstock.spark.deployments.model import Deployment, Status


class RoundTimes:
    """Times are milliseconds of the wall clock. A schedule that is invalid is always due: the
    supervisor refuses it before it starts anything."""

    def __init__(self) -> None:
        self.due_ms = 0
        self._began_ms = 0
        self._decided_for: tuple[int, int] | None = None
        """The version and the number of restarts for which `due_ms` was decided."""

    @property
    def is_decided(self) -> bool:
        return self._decided_for is not None

    def forget(self) -> None:
        """The schedule has changed, or the pipeline was stopped in between."""
        self._decided_for = None

    def reported(self, deployment: Deployment) -> int:
        """Returns the time for the status: 0 if it is not decided, or the schedule has no times."""
        return self.due_ms if self.is_decided and not deployment.schedule.continuous else 0

    def resume(self, deployment: Deployment, previous: Status) -> None:
        """Takes over the time that another worker has reported for the same deployment. A round
        that it did not complete is due since then."""
        waited = previous.state == "WAITING FOR ITS TIME"
        due_ms = previous.due_ms or (previous.next_ms if waited else 0)
        if due_ms:
            self.due_ms = due_ms
            self._decided_for = deployment.version, deployment.restarts

    def decide_first(self, deployment: Deployment, now_ms: int) -> None:
        """Decides when the first round of a version is due. A restart makes it due at once."""
        key = deployment.version, deployment.restarts
        known, self._decided_for = self._decided_for, key
        if known == key:
            return
        restarted = known is not None and known[1] != key[1]
        try:
            first_ms = times.first_round(deployment.schedule, now_ms)
            self.due_ms = now_ms if restarted else first_ms
        except times.ScheduleInvalid:
            self.due_ms = now_ms

    def begin(self, now_ms: int) -> None:
        self._began_ms = now_ms

    def end(self, deployment: Deployment, now_ms: int) -> None:
        try:
            began_ms = min(self._began_ms, now_ms)
            self.due_ms = times.next_round(deployment.schedule, began_ms, now_ms)
        except times.ScheduleInvalid:
            self.due_ms = now_ms

    def due(self, deployment: Deployment, now_ms: int) -> int:
        """Returns when the next round is due, corrected if the clock was set back."""
        try:
            self.due_ms = times.not_later(deployment.schedule, self.due_ms, now_ms)
        except times.ScheduleInvalid:
            return now_ms
        return self.due_ms
