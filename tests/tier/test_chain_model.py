"""Leaders, zombies and collectors crash and stall at any step, on a store that fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.tier import chain, collector, commit, edits, rebuild, upload
from penstock.tier.chain import Boundary, View
from penstock.tier.edits import Append, ClaimPartition, Edit
from penstock.tier.errors import AlreadyExists, NotFound, OutcomeUnknown, TierError
from penstock.tier.keys import Claim, manifest_key
from penstock.tier.manifest import Dropped, Manifest, Section
from penstock.tier.manifest_format import decode_manifest, encode_manifest
from penstock.tier.requests import Procedure, create, read

from .chain_world import LIMITS, ChainWorld, Leadership
from .object_samples import sample_object

Patch = pytest.MonkeyPatch
BUG_SEEDS = 400

STEPS = 700
SEEDS = 40


def run(random: Random, steps: int = STEPS) -> ChainWorld:
    world = ChainWorld(random, partitions=random.choice((1, 2, 3)))
    for _ in range(steps):
        world.step()
    world.settle()
    world.oracle.check_nothing_leaks()
    return world


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.integers(50, STEPS))
def test_nothing_committed_is_lost_and_nothing_leaks(seed: int, steps: int) -> None:
    run(Random(seed), steps)


def test_everything_that_can_happen_does_happen() -> None:
    counts: dict[str, int] = {}
    for seed in range(SEEDS):
        world = run(Random(seed))
        found = {**world.counts, **world.bucket.counts}
        found["late_creates"] = world.oracle.late_creates
        for name, times in found.items():
            counts[name] = counts.get(name, 0) + times
    wanted = "crashes elections stalls late_requests late_requests_refused lost_answers"
    edits = "Append Replace DeleteBefore TruncateTo fenced OutcomeUnknown Overtaken"
    collected = "rounds failed_rounds deleted_man deleted_seg deleted_sub late_listing late_creates"
    others = "repeated_by_client more_collectors duplicates renewals"
    names = f"{wanted} {edits} {collected} {others}".split()
    assert {name for name in names if not counts.get(name)} == set()


# Planted bugs


def _boundary_is_not_checked(patch: Patch) -> None:
    """A commit does not look whether the boundary has passed it."""

    def trusting(view: View, manifest: Manifest) -> Procedure[View]:
        yield from ()
        return View(manifest, view.boundary)

    patch.setattr(commit, "confirmed", trusting)


def _boundary_is_not_stored(patch: Patch) -> None:
    """Manifests are deleted before the boundary is stored."""

    def hasty(view: View, manifests: Any, until_ms: int) -> Procedure[Boundary]:
        yield from ()
        old = [seq for seq, info in manifests if seq <= view.seq and info.modified_ms <= until_ms]
        return Boundary(view.boundary.number, max([view.boundary.floor, *old]))

    patch.setattr(collector, "_raise_boundary", hasty)


def _place_believing(*believed: type[TierError]) -> Any:
    def place(manifest: Manifest) -> Procedure[bool]:
        key = manifest_key(manifest.chain, manifest.seq)
        try:
            yield from create(key, encode_manifest(manifest))
        except (AlreadyExists, OutcomeUnknown) as error:
            if isinstance(error, believed):
                return True
            try:
                found = yield from read(key)
            except NotFound:
                return False
            return decode_manifest(found, manifest.chain, manifest.seq).id == manifest.id
        return True

    return place


def _existing_manifest_taken_for_own(patch: Patch) -> None:
    """A manifest that exists already is taken for one's own, from a create without an answer."""
    patch.setattr(commit, "place", _place_believing(AlreadyExists))


def _lost_answer_taken_for_success(patch: Patch) -> None:
    """A create without an answer counts as done."""
    patch.setattr(commit, "place", _place_believing(OutcomeUnknown))


def _claim_is_not_checked(patch: Patch) -> None:
    """A leader that has lost a number applies its edit to the manifest of its successor."""
    patch.setattr(edits, "_own", lambda section, owner, claim: section)


