"""A manifest that is built again from the footers, because the newest one is damaged."""

from __future__ import annotations

from itertools import pairwise

import pytest

from penstock.partition.epochs import EpochStart
from penstock.tier.chain import find
from penstock.tier.collector import needed_keys
from penstock.tier.commit import commit_one
from penstock.tier.edits import Append, DeleteBefore, Replace
from penstock.tier.errors import CorruptObject, EditRefused, Fenced, Overtaken
from penstock.tier.footer import TAIL_BYTES
from penstock.tier.keys import SEGMENTS, Claim, DataKey, manifest_key
from penstock.tier.manifest import Entry
from penstock.tier.rebuild import FoundObject, Leader, Rebuilt, choose, rebuild
from penstock.tier.requests import Create, Request
from penstock.tier.segment_object import EncodedObject, Lineage, encode
from penstock.tier.upload import upload

from .object_samples import OWNER, batch, sample_object
from .test_commit import CHAIN, Chain

CLAIM = Claim(9, "9" * 16)
LEADER = Leader(CLAIM)


class Damaged(Chain):
    def damage(self) -> None:
        key = manifest_key(CHAIN, self.view.seq)
        self.bucket.put(key, self.bucket.objects[key][:-5] + b"xxxx\n")
        with pytest.raises(CorruptObject):
            self.run(find(CHAIN))

    def rebuilt(self, leader: Leader = LEADER) -> Rebuilt:
        done = self.run(rebuild(CHAIN, {OWNER: leader}, 0, self.draw))
        self.view = done.view
        assert self.run(find(CHAIN)) == done.view
        return done


@pytest.fixture
def chain() -> Damaged:
    return Damaged()


def test_the_manifest_after_the_damaged_one_names_everything(chain: Damaged) -> None:
    """Also what was in sub-manifests. The collector forgets nothing of the manifests before."""
    chain.append(*range(20))
    chain.edit(DeleteBefore(OWNER, chain.claim, 2))
    before = chain.run(needed_keys(chain.view, 1))
    seq, ranges = chain.view.seq, chain.ranges()
    chain.damage()
    assert chain.rebuilt(Leader(CLAIM, 2, 19)).damaged == []
    assert (chain.view.seq, chain.section.claim) == (seq + 1, CLAIM)
    assert (chain.ranges(), chain.section.start_offset) == (ranges, 2)
    assert chain.run(needed_keys(chain.view, 1)) == before
    assert all(each.seq == seq + 1 for each in chain.section.dropped)


def test_a_leader_that_has_read_the_manifest_before_it_was_damaged_is_fenced(
    chain: Damaged,
) -> None:
    chain.append(0, 5)
    view, entry = chain.view, chain.uploaded(5, 9)
    chain.damage()
    chain.rebuilt()
    with pytest.raises(Fenced):
        chain.run(commit_one(view, Append(OWNER, chain.claim, (entry,)), 0, chain.draw))


def test_a_leader_that_is_faster_makes_it_unnecessary(chain: Damaged) -> None:
    chain.append(0, 5)
    entry = chain.uploaded(5, 9)
    edit = Append(OWNER, chain.claim, (entry,))
    chain.damage()

    def faster(request: Request) -> object:
        if isinstance(request, Create):
            chain.view = chain.run(commit_one(chain.view, edit, 0, chain.draw))
        return chain.answer(request)

    with pytest.raises(Overtaken):
        chain.run(rebuild(CHAIN, {OWNER: LEADER}, 0, chain.draw), faster)
    assert chain.run(find(CHAIN)) == chain.view


def test_nothing_is_built_again_without_need(chain: Damaged) -> None:
    """A wrong name would make a second chain with the same partition."""
    with pytest.raises(EditRefused, match="can be read"):
        chain.run(rebuild(CHAIN, {OWNER: LEADER}, 0, chain.draw))
    with pytest.raises(EditRefused, match="has no manifest"):
        chain.run(rebuild("shared/7", {OWNER: LEADER}, 0, chain.draw))


def test_a_leader_epoch_that_has_ended_cannot_claim_it(chain: Damaged) -> None:
    chain.claim = chain.claimed(4)
    chain.run(upload(sample_object(0, 5, epoch=4), chain.claim, chain.draw))
    chain.damage()
    with pytest.raises(EditRefused, match="leader epoch 3 cannot claim it: leader epoch 4"):
        chain.rebuilt(Leader(Claim(3, "3" * 16)))


