"""Far records and switched schedules, while the leader loads its state again and keeps locks."""

from __future__ import annotations

from random import Random

import pytest

from penstock.shares.carried_locks import CarriedLocks
from penstock.shares.events import Event
from penstock.shares.share_partition import SharePartition
from penstock.shares.share_schedule import NO_SCHEDULE

from .test_far_model import LossyDriver, simulate

SEEDS = 300


class ReloadingDriver(LossyDriver):
    """Half of the time, the next leader is the same one."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.draws = Random(seed)
        self.kept = 0

    def fail_over(self, *, written: int = 0, truncate_to: int | None = None) -> None:
        if self.draws.random() < 0.5:
            self.carried = self.machine.locks
        super().fail_over(written=written, truncate_to=truncate_to)
        self.kept += sum(each.owner is not None for each in self.machine.spans)

    def handle(self, event: Event) -> None:
        super().handle(event)
        for span in self.machine.spans:
            if span.owner is not None:
                both = self.machine._tables.promoted.overlapping(span.first, span.last)
                assert not both, f"{span} was promoted, too: {both}"


def test_no_record_is_lost_or_comes_early_or_is_in_two_places() -> None:
    kept = 0
    for seed in range(SEEDS):
        driver = ReloadingDriver(seed)
        simulate(seed, driver)
        kept += driver.kept
    assert kept


def test_it_matters_that_the_schedule_is_carried_over(monkeypatch: pytest.MonkeyPatch) -> None:
    put_back = SharePartition.put_back

    def without_schedule(self: SharePartition, locks: CarriedLocks) -> None:
        put_back(self, locks._replace(schedule=NO_SCHEDULE))

    monkeypatch.setattr(SharePartition, "put_back", without_schedule)
    with pytest.raises(AssertionError):
        for seed in range(SEEDS):
            simulate(seed, ReloadingDriver(seed))
