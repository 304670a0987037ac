"""Checks the drivers of deployed pipelines.

E28  A pipeline never has two drivers at the same time.
E29  A driver never runs after the end of its worker's lease.

After all faults, each deployment must have a driver again within the time of E14.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from penstock.sim.actors.shared_state import SharedState
from penstock.sim.checkers.logs import Violation
from penstock.sim.history import INFO, OK, DriverRun, Entry, Probe
from penstock.sim.world import World


def check_pipelines(entries: Iterable[Entry]) -> Iterator[Violation]:
    runs: dict[str, list[DriverRun]] = {}
    for entry in entries:
        if isinstance(entry, DriverRun):
            runs.setdefault(entry.pipeline, []).append(entry)
    for pipeline, of_pipeline in runs.items():
        yield from _check_leases(of_pipeline)
        yield from _check_alone(pipeline, of_pipeline)


def _check_leases(runs: Iterable[DriverRun]) -> Iterator[Violation]:
    for run in runs:
        if run.ended_ms > run.lease_ms:
            text = (
                f"the driver of {run.process} ran until {run.ended_ms:.0f} ms, and its lease ended "
                f"at {run.lease_ms:.0f} ms"
            )
            yield Violation("E29", run.pipeline, text)


def _check_alone(pipeline: str, runs: Iterable[DriverRun]) -> Iterator[Violation]:
    last: DriverRun | None = None
    for run in sorted(runs, key=lambda each: each.begun_ms):
        if last is not None and run.begun_ms < last.ended_ms:
            text = (
                f"{run.process} started a driver at {run.begun_ms:.0f} ms, while the one of "
                f"{last.process} ran from {last.begun_ms:.0f} ms to {last.ended_ms:.0f} ms"
            )
            yield Violation("E28", pipeline, text)
        if last is None or run.ended_ms > last.ended_ms:
            last = run


async def probe_pipelines(world: World, shared: SharedState) -> None:
    """Waits until each deployment has one driver. Then lets the workers end."""
    if not shared.scenario.workers:
        return
    board, begun_ms = shared.pipelines, shared.now_ms()

    def missing() -> list[str]:
        return sorted(name for name in board.existing if len(board.running(name)) != 1)

    with suppress(TimeoutError):
        await world.until(
            lambda: not missing(),
            timeout_s=shared.scenario.mend_s,
            poll_s=0.25,
            what="every pipeline runs",
        )
    error = f"not exactly one driver: {', '.join(missing())}" if missing() else ""
    shared.history.add(
        Probe(
            process="workers",
            status=INFO if error else OK,
            begun_ms=begun_ms,
            ended_ms=shared.now_ms(),
            error=error,
            what="running every pipeline",
        )
    )
    board.done.set()
