"""Generations of a pipeline's tables, and the changes of a deployment that concern them. Pure.

A generation is a storage of its own, with tables, checkpoints and metastore. Generation 0 is the
storage of the deployment itself; generation N is the folder `_generations/N` in it. Its number is
the time at which it was begun. Spark writes absolute paths into the logs of tables, so nothing of a
generation is ever moved or copied.

The deployment says which generation is served (`generation`), which one is being computed
(`recompute`), and which one was served before (`kept`). All others are dead and are deleted. The
record of the deployment is the only pointer, and is changed in a transaction: so a swap is one
step, and so is the way back. Numbers are not used again: a generation that is dead stays dead,
and may be deleted even by a worker that has read an old record.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from penstock.spark.deployments.model import (
    Deployment,
    KeptGeneration,
    Recompute,
    Schedule,
    Swap,
)
from penstock.spark.pipelines.errors import PipelineError

FOLDER: Final = "_generations"
_REST_S: Final = 30.0
"""The pause between rounds of a recompute, if the pipeline itself is not continuous."""


@dataclass(frozen=True, slots=True)
class RecomputeOrder:
    """What a user wants to be computed again."""

    tables: tuple[str, ...]
    swap: Swap
    keep_ms: int


def generation_storage(storage: str, generation: int) -> str:
    """Returns the folder or URL of a generation."""
    return storage if not generation else f"{storage.rstrip('/')}/{FOLDER}/{generation}"


def live_generations(deployment: Deployment) -> frozenset[int]:
    found = {deployment.generation}
    if deployment.recompute is not None:
        found.add(deployment.recompute.generation)
    if deployment.kept is not None:
        found.add(deployment.kept.generation)
    return frozenset(found)


def dead_generations(deployment: Deployment, found: Iterable[int]) -> list[int]:
    """Returns those of the generations that were found which nothing needs any more. One that is
    newer than the deployment knows may be in use by a worker that knows more."""
    live = live_generations(deployment)
    return [each for each in found if each <= deployment.generations and each not in live]


def used_versions(deployment: Deployment) -> set[int]:
    """Returns the versions that the deployment needs now or may need again."""
    found = {deployment.version}
    if deployment.recompute is not None:
        found.add(deployment.recompute.version)
    if deployment.kept is not None:
        found.add(deployment.kept.version)
    return found


def has_sound_generations(deployment: Deployment) -> bool:
    numbers = [deployment.generation]
    recompute, kept = deployment.recompute, deployment.kept
    if recompute is not None:
        numbers.append(recompute.generation)
        if recompute.version <= 0 or recompute.keep_ms < 0:
            return False
    if kept is not None:
        numbers.append(kept.generation)
        if kept.version <= 0 or kept.keep_ms < 0:
            return False
    return (
        len(set(numbers)) == len(numbers)
        and min(numbers) >= 0
        and max(numbers) <= deployment.generations
    )


def recomputing(deployment: Deployment) -> Deployment | None:
    """Returns the deployment as the driver of the recompute sees it; None if there is none."""
    recompute = deployment.recompute
    if recompute is None:
        return None
    schedule = deployment.schedule
    interval_s = schedule.interval_s if schedule.continuous else _REST_S
    return replace(
        deployment,
        version=recompute.version,
        generation=recompute.generation,
        schedule=Schedule(continuous=True, interval_s=interval_s),
        auto_rollback=False,
        reset_flows=[],
        backfills=[],  # It reads everything.
        recompute=None,
        kept=None,
    )


# -- changes --------------------------------------------------------------------------------------


def check_no_recompute(deployment: Deployment) -> None:
    """Raises `PipelineError` if tables are being computed again."""
    if deployment.recompute is not None:
        name, version = deployment.name, deployment.recompute.version
        raise PipelineError(
            f"{name} is being recomputed with version {version}: wait for the swap (penstock "
            f"pipeline status {name}), or cancel it first: penstock pipeline recompute {name} "
            "--cancel"
        )


def begun(old: Deployment, version: int, order: RecomputeOrder, now_ms: int) -> Deployment:
    """Begins a recompute, in a new generation."""
    check_no_recompute(old)
    if any(not each.cancelled for each in old.backfills):
        raise PipelineError(
            f"{old.name} read older records in a backfill, and recomputed tables would not have "
            "them. Restart its flows from the beginning instead: set startingOffsets=earliest, "
            "then penstock pipeline deploy --reset FLOW"
        )
    # After a deletion the last number may be unknown: so it is made from the time.
    number = max(
        old.generations + 1, int(f"{datetime.fromtimestamp(now_ms / 1000, UTC):%Y%m%d%H%M%S}")
    )
    recompute = Recompute(
        number, version, sorted(set(order.tables)), order.swap, order.keep_ms, False, now_ms
    )
    return replace(old, generations=number, recompute=recompute)


def cancelled(old: Deployment) -> Deployment:
    _recompute(old)
    return replace(old, recompute=None)


def swap_asked(old: Deployment) -> Deployment:
    """Lets the swap happen as soon as the new tables have caught up."""
    return replace(old, recompute=replace(_recompute(old), asked=True))


def swapped(old: Deployment, generation: int, now_ms: int) -> Deployment:
    """Puts the new tables in the place of the old ones. Returns the same deployment if this
    generation is not being computed any more: someone has cancelled it, or it is swapped."""
    recompute = old.recompute
    if recompute is None or recompute.generation != generation:
        return old
    kept = KeptGeneration(
        old.generation, old.version, recompute.keep_ms, now_ms + recompute.keep_ms
    )
    return replace(old, version=recompute.version, generation=generation, recompute=None, kept=kept)


def swapped_back(old: Deployment, now_ms: int) -> Deployment:
    """Puts the kept tables back, with the version that computed them. The others are kept, so that
    this can be undone."""
    check_no_recompute(old)
    if old.kept is None:
        raise PipelineError(
            f"no earlier tables of {old.name} are kept: they are there only after a swap, for the "
            "time that --keep said"
        )
    return _exchanged(old, old.kept, now_ms)


def rolled_back(old: Deployment, version: int, now_ms: int) -> Deployment:
    """Returns to an earlier version. If the tables that it computed are kept, they come with it:
    its code does not fit to the checkpoints of the others. A recompute with the version that is
    left ends: a swap would bring that version back."""
    if old.recompute is not None and old.recompute.version == old.version:
        old = replace(old, recompute=None)
    if old.kept is not None and brings_tables(old, version):
        return _exchanged(old, old.kept, now_ms)
    return replace(old, version=version)


def brings_tables(old: Deployment, version: int) -> bool:
    """Whether a return to the version also returns to the tables that it computed."""
    return old.kept is not None and old.kept.version == version


def expired(old: Deployment, now_ms: int) -> Deployment:
    """Gives up the kept tables if their time has come."""
    if old.kept is None or now_ms < old.kept.until_ms:
        return old
    return replace(old, kept=None)


def _exchanged(old: Deployment, kept: KeptGeneration, now_ms: int) -> Deployment:
    left = KeptGeneration(old.generation, old.version, kept.keep_ms, now_ms + kept.keep_ms)
    return replace(old, version=kept.version, generation=kept.generation, kept=left)


def _recompute(deployment: Deployment) -> Recompute:
    if deployment.recompute is None:
        name = deployment.name
        raise PipelineError(
            f"no recompute of {name} is in progress: see penstock pipeline status {name}"
        )
    return deployment.recompute
