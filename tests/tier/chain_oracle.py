"""What is true of a chain, whatever its writers believe. Checks every change of the bucket."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.tier import collector
from penstock.tier.chain import View
from penstock.tier.edits import Append, Edit
from penstock.tier.footer import decode_footer, decode_trailer
from penstock.tier.keys import Claim, TopicIdPartition, parse_data_key
from penstock.tier.manifest import Entry, Manifest, Section, SubManifest
from penstock.tier.manifest_format import (
    decode_boundary,
    decode_entries,
    decode_manifest,
)
from penstock.tier.requests import Create, Delete, Procedure, Request

from .simulated_bucket import SimulatedBucket


class Starts(dict[TopicIdPartition, int]):
    def __missing__(self, key: TopicIdPartition) -> int:
        return 0


class Oracle:
    def __init__(self, bucket: SimulatedBucket, chain: str) -> None:
        self.bucket = bucket
        self.chain = chain
        self.manifests: dict[int, Manifest] = {}
        """The first manifest that was created with each number. Later ones do not count."""
        self.named: dict[int, frozenset[str]] = {}
        """The objects that each of them names."""
        self.floor = 1
        self.boundaries = 0
        self.allowed_start = Starts()
        self.acknowledged = Starts()
        """Local data below this may be deleted."""
        self.history_ms: int | None = None
        """How long manifests must stay; None if clocks are wrong."""
        self.written_ms: dict[int, int] = {}
        self.truncations: list[tuple[int, TopicIdPartition, int]] = []
        """Those that counted: the sequence number, and where the partition ends from then on."""
        self.ordered_truncations: set[tuple[Claim, int]] = set()
        self.late_creates = 0
        self._checked: set[str] = set()
        self._claims: set[str] = set()

    @property
    def newest(self) -> Manifest | None:
        return self.manifests[len(self.manifests)] if self.manifests else None

    def apply(self, request: Request) -> Any:
        """Carries out a request, and checks what it has changed."""
        if isinstance(request, Delete):
            self._check_delete(request.key)
        result = self.bucket.apply(request)
        if isinstance(request, Create):
            data = b"".join(request.data)
            kind, _, rest = request.key.partition("/")
            number = int(rest.rpartition("/")[2]) if kind in {"man", "bnd"} else 0
            if kind == "man":
                self._on_manifest(decode_manifest(data, self.chain, number))
            elif kind == "bnd":
                self._on_boundary(number, decode_boundary(data, self.chain, number))
        return result

    def _check_delete(self, key: str) -> None:
        if key.startswith("man/"):
            assert int(key[-20:]) < self.floor, f"{key} is deleted, but counts"
        assert not key.startswith("bnd/")
        name = parse_data_key(key)
        if name is not None and self.newest is not None:
            section = self.newest.sections.get(name.owner)
            is_in_reach = section is not None and section.claim == name.claim
            assert not is_in_reach, f"{key} is deleted, but its leader may still commit it"
        if key in self.bucket.objects:
            for seq in range(self.floor, len(self.manifests) + 1):
                assert key not in self.named[seq], f"{key} is deleted, but manifest {seq} names it"

    def _on_boundary(self, number: int, floor: int) -> None:
        assert number == self.boundaries + 1
        assert self.floor < floor <= len(self.manifests)
        if self.history_ms is not None:
            age_ms = self.bucket.now_ms - self.written_ms[floor]
            assert age_ms >= self.history_ms, f"the history before manifest {floor} is cut short"
        self.boundaries, self.floor = number, floor
        self._check_history()

    def _check_history(self) -> None:
        """The newest manifest alone says what all manifests that count name."""
        newest = self.newest
        assert newest is not None
        known = self._carried_out(collector.needed_keys(View(newest), self.floor))
        for seq in range(self.floor, newest.seq + 1):
            missing = self.named[seq] - known
            assert not missing, f"manifest {newest.seq} has forgotten {missing} of manifest {seq}"

    def _carried_out(self, procedure: Procedure[set[str]]) -> set[str]:
        result: Any = None
        while True:
            try:
                result = self.bucket.apply(procedure.send(result))
            except StopIteration as end:
                found: set[str] = end.value
                return found

    def _on_manifest(self, manifest: Manifest) -> None:
        seq = manifest.seq
        if seq in self.manifests:
            assert seq < self.floor, f"number {seq} was used twice, and counts"
            self.late_creates += 1
            return
        assert seq == len(self.manifests) + 1
        before = self.manifests.get(seq - 1)
        assert manifest.parent == (before.id if before else "")
        for owner, section in manifest.sections.items():
            self._check_section(seq, before.sections.get(owner) if before else None, section)
        if before:
            assert before.sections.keys() <= manifest.sections.keys()
        self.manifests[seq] = manifest
        self.written_ms[seq] = self.bucket.now_ms
        self.named[seq] = frozenset().union(*map(self._named, manifest.sections.values()))
        for key in self.named[seq]:
            assert key in self.bucket.objects, f"manifest {seq} names {key}, which is missing"
        for key in self.named[seq] - self.named.get(seq - 1, frozenset()):
            name = parse_data_key(key)
            assert name is not None
            claim = manifest.sections[name.owner].claim
            assert name.claim == claim, f"a fenced leader has committed {key}"

    def _check_section(self, seq: int, before: Section | None, section: Section) -> None:
        owner = section.owner
        if before is not None and section.end_offset < before.end_offset:
            ordered = (section.claim, section.end_offset) in self.ordered_truncations
            assert ordered, "committed offsets were removed"
            self.truncations.append((seq, owner, section.end_offset))
            self.acknowledged[owner] = min(self.acknowledged[owner], section.end_offset)
        assert section.end_offset >= self.acknowledged[owner], "an acknowledged range is lost"
        assert section.start_offset <= self.allowed_start[owner], "deleted without an order"
        if before is None or before == section:
            return
        assert before.claim.epoch <= section.claim.epoch, "a leader epoch went back"

    def _named(self, section: Section) -> set[str]:
        keys = set()
        for item in section.items:
            keys.add(item.key)
            for entry in self._entries(item):
                keys.add(entry.key)
                self._check_object(entry)
        return keys

    def _entries(self, item: Entry | SubManifest) -> tuple[Entry, ...]:
        if isinstance(item, Entry):
            return (item,)
        assert item.key in self.bucket.objects, f"the sub-manifest {item.key} is missing"
        entries = decode_entries(self.bucket.objects[item.key], item)
        assert (entries[0].base_offset, entries[-1].end_offset) == item[1:3]
        return entries

    def _check_object(self, entry: Entry) -> None:
        if entry.key in self._checked:
            return
        assert entry.key in self.bucket.objects, f"{entry.key} is named, but missing"
        data = self.bucket.objects[entry.key]
        footer = decode_footer(data)
        assert decode_trailer(data).footer_crc == entry.footer_crc
        assert len(data) == entry.size
        assert (footer.base_offset, footer.end_offset) == (entry.base_offset, entry.end_offset)
        self._checked.add(entry.key)

    # What writers say

    def on_acknowledged(self, manifest: Manifest, edit: Edit) -> None:
        """A leader was told that its edit is committed."""
        self._check_counts(manifest, edit.owner, edit.claim)
        section = manifest.sections[edit.owner]
        if isinstance(edit, Append):
            assert edit.entries[-1].end_offset <= section.end_offset
            end = edit.entries[-1].end_offset
            for seq, owner, truncated in self.truncations:
                if seq > manifest.seq and owner == edit.owner:
                    end = min(end, truncated)
            self.acknowledged[edit.owner] = max(self.acknowledged[edit.owner], end)
            newest = self.newest
            assert newest is not None
            assert newest.sections[edit.owner].end_offset >= end, "it is lost already"

    def on_claimed(
        self, manifest: Manifest, owner: TopicIdPartition, claim: Claim, tried: Sequence[Claim]
    ) -> None:
        """`tried` are all claims of the same process."""
        self._check_counts(manifest, owner, claim)
        assert claim.id not in self._claims, "two leaders have the same claim"
        self._claims.add(claim.id)
        if len(tried) > 1:
            before = self.manifests[manifest.seq - 1].sections[owner].claim
            assert before in tried, "a fenced process has come back by renewing its claim"

    def check_view(self, view: View, least: int) -> None:
        """Somebody has searched for the newest manifest, and found this one. `least` was the newest
        when the search began."""
        assert view.seq >= least, "it was not the newest when the search began"
        first = self.manifests.get(view.seq)
        assert first is not None or view.seq == 0
        assert first is None or first.id == view.manifest.id, "it does not count"

    def _check_counts(self, manifest: Manifest, owner: TopicIdPartition, claim: Claim) -> None:
        first = self.manifests.get(manifest.seq)
        assert first is not None, "a writer was told of a manifest that was never created"
        assert first.id == manifest.id, "a fenced leader was told that it has committed"
        assert manifest.sections[owner].claim == claim, "a fenced leader has committed"

    def check_nothing_leaks(self) -> None:
        """After the last collection the bucket has what the newest manifest names."""
        newest = self.newest
        assert newest is not None
        data = {key for key in self.bucket.objects if parse_data_key(key) is not None}
        assert data == self.named[newest.seq], data ^ self.named[newest.seq]
        manifests = [key for key in self.bucket.objects if key.startswith("man/")]
        assert manifests == [f"man/{self.chain}/{newest.seq:020d}"]
