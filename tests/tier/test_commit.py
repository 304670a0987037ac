"""Commits: claims, edits, lost answers, lost numbers, sub-manifests, the boundary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from penstock.tier.chain import View, find
from penstock.tier.collector import CollectorSettings, collect, needed_keys
from penstock.tier.commit import claim, commit, commit_one
from penstock.tier.edits import (
    Append,
    ClaimPartition,
    DeleteBefore,
    Edit,
    Replace,
    TruncateTo,
)
from penstock.tier.errors import (
    AlreadyExists,
    CorruptObject,
    EditRefused,
    Fenced,
    OutcomeUnknown,
    Overtaken,
    Refused,
    Throttled,
)
from penstock.tier.keys import Claim, TopicIdPartition, manifest_key, parse_data_key
from penstock.tier.manifest import Entry, Section, SubManifest
from penstock.tier.manifest_format import decode_entries
from penstock.tier.requests import Create, Head, Read, ReadRange, Request
from penstock.tier.spill import SpillLimits
from penstock.tier.upload import upload

from .object_samples import OWNER, TOPIC_ID, sample_object
from .procedure_runner import Runner

CHAIN = "shared/0"
OTHER = TopicIdPartition(TOPIC_ID, 1)
LIMITS = SpillLimits(entries_max=8, dropped_max=8, sub_manifest_entries_max=4)


class Chain(Runner):
    """A leader on a chain."""

    def __init__(self) -> None:
        super().__init__()
        self.view = self.run(find(CHAIN))
        self.claim = self.claimed(1)

    def claimed(self, epoch: int, owner: TopicIdPartition = OWNER) -> Claim:
        self.view, new = self.run(claim(self.view, owner, epoch, 0, self.draw, limits=LIMITS))
        return new

    def uploaded(self, start: int, end: int, owner: TopicIdPartition = OWNER) -> Entry:
        return self.run(upload(sample_object(start, end, owner), self.claim, self.draw))

    def append(self, *bounds: int) -> None:
        for start, end in pairwise(bounds):
            edit = Append(OWNER, self.claim, (self.uploaded(start, end),))
            self.view = self.run(commit_one(self.view, edit, 0, self.draw, limits=LIMITS))

    def edit(self, edit: DeleteBefore | Replace | TruncateTo) -> None:
        self.view = self.run(commit_one(self.view, edit, 0, self.draw, limits=LIMITS))

    @property
    def section(self) -> Section:
        return self.view.manifest.sections[OWNER]

    def ranges(self) -> list[tuple[int, int]]:
        """What the manifest covers, with the entries of sub-manifests."""
        found: list[tuple[int, int]] = []
        for item in self.section.items:
            entries: Sequence[Entry] = [item] if isinstance(item, Entry) else self.entries(item)
            found += [(each.base_offset, each.end_offset) for each in entries]
        return found

    def entries(self, item: SubManifest) -> Sequence[Entry]:
        return decode_entries(self.bucket.objects[item.key], item)


@pytest.fixture
def chain() -> Chain:
    return Chain()


# Claims


def test_a_new_chain_begins_with_the_claim() -> None:
    chain = Chain()
    assert chain.view.seq == 1
    assert chain.section.claim == chain.claim
    assert chain.run(find(CHAIN)) == chain.view


def test_the_older_leader_is_fenced_by_the_claim_of_the_newer_one(chain: Chain) -> None:
    old = (chain.view, chain.claim, chain.uploaded(0, 5))
    chain.claim = chain.claimed(2)
    view, claimed, entry = old
    with pytest.raises(Fenced, match="the partition is now claimed by leader epoch 2"):
        chain.run(commit_one(view, Append(OWNER, claimed, (entry,)), 0, chain.draw))
    assert chain.run(find(CHAIN)) == chain.view


def test_an_older_leader_epoch_cannot_claim(chain: Chain) -> None:
    chain.claim = chain.claimed(5)
    with pytest.raises(Fenced, match="leader epoch 4 is older than 5"):
        chain.claimed(4)
    chain.claimed(5)


def test_a_leader_commits_only_what_it_has_uploaded_itself(chain: Chain) -> None:
    """The collector may delete the objects of other claims."""
    entry = chain.uploaded(0, 5)
    renewed = chain.claimed(1)
    with pytest.raises(EditRefused, match="under the claim of this leader"):
        chain.run(commit_one(chain.view, Append(OWNER, renewed, (entry,)), 0, chain.draw))


def test_a_claim_and_its_objects_are_never_one_commit(chain: Chain) -> None:
    """The collector knows only claims that are committed: it could take the objects for orphans
    while the leader is stalled before its commit."""
    new = Claim(2, "2" * 16)
    entry = chain.run(upload(sample_object(0, 5), new, chain.draw))
    edits: list[Edit] = [ClaimPartition(OWNER, new), Append(OWNER, new, (entry,))]
    done = chain.run(commit(chain.view, edits, 0, chain.draw))
    assert [type(each) for each in done.refused] == [type(None), EditRefused]
    assert done.view.manifest.sections[OWNER].items == ()


def test_a_claim_does_not_spill(chain: Chain) -> None:
    """For the same reason. The next change of the partition does."""
    for start in range(20):
        edit = Append(OWNER, chain.claim, (chain.uploaded(start, start + 1),))
        chain.view = chain.run(commit_one(chain.view, edit, 0, chain.draw))
    chain.asked.clear()
    chain.claim = chain.claimed(2)
    assert all(key.startswith("man/") for key in chain.created())
    chain.append(20, 21)
    assert isinstance(chain.section.items[0], SubManifest)
    assert chain.ranges() == [(each, each + 1) for each in range(21)]


# Edits


def test_appends_must_continue_the_partition(chain: Chain) -> None:
    chain.append(0, 5, 9)
    assert chain.ranges() == [(0, 5), (5, 9)]
    for start in (8, 10):
        with pytest.raises(EditRefused, match="ends at 9"):
            chain.append(start, 20)
    with pytest.raises(EditRefused, match="nothing to commit"):
        chain.run(commit_one(chain.view, Append(OWNER, chain.claim, ()), 0, chain.draw))
    gap = (chain.uploaded(9, 11), chain.uploaded(12, 14))
    with pytest.raises(EditRefused, match="does not begin at 11"):
        chain.run(commit_one(chain.view, Append(OWNER, chain.claim, gap), 0, chain.draw))


def test_an_append_that_is_there_already_is_not_made_twice(chain: Chain) -> None:
    """The leader had no answer, and tries again."""
    edit = Append(OWNER, chain.claim, (chain.uploaded(0, 5),))
    chain.view = chain.run(commit_one(chain.view, edit, 0, chain.draw))
    again = chain.run(commit_one(chain.view, edit, 0, chain.draw))
    assert again == chain.view


def test_retention_drops_whole_objects_and_raises_the_start(chain: Chain) -> None:
    chain.append(0, 5, 9, 12)
    chain.edit(DeleteBefore(OWNER, chain.claim, 7))
    assert (chain.section.start_offset, chain.ranges()) == (7, [(5, 9), (9, 12)])
    chain.edit(DeleteBefore(OWNER, chain.claim, 3))
    assert chain.section.start_offset == 7
    chain.edit(DeleteBefore(OWNER, chain.claim, 12))
    assert (chain.section.start_offset, chain.section.end_offset) == (12, 12)
    chain.append(12, 13)
    with pytest.raises(EditRefused, match="cannot delete up to 14"):
        chain.edit(DeleteBefore(OWNER, chain.claim, 14))


def test_compaction_replaces_a_range_exactly(chain: Chain) -> None:
    chain.append(0, 5, 9, 12)
    chain.edit(Replace(OWNER, chain.claim, (chain.uploaded(0, 9),)))
    assert chain.ranges() == [(0, 9), (9, 12)]
    assert len(chain.section.dropped) == 2
    with pytest.raises(EditRefused, match="no objects cover exactly"):
        chain.edit(Replace(OWNER, chain.claim, (chain.uploaded(2, 9),)))
    with pytest.raises(EditRefused, match="no objects cover exactly"):
        chain.edit(Replace(OWNER, chain.claim, (chain.uploaded(12, 15),)))


@pytest.mark.parametrize(
    ("end", "start", "left"),
    [
        (12, 0, [(0, 5), (5, 9), (9, 12)]),
        (9, 0, [(0, 5), (5, 9)]),
        (7, 0, [(0, 5), (5, 7)]),
        (0, 0, []),
        (7, 6, [(5, 7)]),
        (6, 6, []),
        (5, 6, []),
        (2, 6, []),
    ],
)
def test_a_truncation_keeps_what_is_below(
    chain: Chain, end: int, start: int, left: list[tuple[int, int]]
) -> None:
    chain.append(0, 5, 9, 12)
    chain.edit(DeleteBefore(OWNER, chain.claim, start))
    chain.edit(TruncateTo(OWNER, chain.claim, end))
    assert chain.ranges() == left
    assert (chain.section.start_offset, chain.section.end_offset) == (min(start, end), end)
    chain.append(end, end + 3)


def test_edits_of_several_partitions_are_one_manifest(chain: Chain) -> None:
    """An edit that is refused does not stop the others."""
    own = chain.claim
    chain.claim = theirs = chain.claimed(1, OTHER)
    there = Append(OTHER, theirs, (chain.uploaded(0, 3, OTHER),))
    fenced = Append(OWNER, Claim(0, "0" * 16), ())
    chain.claim = own
    here = Append(OWNER, own, (chain.uploaded(0, 5),))
    done = chain.run(commit(chain.view, [here, fenced, there], 0, chain.draw))
    assert done.view.seq == chain.view.seq + 1
    assert [type(each) for each in done.refused] == [type(None), Fenced, type(None)]
    assert {section.end_offset for section in done.view.manifest.sections.values()} == {5, 3}


def test_writers_of_a_shared_chain_keep_the_changes_of_each_other(chain: Chain) -> None:
    own, stale = chain.claim, chain.view
    chain.claim = chain.claimed(1, OTHER)
    entry = chain.uploaded(0, 3, OTHER)
    chain.view = chain.run(
        commit_one(chain.view, Append(OTHER, chain.claim, (entry,)), 0, chain.draw)
    )
    chain.claim, chain.view = own, stale
    chain.append(0, 5)
    assert chain.view.manifest.sections[OTHER].end_offset == 3
    assert chain.section.end_offset == 5


# Answers


Fault = Callable[[Chain, Create], object]


def _lost_after(chain: Chain, request: Create) -> object:
    chain.answer(request)
    raise OutcomeUnknown("no answer")


def _lost_before(chain: Chain, request: Create) -> object:
    raise OutcomeUnknown("no answer")


def _repeated(chain: Chain, request: Create) -> object:
    chain.answer(request)
    raise AlreadyExists("exists")


def _conflict(chain: Chain, request: Create) -> object:
    raise AlreadyExists("conflict, and nothing is there")


@pytest.mark.parametrize("fault", [_lost_after, _lost_before, _repeated, _conflict])
def test_a_commit_survives_any_answer_to_its_create(chain: Chain, fault: Fault) -> None:
    """Each create of a manifest is answered wrongly the first time."""
    seen: set[str] = set()

    def answer(request: Request) -> object:
        if isinstance(request, Create) and request.key not in seen:
            seen.add(request.key)
            return fault(chain, request)
        return chain.answer(request)

    entry = chain.run(upload(sample_object(0, 5), chain.claim, chain.draw), answer)
    edit = Append(OWNER, chain.claim, (entry,))
    view = chain.run(commit_one(chain.view, edit, 0, chain.draw), answer)
    assert view.seq == 2
    assert chain.run(find(CHAIN)) == view


def test_a_commit_without_any_answer_is_reported_as_unknown(chain: Chain) -> None:
    def silence(request: Request) -> object:
        if isinstance(request, Create):
            raise OutcomeUnknown("no answer")
        return chain.answer(request)

    edit = Append(OWNER, chain.claim, (chain.uploaded(0, 5),))
    with pytest.raises(OutcomeUnknown, match="unknown whether manifest 2"):
        chain.run(commit_one(chain.view, edit, 0, chain.draw), silence)


def test_throttling_after_a_lost_answer_is_not_reported_as_no_change(chain: Chain) -> None:
    def answer(request: Request) -> object:
        if isinstance(request, Create):
            raise OutcomeUnknown("no answer")
        if isinstance(request, Read):
            raise Throttled("slow down")
        return chain.answer(request)

    edit = Append(OWNER, chain.claim, (chain.uploaded(0, 5),))
    with pytest.raises(OutcomeUnknown):
        chain.run(commit_one(chain.view, edit, 0, chain.draw), answer)


@pytest.mark.parametrize("error", [Throttled, Refused])
def test_a_create_that_is_refused_changes_nothing(chain: Chain, error: type[Exception]) -> None:
    def answer(request: Request) -> object:
        if isinstance(request, Create):
            raise error("no")
        return chain.answer(request)

    edit = Append(OWNER, chain.claim, (chain.uploaded(0, 5),))
    with pytest.raises(error):
        chain.run(commit_one(chain.view, edit, 0, chain.draw), answer)
    assert chain.run(find(CHAIN)) == chain.view


def test_a_commit_counts_only_after_the_boundary_was_read(chain: Chain) -> None:
    """If it cannot be read, the outcome is unknown, although the manifest was created."""

    def answer(request: Request) -> object:
        if isinstance(request, Head) and request.key.startswith("bnd/"):
            raise Throttled("slow down")
        return chain.answer(request)

    edit = Append(OWNER, chain.claim, (chain.uploaded(0, 5),))
    with pytest.raises(OutcomeUnknown):
        chain.run(commit_one(chain.view, edit, 0, chain.draw), answer)
    assert chain.run(find(CHAIN)).seq == 2


def test_a_writer_that_was_stalled_for_weeks_does_not_commit(chain: Chain) -> None:
    """Its number was used, and deleted by the collector."""
    stale, edit = chain.view, Append(OWNER, chain.claim, (chain.uploaded(0, 5),))
    chain.claim = chain.claimed(2)
    chain.append(*range(12))
    chain.bucket.now_ms = 1 << 40
    settings = CollectorSettings()
    chain.run(collect(CHAIN, {}, chain.bucket.now_ms, settings))
    assert manifest_key(CHAIN, 2) not in chain.bucket.objects
    with pytest.raises(Overtaken, match="was stalled for too long"):
        chain.run(commit_one(stale, edit, 0, chain.draw))
    assert manifest_key(CHAIN, 2) in chain.bucket.objects
    found = chain.run(find(CHAIN))
    assert found.manifest == chain.view.manifest
    chain.run(collect(CHAIN, {}, chain.bucket.now_ms, settings))
    assert manifest_key(CHAIN, 2) not in chain.bucket.objects


def test_a_manifest_that_something_else_has_deleted_is_reported(chain: Chain) -> None:
    chain.append(*range(5))
    known = chain.view
    del chain.bucket.objects[manifest_key(CHAIN, known.seq)]
    with pytest.raises(CorruptObject, match="something other than Penstock deleted it"):
        chain.run(find(CHAIN, known))


def test_an_upload_that_is_damaged_on_its_way_is_not_committed(chain: Chain) -> None:
    def answer(request: Request) -> object:
        if isinstance(request, Create):
            cut = b"".join(request.data)[:-1]
            chain.bucket.put(request.key, cut)
            return None
        return chain.answer(request)

    with pytest.raises(CorruptObject, match="differ from the 564 bytes that were sent"):
        chain.run(upload(sample_object(0, 5), chain.claim, chain.draw), answer)


def test_an_upload_of_a_fenced_leader_may_be_collected_while_it_is_verified(chain: Chain) -> None:
    """The leader finds out when it commits. The upload itself does not fail."""
    deleted: list[str] = []

    def answer(request: Request) -> object:
        if isinstance(request, ReadRange) and not deleted:
            deleted.append(request.key)
            del chain.bucket.objects[request.key]
        return chain.answer(request)

    entry = chain.run(upload(sample_object(0, 5), chain.claim, chain.draw), answer)
    assert deleted == [entry.key]
    assert entry.key in chain.bucket.objects


# Sub-manifests


def test_old_entries_spill_and_nothing_is_lost(chain: Chain) -> None:
    chain.append(*range(40))
    assert chain.ranges() == [(each, each + 1) for each in range(39)]
    assert len(chain.section.items) < 20
    assert sum(isinstance(item, Entry) for item in chain.section.items) <= LIMITS.entries_max
    largest = [each for each in chain.section.items if isinstance(each, SubManifest)]
    assert all(each.entry_count <= LIMITS.sub_manifest_entries_max for each in largest)


@pytest.mark.parametrize("start", range(0, 40, 3))
def test_retention_reaches_into_sub_manifests(chain: Chain, start: int) -> None:
    chain.append(*range(40))
    chain.edit(DeleteBefore(OWNER, chain.claim, start))
    assert chain.ranges() == [(each, each + 1) for each in range(start, 39)]


@pytest.mark.parametrize("end", range(0, 40, 3))
def test_truncations_reach_into_sub_manifests(chain: Chain, end: int) -> None:
    chain.append(*range(40))
    chain.edit(TruncateTo(OWNER, chain.claim, end))
    assert chain.ranges() == [(each, each + 1) for each in range(end)]


@pytest.mark.parametrize(("start", "end"), [(0, 39), (1, 2), (3, 17), (16, 17), (30, 39)])
def test_compaction_reaches_into_sub_manifests(chain: Chain, start: int, end: int) -> None:
    chain.append(*range(40))
    chain.edit(Replace(OWNER, chain.claim, (chain.uploaded(start, end),)))
    before = [(each, each + 1) for each in range(start)]
    assert chain.ranges() == [*before, (start, end), *((at, at + 1) for at in range(end, 39))]


def test_all_that_was_dropped_is_known_while_the_history_lasts(chain: Chain) -> None:
    """Also if the list of it has spilled."""
    chain.append(*range(40))
    for start in range(1, 38):
        chain.edit(DeleteBefore(OWNER, chain.claim, start))
    objects = {key for key in chain.bucket.objects if parse_data_key(key)}
    assert chain.run(needed_keys(chain.view, 1)) == objects
    assert len(chain.section.dropped) < 30


def test_a_sub_manifest_that_was_replaced_meanwhile_is_not_needed(chain: Chain) -> None:
    """A writer with an old view reads the newest manifest and goes on."""
    chain.append(*range(20))
    stale = chain.view
    chain.edit(DeleteBefore(OWNER, chain.claim, 19))
    for item in stale.manifest.sections[OWNER].items:
        if isinstance(item, SubManifest):
            del chain.bucket.objects[item.key]
    edit = DeleteBefore(OWNER, chain.claim, 2)
    assert chain.run(commit_one(stale, edit, 0, chain.draw)).seq == chain.view.seq


def test_a_missing_sub_manifest_is_reported(chain: Chain) -> None:
    chain.append(*range(20))
    for item in chain.section.items:
        if isinstance(item, SubManifest):
            del chain.bucket.objects[item.key]
    with pytest.raises(CorruptObject, match="names a missing object"):
        chain.edit(DeleteBefore(OWNER, chain.claim, 2))


# Searching


def test_the_newest_manifest_is_found_without_a_listing_and_with_few_requests(
    chain: Chain,
) -> None:
    for number in range(1, 130):
        chain.append(number - 1, number)
        chain.asked.clear()
        found = chain.run(find(CHAIN))
        assert found == chain.view
        assert len(chain.asked) < 22
        assert all(isinstance(each, Head | Read) for each in chain.asked)
    chain.asked.clear()
    assert chain.run(find(CHAIN, chain.view)) == chain.view
    assert len(chain.asked) == 4


def test_a_view_knows_its_chain(chain: Chain) -> None:
    assert isinstance(chain.view, View)
    assert (chain.view.chain, chain.view.seq) == (CHAIN, 1)