def test_damaged_objects_are_reported_and_stay_as_long_as_the_history(chain: Damaged) -> None:
    chain.append(0, 5, 9)
    broken = chain.section.items[1].key
    chain.bucket.put(broken, chain.bucket.objects[broken][:-1] + b"!")
    moved = str(DataKey(SEGMENTS, OWNER, 50, chain.claim, "e" * 16))
    chain.bucket.put(moved, b"".join(sample_object(0, 5).parts))
    cut = str(DataKey(SEGMENTS, OWNER, 60, chain.claim, "e" * 16))
    chain.bucket.put(cut, b"".join(sample_object(60, 65).parts)[1:])
    chain.bucket.put(str(DataKey(SEGMENTS, OWNER, 70, chain.claim, "e" * 16)), b"")
    chain.damage()
    done = chain.rebuilt()
    assert len(done.damaged) == 4
    assert {broken, moved, cut} < set(done.damaged)
    assert chain.ranges() == [(0, 5)]
    assert set(done.damaged) <= chain.run(needed_keys(chain.view, 1))


def test_a_compacted_object_replaces_those_that_it_was_made_of(chain: Damaged) -> None:
    """They may have what a tombstone has deleted since."""
    chain.append(0, 5, 9, 12)
    chain.bucket.now_ms += 1
    compacted = chain.uploaded(0, 9)
    chain.edit(Replace(OWNER, chain.claim, (compacted,)))
    chain.damage()
    chain.rebuilt()
    assert chain.section.items[0] == compacted
    assert chain.ranges() == [(0, 9), (9, 12)]


def test_a_footer_that_is_longer_than_the_tail_is_read(chain: Damaged) -> None:
    lineage = Lineage([EpochStart(1, 0)], producers=bytes(2 * TAIL_BYTES))
    large = encode(OWNER, 1, (0, 2), [batch(0), batch(1)], lineage)
    chain.run(upload(large, chain.claim, chain.draw))
    chain.damage()
    assert chain.rebuilt().damaged == []
    assert chain.ranges() == [(0, 2)]


# Which objects count


def found(
    start: int, end: int, epoch: int, *epochs: tuple[int, int], at_ms: int = 0
) -> FoundObject:
    lineage = Lineage([EpochStart(*each) for each in epochs])
    encoded: EncodedObject = encode(OWNER, epoch, (start, end), [batch(start)], lineage)
    key = str(DataKey(SEGMENTS, OWNER, start, Claim(epoch, "c" * 16), f"{end:016x}"))
    return FoundObject(key, at_ms, encoded.footer, Entry.of(key, encoded))


def ranges(objects: list[FoundObject], start: int | None = None, least: int = 0) -> list[object]:
    chosen = choose(objects, Leader(CLAIM, start, least))
    assert all(before.end_offset == after.base_offset for before, after in pairwise(chosen))
    return [(each.base_offset, each.end_offset) for each in chosen]


def test_what_an_election_has_lost_is_left_out() -> None:
    """The leader of epoch 5 began at offset 90. Objects of epoch 4 count up to there."""
    objects = [found(0, 60, 4, (4, 0)), found(60, 100, 4, (4, 0)), found(100, 200, 4, (4, 0))]
    assert ranges(objects) == [(0, 60), (60, 100), (100, 200)]
    objects.append(found(90, 95, 5, (4, 0), (5, 90)))
    assert ranges(objects) == [(0, 60), (60, 90), (90, 95)]


def test_an_upload_in_vain_after_a_gap_is_left_out() -> None:
    objects = [found(0, 50, 1), found(60, 70, 1)]
    assert ranges(objects) == [(0, 50)]
    assert ranges(objects, 10) == [(0, 50)]
    assert ranges(objects, 60) == [(60, 70)]
    with pytest.raises(CorruptObject, match="from offset 10 to 50, but the local log begins at 70"):
        ranges(objects, 10, 70)


def test_deleted_records_stay_deleted_if_the_start_is_known() -> None:
    objects = [found(0, 10, 1), found(10, 20, 1), found(20, 30, 1)]
    assert ranges(objects) == [(0, 10), (10, 20), (20, 30)]
    assert ranges(objects, 12) == [(10, 20), (20, 30)]
    assert ranges(objects, 30) == []
    assert ranges([], 30) == []
    with pytest.raises(CorruptObject):
        ranges([], 30, 31)


def test_overlapping_uploads_are_joined_without_a_gap() -> None:
    """Each was uploaded, and which of them were committed is not known."""
    objects = [found(0, 10, 1), found(0, 7, 1), found(7, 15, 1), found(10, 12, 1), found(15, 16, 1)]
    assert ranges(objects) == [(0, 7), (7, 15), (15, 16)]
    later = [found(0, 10, 1, at_ms=5), *objects[1:]]
    assert ranges(later) == [(0, 7), (7, 15), (15, 16)]
