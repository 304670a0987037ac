"""The collector: what it deletes, when, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from penstock.tier.chain import find, find_boundary
from penstock.tier.collector import DAY_MS, HOUR_MS, CollectorSettings, Round, collect
from penstock.tier.commit import commit_one
from penstock.tier.edits import Append, DeleteBefore
from penstock.tier.errors import NotFound, OutcomeUnknown
from penstock.tier.keys import SEGMENTS, Claim, DataKey, manifest_key
from penstock.tier.requests import Create, List, Request

from .object_samples import OWNER
from .procedure_runner import Answer
from .test_commit import CHAIN, Chain

SETTINGS = CollectorSettings()


class Collected(Chain):
    def round(self, sightings: Mapping[str, int], answer: Answer | None = None) -> Round:
        now_ms = self.bucket.now_ms
        return self.run(collect(CHAIN, sightings, now_ms, SETTINGS), answer)

    def wait(self, milliseconds: int) -> None:
        self.bucket.now_ms += milliseconds

    def numbers(self) -> list[int]:
        return [int(key[-20:]) for key in sorted(self.bucket.objects) if key.startswith("man/")]


@pytest.fixture
def chain() -> Collected:
    return Collected()


def orphan(chain: Chain) -> str:
    """Returns an object of a leader that crashed before it could commit it."""
    key = str(DataKey(SEGMENTS, OWNER, 0, Claim(0, "0" * 16), "1" * 16))
    chain.bucket.put(key, b"x")
    return key


def test_an_orphan_is_deleted_when_it_is_seen_the_second_time(chain: Collected) -> None:
    key = orphan(chain)
    chain.wait(2 * DAY_MS)
    first = chain.round({})
    assert (first.sightings, first.deleted) == ({key: chain.bucket.now_ms}, [])
    chain.wait(HOUR_MS - 1)
    early = chain.round(first.sightings)
    assert (early.sightings, early.deleted) == (first.sightings, [])
    chain.wait(1)
    second = chain.round(early.sightings)
    assert (second.sightings, second.deleted) == ({}, [key])
    assert key not in chain.bucket.objects


def test_an_orphan_is_deleted_only_at_its_age(chain: Collected) -> None:
    key = orphan(chain)
    sightings = chain.round({}).sightings
    chain.wait(DAY_MS - 1)
    found = chain.round(sightings)
    assert found.deleted == []
    chain.wait(1)
    assert chain.round(found.sightings).deleted == [key]


def test_uploads_of_the_current_claim_are_left_alone_whatever_their_age(chain: Collected) -> None:
    """The leader may have stalled, and may commit them any time."""
    entry = chain.uploaded(0, 5)
    for _ in range(3):
        chain.wait(30 * DAY_MS)
        assert chain.round({}).sightings == {}
    edit = Append(OWNER, chain.claim, (entry,))
    chain.run(commit_one(chain.view, edit, 0, chain.draw))


def test_what_a_leader_did_not_commit_is_collected_when_its_claim_ends(chain: Collected) -> None:
    entry = chain.uploaded(0, 5)
    chain.claimed(1)
    chain.wait(2 * DAY_MS)
    sightings = chain.round({}).sightings
    assert set(sightings) == {entry.key}


def test_deleted_records_stay_as_long_as_the_history(chain: Collected) -> None:
    chain.append(0, 5, 9)
    key = chain.section.items[0].key
    chain.wait(DAY_MS)
    chain.edit(DeleteBefore(OWNER, chain.claim, 5))
    chain.claim = chain.claimed(2)
    sightings: Mapping[str, int] = {}
    for _ in range(5):
        chain.wait(DAY_MS)
        sightings = chain.round(sightings).sightings
        assert key in chain.bucket.objects
    for _ in range(4):
        chain.wait(DAY_MS)
        sightings = chain.round(sightings).sightings
    assert key not in chain.bucket.objects


def test_the_newest_manifest_older_than_the_history_is_kept(chain: Collected) -> None:
    """Every time in the history has a manifest."""
    for start in range(4):
        chain.wait(3 * DAY_MS)
        chain.append(start, start + 1)
    assert chain.numbers() == [1, 2, 3, 4, 5]
    found = chain.round({})
    assert found.view.boundary == (1, 2)
    assert chain.numbers() == [2, 3, 4, 5]
    chain.wait(100 * DAY_MS)
    chain.round({})
    assert chain.numbers() == [5]


def test_the_boundary_is_stored_before_manifests_are_deleted(chain: Collected) -> None:
    chain.append(*range(5))
    chain.wait(100 * DAY_MS)

    def without_boundary(request: Request) -> object:
        if isinstance(request, Create):
            raise OutcomeUnknown("no answer")
        return chain.answer(request)

    chain.round({}, without_boundary)
    assert chain.numbers() == [1, 2, 3, 4, 5]
    chain.round({})
    assert chain.numbers() == [5]


def test_a_collector_that_is_late_does_not_lower_the_boundary(chain: Collected) -> None:
    """It had decided on a boundary, and stalled. Another one was faster."""
    chain.append(*range(5))
    chain.wait(100 * DAY_MS)

    def stalled(request: Request) -> object:
        if isinstance(request, Create):
            chain.append(*range(4, 9))
            chain.wait(100 * DAY_MS)
            chain.round({})
        return chain.answer(request)

    chain.round({}, stalled)
    found = chain.run(find(CHAIN))
    assert found.boundary == (1, 9)
    assert chain.numbers() == [9]


def test_objects_that_are_committed_after_the_listing_are_needed(chain: Collected) -> None:
    """The collector reads the manifest after the listing."""
    entry = chain.uploaded(0, 5)
    chain.wait(2 * DAY_MS)
    sightings = {entry.key: 0}

    def answer(request: Request) -> object:
        found = chain.answer(request)
        if isinstance(request, List) and chain.view.seq == 1:
            chain.append(0, 5)
            chain.claimed(3)
        return found

    found = chain.round(sightings, answer)
    assert chain.section.items[0].key in chain.bucket.objects
    assert found.deleted == [entry.key]


def test_objects_of_branches_are_kept(chain: Collected) -> None:
    key = orphan(chain)
    chain.wait(9 * DAY_MS)
    found = chain.run(collect(CHAIN, {key: 0}, chain.bucket.now_ms, SETTINGS, keep=[key]))
    assert (found.sightings, found.deleted) == ({}, [])


def test_names_that_are_not_ours_are_left_alone(chain: Collected) -> None:
    names = [f"seg/{OWNER}/readme.txt", f"man/{CHAIN}/readme.txt", "other/file"]
    for name in names:
        chain.bucket.put(name, b"x")
    chain.wait(100 * DAY_MS)
    assert chain.round(dict.fromkeys(names, 0)).deleted == []
    assert set(names) < set(chain.bucket.objects)


def test_a_damaged_bucket_is_not_collected(chain: Collected) -> None:
    """A round that cannot read everything it needs deletes no objects."""
    chain.append(*range(20))
    orphaned = chain.uploaded(50, 51).key
    chain.claimed(2)
    broken = next(key for key in chain.bucket.objects if key.startswith("sub/"))
    del chain.bucket.objects[broken]
    chain.wait(2 * DAY_MS)
    with pytest.raises(NotFound):
        chain.round({orphaned: 0})
    assert orphaned in chain.bucket.objects


def test_the_boundary_is_found_with_one_request_if_it_is_known(chain: Collected) -> None:
    chain.append(*range(5))
    chain.wait(100 * DAY_MS)
    boundary = chain.round({}).view.boundary
    chain.asked.clear()
    assert chain.run(find_boundary(CHAIN, boundary)) == boundary
    assert len(chain.asked) == 1
    assert manifest_key(CHAIN, boundary.floor) in chain.bucket.objects
