"""What a task asks about its driver: is it for the tables that are served, or for new ones?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.spark.deployments.model import Deployment, Event, Status, Version
from penstock.spark.pipelines.driver_control import Assignment


class Part(Protocol):
    """What a driver is for: it updates the tables that are served, or it computes new ones."""

    log_folder: str

    def definition(self) -> tuple[Deployment | None, Version | None]:
        """Returns what the driver is to run."""

    def previous(self) -> Status | None:
        """Returns the last status that a worker reported."""

    def assignment(self, assigned: Assignment) -> Assignment:
        """Completes what the driver is told."""

    def status(self, status: Status) -> Status | None:
        """Returns what is reported; None if this part has no status of its own."""

    def event(self, event: Event) -> Event | None:
        """Returns what is added to the history; None: nothing."""

    def on_driver_event(self, event: Mapping[str, Any]) -> None:
        """The driver has written an event."""

    def on_handled(self) -> None:
        """Something has happened to the driver."""


@dataclass(slots=True)
class Rounds:
    """The rounds of the drivers of a task, counted from 1."""

    begun: int = 0
    began_at: float = 0.0
    ended: int = 0
    """The number of the last round that was completed."""
    last_s: float = 0.0
    """How long it took."""