def _claim_is_not_written(patch: Patch) -> None:
    """A new leader goes on under the claim of the last one, without a manifest of its own."""
    original = commit.claim

    def silent(view: View, owner: Any, *args: Any, **rest: Any) -> Procedure[Any]:
        section = view.manifest.sections.get(owner)
        if section is not None:
            return view, section.claim
        return (yield from original(view, owner, *args, **rest))

    patch.setattr(commit, "claim", silent)


def _older_leader_may_claim(patch: Patch) -> None:
    """The leader epoch of a claim is not compared."""

    def claimed(self: ClaimPartition, section: Section | None, _: int) -> Section:
        if section is None:
            return Section(self.owner, self.claim, self.start_offset, self.start_offset)
        return edits.replaced(section, claim=self.claim)

    patch.setattr(ClaimPartition, "apply", claimed)


def _uploads_in_progress_are_collected(patch: Patch) -> None:
    """The collector goes by age and sightings alone, and not by the claim."""
    patch.setattr(collector, "_is_out_of_reach", lambda key, view: True)


def _history_is_collected(patch: Patch) -> None:
    """The collector keeps only what the newest manifest names."""
    original = collector.needed_keys
    patch.setattr(collector, "needed_keys", lambda view, floor: original(view, 1 << 60))


def _sub_manifests_are_not_read(patch: Patch) -> None:
    """The collector does not look into sub-manifests."""

    def shallow(section: Section) -> Procedure[set[str]]:
        yield from ()
        return {item.key for item in section.items}

    patch.setattr(collector, "_named_now", shallow)


def _dropped_lists_are_not_read(patch: Patch) -> None:
    """The collector does not look into lists of dropped keys, and dropped sub-manifests."""

    def shallow(dropped: Dropped) -> Procedure[set[str]]:
        yield from ()
        return {dropped.key}

    patch.setattr(collector, "_named_before", shallow)


def _dropped_keys_are_forgotten(patch: Patch) -> None:
    """A manifest forgets what it has dropped, while older manifests count."""
    original = commit._pruned
    patch.setattr(commit, "_pruned", lambda section, floor: original(section, floor + 5))


def _uploads_are_not_verified(patch: Patch) -> None:
    """An upload without an answer counts as done."""

    def trusting(key: str, encoded: Any) -> Procedure[bool]:
        yield from ()
        return True

    patch.setattr(upload, "_is_stored", trusting)


def _sub_manifests_are_not_verified(patch: Patch) -> None:
    """The manifest is written even if it is unknown whether its sub-manifest is there."""

    def hasty(objects: Any) -> Procedure[None]:
        for each in objects:
            try:
                yield from create(each.key, each.data)
            except (AlreadyExists, OutcomeUnknown):
                continue

    patch.setattr(commit, "_write_sub_objects", hasty)


def _old_sections_in_a_new_number(patch: Patch) -> None:
    """A writer that has lost a number takes the next one, without what the winner has changed."""
    original = chain.find

    def find(name: str, known: View | None = None) -> Procedure[View]:
        view = yield from original(name, known)
        if known is None:
            return view
        return View(replace(view.manifest, sections=known.manifest.sections), view.boundary)

    patch.setattr(commit, "find", find)


def _boundary_is_read_only_once(patch: Patch) -> None:
    """A search for the newest manifest does not look at the boundary again."""
    original = chain.find_boundary
    calls: dict[str, int] = {}

    def once(name: str, known: Boundary) -> Procedure[Boundary]:
        calls[name] = calls.get(name, 0) + 1
        if known.number:
            yield from ()
            return known
        return (yield from original(name, known))

    patch.setattr(chain, "find_boundary", once)


