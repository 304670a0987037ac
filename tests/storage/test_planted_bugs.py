"""The crash harness finds every planted bug within a fixed number of seeds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.sim.crash.case import run_case

from .planted_bugs import PLANTED

SEEDS_MAX = 600


def seeds_to_find(name: str, seeds_max: int = SEEDS_MAX) -> int | None:
    """Returns how many seeds it took, or None if the bug was not found."""
    with PLANTED[name]():
        for count in range(1, seeds_max + 1):
            if run_case(count).failure is not None:
                return count
    return None


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, record_property: Callable[[str, object], None]) -> None:
    """A case fails with the bug, and the same case passes without it."""
    found = seeds_to_find(name)
    record_property("seeds", found)
    assert found is not None, f"{name} survived {SEEDS_MAX} seeds"
    assert run_case(found).failure is None, f"seed {found} fails without {name} as well"
