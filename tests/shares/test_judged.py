"""What has passed as no duplicate stays none, whatever happens to the deduplication window."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.shares.duplicates import DuplicateFinder
from penstock.shares.judged import Judged, combined, decode

Jobs = list[tuple[bytes, int]]


def duplicates(jobs: Jobs, window_ms: int) -> set[int]:
    if window_ms <= 0:
        return set()
    finder = DuplicateFinder(window_ms)
    return {at for at, (job_id, time_ms) in enumerate(jobs) if finder.is_duplicate(job_id, time_ms)}


def missing(jobs: Jobs, judged: Judged) -> set[int]:
    """Returns what is not in an index."""
    earlier = duplicates(jobs, judged.earlier_ms)
    now = duplicates(jobs, judged.window_ms)
    return {at for at in range(len(jobs)) if at in (earlier if at < judged.earlier_end else now)}


puts = st.tuples(st.just("put"), st.sampled_from([b"a", b"b"]), st.integers(0, 60))
passes = st.tuples(st.just("pass"), st.integers(0, 1), st.integers(1, 5))
changes = st.tuples(st.just("change"), st.sampled_from([0, 30, 80]), st.just(0))


@settings(deadline=None, max_examples=500)
@given(st.sampled_from([0, 30]), st.lists(puts | passes | changes, max_size=40))
def test_nothing_that_has_passed_is_lost(
    window_ms: int, steps: list[tuple[str, bytes | int, int]]
) -> None:
    jobs: Jobs = []
    time_ms = 0
    ends, judged = [0, 0], [Judged(window_ms)] * 2
    passed: set[int] = set()
    for step in steps:
        match step:
            case ("put", bytes() as job_id, pause_ms):
                time_ms += pause_ms
                jobs.append((job_id, time_ms))
            case ("change", int() as window_ms, _):
                pass
            case ("pass", int() as group, count):
                stored = decode(judged[group].encode())
                assert stored is not None
                judged[group] = stored.changed(window_ms, ends[group])
                end = min(len(jobs), ends[group] + count)
                found = duplicates(jobs, window_ms)
                passed |= {at for at in range(ends[group], end) if at not in found}
                ends[group] = end
    judged = [each.changed(window_ms, end) for each, end in zip(judged, ends, strict=True)]
    assert not passed & missing(jobs, combined(judged))


def test_a_setting_that_does_not_change_finds_all_duplicates() -> None:
    jobs = [(b"a", 0), (b"a", 1), (b"b", 2), (b"a", 200)]
    assert missing(jobs, Judged(100).changed(100, 2)) == {1}


def test_records_that_follow_a_change_are_judged_by_the_new_setting() -> None:
    jobs = [(b"a", 0), (b"a", 1), (b"a", 2)]
    assert missing(jobs, Judged(0).changed(100, 2)) == {2}
    assert missing(jobs, Judged(0).changed(100, 2).changed(0, 3)) == set()
    assert missing(jobs, Judged(0).changed(100, 1).changed(50, 3)) == {1, 2}


def test_nothing_is_known_of_a_state_without_far_records() -> None:
    assert decode(b"") is None