def _objects_before_the_claim(patch: Patch) -> None:
    """A new leader uploads first, and commits its claim and the object together."""

    def hasty(self: ChainWorld, view: View, leadership: Leadership) -> Procedure[View]:
        owner, new = leadership.owner, Claim(leadership.epoch, self.draw(8).hex())
        section = view.manifest.sections.get(owner)
        wanted: list[Edit] = [ClaimPartition(owner, new)]
        if section is not None:
            end = section.end_offset + 1
            self.log_end[owner] = max(self.log_end[owner], end)
            encoded = sample_object(section.end_offset, end, owner, 1)
            wanted.append(
                Append(owner, new, ((yield from upload.upload(encoded, new, self.draw)),))
            )
        done = yield from commit.commit(view, wanted, self.now_ms, self.draw, limits=LIMITS)
        if done.refused[0] is not None:
            raise done.refused[0]
        leadership.claim = new
        return done.view

    patch.setattr(commit, "_may_write_objects", lambda view, section: True)
    patch.setattr(ChainWorld, "_claim", hasty)


def _history_is_cut_short(patch: Patch) -> None:
    """The boundary is raised beyond the newest manifest that is older than the history."""
    original = collector._raise_boundary
    patch.setattr(
        collector,
        "_raise_boundary",
        lambda view, manifests, until_ms: original(view, manifests, until_ms + 20),
    )


def _collector_searches_before_it_lists(patch: Patch) -> None:
    """The collector compares its listing with a manifest that is older than the listing."""
    original = chain.find
    found: list[View] = []

    def first_only(name: str, known: View | None = None) -> Procedure[View]:
        if known is not None and any(known is each for each in found):
            return known
        view = yield from original(name, known)
        found.append(view)
        return view

    patch.setattr(collector, "find", first_only)


def _truncation_forgets_what_it_drops(patch: Patch) -> None:
    """Objects that a truncation removes are not in `dropped`."""
    original = edits.TruncateTo.apply

    def forgetful(self: edits.TruncateTo, section: Section | None, seq: int) -> Section:
        after = original(self, section, seq)
        return after if section is None else edits.replaced(after, dropped=section.dropped)

    patch.setattr(edits.TruncateTo, "apply", forgetful)


def _dropped_one_manifest_early(patch: Patch) -> None:
    """Dropped keys are forgotten while the last manifest that names them counts."""
    original = edits._dropped
    patch.setattr(edits, "_dropped", lambda items, seq: original(items, seq - 1))


def _renewals_are_not_checked(patch: Patch) -> None:
    """A fenced process takes the partition back from another one of its leader epoch."""
    original = ClaimPartition.apply

    def anyone(self: ClaimPartition, section: Section | None, seq: int) -> Section:
        return original(self._replace(renews=()), section, seq)

    patch.setattr(ClaimPartition, "apply", anyone)


def _rebuilt_manifest_forgets_the_history(patch: Patch) -> None:
    """A manifest that was built again has nothing in `dropped`."""
    original = rebuild._section
    patch.setattr(
        rebuild,
        "_section",
        lambda owner, leader, entries, dropped: original(owner, leader, entries, ()),
    )


BUGS: list[Callable[[Patch], None]] = [
    _boundary_is_not_checked,
    _boundary_is_not_stored,
    _existing_manifest_taken_for_own,
    _lost_answer_taken_for_success,
    _claim_is_not_checked,
    _claim_is_not_written,
    _older_leader_may_claim,
    _uploads_in_progress_are_collected,
    _history_is_collected,
    _sub_manifests_are_not_read,
    _dropped_lists_are_not_read,
    _dropped_keys_are_forgotten,
    _uploads_are_not_verified,
    _sub_manifests_are_not_verified,
    _old_sections_in_a_new_number,
    _boundary_is_read_only_once,
    _objects_before_the_claim,
    _history_is_cut_short,
    _collector_searches_before_it_lists,
    _truncation_forgets_what_it_drops,
    _dropped_one_manifest_early,
    _renewals_are_not_checked,
    _rebuilt_manifest_forgets_the_history,
]


@pytest.mark.parametrize("plant", BUGS)
def test_a_planted_bug_is_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    for seed in range(BUG_SEEDS):
        try:
            run(Random(seed))
        except (AssertionError, TierError):
            return
    pytest.fail(f"{BUG_SEEDS} seeds did not find it: {plant.__doc__}")
